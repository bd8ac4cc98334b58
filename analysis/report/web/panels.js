// The panels below the timeline, a function each.

function panel(id, title, help, ...content) {
  const note = help ? el("p", { class: "help" }, help) : null;
  return el(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title),
    note,
    ...content,
  );
}

const missing = (text) => el("p", { class: "note" }, text);

// Steps ---------------------------------------------------------------------------------

function stepsPanel() {
  const longest = Math.max(...substeps.map(({ time }) => time), 1);
  const rows = [];
  data.steps.forEach((step, number) => {
    const time = step.substeps.reduce((sum, substep) => sum + substep.time, 0);
    const mark = number === data.steps.length - 1 ? "+" : `${number + 1}`;
    rows.push(stepRow("step", `${mark}  ${step.title}`, time, step));
    if (step.whyNot !== null) return;
    for (const substep of step.substeps) {
      rows.push(
        stepRow(
          "substep",
          substep.title,
          substep.time,
          substep,
          longest,
          `series-${number % SERIES}`,
        ),
      );
    }
  });
  rows.push(stepRow("step", "Unattributed", data.unattributed));
  if (data.missed) rows.push(stepRow("step", "Missed before the tracer came", data.missed));
  rows.push(stepRow("step total", "Wall clock", data.wall, { shares: data.whole }));
  const table = el(
    "table",
    { "aria-label": "Steps", class: "steps" },
    headRow(["step", "seconds", "share", "verdict", "what it went to"], [1, 2]),
    el("tbody", {}, ...rows),
  );
  const remarks = el("ul", { class: "remarks" }, ...data.remarks.map((text) => el("li", {}, text)));
  const known = [data.whole].filter(isKnown);
  const legend = known.length ? kindLegend(known) : null;
  const help =
    "Every millisecond of the critical path, once; hover over a bar for what is behind it.";
  return panel("steps", "Steps", help, el("div", { class: "scroll" }, table), legend, remarks);
}

/** One row; its bar is as long as `time` of `longest`. */
function stepRow(
  kind,
  title,
  time,
  { shares = null, whyNot = null } = {},
  longest = time,
  series = null,
) {
  const none = !time;
  const known = time && isKnown(shares);
  let wide = whyNot ? `didn't happen: ${whyNot}` : "";
  if (known) wide = kindBar(shares, time / longest);
  else if (time && series) wide = bar(time / longest, series);
  return el(
    "tr",
    { class: none ? `${kind} none` : kind },
    el("th", { scope: "row" }, title),
    el("td", { class: "number" }, none ? "–" : (time / 1e6).toFixed(3)),
    el("td", { class: "number" }, none ? "" : percent(time, data.wall)),
    el("td", { class: "kind" }, known ? verdict(shares) : ""),
    el("td", { class: "wide" }, wide),
  );
}

// The critical path ---------------------------------------------------------------------

const HANDOVERS = {
  woke: "woke the next one",
  forked: "made the next one",
  "went on": "went on",
  ended: "ended the start",
};

function chainPanel() {
  const help = "From the exec on, each link is a thread that all that came later waited for.";
  if (!data.chain.length)
    return panel("path", "Critical path", help, missing("It wasn't recorded who woke whom."));
  const longest = Math.max(...data.chain.map(({ from, to }) => to - from));
  const rows = data.chain.map((link) => {
    const process = data.processes[link.process];
    const show = () => {
      view.show(link.from, link.to);
      document.getElementById("timeline").scrollIntoView();
    };
    const when = el(
      "button",
      { type: "button", class: "link", title: "Show on the timeline", onclick: show },
      seconds(link.from),
    );
    const beside = link.beside.map(([number, busy, slack]) =>
      el(
        "div",
        {},
        `${whoIs(data.processes[number])} ran ${duration(busy)}, slack ${duration(slack)}`,
      ),
    );
    return el(
      "tr",
      {},
      el("td", { class: "number" }, when),
      el("td", { class: "number" }, duration(link.to - link.from)),
      el(
        "th",
        { scope: "row", class: "kind" },
        whoIs(process),
        link.thread ? `, ${link.thread}` : "",
      ),
      el("td", { class: "kind" }, substepTitle(link.substep)),
      el("td", { class: "wide" }, kindBar(link.shares, (link.to - link.from) / longest)),
      el("td", { class: "kind" }, HANDOVERS[link.handover] ?? link.handover),
      el("td", { class: "small" }, ...beside),
    );
  });
  const titles = ["from", "for", "thread", "sub-step", "what it went to", "then it", "beside it"];
  const table = el(
    "table",
    { "aria-label": "Critical path" },
    headRow(titles, [0, 1]),
    el("tbody", {}, ...rows),
  );
  const legend = kindLegend(data.chain.map(({ shares }) => shares));
  return panel("path", "Critical path", help, el("div", { class: "scroll" }, table), legend);
}

