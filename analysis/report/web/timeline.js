// Lanes on one axis of time: drag to zoom, hover or arrow keys for what was when.

/** The stretch of time that all lanes show, and the moment that is pointed at. */
class View {
  constructor(end) {
    this.end = end;
    this.from = 0;
    this.to = end;
    this.listeners = [];
  }

  show(from, to) {
    const least = Math.min(1000, this.end);
    const span = clamp(to - from, least, this.end);
    this.from = clamp(from, 0, this.end - span);
    this.to = this.from + span;
    for (const listener of this.listeners) listener();
  }

  zoom(factor, around) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  x(time, width) {
    return ((time - this.from) / (this.to - this.from)) * width;
  }

  time(x, width) {
    return this.from + (x / width) * (this.to - this.from);
  }
}

/** Round steps of time so that about `count` fit into `span`. */
function tickStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function ticks(view, width) {
  const step = tickStep(view.to - view.from, Math.max(width / 110, 2));
  const times = [];
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) times.push(time);
  const decimals = clamp(-Math.floor(Math.log10(step / 1e6)), 0, 6);
  return times.map((time) => [time, `${(time / 1e6).toFixed(decimals)} s`]);
}

// A lane has a title, a height, rows (their number) and
//   draw(context, view, width, height)
//   at(time, row): {lines, from, to} or null: what is there, from when to when
// and may have note, a line under its title.

/**
 * Boxes in rows; each box: {from, to, fill, text, lines}. Those of a row don't overlap.
 * `grounds`, if given, is what lies beneath them: one box a row.
 */
class BoxLane {
  constructor(title, rows, rowHeight, labels = null, grounds = []) {
    this.title = title;
    this.grounds = grounds;
    this.boxes = rows.map((row) => [...row].sort((one, other) => one.from - other.from));
    this.starts = this.boxes.map((row) => row.map((box) => box.from));
    this.rows = rows.length;
    this.rowHeight = rowHeight;
    this.labels = labels;
    this.height = rows.length * rowHeight;
  }

  draw(context, view, width) {
    this.grounds.forEach((ground, row) => {
      const left = Math.max(view.x(ground.from, width), 0);
      const right = Math.min(view.x(ground.to, width), width);
      context.fillStyle = ground.fill();
      if (left < right) context.fillRect(left, row * this.rowHeight + 1, right - left, this.rowHeight - 2);
    });
    this.boxes.forEach((row, index) => {
      const y = index * this.rowHeight;
      let drawnTo = -1;
      for (const box of row) {
        if (box.to < view.from || box.from > view.to) continue;
        const left = Math.max(view.x(box.from, width), 0);
        const right = Math.min(view.x(box.to, width), width);
        if (right < drawnTo) continue; // less than a pixel, and that one has its colour
        drawnTo = Math.max(right, left + 1);
        const fill = box.fill();
        context.fillStyle = fill;
        context.fillRect(left, y + 1, Math.max(right - left, 1), this.rowHeight - 2);
        if (right - left > 3 && box.edge) {
          context.fillStyle = colour("paper");
          context.fillRect(right - 0.5, y + 1, 0.5, this.rowHeight - 2);
        }
        if (box.text) {
          context.fillStyle = inkOn(fill);
          boxText(context, box.text, left, y + this.rowHeight / 2 + 0.5, right - left);
        }
      }
    });
  }

  at(time, row) {
    const index = lastNotAbove(this.starts[row], time);
    const box = index < 0 ? null : this.boxes[row][index];
    if (box && time < box.to) return box;
    const ground = this.grounds[row];
    return ground && time >= ground.from && time < ground.to ? ground : null;
  }

  /** The box after or before the moment, for the arrow keys. */
  next(time, row, direction) {
    const starts = this.starts[row];
    const here = lastNotAbove(starts, time);
    const inside = here >= 0 && time < this.boxes[row][here].to;
    return this.boxes[row][direction > 0 ? here + 1 : inside ? here - 1 : here] ?? null;
  }
}

/** A core a row, a bucket a cell, darker the busier. */
class HeatLane {
  constructor(title, data, describe) {
    this.title = title;
    this.data = data;
    this.describe = describe;
    this.rows = data.cores.length;
    this.rowHeight = clamp(Math.floor(320 / this.rows), 3, 26);
    this.height = this.rows * this.rowHeight;
    this.labels = this.rowHeight >= 12 ? data.cores.map((core) => `CPU ${core.cpu}`) : null;
  }

