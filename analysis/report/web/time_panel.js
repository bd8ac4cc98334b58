// The timeline of a start.

function pathLanes() {
  const stepOf = (number) => (number < 0 ? number : substeps[number].step);
  const steps = [];
  for (const [from, to, , substep] of data.path) {
    const last = steps.at(-1);
    if (last && last.step === stepOf(substep)) last.to = to;
    else steps.push({ from, to, step: stepOf(substep) });
  }
  const stepBoxes = steps.map(({ from, to, step }) => {
    const title = step < 0 ? substepTitle(step) : data.steps[step].title;
    const fill = () => (step < 0 ? substepColour(step) : seriesColour(step));
    return { from, to, fill, text: title, edge: true, lines: [title, span(from, to)] };
  });
  const boxes = data.path.map((piece) => ({ ...pathBox(piece), edge: true }));
  return new BoxLane("Steps", [stepBoxes, boxes], 24, ["Step", "Sub-step"]);
}

function pathBox([from, to, process, substep]) {
  const title = substepTitle(substep);
  const step = substep < 0 ? [] : [data.steps[substeps[substep].step].title];
  const lines = [title, ...step, whoIs(data.processes[process]), span(from, to)];
  return { from, to, fill: () => substepColour(substep), text: title, lines };
}

const span = (from, to) => `${duration(to - from)}, from ${seconds(from)} to ${seconds(to)}`;

function processLane() {
  const parts = data.processes
    .map((process, number) => ({ ...process, number }))
    .filter(({ part }) => part);
  const rows = parts.map(({ number }) =>
    data.path.filter((piece) => piece[2] === number).map(pathBox),
  );
  const grounds = parts.map((process) => ({
    from: process.from,
    to: process.to ?? data.wall,
    fill: () => colour("ground"),
    lines: [
      whoIs(process),
      lifeSpan(process),
      "not on the critical path here",
      ...commandOf(process),
    ],
  }));
  const lane = new BoxLane("Processes", rows, 24, parts.map(whoIs), grounds);
  lane.note = "coloured where it held the critical path";
  return lane;
}

function lifeSpan(process) {
  if (process.to === null) return `from ${seconds(process.from)} on`;
  return span(process.from, process.to);
}

const commandOf = (process) => (process.command ? [process.command] : []);

const MOST_TOOLS = 10;

function toolLane() {
  const byProgram = new Map();
  for (const process of data.processes.filter(({ part }) => !part)) {
    if (!byProgram.has(process.program)) byProgram.set(process.program, []);
    byProgram.get(process.program).push(process);
  }
  const took = ([, processes]) =>
    processes.reduce((sum, { from, to }) => sum + (to ?? data.wall) - from, 0);
  const programs = [...byProgram]
    .sort((one, other) => took(other) - took(one))
    .slice(0, MOST_TOOLS);
  if (!programs.length) return null;
  const rows = programs.map(([program, processes]) => together(program, processes));
  const labels = programs.map(([program, processes]) => `${program} × ${processes.length}`);
  const lane = new BoxLane("Other programs", rows, 16, labels);
  if (byProgram.size > MOST_TOOLS) lane.note = `the longest ${MOST_TOOLS} of ${byProgram.size}`;
  return lane;
}

/** A box for each stretch in which at least one of `processes` lived. */
function together(program, processes) {
  const boxes = [];
  for (const process of [...processes].sort((one, other) => one.from - other.from)) {
    const to = process.to ?? data.wall;
    const last = boxes.at(-1);
    if (last && process.from <= last.to) {
      last.to = Math.max(last.to, to);
      last.members.push(process);
    } else boxes.push({ from: process.from, to, members: [process] });
  }
  return boxes.map(({ from, to, members }) => ({
    from,
    to,
    fill: () => colour("tool"),
    lines: [
      members.length > 1
        ? `${program}: ${members.length} that overlap`
        : `${program} (pid ${members[0].pid})`,
      span(from, to),
      ...(members.length > 1 ? [] : commandOf(members[0])),
    ],
  }));
}

