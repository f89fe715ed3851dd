// The differences from the supporter that was chosen.
for (const chosen of document.querySelectorAll("select.reference")) {
  const shown = [...document.querySelectorAll(`#${chosen.getAttribute("aria-controls")} > *`)];
  const show = () => shown.forEach((one, place) => (one.hidden = place !== chosen.selectedIndex));
  chosen.addEventListener("change", show);
  show();
}