// Waits and the network -----------------------------------------------------------------

const column = (title, index, text) => ({
  title,
  number: true,
  value: (row) => row[index],
  text: (row) => text(row[index]),
});
const words = (title, text, className = null) => ({ title, value: text, text, class: className });
const contains = (columns) => (row, sought) =>
  columns.some(({ text }) => text && text(row).toLowerCase().includes(sought));

function waitsPanel() {
  const help = "All waits of main threads, and those of at least 1 ms of the others.";
  if (!data.waits.length) return panel("waits", "Waits", "", missing("Waits were not recorded."));
  const texts = [
    words("process", (row) => whoIs(data.processes[row[0]])),
    words("thread", (row) => row[1]),
    words("for", (row) => kindTitle(row[2]), "kind"),
    words("in", (row) => row[3]),
  ];
  const numbers = [
    column("times", 4, (count) => `${count}`),
    column("in all", 5, duration),
    column("longest", 6, duration),
    column("of it for a core", 7, (time) => (time ? duration(time) : "")),
  ];
  const table = sortedTable([...texts, ...numbers], data.waits, {
    sort: 5,
    keep: contains(texts),
    label: "Waits",
  });
  return panel("waits", "Waits", help, table);
}

function networkPanel() {
  if (!data.network.length) return null;
  const texts = [
    words("process", (row) => whoIs(data.processes[row[0]])),
    words("what", (row) => row[1]),
    words("of", (row) => row[2]),
  ];
  const numbers = [
    column("at", 3, seconds),
    column("took", 4, duration),
    column("error", 5, (error) => (error ? `${error}` : "")),
  ];
  const table = sortedTable([...texts, ...numbers], data.network, {
    sort: 4,
    keep: contains(texts),
    label: "Network",
  });
  return panel(
    "network",
    "Network",
    "Connects to internet addresses, and look-ups of names.",
    table,
  );
}

// The flame graph -----------------------------------------------------------------------

function flamePanel() {
  const { functions, files, parents, nodes, path, cpu, places } = data.flames;
  const named = (name) => {
    if (typeof name === "string") return { text: name, group: "", lines: [] };
    const [title, file, line] = functions[nodes[name]];
    const group = title.split(/[.:]/, 1)[0];
    return { text: title, group, lines: files[file] ? [`${files[file]}:${line}`] : [] };
  };
  const colours = new PackageColours(packagesBySize(path, (node) => named(node).group));
  const flame = new Flame(named, parents, colours);
  const shown = { rows: path, unit: duration, keep: () => true };
  const show = () => {
    const rows = shown.rows
      .filter(([substep]) => shown.keep(substep))
      .map(([, process, node, value, place]) => [
        groupOf(data.processes[process]),
        node,
        value,
        places[place],
      ]);
    flame.show(rows, shown.unit);
  };
  const steps = [["the whole start", () => true]];
  data.steps.forEach((step, number) => {
    if (step.whyNot !== null) return;
    steps.push([step.title, (substep) => substep >= 0 && substeps[substep].step === number]);
    substeps.forEach((substep, index) => {
      if (substep.step === number && substep.time)
        steps.push([`\u2003${substep.title}`, (each) => each === index]);
    });
  });
  if (data.unattributed) steps.push(["Unattributed", (substep) => substep === -1]);
  const kinds = [["Time on the critical path", [path, duration]]];
  const samples = (count) => `${count} samples`;
  if (cpu.length) kinds.push(["All threads on the CPU", [cpu, samples]]);
  const tools = el(
    "div",
    { class: "tools" },
    choice("Of", steps, (keep) => {
      shown.keep = keep;
      show();
    }),
    choice("Show", kinds, ([rows, unit]) => {
      [shown.rows, shown.unit] = [rows, unit];
      show();
    }),
    searchField("Search the flame graph", (text) => flame.search(text)),
    el("button", { type: "button", onclick: () => flame.zoom(flame.root) }, "Zoom out"),
    flame.status,
  );
  show();
  const help =
    "Python functions by the process that ran them, and the library or kernel function that" +
    " they were in; colours tell packages apart. Click to zoom in.";
  return panel("flame", "Flame graph", help, tools, flame.element, legendOf(colours.legend));
}

