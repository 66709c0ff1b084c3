// A text as tokens, one cell each, laid out in rows of which only the visible ones are nodes: texts of
// many thousand tokens stay quick. To a keyboard and a screen reader it is a list box.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {make, shownToken} from "./dom.js";

const kRowHeight = 27;  // px, as .flow-row
const kSpareRows = 8;   // drawn above and below the window

let flows = 0;

export class TokenFlow {
  /// `pick(i)`: a token was chosen; `point(i)`: the pointer is over it, or over none (-1).
  constructor(label, {pick, point = () => {}}) {
    this.name = `flow-${++flows}`;
    this.inner = make("div", {role: "none"});
    this.node =
        make("div", {class: "flow", role: "listbox", tabindex: 0, "aria-label": label}, this.inner);
    this.pick = pick;
    this.shown = [];   // tokens as drawn
    this.breaks = [];  // whether a line ends behind the token
    this.rows = [];    // first token of each row
    this.chosen = -1;
    this.look = () => ({});
    this.widths = new Map();
    this.node.addEventListener("scroll", () => this.draw());
    this.node.addEventListener("click", (event) => this.#at(event, pick));
    this.node.addEventListener("pointerover", (event) => this.#at(event, point));
    this.node.addEventListener("pointerleave", () => point(-1));
    this.node.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.layOut()).observe(this.node);
  }

  #at(event, run) {
    const cell = event.target.closest(".flow-token");
    if (cell) run(Number(cell.dataset.token));
  }

  setTokens(tokens) {
    const isLonger = tokens.length >= this.shown.length && this.rows.length > 0;
    this.shown = tokens.map(shownToken);
    this.breaks = tokens.map((token) => token.includes("\n"));
    this.layOut(isLonger);
  }

  /// `look(i)` gives {background, className, title} of token i.
  paint(look) {
    this.look = look;
    this.draw();
  }

  choose(index, mayScroll = true) {
    this.chosen = index;
    if (mayScroll && index >= 0) this.reveal(index);
    this.draw();
  }

  reveal(index) {
    const top = this.#rowOf(index) * kRowHeight, {scrollTop, clientHeight} = this.node;
    if (top < scrollTop)
      this.node.scrollTop = Math.max(0, top - kRowHeight);
    else if (top + kRowHeight > scrollTop + clientHeight)
      this.node.scrollTop = top + 2 * kRowHeight - clientHeight;
  }

  revealEnd() {
    this.node.scrollTop = this.inner.offsetHeight;
  }

  #width(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      width = this.pen.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  layOut() {
    const room = this.node.clientWidth;
    if (room === 0) return;  // hidden
    if (!this.pen) {
      this.pen = document.createElement("canvas").getContext("2d");
      const style = getComputedStyle(this.node);
      this.pen.font = `${style.fontSize} ${style.fontFamily}`;
    }
    this.rows = this.shown.length ? [0] : [];
    let used = 0;
    for (let i = 0; i < this.shown.length; ++i) {
      const width = this.#width(this.shown[i]);
      if (used > 0 && used + width > room - 1) {
        this.rows.push(i);
        used = 0;
      }
      used += width;
      if (this.breaks[i] && i + 1 < this.shown.length) {
        this.rows.push(i + 1);
        used = 0;
      }
    }
    this.inner.style.height = this.rows.length * kRowHeight + "px";
    this.draw();
  }

  #rowOf(index) {
    let low = 0, high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.rows[middle] <= index)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  #cell(i) {
    const {background = "", className = "", title} = this.look(i);
    const isChosen = i === this.chosen;
    return make("span", {
      class: `flow-token ${className}${isChosen ? " chosen" : ""}`,
      role: "option",
      id: `${this.name}-${i}`,
      title,
      "data-token": i,
      "aria-selected": String(isChosen),
      "aria-posinset": i + 1,
      "aria-setsize": this.shown.length,
      text: this.shown[i],
      style: {background},
    });
  }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / kRowHeight) - kSpareRows);
    const last = Math.min(
        this.rows.length,
        Math.ceil((this.node.scrollTop + this.node.clientHeight) / kRowHeight) + kSpareRows);
    const nodes = [];
    for (let row = first; row < last; ++row) {
      const end = row + 1 < this.rows.length ? this.rows[row + 1] : this.shown.length;
      const cells = [];
      for (let i = this.rows[row]; i < end; ++i) cells.push(this.#cell(i));
      nodes.push(make(
          "div", {class: "flow-row", role: "none", style: {top: row * kRowHeight + "px"}},
          ...cells));
    }
    this.inner.replaceChildren(...nodes);
    const active = `${this.name}-${this.chosen}`;
    if (this.chosen >= 0 && document.getElementById(active))
      this.node.setAttribute("aria-activedescendant", active);
    else
      this.node.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || this.shown.length === 0) return;
    const now = Math.max(this.chosen, 0), row = this.#rowOf(now);
    const inRow = now - this.rows[row];
    const line = (r) => {
      const end = r + 1 < this.rows.length ? this.rows[r + 1] : this.shown.length;
      return Math.min(this.rows[r] + inRow, end - 1);
    };
    const page = Math.max(1, Math.floor(this.node.clientHeight / kRowHeight) - 1),
          lastRow = this.rows.length - 1;
    const moves = {
      ArrowLeft: now - 1,
      ArrowRight: now + 1,
      Home: 0,
      End: this.shown.length - 1,
      ArrowUp: row > 0 ? line(row - 1) : now,
      ArrowDown: row < lastRow ? line(row + 1) : now,
      PageUp: line(Math.max(row - page, 0)),
      PageDown: line(Math.min(row + page, lastRow)),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const target = Math.min(Math.max(moves[event.key], 0), this.shown.length - 1);
    this.reveal(target);
    this.pick(target);
  }
}
