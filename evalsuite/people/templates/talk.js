"use strict";
// A talk: what a person says is kept and shown at once, then the supporter is asked. The page is loaded again where a rating is due.
const turns = document.getElementById("turns");
const form = document.getElementById("say");
const line = document.getElementById("line");
const sendButton = document.getElementById("send");
const againButton = document.getElementById("again");

function bubble(role, text) {
  const turn = document.createElement("p");
  turn.className = `turn ${role}`;
  const who = document.createElement("b");
  turns.dataset.turns = Number(turns.dataset.turns) + 1;
  who.textContent = `${turns.dataset.turns} ${words[role]}`;
  turn.append(who, text);
  turns.append(turn);
  turn.scrollIntoView({ block: "nearest" });
}

function busy(waits) {
  [line, sendButton, againButton].forEach((one) => { one.disabled = waits; });
  status.textContent = waits ? words.waiting : "";
}

async function post(path, body) {
  try { return await send("POST", `/api/talk/${task}/${path}`, body); }
  catch { return { ok: false, status: 0, answer: { message: words.not_saved.replace("{why}", words.offline) } }; }
}

async function reply() {
  busy(true);
  tell("");
  const { ok, answer } = await post("reply", {});
  busy(false);
  if (ok && answer.reload) { location.reload(); return; }
  if (ok) bubble("supporter", answer.reply);
  else tell(answer.message);
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
document.getElementById("on")?.addEventListener("click", async () => { await saving; if (banner.hidden) location.reload(); });
turns?.lastElementChild?.scrollIntoView({ block: "nearest" });
