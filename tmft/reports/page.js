// The report for browsers: tables that sort by a click, commands to copy.
// Without this script the page shows the same tables and figures.
"use strict";

// ---------------------------------------------------------------- sort a table by the column of a heading
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((heading) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading));
  });
}

function sortBy(table, heading) {
  const ascending = heading.getAttribute("aria-sort") === "descending";
  const first = !heading.hasAttribute("aria-sort");
  const body = table.tBodies[0];
  const column = heading.cellIndex;
  const isNumeric = heading.classList.contains("number");
  const upwards = first ? !isNumeric : ascending; // numbers start with the largest, words with A
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const [x, y] = [a, b].map((row) => row.cells[column]);
    const [p, q] = [x, y].map((cell) => (isNumeric ? parseFloat(cell.textContent) : NaN));
    if (Number.isNaN(p) !== Number.isNaN(q)) return Number.isNaN(p) ? 1 : -1; // what has no number stands last
    const order = Number.isNaN(p) ? x.textContent.localeCompare(y.textContent, undefined, { numeric: true }) : p - q;
    return upwards ? order : -order;
  });
  body.append(...rows);
}

// --------------------------------------------------------------------------------- copy a command
for (const code of document.querySelectorAll("code.copyable")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy the command of ${code.dataset.name}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const selection = window.getSelection(); // browsers that lend no clipboard to a file
      selection.selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    window.setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  code.before(button);
}

// ------------------------------------------------------------------------- print what is folded, too
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not([open])").forEach((details) => {
    details.open = true;
    details.dataset.opened = "";
  });
});
window.addEventListener("afterprint", () => {
  document.querySelectorAll("details[data-opened]").forEach((details) => {
    details.open = false;
    delete details.dataset.opened;
  });
});
