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
      if (left < right)
        context.fillRect(left, row * this.rowHeight + 1, right - left, this.rowHeight - 2);
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
      const first = Math.max(
        Math.floor((view.from - this.data.from) / this.data.bucket / step) * step,
        0,
      );
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
      for (
        let at = Math.max(lastNotAbove(line.times, view.from), 0);
        at < line.times.length;
        at++
      ) {
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
