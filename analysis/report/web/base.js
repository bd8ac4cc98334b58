// What every part of the page uses: elements, numbers for people, colours, the tooltip.
// Text from the trace is hostile: it is only ever set as text, never as markup.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Microseconds with a unit that suits them. */
function duration(micros) {
  const size = Math.abs(micros);
  if (size >= 9.995e6) return `${(micros / 1e6).toFixed(1)} s`;
  if (size >= 9.995e5) return `${(micros / 1e6).toFixed(2)} s`;
  if (size >= 9950) return `${(micros / 1e3).toFixed(0)} ms`;
  if (size >= 1e3) return `${(micros / 1e3).toFixed(1)} ms`;
  return `${Math.round(micros)} µs`;
}

const seconds = (micros) => `${(micros / 1e6).toFixed(3)} s`;

const percent = (part, whole) => `${(whole ? (100 * part) / whole : 0).toFixed(1)} %`;

function bytes(count) {
  if (count === null) return "";
  let value = count;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
}

/** A number to three digits. */
function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2);
}

/** The index of the last of `sorted` that is not above `value`; -1 where all are. */
function lastNotAbove(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Colours -------------------------------------------------------------------------------

const theme = { cache: new Map(), listeners: [] };

/** The value of a colour of the style sheet, such as `ink`. */
function colour(name) {
  if (!theme.cache.has(name)) {
    const style = getComputedStyle(document.documentElement);
    theme.cache.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return theme.cache.get(name);
}

function themeChanged() {
  theme.cache.clear();
  for (const listener of theme.listeners) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

function themeButton() {
  const root = document.documentElement;
  const isDark = () =>
    root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  return el(
    "button",
    {
      type: "button",
      title: "Switch between light and dark",
      onclick: () => {
        root.dataset.theme = isDark() ? "light" : "dark";
        themeChanged();
      },
    },
    "Light / dark",
  );
}

const SERIES = 8;
const seriesColour = (index) => colour(`series-${index % SERIES}`); // steps
const whoColour = (index) => colour(`who-${index % SERIES}`); // processes and devices

/** Black or white, whichever has the larger contrast with a colour given as #rrggbb. */
function inkOn(background) {
  const linear = [1, 3, 5].map((at) => (parseInt(background.slice(at, at + 2), 16) / 255) ** 2.2);
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return luminance > 0.18 ? "#111" : "#fff";
}

/** `from` and `to`, given as #rrggbb, mixed: 0 is `from`, 1 is `to`. */
function mixed(from, to, share) {
  const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const mix = (at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share);
  return `#${[1, 3, 5].map((at) => mix(at).toString(16).padStart(2, "0")).join("")}`;
}

/** Which colour is what: entries [text, name of the colour]. */
function legendOf(entries) {
  return el(
    "ul",
    { class: "legend" },
    ...entries.map(([text, name]) => {
      const key = el("i");
      key.style.background = `var(--${name})`;
      return el("li", {}, key, text);
    }),
  );
}

// The tooltip ---------------------------------------------------------------------------

const tooltip = el("div", { id: "tooltip", role: "status", "aria-live": "polite" });

/** Shows lines of text near a point of the window; the first one stands out. */
function showTooltip(lines, x, y) {
  tooltip.replaceChildren(...lines.map((line) => el("div", {}, line)));
  tooltip.classList.add("shown");
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - width - 10 : x + 14;
  const top = y + 16 + height > innerHeight ? y - height - 10 : y + 16;
  tooltip.style.left = `${Math.max(left, 4)}px`;
  tooltip.style.top = `${Math.max(top, 4)}px`;
}

function hideTooltip() {
  tooltip.classList.remove("shown");
}

/** Has `element` tell `lines` when it is pointed at or in focus. */
function explain(element, lines) {
  element.addEventListener("pointermove", (event) =>
    showTooltip(lines, event.clientX, event.clientY),
  );
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    showTooltip(lines, box.left, box.bottom);
  });
  for (const end of ["pointerleave", "blur"]) element.addEventListener(end, hideTooltip);
}

// Canvases ------------------------------------------------------------------------------

/** A canvas that is drawn sharply, anew whenever its size or the theme changes. */
class Surface {
  constructor(label, height, draw) {
    this.draw = draw;
    this.height = height;
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": label });
    this.pending = false;
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    theme.listeners.push(() => this.redraw());
  }

  get width() {
    return this.canvas.clientWidth;
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    if (!this.width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = `12px ${colour("font")}`;
    context.textBaseline = "middle";
    this.draw(context, this.width, this.height);
  }
}

/** Writes `text` in a box, cut where it doesn't fit, left out where nothing would be left. */
function boxText(context, text, x, y, width) {
  const room = width - 8;
  if (room < 18) return;
  let shown = text;
  if (context.measureText(text).width > room) {
    const each = context.measureText("abcdefghij").width / 10;
    shown = text.slice(0, Math.max(Math.floor(room / each) - 1, 0));
    while (shown && context.measureText(`${shown}…`).width > room) shown = shown.slice(0, -1);
    if (shown.length < 2) return;
    shown += "…";
  }
  context.fillText(shown, x + 4, y);
}