/** A part of the server by itself, tools by their program. */
const groupOf = (process) => (process.part ? whoIs(process) : process.program || process.title);

/** The packages that most of the time was spent in themselves, the first ones first. */
function packagesBySize(rows, packageOf) {
  const sizes = new Map();
  for (const [, , node, value] of rows) {
    if (node) sizes.set(packageOf(node), (sizes.get(packageOf(node)) ?? 0) + value);
  }
  return [...sizes].sort((one, other) => other[1] - one[1]).map(([name]) => name);
}

// Imports, files, and how all this is known ---------------------------------------------

function importTree(modules) {
  const roots = [];
  const above = [];
  for (const [depth, name, total] of modules) {
    const node = { name: data.imports.names[name], total, own: total, children: [] };
    if (depth) above[depth - 1].own -= total;
    (depth ? above[depth - 1].children : roots).push(node);
    above[depth] = node;
  }
  return roots;
}

const TOP_PACKAGES = 12;

function importsPanel() {
  const { trees } = data.imports;
  if (!trees.length) return panel("imports", "Imports", "", missing("No module body was seen."));
  const place = el("div", { class: "columns" });
  const show = ({ process, packages, modules }) => {
    const roots = importTree(modules);
    const whole = roots.reduce((sum, root) => sum + root.total, 0);
    const name = whoIs(data.processes[process]);
    const top = packages
      .slice(0, TOP_PACKAGES)
      .map(([title, own]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, title),
          el("td", { class: "number" }, duration(own)),
          el("td", { class: "wide" }, bar(own / packages[0][1], "series-2")),
        ),
      );
    place.replaceChildren(
      el(
        "div",
        {},
        el("h3", {}, `By package, own time of ${modules.length} modules`),
        el("table", { "aria-label": `Packages imported by ${name}` }, el("tbody", {}, ...top)),
      ),
      el(
        "div",
        { class: "main" },
        el("h3", {}, `What imported what, ${duration(whole)} in all`),
        treeTable(roots, whole, `Import tree of ${name}`),
      ),
    );
  };
  const entries = trees.map((each) => {
    const total = each.modules.reduce((sum, [depth, , time]) => sum + (depth ? 0 : time), 0);
    return [`${whoIs(data.processes[each.process])}, ${duration(total)}`, each];
  });
  show(trees[0]);
  const help = "Exact: each module's body was seen to begin and to end.";
  return panel(
    "imports",
    "Imports",
    help,
    el("div", { class: "tools" }, choice("Of", entries, show)),
    place,
  );
}

function filesPanel() {
  const { rows, others } = data.files;
  if (!rows.length) return panel("files", "Files", "", missing("No file was seen."));
  const columns = [
    words("file", (row) => row[0], "path"),
    words("kind", (row) => row[1], "kind"),
    column("opens", 2, (count) => `${count}`),
    column("first at", 3, seconds),
    column("open for", 4, duration),
    column("size", 5, bytes),
    column("read", 6, (count) => (count ? bytes(count) : "")),
    column("mapped", 7, (count) => (count ? bytes(count) : "")),
    ...(rows.some((row) => row[8] !== null) ? [column("from disk", 8, bytes)] : []),
    ...(rows.some((row) => row[9] !== null)
      ? [column("cached before", 9, bytes), words("on", (row) => row[10])]
      : []),
  ];
  const table = sortedTable(columns, rows, {
    sort: 6,
    keep: contains(columns.slice(0, 2)),
    label: "Files",
  });
  const left = others ? `${others} files that were used less are left out.` : "";
  return panel("files", "Files", left, table);
}

function observationPanel() {
  const lines = data.observation.map((text) => el("li", {}, text));
  const rows = data.sources.map(([name, state, reason, events, lost]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", {}, state),
      el("td", { class: "number" }, events.toLocaleString("en")),
      el("td", { class: "number" }, lost.toLocaleString("en")),
      el("td", {}, reason),
    ),
  );
  const head = headRow(["source", "state", "events", "lost", "why"], [2, 3]);
  const table = el("table", { "aria-label": "Sources" }, head, el("tbody", {}, ...rows));
  const help = "Losses, cost, and what couldn't be seen.";
  return panel(
    "observation",
    "How this is known",
    help,
    table,
    el("ul", { class: "remarks" }, ...lines),
  );
}
