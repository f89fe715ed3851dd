"use strict";
// The organiser's page: links are made and ended here; a new one is shown once.
const csrf = document.querySelector("meta[name=csrf]").content;
const banner = document.getElementById("banner");

document.querySelectorAll("button[data-act]").forEach((button) => button.addEventListener("click", async () => {
  const response = await fetch(`/api/organiser/${button.dataset.act}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF": csrf },
    body: JSON.stringify(button.dataset.code ? { code: button.dataset.code } : {}),
  });
  const answer = await response.json();
  banner.hidden = response.ok;
  banner.textContent = response.ok ? "" : answer.message;
  if (response.ok) button.parentElement.querySelector("code").textContent = answer.link ?? "revoked";
}));
document.getElementById("sign-out").addEventListener("click", async () => {
  await fetch("/api/leave", { method: "POST", headers: { "Content-Type": "application/json", "X-CSRF": csrf }, body: "{}" });
  location.href = "/";
});
