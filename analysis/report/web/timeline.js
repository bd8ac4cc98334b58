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
  for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step)
    times.push(time);
  const decimals = clamp(-Math.floor(Math.log10(step / 1e6)), 0, 6);
  return times.map((time) => [time, `${(time / 1e6).toFixed(decimals)} s`]);
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
    this.element.append(
      el("div", { class: "lane axis" }, el("div", { class: "title" }), this.axis.canvas),
    );
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
    if (lane.scale)
      title.append(el("small", {}, `top: ${digits(lane.scale.top)} ${lane.scale.unit}`));
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
    this.element.append(el("div", { class: "lane" }, heading, title, surface.canvas, legend));
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