  draw(context, view, width, height) {
    const [none, most] = [colour("heat-0"), colour("heat-1")];
    const shades = Array.from({ length: 21 }, (_, index) => mixed(none, most, index / 20));
    context.fillStyle = none;
    context.fillRect(0, 0, width, height);
    const gap = this.rowHeight > 6 ? 1 : 0;
    this.data.cores.forEach((core, row) => {
      // several buckets in one pixel: their mean
      const last = core.busy.length - 1;
      const perPixel = (view.to - view.from) / width / this.data.bucket;
      const step = Math.max(1, Math.floor(perPixel));
      const first = Math.max(Math.floor((view.from - this.data.from) / this.data.bucket / step) * step, 0);
      for (let index = first; index <= last; index += step) {
        const from = this.data.from + index * this.data.bucket;
        if (from > view.to) break;
        const cells = core.busy.slice(index, index + step);
        const busy = cells.reduce((sum, value) => sum + value, 0) / cells.length / 1000;
        if (!busy) continue;
        const left = view.x(from, width);
        const right = view.x(from + step * this.data.bucket, width);
        context.fillStyle = shades[Math.round(clamp(busy, 0, 1) * 20)];
        context.fillRect(left, row * this.rowHeight, right - left + 0.4, this.rowHeight - gap);
      }
    });
  }

  at(time, row) {
    const index = Math.floor((time - this.data.from) / this.data.bucket);
    const core = this.data.cores[row];
    if (index < 0 || index >= core.busy.length) return null;
    const from = this.data.from + index * this.data.bucket;
    return { from, to: from + this.data.bucket, lines: this.describe(core, index) };
  }

  next(time, row, direction) {
    return this.at(time + direction * this.data.bucket, row);
  }
}

/**
 * In each row groups on top of one another, bucket by bucket. rows: [[{title, fill, busy}]],
 * busy in per mille; a row is `top` high; describe(groups, index, from) gives the lines.
 */
class StackLane {
  constructor(title, rows, { from, bucket }, { top, rowHeight, labels = null, describe }) {
    Object.assign(this, { title, groups: rows, from, bucket, top, rowHeight, labels, describe });
    this.rows = rows.length;
    this.height = this.rows * rowHeight;
  }

  draw(context, view, width) {
    const perPixel = (view.to - view.from) / width / this.bucket;
    const step = Math.max(1, Math.floor(perPixel)); // buckets in one bar: their mean
    const first = Math.max(Math.floor((view.from - this.from) / this.bucket / step) * step, 0);
    this.groups.forEach((groups, row) => {
      const floor = (row + 1) * this.rowHeight - 1;
      const room = this.rowHeight - 4;
      drawGrid(context, width, floor, room, this.top);
      const count = groups[0]?.busy.length ?? 0;
      const stacked = new Array(count).fill(0);
      for (const group of groups) {
        context.fillStyle = group.fill();
        for (let at = first; at < count && this.from + at * this.bucket <= view.to; at += step) {
          const until = Math.min(at + step, count);
          let low = 0;
          let value = 0;
          for (let cell = at; cell < until; cell++) {
            low += stacked[cell];
            value += group.busy[cell];
            stacked[cell] += group.busy[cell];
          }
          if (!value) continue;
          const size = (sum) => (sum / (until - at) / 1000 / this.top) * room;
          const left = view.x(this.from + at * this.bucket, width);
          const right = view.x(this.from + until * this.bucket, width);
          const high = size(low + value);
          context.fillRect(left, floor - high, right - left + 0.4, high - size(low));
        }
      }
    });
  }

  at(time, row) {
    const groups = this.groups[row];
    const index = Math.floor((time - this.from) / this.bucket);
    if (index < 0 || index >= (groups[0]?.busy.length ?? 0)) return null;
    const from = this.from + index * this.bucket;
    const busy = groups.filter((group) => group.busy[index]);
    return { from, to: from + this.bucket, lines: this.describe(busy, index, from, row) };
  }

  next(time, row, direction) {
    return this.at(time + direction * this.bucket, row);
  }
}

