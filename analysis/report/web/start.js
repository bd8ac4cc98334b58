// The page of a start.

function header() {
  const facts = data.facts.map(([name, value]) => el("span", {}, el("b", {}, name), ` ${value}`));
  return el(
    "header",
    { class: data.outcome },
    el("h1", {}, data.headline),
    data.command ? el("code", {}, data.command) : null,
    el("p", { class: "facts" }, ...facts),
    el("div", { class: "figures" }, ...figures()),
  );
}

/** The figures to remember. */
function figures() {
  const all = [];
  if (isKnown(data.whole)) all.push([verdict(data.whole), "of the critical path"]);
  if (data.usage) {
    const [, one, several] = data.usage;
    all.push([percent(one, data.wall), "of the time exactly one core was busy"]);
    all.push([percent(several, data.wall), "of the time several were"]);
  }
  const [longest] = [...substeps].sort((one, other) => other.time - one.time);
  all.push([percent(longest.time, data.wall), `went to: ${longest.title}`]);
  all.push([percent(data.unattributed, data.wall), "unattributed"]);
  return all.map(([figure, text]) => el("div", {}, el("b", {}, figure), text));
}

const panels = [
  timelinePanel(),
  stepsPanel(),
  chainPanel(),
  flamePanel(),
  waitsPanel(),
  importsPanel(),
  filesPanel(),
  networkPanel(),
  observationPanel(),
].filter(Boolean);
const links = panels.map((section) =>
  el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent),
);
document.body.append(
  header(),
  el("nav", { "aria-label": "Panels" }, ...links, themeButton()),
  el("main", {}, ...panels),
  tooltip,
);
