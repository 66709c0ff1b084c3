// The two pictures of a lens panel: the grid of layers and heads, and where each head of a layer looks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {canvasWeight, themeColor} from "./colors.js";
import {make} from "./dom.js";

function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return {pen, width};
}

function fillCell(pen, value, x, y, w, h) {
  const {color, alpha} = canvasWeight(value);
  pen.globalAlpha = 1;
  pen.fillStyle = themeColor("chart-grid");
  pen.fillRect(x, y, w, h);
  pen.globalAlpha = alpha;
  pen.fillStyle = color;
  pen.fillRect(x, y, w, h);
  pen.globalAlpha = 1;
}

/// Rows are layers, columns heads; `valueOf(layer, head)` is -1 to 1.
export class HeadGrid {
  constructor(pick) {
    this.canvas = make("canvas", {class: "heads", tabindex: 0, role: "img"});
    this.pick = pick;
    this.canvas.addEventListener("click", (event) => {
      const box = this.canvas.getBoundingClientRect(),
            {left, cell, height, layers, heads} = this.shape ?? {};
      if (!layers) return;
      const head = Math.floor((event.clientX - box.left - left) / cell),
            layer = Math.floor((event.clientY - box.top - this.shape.top) / height);
      if (head >= 0 && head < heads && layer >= 0 && layer < layers) pick(layer, head);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [
                      0, 1
                    ]}[event.key];
      if (!move || !this.shape) return;
      event.preventDefault();
      const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
      pick(
          within(this.shape.layer + move[0], this.shape.layers),
          within(this.shape.head + move[1], this.shape.heads));
    });
  }

  draw({layers, heads, layer, head, valueOf, label}) {
    const left = 28, top = 18, height = layers > 40 ? 12 : 17;
    const {pen, width} = prepare(this.canvas, top + layers * height + 2);
    const cell = Math.min(64, (width - left - 2) / heads);
    this.shape = {left, top, cell, height, layers, heads, layer, head};
    this.canvas.setAttribute(
        "aria-label", `${label}: ${layers} layers, ${heads} heads; the arrow keys choose`);
    pen.fillStyle = themeColor("muted");
    for (let h = 0; h < heads; ++h) {
      if (cell > 15 || h % 4 === 0) {
        pen.textAlign = "center";
        pen.fillText(String(h), left + (h + 0.5) * cell, 9);
      }
    }
    for (let l = 0; l < layers; ++l) {
      pen.fillStyle = themeColor(l === layer ? "text" : "muted");
      pen.textAlign = "right";
      if (height > 12 || l % 4 === 0) pen.fillText(String(l), left - 7, top + (l + 0.5) * height);
      for (let h = 0; h < heads; ++h)
        fillCell(pen, valueOf(l, h), left + h * cell, top + l * height, cell - 1.5, height - 1.5);
    }
    pen.strokeStyle = themeColor("text");
    pen.lineWidth = 2;
    pen.strokeRect(left + head * cell, top + layer * height, cell - 1.5, height - 1.5);
  }
}

/// 1, 2 or 5 times a power of ten, at least 1 and at least `least`.
function axisStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least) ?? power;
}

const kRow = 19, kLeft = 28, kTop = 4, kAxis = 20;

/// Rows are the heads of one layer, the axis is the text; wheel, drag, + and - zoom.
export class ReachPicture {
  constructor({pickKey, pickHead}) {
    this.canvas = make("canvas", {class: "reach", tabindex: 0, role: "img"});
    this.from = 0;
    this.to = 1;
    this.count = 1;
    this.pickKey = pickKey;
    this.pickHead = pickHead;
    this.#listen();
  }

  reset(count) {
    this.count = count;
    this.from = 0;
    this.to = count;
  }

  zoom(factor, middle = (this.from + this.to) / 2) {
    const span =
        Math.min(Math.max((this.to - this.from) * factor, Math.min(8, this.count)), this.count);
    const share = (middle - this.from) / (this.to - this.from);
    this.#moveTo(middle - share * span, span);
  }

  move(share) {
    const span = this.to - this.from;
    this.#moveTo(this.from + share * span, span);
  }

