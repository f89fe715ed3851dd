"use strict";
// A talk: what a person says is kept and shown at once, then the supporter is heard while it writes. The page is loaded again
// where a rating is due.
const turns = document.getElementById("turns");
const form = document.getElementById("say");
const line = document.getElementById("line");
const sendButton = document.getElementById("send");
const againButton = document.getElementById("again");

// A turn on the page; what is being written counts once it is whole.
function bubble(role, text) {
  const turn = document.createElement("p");
  turn.className = `turn ${role}`;
  const who = document.createElement("b");
  who.textContent = `${Number(turns.dataset.turns) + 1} ${words[role]}`;
  turn.append(who, text);
  turns.append(turn);
  turn.scrollIntoView({ block: "nearest" });
  return turn;
}

function write(turn, text) {
  turn.lastChild.textContent = text;
  turn.scrollIntoView({ block: "nearest" });
}

function counted() { turns.dataset.turns = Number(turns.dataset.turns) + 1; }

function broken(turn) {
  turn.classList.add("broken");
  turn.firstChild.textContent += ` · ${words.broken}`;
}

function busy(waits) {
  [line, sendButton, againButton].forEach((one) => { one.disabled = waits; });
  status.textContent = waits ? words.waiting : "";
}

async function post(path, body) {
  try { return await send("POST", `/api/talk/${task}/${path}`, body); }
  catch { return { ok: false, status: 0, answer: { message: words.not_saved.replace("{why}", words.offline) } }; }
}

// The lines of JSON that a reply comes in: `hears` is told the text so far, the last line is returned.
async function listen(hears) {
  const lost = { message: words.not_saved.replace("{why}", words.offline) };
  try {
    const headers = { "Content-Type": "application/json", "X-CSRF": csrf };
    const response = await fetch(`/api/talk/${task}/reply`, { method: "POST", headers, body: "{}" });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let last = null;
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (done ? "\n" : value)).split("\n");
      rest = lines.pop();
      for (const one of lines.filter((text) => text)) { last = JSON.parse(one); if ("text" in last) hears(last.text); }
      if (done) return last && !("text" in last) ? last : lost;
    }
  } catch { return lost; }
}

async function reply() {
  busy(true);
  tell("");
  turns.querySelector(".broken")?.remove();
  let turn = null;
  const answer = await listen((text) => { turn ??= bubble("supporter", ""); write(turn, text); });
  busy(false);
  if (answer.reload) { location.reload(); return; }
  const ok = "reply" in answer;
  if (ok) { turn ??= bubble("supporter", ""); write(turn, answer.reply); counted(); }
  else { tell(answer.message); if (turn) broken(turn); }
  line.disabled = !ok;
  againButton.hidden = ok;
  sendButton.hidden = !ok;
  if (ok) line.focus();
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = line.value.trim();
  if (!text) return;
  busy(true);
  const { ok, answer } = await post("say", { text, turn: Number(turns.dataset.turns) });
  busy(false);
  if (!ok) { tell(answer.message); return; }
  if (answer.help) document.getElementById("help").hidden = false;
  bubble("seeker", text);
  counted();
  line.value = "";
  await reply();
});
line?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
});
againButton?.addEventListener("click", reply);
document.getElementById("leave")?.addEventListener("click", async () => {
  const { ok, answer } = await post("leave", {});
  if (ok) location.reload(); else tell(answer.message);
});
document.getElementById("on")?.addEventListener("click", async () => { [...typed.keys()].forEach(saveText); await saving; if (banner.hidden) location.reload(); });
if (form?.dataset.waits) reply();
turns?.lastElementChild?.scrollIntoView({ block: "nearest" });
