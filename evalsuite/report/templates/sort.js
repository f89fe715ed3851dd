// A click on a column's head sorts the table by it: figures downwards first, names upwards; a second click turns it round.
(() => {
  "use strict";
  const text = (row, column) => (row.cells[column].querySelector(".mean") ?? row.cells[column]).textContent.trim();
  const figure = (words) => (words !== "" && Number.isFinite(Number(words.replaceAll(",", ""))) ? Number(words.replaceAll(",", "")) : null);

  const sort = (table, head, column) => {
    const rows = [...table.tBodies[0].rows];
    const numeric = head.classList.contains("number");
    const start = numeric && head.textContent !== "rank" ? "descending" : "ascending";
    const other = start === "ascending" ? "descending" : "ascending";
    const way = head.getAttribute("aria-sort") === start ? other : start;
    const turn = way === "ascending" ? 1 : -1;
    const value = (row) => (numeric ? figure(text(row, column)) : text(row, column));
    rows.sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null); // what has no figure comes last either way
      return turn * (numeric ? left - right : left.localeCompare(right));
    });
    table.querySelectorAll("[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way);
    table.tBodies[0].append(...rows);
  };

  for (const table of document.querySelectorAll("figure.table table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(table, head, column));
      head.replaceChildren(button);
    });
  }
})();
