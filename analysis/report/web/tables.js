// Tables that sort by a click on a heading, and trees that open row by row.

const FIRST_ROWS = 25;

/**
 * columns: {title, value(row) to sort by, text(row) or cell(row), number: right-aligned}.
 * Shows the first rows, and all on demand; `keep(row, words)` filters.
 */
function sortedTable(columns, rows, { sort = 0, keep = null, label }) {
  let order = { column: sort, direction: columns[sort].number ? -1 : 1 };
  let all = false;
  let words = "";
  const body = el("tbody");
  const more = el("button", {
    type: "button",
    onclick: () => {
      all = true;
      fill();
    },
  });
  const headings = columns.map((column, index) => {
    const press = () => {
      const same = order.column === index;
      order = { column: index, direction: same ? -order.direction : column.number ? -1 : 1 };
      fill();
    };
    const button = el("button", { type: "button", onclick: press }, column.title);
    return el("th", { scope: "col", class: column.number ? "number" : null }, button);
  });
  const fill = () => {
    const { value } = columns[order.column];
    const kept = keep && words ? rows.filter((row) => keep(row, words)) : [...rows];
    kept.sort((one, other) => order.direction * compare(value(one), value(other)));
    const shown = all ? kept : kept.slice(0, FIRST_ROWS);
    body.replaceChildren(...shown.map((row) => tableRow(columns, row)));
    headings.forEach((heading, index) => {
      const sorted = order.direction > 0 ? "ascending" : "descending";
      if (index === order.column) heading.setAttribute("aria-sort", sorted);
      else heading.removeAttribute("aria-sort");
    });
    more.hidden = shown.length === kept.length;
    more.textContent = `Show all ${kept.length}`;
  };
  fill();
  const table = el(
    "table",
    { "aria-label": label },
    el("thead", {}, el("tr", {}, ...headings)),
    body,
  );
  const filter = keep
    ? searchField(`Search in: ${label}`, (text) => {
        words = text.toLowerCase();
        fill();
      })
    : null;
  return el("div", {}, filter, el("div", { class: "scroll" }, table), more);
}

/** The head of a table that isn't sorted; `numbers` tells the columns of numbers. */
function headRow(titles, numbers) {
  const cells = titles.map((title, index) =>
    el("th", { scope: "col", class: numbers.includes(index) ? "number" : null }, title),
  );
  return el("thead", {}, el("tr", {}, ...cells));
}

function compare(one, other) {
  if (one === null || other === null) return (one === null ? -1 : 0) + (other === null ? 1 : 0);
  return one < other ? -1 : one > other ? 1 : 0;
}

function tableRow(columns, row) {
  return el(
    "tr",
    {},
    ...columns.map((column) => {
      const content = column.cell ? column.cell(row) : column.text(row);
      return el("td", { class: column.number ? "number" : (column.class ?? null) }, content);
    }),
  );
}

function searchField(label, changed) {
  const field = el("input", { type: "search", placeholder: "Search", "aria-label": label });
  field.addEventListener("input", () => changed(field.value.trim()));
  return field;
}

function choice(label, entries, changed) {
  const options = entries.map(([text], index) => el("option", { value: index }, text));
  const select = el("select", {}, ...options);
  select.addEventListener("change", () => changed(entries[select.selectedIndex][1]));
  return el("label", { class: "choice" }, `${label} `, select);
}

/** A bar as long as `share`, 0 to 1, of its cell. */
function bar(share, name = "series-0") {
  const filled = el("i");
  filled.style.width = `${100 * clamp(share, 0, 1)}%`;
  filled.style.background = `var(--${name})`;
  return el("span", { class: "bar" }, filled);
}

/** Nodes {name, total, own, children}, the largest first; `whole` is what shares are of. */
function treeTable(roots, whole, label) {
  const body = el("tbody");
  const bySize = (nodes) => [...nodes].sort((one, other) => other.total - one.total);
  const addRow = (node, depth, before) => {
    const row = el("tr");
    let inside = null; // the rows that are open beneath this one
    const open = () => {
      inside = bySize(node.children).map((child) => addRow(child, depth + 1, row.nextSibling));
      for (const child of [...inside].reverse()) row.after(child.row);
      button.setAttribute("aria-expanded", "true");
      for (const child of inside) if (child.node.total > 0.15 * whole) child.open();
    };
    const close = () => {
      for (const child of inside ?? []) (child.close(), child.row.remove());
      inside = null;
      button.setAttribute("aria-expanded", "false");
    };
    const button = node.children.length
      ? el("button", {
          type: "button",
          class: "twist",
          "aria-expanded": "false",
          "aria-label": node.name,
        })
      : el("span", { class: "twist" });
    button.addEventListener("click", () => (inside ? close() : open()));
    const name = el("td", { class: "tree" }, button, node.name);
    name.style.paddingLeft = `${8 + depth * 14}px`;
    row.append(
      name,
      el("td", { class: "number" }, duration(node.total)),
      el("td", { class: "number" }, duration(node.own)),
      el("td", { class: "number" }, percent(node.total, whole)),
      el("td", { class: "wide" }, bar(node.total / whole)),
    );
    return { row, node, open: () => node.children.length && open(), close };
  };
  const head = headRow(["module", "with what it imports", "own", "share", ""], [1, 2, 3]);
  const all = bySize(roots).map((root) => addRow(root, 0));
  body.append(...all.map((each) => each.row));
  for (const each of all) if (each.node.total > 0.15 * whole) each.open();
  return el("div", { class: "scroll" }, el("table", { "aria-label": label }, head, body));
}