/** Lines of one unit. */
class LineLane {
  constructor(title, unit, lines) {
    this.title = title;
    this.unit = unit;
    this.lines = lines;
    this.rows = 1;
    this.height = 64;
    const most = lines.reduce((top, line) => line.values.reduce((a, b) => Math.max(a, b), top), 0);
    this.top = unit === "%" && most <= 100 && most > 20 ? 100 : most || 1;
    this.scale = { top: this.top, unit };
  }

  draw(context, view, width, height) {
    drawGrid(context, width, height - 1, height - 5, 1);
    this.lines.forEach((line, index) => {
      const y = (value) => height - 1 - (value / this.top) * (height - 6);
      context.beginPath();
      let last = null;
      let x = 0;
      for (let at = Math.max(lastNotAbove(line.times, view.from), 0); at < line.times.length; at++) {
        x = view.x(line.times[at], width);
        const value = y(line.values[at]);
        if (last === null) context.moveTo(x, value);
        else if (line.holds) context.lineTo(x, last);
        context.lineTo(x, value);
        last = value;
        if (line.times[at] > view.to) break;
      }
      context.strokeStyle = whoColour(index);
      context.lineWidth = 1.5;
      context.stroke();
      if (this.lines.length === 1 && last !== null) {
        const begin = Math.max(view.x(line.times[0], width), 0);
        context.lineTo(x, height);
        context.lineTo(begin, height);
        context.globalAlpha = 0.18;
        context.fillStyle = whoColour(index);
        context.fill();
        context.globalAlpha = 1;
      }
    });
  }

  at(time) {
    const found = this.lines
      .map((line) => [line, this.value(line, time)])
      .filter(([, value]) => value !== null);
    if (!found.length) return null;
    const lines = found.map(
      ([line, value]) => `${line.subject ? `${line.subject}: ` : ""}${digits(value)} ${this.unit}`,
    );
    return { from: time, to: time, lines: [`${this.title} at ${seconds(time)}`, ...lines] };
  }

  value(line, time) {
    const index = lastNotAbove(line.times, time);
    if (index < 0 || index === line.times.length - 1) return null;
    const [before, after] = [line.values[index], line.values[index + 1]];
    if (line.holds) return before;
    const share = (time - line.times[index]) / (line.times[index + 1] - line.times[index]);
    return before + (after - before) * share;
  }

  next(time, row, direction) {
    return this.at(time + direction * 100_000);
  }
}

/** Rules over `room` px above `floor`, one for each whole part. */
function drawGrid(context, width, floor, room, parts) {
  context.fillStyle = colour("rule");
  const shown = parts > 8 ? 4 : Math.max(Math.round(parts), 1);
  for (let line = 0; line <= shown; line++) {
    context.fillRect(0, Math.round(floor - (line / shown) * room), width, 1);
  }
}

/** The lanes one below the other, under an axis. */
class Timeline {
  constructor(view, lanes) {
    this.view = view;
    this.needle = el("div", { class: "needle" });
    this.brush = el("div", { class: "brush" });
    this.element = el("div", { class: "timeline" }, this.needle, this.brush);
    this.axis = new Surface("Axis of time", 26, (context, width) => this.drawAxis(context, width));
    this.axis.canvas.removeAttribute("tabindex");
    this.element.append(el("div", { class: "lane axis" }, el("div", { class: "title" }), this.axis.canvas));
    this.listen(this.axis.canvas, null);
    for (const lane of lanes) this.add(lane);
    view.listeners.push(() => this.axis.redraw());
  }

  add(lane) {
    const help = "Arrow keys move, plus and minus zoom, 0 shows all.";
    const surface = new Surface(`${lane.title}. ${help}`, lane.height, (context, width, height) => {
      lane.draw(context, this.view, width, height);
    });
    const title = el("div", { class: "title" }, el("span", { class: "name" }, lane.title));
    if (lane.note) title.append(el("small", {}, lane.note));
    if (lane.scale) title.append(el("small", {}, `top: ${digits(lane.scale.top)} ${lane.scale.unit}`));
    if (lane.labels) {
      title.classList.add("labels");
      title.replaceChildren(
        ...lane.labels.map((label) => {
          const row = el("span", { title: label }, label);
          row.style.height = row.style.lineHeight = `${lane.rowHeight}px`;
          return row;
        }),
      );
    }
    const legend = lane.legend ? legendOf(lane.legend) : null;
    const note = lane.note ? el("small", {}, `  ${lane.note}`) : null;
    const heading = lane.labels ? el("div", { class: "heading" }, lane.title, note) : null;
    this.element.append(
      el("div", { class: "lane" }, heading, title, surface.canvas, legend),
    );
    this.view.listeners.push(() => surface.redraw());
    this.listen(surface.canvas, lane);
  }

