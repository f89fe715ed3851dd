"use strict";
// A rater's pages: every click is saved at once, in order; what cannot be saved is said and tried again.
const words = JSON.parse(document.getElementById("words").textContent);
const csrf = document.querySelector("meta[name=csrf]").content;
const task = document.querySelector("[data-task]")?.dataset.task;
const status = document.getElementById("status");
const banner = document.getElementById("banner");
const RETRY_MS = 2000;
let saving = Promise.resolve();
let unsaved = 0;

function tell(text) { banner.textContent = text; banner.hidden = !text; }

async function send(method, path, body) {
  const headers = { "Content-Type": "application/json", "X-CSRF": csrf };
  const response = await fetch(path, { method, headers, body: JSON.stringify(body) });
  const answer = await response.json().catch(() => ({ message: words.failed }));
  return { ok: response.ok, status: response.status, answer };
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// One save after the other: the version of the first is needed by the second.
function queued(element, make, settle) {
  unsaved += 1;
  status.textContent = words.saving;
  saving = saving.then(async () => {
    for (;;) {
      let result = null;
      try { result = await send("PUT", `/api/task/${task}/answer`, { ...make(), version: Number(element.dataset.version) }); }
      catch { tell(words.not_saved.replace("{why}", words.offline)); }
      if (result?.ok) { element.dataset.version = result.answer.version; tell(""); break; }
      if (result?.status === 409 && result.answer.version !== undefined) {
        element.dataset.version = result.answer.version;
        settle(result.answer);
        tell(words.conflict);
        break;
      }
      if (result) tell(words.not_saved.replace("{why}", result.answer.message));
      if (result && result.status < 500 && result.status !== 429) break;
      await pause(RETRY_MS);
    }
    unsaved -= 1;
    if (!unsaved) status.textContent = banner.hidden ? words.saved : "";
  });
  return saving;
}

const questions = [...document.querySelectorAll("fieldset.question")];

function focusOn(question, scroll = true) {
  questions.forEach((one) => one.classList.toggle("current", one === question));
  document.querySelectorAll(".turn.current").forEach((turn) => turn.classList.remove("current"));
  const turn = question.dataset.turn && document.querySelector(`[data-rated="${question.dataset.turn}"]`);
  if (turn) { turn.classList.add("current"); turn.scrollIntoView({ block: "nearest" }); }
  if (scroll) question.scrollIntoView({ block: "nearest" });
}

function show(question, answer) {
  const value = answer.cannot ? "cannot" : answer.choice ?? (answer.value === null ? null : String(answer.value));
  question.querySelectorAll("input[type=radio]").forEach((input) => { input.checked = input.value === value; });
  question.querySelectorAll("input[type=number]").forEach((input) => { input.value = value === "cannot" ? "" : value ?? ""; });
}

function save(question, value) {
  const answer = { question: question.dataset.question, turn: question.dataset.turn === "" ? null : Number(question.dataset.turn) };
  if (value === "cannot") answer.cannot = true;
  else if (question.classList.contains("choice")) answer.choice = value;
  else answer.value = Number(value);
  question.classList.remove("missing");
  queued(question, () => answer, (current) => show(question, current));
}

// A number and "cannot" exclude each other; a number off the scale is not saved, and the browser says why.
function changed(question, input) {
  const numbers = [...question.querySelectorAll("input[type=number]")];
  if (input.type !== "number") numbers.forEach((one) => { one.value = ""; });
  else if (input.value === "" || !input.reportValidity()) return;
  else question.querySelectorAll("input[type=radio]").forEach((one) => { one.checked = false; });
  save(question, input.value);
}

questions.forEach((question) => {
  question.addEventListener("change", (event) => { if (event.target.matches("textarea")) return; focusOn(question, false); changed(question, event.target); });
  question.addEventListener("focusin", () => focusOn(question, false));
});
document.querySelectorAll("[data-rated]").forEach((turn) => {
  const open = () => { const first = questions.find((one) => one.dataset.turn === turn.dataset.rated); if (first) focusOn(first); };
  turn.addEventListener("click", open);
  turn.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
});

function pick(question, input) {
  if (!input || question.disabled) return;
  input.checked = true;
  input.focus();
  save(question, input.value);
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("textarea, input[type=text], input[type=number]") || event.ctrlKey || event.metaKey || event.altKey || !questions.length) return;
  const place = Math.max(0, questions.findIndex((one) => one.classList.contains("current")));
  const question = questions[place];
  const inputs = [...question.querySelectorAll("input[type=radio]:not([value=cannot])")];
  if (/^[0-9]$/.test(event.key)) {
    pick(question, question.classList.contains("choice") ? inputs[Number(event.key) - 1] : inputs.find((one) => one.value === event.key));
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const now = inputs.findIndex((one) => one.checked);
    pick(question, inputs[Math.min(inputs.length - 1, Math.max(0, now + (event.key === "ArrowRight" ? 1 : -1)))]);
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const next = questions[Math.min(questions.length - 1, Math.max(0, place + (event.key === "ArrowDown" ? 1 : -1)))];
    focusOn(next);
    (next.querySelector("input:checked") ?? next.querySelector("legend")).focus({ preventScroll: true });
  } else return;
  event.preventDefault();
});
if (questions.length) focusOn(questions.find((one) => !one.querySelector("input:checked")) ?? questions[0], false);

// What is answered in words, the comment among it, is saved when typing pauses.
const typed = new Map();
function saveText(field) {
  clearTimeout(typed.get(field));
  typed.delete(field);
  const answer = { question: field.dataset.question, turn: null, text: field.value };
  queued(field, () => answer, (current) => { field.value = current.text ?? ""; });
}
document.querySelectorAll("textarea[data-question]").forEach((field) => {
  field.addEventListener("input", () => { clearTimeout(typed.get(field)); typed.set(field, setTimeout(() => saveText(field), 800)); });
  field.addEventListener("change", () => saveText(field));
});

document.getElementById("submit")?.addEventListener("click", async () => {
  [...typed.keys()].forEach(saveText);
  await saving;
  if (!banner.hidden) return;
  const { ok, answer } = await send("POST", `/api/task/${task}/submit`, {}).catch(() => ({ ok: false, answer: { message: words.offline } }));
  if (ok) { location.href = answer.next; return; }
  tell(answer.message);
  const missing = new Set((answer.missing ?? []).map(([name, turn]) => `${name}/${turn ?? ""}`));
  questions.forEach((one) => one.classList.toggle("missing", missing.has(`${one.dataset.question}/${one.dataset.turn}`)));
  questions.find((one) => one.classList.contains("missing"))?.scrollIntoView({ block: "center" });
});

document.getElementById("agree")?.addEventListener("click", async () => {
  const { ok, answer } = await send("POST", "/api/me", { consented: true });
  if (ok) location.href = "/"; else tell(answer.message);
});
document.getElementById("language")?.addEventListener("click", async (event) => {
  const { ok, answer } = await send("POST", "/api/me", { interface: event.target.lang });
  if (ok) location.reload(); else tell(answer.message);
});
document.getElementById("sign-out")?.addEventListener("click", async () => {
  [...typed.keys()].forEach(saveText);
  await saving;
  if ((await send("POST", "/api/leave", {})).ok) location.href = "/";
});
window.addEventListener("beforeunload", (event) => { if (unsaved || typed.size) event.preventDefault(); });
