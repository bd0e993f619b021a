"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column], value = cell.dataset.value ?? cell.textContent;
        const number = Number(value);
        return value === "" || Number.isNaN(number) ? null : number;
      };
      const text = (row) => row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const x = key(a), y = key(b);
        if (x !== null && y !== null) return down ? y - x : x - y;
        if (x !== null || y !== null) return x === null ? 1 : -1;
        return down ? text(b).localeCompare(text(a)) : text(a).localeCompare(text(b));
      });
      table.tBodies[0].append(...rows);
    });
  });
}