  drawAxis(context, width) {
    context.fillStyle = colour("muted");
    context.textAlign = "center";
    for (const [time, text] of ticks(this.view, width)) {
      const x = this.view.x(time, width);
      context.fillRect(x, 20, 1, 6);
      const half = context.measureText(text).width / 2;
      context.fillText(text, clamp(x, half, width - half), 10);
    }
    context.textAlign = "left";
  }

  listen(canvas, lane) {
    const time = (event) => this.view.time(event.offsetX, canvas.clientWidth);
    let pressed = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pressed = { x: event.offsetX, time: time(event) };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      this.point(canvas, event.offsetX);
      if (pressed && Math.abs(event.offsetX - pressed.x) > 4) {
        this.mark(canvas, pressed.x, event.offsetX);
        hideTooltip();
        return;
      }
      const row = lane ? Math.floor(event.offsetY / (lane.rowHeight ?? lane.height)) : 0;
      const item = lane?.at(time(event), clamp(row, 0, lane.rows - 1));
      if (item) showTooltip(item.lines, event.clientX, event.clientY);
      else hideTooltip();
    });
    canvas.addEventListener("pointerup", (event) => {
      this.brush.classList.remove("shown");
      if (pressed && Math.abs(event.offsetX - pressed.x) > 4) {
        const [from, to] = [pressed.time, time(event)].sort((one, other) => one - other);
        this.view.show(from, to);
      }
      pressed = null;
    });
    canvas.addEventListener("pointerleave", () => {
      this.needle.classList.remove("shown");
      hideTooltip();
    });
    canvas.addEventListener("dblclick", () => this.view.show(0, this.view.end));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        this.view.zoom(Math.exp(clamp(event.deltaY, -60, 60) / 120), time(event));
      },
      { passive: false },
    );
    if (lane) this.listenToKeys(canvas, lane);
  }

  listenToKeys(canvas, lane) {
    let at = null; // {time, row}
    const show = (item, row) => {
      at = { time: item.from + (item.to - item.from) / 2, row };
      if (at.time < this.view.from || at.time > this.view.to) {
        const half = (this.view.to - this.view.from) / 2;
        this.view.show(at.time - half, at.time + half);
      }
      const x = this.view.x(at.time, canvas.clientWidth);
      const box = canvas.getBoundingClientRect();
      const rowHeight = lane.rowHeight ?? lane.height;
      this.point(canvas, x);
      showTooltip(item.lines, box.left + x, box.top + (row + 0.5) * rowHeight);
    };
    const move = (direction) => {
      const here = at ?? { time: this.view.from - 1, row: 0 };
      const item = lane.next(here.time, here.row, direction);
      if (item) show(item, here.row);
    };
    const turn = (direction) => {
      const row = clamp((at?.row ?? 0) + direction, 0, lane.rows - 1);
      const time = at?.time ?? this.view.from;
      const item = lane.at(time, row) ?? lane.next(time, row, 1) ?? lane.next(time, row, -1);
      if (item) show(item, row);
    };
    const around = () => at?.time ?? (this.view.from + this.view.to) / 2;
    const keys = {
      ArrowRight: () => move(1),
      ArrowLeft: () => move(-1),
      ArrowDown: () => turn(1),
      ArrowUp: () => turn(-1),
      "+": () => this.view.zoom(0.5, around()),
      "=": () => this.view.zoom(0.5, around()),
      "-": () => this.view.zoom(2, around()),
      0: () => this.view.show(0, this.view.end),
      Escape: () => hideTooltip(),
    };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    canvas.addEventListener("blur", () => {
      hideTooltip();
      this.needle.classList.remove("shown");
    });
  }

  point(canvas, x) {
    this.needle.style.left = `${canvas.offsetLeft + x}px`;
    this.needle.classList.add("shown");
  }

  mark(canvas, from, to) {
    this.brush.style.left = `${canvas.offsetLeft + Math.min(from, to)}px`;
    this.brush.style.width = `${Math.abs(to - from)}px`;
    this.brush.classList.add("shown");
  }
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