  #moveTo(from, span) {
    this.from = Math.min(Math.max(from, 0), this.count - span);
    this.to = this.from + span;
    this.redraw();
  }

  #placeAt(event) {
    const box = this.canvas.getBoundingClientRect(),
          share = (event.clientX - box.left - kLeft) / (box.width - kLeft - 2);
    return {
      place: this.from + share * (this.to - this.from),
      head: Math.floor((event.clientY - box.top - kTop) / kRow)
    };
  }

  #listen() {
    let drag = null;
    this.canvas.addEventListener("wheel", (event) => {
      if (this.count <= 8 || !(event.ctrlKey || event.metaKey || event.shiftKey))
        return;  // the page scrolls
      event.preventDefault();
      this.zoom(Math.exp((event.deltaY || event.deltaX) / 300), this.#placeAt(event).place);
    }, {passive: false});
    this.canvas.addEventListener("pointerdown", (event) => {
      drag = {x: event.clientX, from: this.from, moved: false};
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const span = this.to - this.from, distance = event.clientX - drag.x;
      drag.moved ||= Math.abs(distance) > 4;
      if (drag.moved)
        this.#moveTo(drag.from - distance / (this.canvas.clientWidth - kLeft) * span, span);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.#click(this.#placeAt(event));
      drag = null;
    });
    this.canvas.addEventListener("keydown", (event) => {
      const run = {
        "+": () => this.zoom(0.5),
        "=": () => this.zoom(0.5),
        "-": () => this.zoom(2),
        0: () => this.zoom(1e9),
        ArrowLeft: () => this.move(-0.25),
        ArrowRight: () => this.move(0.25)
      }[event.key];
      if (!run) return;
      event.preventDefault();
      run();
    });
  }

  /// The nearest key of the head under the pointer, within a few pixels.
  #click({place, head}) {
    const looks = this.shown?.looks ?? [];
    if (head < 0 || head >= looks.length) return;
    const near = 8 * (this.to - this.from) / this.canvas.clientWidth + 0.5;
    let best = -1;
    for (const key of looks[head]?.keys ?? []) {
      const distance = Math.abs(key + 0.5 - place);
      if (distance <= near && (best < 0 || distance < Math.abs(best + 0.5 - place))) best = key;
    }
    this.pickHead(head);
    if (best >= 0) this.pickKey(best);
  }

  redraw() {
    if (this.shown) this.draw(this.shown);
  }

  draw(shown) {
    this.shown = shown;
    const {looks, head, token, key, label} = shown, bottom = kTop + looks.length * kRow;
    const {pen, width} = prepare(this.canvas, bottom + kAxis);
    this.canvas.setAttribute("aria-label", `${label}; plus and minus zoom, the arrow keys move`);
    const scale = (width - kLeft - 2) / (this.to - this.from),
          x = (place) => kLeft + (place - this.from) * scale;
    looks.forEach((look, h) => {
      const y = kTop + h * kRow;
      pen.fillStyle = themeColor("chart-grid");
      pen.fillRect(kLeft, y, width - kLeft - 2, kRow - 2);
      pen.fillStyle = themeColor(h === head ? "text" : "muted");
      pen.textAlign = "right";
      pen.fillText(String(h), kLeft - 7, y + kRow / 2);
      look?.keys.forEach(
          (place, i) =>
              this.#mark(pen, x(place), Math.max(scale, 2), y, look.weights[i], width));
    });
    this.#axis(pen, x, bottom, width, token, key);
    if (head < looks.length) {
      pen.strokeStyle = themeColor("text");
      pen.lineWidth = 1.5;
      pen.strokeRect(kLeft, kTop + head * kRow - 0.5, width - kLeft - 2, kRow - 1);
    }
  }

  #mark(pen, left, wide, y, weight, width) {
    if (left + wide < kLeft || left > width) return;
    const {color, alpha} = canvasWeight(weight),
                  tall = Math.max(2, Math.sqrt(Math.min(Math.abs(weight), 1)) * (kRow - 2));
    pen.globalAlpha = Math.max(alpha, 0.35);
    pen.fillStyle = color;
    const from = Math.max(left, kLeft);
    // A negative weight hangs from the top, a positive one stands on the bottom.
    pen.fillRect(
        from, weight < 0 ? y : y + kRow - 2 - tall,
        Math.max(left + wide - from - (wide > 4 ? 1 : 0), 1), tall);
    pen.globalAlpha = 1;
  }

  #axis(pen, x, bottom, width, token, key) {
    const line = (place, color) => {
      const at = x(place + 0.5);
      if (place < 0 || at < kLeft || at > width) return;
      pen.strokeStyle = themeColor(color);
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(at, 0);
      pen.lineTo(at, bottom);
      pen.stroke();
    };
    line(key, "accent");
    line(token, "text");
    const step = axisStep((this.to - this.from) / 6);
    pen.fillStyle = themeColor("muted");
    pen.textAlign = "center";
    for (let place = Math.ceil(this.from / step) * step; place < this.to; place += step) {
      const at = x(place + 0.5);
      if (at > kLeft + 6 && at < width - 14) pen.fillText(String(place), at, bottom + 11);
    }
  }
}
