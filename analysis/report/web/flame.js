// A flame graph: the widest boxes are where the time went; click or Enter to zoom.

const FLAME_ROW = 18;

class Flame {
  /** names(box's name): {text, group, lines}; parents: by node. */
  constructor(names, parents, colours) {
    this.names = names;
    this.colours = colours;
    this.parents = parents;
    this.pattern = null;
    this.at = null;
    this.surface = new Surface(
      "Flame graph. Arrow keys move, Enter zooms in, Escape zooms out.",
      FLAME_ROW,
      (context, width) => this.draw(context, width),
    );
    this.status = el("p", { class: "status", role: "status" });
    this.element = el("div", { class: "flame" }, this.surface.canvas);
    this.listen(this.surface.canvas);
  }

  /**
   * rows: [group, node, value, leaf], the last one left out or null where there is none;
   * unit(value) is what a value is called.
   */
  show(rows, unit) {
    this.unit = unit;
    this.root = { name: "all", value: 0, parent: null, children: new Map(), depth: 0 };
    for (const [group, node, value, leaf] of rows) {
      const frames = leaf ? [leaf] : [];
      for (let frame = node; frame > 0; frame = this.parents[frame]) frames.push(frame);
      frames.push(group);
      this.root.value += value;
      let box = this.root;
      while (frames.length) box = this.child(box, frames.pop(), value);
    }
    this.zoom(this.root);
  }

  child(parent, name, value) {
    let box = parent.children.get(name);
    if (!box) {
      box = { name, value: 0, parent, children: new Map(), depth: parent.depth + 1 };
      parent.children.set(name, box);
    }
    box.value += value;
    return box;
  }

  zoom(box) {
    this.focus = box;
    this.at = box;
    this.lay();
    this.tell();
  }

  search(text) {
    this.pattern = text ? text.toLowerCase() : null;
    this.surface.redraw();
    this.tell();
  }

  /** Says what is shown, and how much of it the search found. */
  tell() {
    const parts = [`${this.label(this.focus).text}: ${this.unit(this.focus.value)}`];
    if (this.pattern) {
      const found = this.found(this.focus);
      parts.push(`found ${this.unit(found)}, ${percent(found, this.focus.value)}`);
    }
    this.status.textContent = parts.join(" · ");
  }

  found(box) {
    if (this.matches(box)) return box.value;
    let sum = 0;
    for (const child of box.children.values()) sum += this.found(child);
    return sum;
  }

  matches(box) {
    return this.label(box).text.toLowerCase().includes(this.pattern);
  }

  label(box) {
    box.label ??= box.parent ? this.names(box.name) : { text: "All", group: "", lines: [] };
    return box.label;
  }

  /** Places what is beneath the focus, and above it what it is a part of. */
  lay() {
    this.boxes = [];
    const put = (box, from, to) => {
      box.from = from;
      box.to = to;
      (this.boxes[box.depth] ??= []).push(box);
      let at = from;
      const children = [...box.children.values()].sort((one, other) => other.value - one.value);
      for (const child of children) {
        const end = at + ((to - from) * child.value) / box.value;
        if (end - at > 1 / 4000) put(child, at, end);
        at = end;
      }
    };
    for (let box = this.focus.parent; box; box = box.parent) {
      [box.from, box.to] = [0, 1];
      this.boxes[box.depth] = [box];
    }
    put(this.focus, 0, 1);
    this.surface.height = this.boxes.length * FLAME_ROW + 2;
    this.surface.redraw();
  }

  draw(context, width) {
    for (const row of this.boxes) {
      for (const box of row) {
        const size = (box.to - box.from) * width;
        if (size < 0.4) continue;
        const { text, group } = this.label(box);
        const above = box.depth < this.focus.depth;
        const lost = this.pattern && !this.matches(box);
        const fill = box.parent ? this.colours.of(group) : colour("ground");
        context.globalAlpha = above || lost ? 0.35 : 1;
        context.fillStyle = this.pattern && !lost ? colour("found") : fill;
        const y = box.depth * FLAME_ROW;
        const left = box.from * width;
        context.fillRect(left, y, Math.max(size - 0.6, 0.4), FLAME_ROW - 1);
        context.globalAlpha = above || lost ? 0.7 : 1;
        context.fillStyle =
          this.pattern && !lost ? "#111" : box.parent ? inkOn(fill) : colour("ink");
        if (lost || above) context.fillStyle = colour("ink");
        boxText(context, text, left, y + FLAME_ROW / 2, size);
        context.globalAlpha = 1;
      }
    }
  }

  describe(box) {
    const label = this.label(box);
    const own = box.value - [...box.children.values()].reduce((sum, child) => sum + child.value, 0);
    const lines = [label.text, ...label.lines];
    lines.push(`${this.unit(box.value)}, ${percent(box.value, this.root.value)} of what is shown`);
    if (box.children.size) lines.push(`own: ${this.unit(own)}`);
    return lines;
  }

  find(x, y) {
    const share = x / this.surface.width;
    const row = this.boxes[Math.floor(y / FLAME_ROW)] ?? [];
    return row.find((box) => share >= box.from && share < box.to) ?? null;
  }

  listen(canvas) {
    canvas.addEventListener("pointermove", (event) => {
      const box = this.find(event.offsetX, event.offsetY);
      canvas.style.cursor = box ? "pointer" : "default";
      if (box) showTooltip(this.describe(box), event.clientX, event.clientY);
      else hideTooltip();
    });
    canvas.addEventListener("pointerleave", hideTooltip);
    canvas.addEventListener("click", (event) => {
      const box = this.find(event.offsetX, event.offsetY);
      if (box) this.zoom(box);
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const move = {
        ArrowUp: () => this.at.parent,
        ArrowDown: () => this.boxes[this.at.depth + 1]?.find((box) => box.parent === this.at),
        ArrowLeft: () => this.beside(-1),
        ArrowRight: () => this.beside(1),
      }[event.key];
      if (move) this.point(move());
      else if (event.key === "Enter") this.zoom(this.at);
      else if (event.key === "Escape") this.zoom(this.focus.parent ?? this.root);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("blur", hideTooltip);
  }

  beside(direction) {
    const row = this.boxes[this.at.depth];
    return row[row.indexOf(this.at) + direction];
  }

  point(box) {
    if (!box) return;
    this.at = box;
    const bounds = this.surface.canvas.getBoundingClientRect();
    const x = bounds.left + ((box.from + box.to) / 2) * this.surface.width;
    showTooltip(this.describe(box), x, bounds.top + (box.depth + 1) * FLAME_ROW);
  }
}

/** Colours for packages: the first, by size, have one each, all others the last one. */
class PackageColours {
  constructor(packages) {
    this.numbers = new Map(packages.slice(0, SERIES - 1).map((name, index) => [name, index]));
  }

  of(name) {
    if (!name) return colour("native");
    return mixed(whoColour(this.numbers.get(name) ?? SERIES - 1), colour("paper"), 0.15);
  }

  get legend() {
    const known = [...this.numbers].map(([name, index]) => [name, `who-${index}`]);
    return [...known, ["other packages", `who-${SERIES - 1}`]];
  }
}