function coreLanes() {
  const { cores } = data;
  if (!cores) return [];
  const groups = cores.groups.map((group, index) => ({ ...group, fill: () => whoColour(index) }));
  const top = cores.cores.length;
  const describe = (busy, index, from) => {
    const sum = busy.reduce((total, group) => total + group.busy[index], 0);
    const each = busy.map((group) => `${group.title}: ${(group.busy[index] / 1000).toFixed(2)}`);
    return [`${(sum / 1000).toFixed(2)} cores busy at ${seconds(from)}`, ...each];
  };
  const stack = new StackLane("Cores busy", [groups], cores, { top, rowHeight: 92, describe });
  stack.note = `of ${top}, by program`;
  stack.legend = cores.groups.map(({ title }, index) => [title, `who-${index % SERIES}`]);
  const heat = new HeatLane("Each core", cores, (core, index) => {
    const owner = core.owners[index];
    const lines = [
      `CPU ${core.cpu}: ${(core.busy[index] / 10).toFixed(0)} % busy`,
      span(cores.from + index * cores.bucket, cores.from + (index + 1) * cores.bucket),
    ];
    if (owner >= 0) lines.push(`mostly ${whoIs(data.processes[owner])}`);
    return lines;
  });
  heat.note = `${duration(cores.bucket)} a cell`;
  heat.legend = [
    ["idle", "heat-0"],
    ["busy", "heat-1"],
  ];
  return [stack, heat];
}

/** What the critical path and each main thread did, as shares of every 100 ms. */
function threadLane() {
  if (!data.threads) return null;
  const threads = data.threads.rows;
  const rows = threads.map(({ kinds }) =>
    Object.entries(kinds).map(([kind, busy]) => ({
      title: kindTitle(kind),
      busy,
      fill: () => kindColour(kind),
    })),
  );
  const labels = threads.map(({ title }) => title);
  const describe = (busy, index, from, row) => [
    `${labels[row]} at ${seconds(from)}`,
    ...busy.map((group) => `${group.title}: ${(group.busy[index] / 10).toFixed(0)} %`),
  ];
  const lane = new StackLane("Running or waiting", rows, data.threads, {
    top: 1,
    rowHeight: 34,
    labels,
    describe,
  });
  lane.note = "the critical path, then the main thread of each process";
  const kinds = new Set(threads.flatMap(({ kinds: each }) => Object.keys(each)));
  lane.legend = [...kinds]
    .sort((one, other) => one - other)
    .map((kind) => [kindTitle(kind), kindName(kind)]);
  return lane;
}

function lineLanes() {
  const titles = [...new Set(data.lines.map(({ title }) => title))];
  return titles.map((title) => {
    const lines = data.lines.filter((line) => line.title === title);
    const lane = new LineLane(title, lines[0].unit, lines);
    if (lines.length > 1) {
      lane.legend = lines
        .slice(0, 16)
        .map((line, index) => [line.subject, `who-${index % SERIES}`]);
    }
    return lane;
  });
}

const view = new View(data.wall);

function timelinePanel() {
  const lanes = [
    pathLanes(),
    processLane(),
    toolLane(),
    threadLane(),
    ...coreLanes(),
    ...lineLanes(),
  ];
  const timeline = new Timeline(view, lanes.filter(Boolean));
  const all = el("button", { type: "button", onclick: () => view.show(0, view.end) }, "Show all");
  const shown = el("span", { class: "status", role: "status" });
  const tell = () => {
    shown.textContent = `${seconds(view.from)} to ${seconds(view.to)}`;
  };
  view.listeners.push(tell);
  tell();
  const help =
    "Drag to zoom in, double-click to show all; with a lane in focus: arrow keys, + − 0.";
  return panel(
    "timeline",
    "Timeline",
    help,
    el("div", { class: "tools" }, all, shown),
    timeline.element,
    ...absent(),
  );
}

/** What has no lane because nobody could see it. */
function absent() {
  const missing = [];
  if (!data.cores) missing.push("the cores");
  for (const [name, what] of [
    ["Disk", "disks"],
    ["GPU", "GPUs"],
  ]) {
    if (!data.lines.some(({ title }) => title.startsWith(name))) missing.push(what);
  }
  return missing.length
    ? [el("p", { class: "note" }, `Nothing was recorded of: ${missing.join(", ")}.`)]
    : [];
}
