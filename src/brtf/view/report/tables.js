// Tables that are sorted by a click on a column, and downloaded as they are shown.
(() => {
  const shown = (cell) => cell.dataset.value ?? cell.firstChild?.textContent ?? "";
  // Text that a spreadsheet would run as a formula is preceded by an apostrophe.
  const inert = (cell) => {
    const text = shown(cell);
    if (cell.dataset.value !== undefined) return text;
    return /^'*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  };
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const order = new Intl.Collator(undefined, { numeric: true });
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending";
        const numbers = [...body.rows].every((row) => row.cells[column].dataset.value !== undefined);
        const key = (row) => (numbers ? Number(shown(row.cells[column]) || -Infinity) : shown(row.cells[column]));
        const rows = [...body.rows].map((row) => [key(row), row]);
        rows.sort(([a], [b]) => (numbers ? b - a || 0 : order.compare(b, a)));
        if (up) rows.reverse();
        body.append(...rows.map(([, row]) => row));
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
      });
    });
    const save = document.createElement("button");
    save.type = "button";
    save.className = "save";
    save.textContent = "Download as CSV";
    save.addEventListener("click", () => {
      const lines = [heads, ...[...body.rows].map((row) => [...row.cells])];
      const text = lines.map((cells) => cells.map((cell) => quoted(inert(cell))).join(",") + "\r\n").join("");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
      link.download = `${table.dataset.file}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
    table.parentElement.after(save);
  }
})();
