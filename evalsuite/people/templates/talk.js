"use strict";
// A talk: what a person says is shown at once, the reply when it comes. The page is loaded again where a rating is due.
const turns = document.getElementById("turns");
const form = document.getElementById("say");
const line = document.getElementById("line");

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
  line.disabled = waits;
  document.getElementById("send").disabled = waits;
  document.getElementById("again").disabled = waits;
  status.textContent = waits ? words.waiting : "";
}

async function ask(path, body) {
  busy(true);
  tell("");
  let result = null;
  try { result = await send("POST", `/api/talk/${task}/${path}`, body); }
  catch { result = { ok: false, status: 0, answer: { message: words.not_saved.replace("{why}", words.offline) } }; }
  busy(false);
  if (result.answer.help) document.getElementById("help").hidden = false;
  if (result.ok && result.answer.reload) { location.reload(); return; }
  if (result.ok) {
    bubble("supporter", result.answer.reply);
    document.getElementById("again").hidden = true;
    document.getElementById("send").hidden = false;
    line.focus();
    return;
  }
  tell(result.answer.message);
  if (result.status === 502) {
    line.disabled = true;
    document.getElementById("again").hidden = false;
    document.getElementById("send").hidden = true;
  }
  return result;
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = line.value.trim();
  if (!text) return;
  const turn = Number(turns.dataset.turns);
  const asked = ask("say", { text, turn });
  bubble("seeker", text);
  line.value = "";
  const refused = await asked;
  // Nothing was kept of it: it is given back to be sent again.
  if (refused && refused.status !== 502) { turns.lastElementChild.remove(); turns.dataset.turns = turn; line.value = text; }
});
line?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
});
document.getElementById("again")?.addEventListener("click", () => ask("again", {}));
document.getElementById("leave")?.addEventListener("click", async () => {
  const { ok, answer } = await send("POST", `/api/talk/${task}/leave`, {});
  if (ok) location.reload(); else tell(answer.message);
});
document.getElementById("on")?.addEventListener("click", async () => { await saving; if (banner.hidden) location.reload(); });
turns?.lastElementChild?.scrollIntoView({ block: "nearest" });
