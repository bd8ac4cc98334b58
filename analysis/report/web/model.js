// What the page of one start shows, its names and its colours. All times are µs since the start.

const data = JSON.parse(document.getElementById("data").textContent);
const substeps = data.steps.flatMap((step, number) =>
  step.substeps.map((substep, index) => ({ ...substep, step: number, index })),
);
const whoIs = (process) => `${process.title} (pid ${process.pid})`;

/** The colour of a sub-step: its step's, each next one a little nearer to the paper's. */
function substepColour(number) {
  if (number < 0) return colour(number === -2 ? "missed" : "unattributed");
  const { step, index } = substeps[number];
  return mixed(seriesColour(step), colour("paper"), (index % 4) * 0.13);
}

const substepTitle = (number) =>
  number < 0
    ? number === -2
      ? "Missed before the tracer came"
      : "Unattributed"
    : substeps[number].title;

// What times went to --------------------------------------------------------------------

const kindTitle = (number) => data.kinds[number][1];
const kindName = (number) => `kind-${data.kinds[number][0]}`; // of its colour
const kindColour = (number) => colour(kindName(number));
const UNKNOWN = data.kinds.findIndex(([id]) => id === "unknown");

const BOUND_TITLES = { cpu: "CPU", disk: "disk", gpu: "GPU", network: "network", wait: "wait" };

/** The verdict with its figure: "CPU-bound, 83.1 %". */
function verdict({ bound, boundTime, kinds }) {
  const whole = kinds.reduce((sum, time) => sum + time, 0);
  if (!(bound in BOUND_TITLES)) return `unknown, ${percent(boundTime, whole)}`;
  return `${BOUND_TITLES[bound]}-bound, ${percent(boundTime, whole)}`;
}

/** A bar `share` of its cell long, parted by kinds; hover or focus tells them. */
function kindBar(shares, share) {
  const whole = shares.kinds.reduce((sum, time) => sum + time, 0);
  const element = el("span", { class: "bar kinds", tabindex: 0, role: "img" });
  shares.kinds.forEach((time, kind) => {
    if (!time) return;
    const part = el("i");
    part.style.width = `${(100 * share * time) / whole}%`;
    part.style.background = `var(--${kindName(kind)})`;
    element.append(part);
  });
  const lines = [
    verdict(shares),
    ...shares.top.map(
      ([kind, what, time]) =>
        `${kindTitle(kind)}${what ? `, ${what}` : ""}: ${duration(time)}, ${percent(time, whole)}`,
    ),
  ];
  element.setAttribute("aria-label", lines.join("; "));
  explain(element, lines);
  return element;
}

function kindLegend(all) {
  const used = data.kinds.map((_, kind) => all.some((shares) => shares.kinds[kind]));
  return legendOf(
    data.kinds.map((_, kind) => [kindTitle(kind), kindName(kind)]).filter((_, kind) => used[kind]),
  );
}

const isKnown = (shares) =>
  shares !== null && shares.kinds.some((time, kind) => time && kind !== UNKNOWN);
