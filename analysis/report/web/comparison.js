// The page of a comparison. All times are µs.

const data = JSON.parse(document.getElementById("data").textContent);
const signed = (micros) => `${micros < 0 ? "−" : "+"}${seconds(Math.abs(micros))}`;
const difference = (row) => row.medians[1] - row.medians[0];
const SIDES = [
  ["A", "a", 0],
  ["B", "b", 1],
];

/** A side's bar: the median's length of the `longest`, with a tick for each of its starts. */
function sideBar(name, values, median, series, longest) {
  const bar = el("span", { class: "side", tabindex: 0, role: "img", "aria-label": `${name} ${seconds(median)}` });
  const fill = el("i");
  fill.style.width = `${(100 * median) / longest}%`;
  fill.style.background = `var(--series-${series})`;
  bar.append(fill);
  for (const value of values.length > 1 ? values : []) {
    const tick = el("b");
    tick.style.left = `${(100 * value) / longest}%`;
    bar.append(tick);
  }
  explain(bar, [
    `${name}: ${seconds(median)}${values.length > 1 ? " (median)" : ""}`,
    ...(values.length > 1 ? [values.map(seconds).join(", ")] : []),
  ]);
  return bar;
}

/** The row of a sub-step and, where there is any, one of what is behind it. */
function substepRows(row, longest) {
  const bars = SIDES.map(([name, side, series], index) =>
    sideBar(name, row[side], row.medians[index], series, longest),
  );
  const told = el(
    "tr",
    { class: row.beyond ? "beyond" : null },
    el("th", { scope: "row" }, row.title),
    el("td", { class: "bars" }, ...bars),
    ...row.medians.map((median) => el("td", { class: "number" }, seconds(median))),
    el("td", { class: "number" }, signed(difference(row))),
    el("td", { class: "number" }, seconds(row.spread)),
  );
  if (!row.behind.length) return [told];
  const lines = row.behind.map((line) => el("li", {}, line));
  return [told, el("tr", { class: "behind" }, el("td", { colspan: 6 }, el("ul", {}, ...lines)))];
}

function table(rows) {
  const longest = Math.max(1, ...rows.flatMap((row) => [...row.a, ...row.b]));
  const titles = ["step", "", "A", "B", "B − A", "spread"];
  const head = titles.map((title, index) =>
    el("th", { scope: "col", class: index > 1 ? "number" : null }, title),
  );
  return el(
    "table",
    { class: "comparison" },
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...rows.flatMap((row) => substepRows(row, longest))),
  );
}

const section = (title, help, ...content) =>
  el("section", {}, el("h2", {}, title), el("p", { class: "help" }, help), ...content);
const taken = data.substeps.filter((row) => row.medians.some(Boolean));
const beyond = taken.filter((row) => row.beyond);
const within = taken.filter((row) => !row.beyond);

document.body.append(
  el(
    "header",
    {},
    el("h1", {}, data.headline),
    ...data.sides.map((line) => el("code", {}, line)),
    el("p", { class: "facts" }, ...data.verdicts.map((line) => el("span", {}, line))),
  ),
  el("nav", {}, themeButton()),
  el(
    "main",
    {},
    section("The whole start", "From exec to ready.", table([data.wall])),
    section(
      "Beyond the spread",
      "Sub-steps that differ by more than equal starts do, the largest difference first, and what moved in them.",
      beyond.length ? table(beyond) : el("p", { class: "note" }, "None."),
    ),
    section(
      "Within the spread",
      "Bars are medians, with a tick for each start.",
      within.length ? table(within) : el("p", { class: "note" }, "None."),
    ),
  ),
  tooltip,
);
