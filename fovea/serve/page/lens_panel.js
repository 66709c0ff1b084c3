// One model of the lens: text, grid of heads, reach of a layer, largest keys, facts of the layer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {differenceTint, groupTint, surpriseTint, weightTint} from "./colors.js";
import {fixed, make, percent, plural, shownToken, signed} from "./dom.js";
import {HeadGrid, ReachPicture} from "./lens_canvas.js";
import {focusParts, kernelParts, layerCharts} from "./lens_layers.js";
import {modelFacts} from "./models.js";
import {TokenFlow} from "./token_flow.js";

const kMeasures = {
  largest: "Rows are layers, columns heads: the largest weight of the chosen token.",
  key: "Rows are layers, columns heads: the weight that the chosen token gives the marked key.",
  first: "Rows are layers, columns heads: the weight that the chosen token gives the first one.",
  entropy:
      "Rows are layers, columns heads: the entropy, a mean of all rows, as a share of the most.",
};

const card = (title, ...children) =>
    make("div", {class: "card"}, make("h2", {text: title}), ...children);

export class LensPanel {
  /// `choose` takes a part of the lens's state: {token}, {layer, head}, {key}.
  constructor(data, choose) {
    this.data = data;
    this.choose = choose;
    const name = data.model.id;
    this.flow = new TokenFlow(`Tokens, ${name}`, {
      pick: (token) => choose({token}),
      point: (index) => this.pointed?.(index),
    });
    this.grid = new HeadGrid((layer, head) => choose({layer: data.layers[layer].layer, head}));
    this.reach =
        new ReachPicture({pickKey: (key) => choose({key}), pickHead: (head) => choose({head})});
    this.parts = Object.fromEntries(
        ["keys", "charts", "kernels", "focus"].map((part) => [part, make("div")]));
    this.node = make("article", {class: "panel", "aria-label": name});
    this.#build(name);
    this.flow.setTokens(data.tokens);
    this.reach.reset(data.tokens.length);
  }

  #build(name) {
    const zoom = (text, label, run) =>
        make("button", {type: "button", text, "aria-label": label, onclick: run});
    const zooms = make(
        "span", {class: "zoom"}, zoom("−", "Zoom out", () => this.reach.zoom(2)),
        zoom("+", "Zoom in", () => this.reach.zoom(0.5)),
        zoom("All", "The whole text", () => this.reach.zoom(1e9)));
    this.textFigures = make("p", {class: "figures text-figures"});
    this.gridFigures = make("p", {class: "figures"});
    this.reachCard = card(
        "Where the heads of the layer look",
        make(
            "p", {class: "figures"}, zooms,
            "The axis is the text. Shift and the wheel zoom, dragging moves."),
        this.reach.canvas);
    this.kernelCard = card("Multi-Token kernel of the head", this.parts.kernels);
    this.focusCard = card("Groups of Focus", this.parts.focus);
    this.focusCard.classList.add("wide-part");
    this.node.append(
        make(
            "header", {}, make("h2", {text: name}),
            make("p", {class: "figures", text: modelFacts(this.data.model)})),
        make("div", {class: "card"}, this.textFigures, this.flow.node),
        make(
            "div", {class: "parts"},
            make(
                "div", {class: "panel at-right"},
                card("Layers and heads", this.gridFigures, this.grid.canvas)),
            make(
                "div", {class: "panel"}, this.reachCard,
                card("Largest keys of the head", this.parts.keys)),
            Object.assign(card("Layers", this.parts.charts), {className: "card wide-part"}),
            this.kernelCard, this.focusCard));
    new ResizeObserver(() => this.state && this.#drawCanvases()).observe(this.node);
  }

  /// Draws a state: {token, layer, head, key, color, measure}; `other` is the panel beside, if any.
  draw(state, other) {
    this.state = state;
    this.other = other;
    this.flow.look = (i) => this.#lookOf(i);
    this.flow.choose(state.token);
    this.#drawCanvases();
    this.#drawKeys();
    this.#drawFigures();
    const {data} = this, layer = data.layer(state.layer);
    if (!layer) return;
    this.parts.charts.replaceChildren(
        ...layerCharts(data.layers, state.layer, (number) => this.choose({layer: number})));
    const kernels = kernelParts(layer, state.head),
          focus = focusParts(layer, this.#pruned(), data.tokens, state.token);
    this.kernelCard.hidden = kernels === null;
    this.parts.kernels.replaceChildren(...(kernels ?? []));
    this.focusCard.hidden = focus === null;
    this.parts.focus.replaceChildren(...(focus ?? []));
  }

  #pruned() {
    return this.data.pruned.get(this.state.token)?.[this.state.layer];
  }

  /// log-probability of a token minus that of the other model, or nothing where the tokens differ.
  difference(i) {
    const theirs = this.other?.data;
    if (!theirs?.logprobs || !this.data.logprobs || theirs.ids[i] !== this.data.ids[i]) return null;
    const a = this.data.logprobs[i], b = theirs.logprobs[i];
    return a === null || b === null ? null : a - b;
  }

  #lookOf(i) {
    const {token, layer, head, key, color} = this.state, {data} = this;
    const classes = [
      i === key ? "marked" : "",
      i > token && (color === "attention" || color === "dropped") ? "later" : ""
    ];
    const weight = data.weight(token, layer, head, i);
    let background = "", title = `${i}`;
    if (color === "attention") {
      background = weightTint(weight);
      if (weight < 0) classes.push("negative");
      if (i <= token) title += `: weight ${fixed(weight, 4)}`;
    } else if (color === "surprise") {
      const logprob = data.logprobs?.[i] ?? null;
      background = logprob === null ? "" : surpriseTint(-logprob);
      title += `: ${fixed(-logprob, 2)} nats`;
    } else if (color === "difference") {
      const difference = this.difference(i);
      background = difference === null ? "" : differenceTint(difference);
      if (difference < 0) classes.push("negative");
      title += `: ${signed(difference, 2)} nats`;
    } else if (color === "groups") {
      const group = data.layer(layer)?.focus?.first_choices?.[i];
      background = group === undefined ? "" : groupTint(group);
      title += group === undefined ? "" : `: group ${group}`;
    } else if (this.#pruned()?.keys.includes(i)) {
      classes.push("dropped");
      title += ": dropped";
    } else if (i <= token) {
      background = weightTint(weight);
    }
    return {background, title, className: classes.filter(Boolean).join(" ")};
  }

  #valueOf(layerIndex, head) {
    const {token, key, measure} = this.state, layer = this.data.layers[layerIndex],
                       look = this.data.look(token, layer.layer, head);
    if (measure === "entropy")
      return (layer.entropy[head] ?? 0) / Math.max(Math.log(this.data.tokens.length), 1e-9);
    if (measure === "first") return this.data.weight(token, layer.layer, head, 0);
    if (measure === "key") return key < 0 ? 0 : this.data.weight(token, layer.layer, head, key);
    return look?.weights[0] ?? 0;
  }

  #drawCanvases() {
    const {token, layer, head, key} = this.state, {data} = this,
                               at = data.layers.findIndex((one) => one.layer === layer);
    if (at < 0) return;
    const heads = data.layers[at].heads.length;
    this.grid.draw({
      layers: data.layers.length,
      heads,
      layer: at,
      head,
      valueOf: (l, h) => this.#valueOf(l, h),
      label: `Layers and heads of ${data.model.id}`
    });
    const looks = Array.from({length: heads}, (_, h) => data.look(token, layer, h));
    this.reach.draw({
      looks,
      head,
      token,
      key,
      label: `Where the ${plural(heads, "head")} of layer ${layer} look`
    });
  }

  #drawKeys() {
    const {token, layer, head, key} = this.state, look = this.data.look(token, layer, head);
    if (!look) {
      this.parts.keys.replaceChildren(make("p", {class: "figures", text: "Reading …"}));
      return;
    }
    const most = Math.max(1e-12, ...look.weights.map(Math.abs));
    const items = look.keys.map((place, i) => {
      const weight = look.weights[i];
      const bar = make("i", {
        style: {
          width: `${100 * Math.abs(weight) / most}%`,
          background: `var(--series-${weight < 0 ? 2 : 1})`
        }
      });
      return make(
          "li", {},
          make(
              "button", {
                type: "button",
                "aria-current": place === key ? "true" : null,
                onclick: () => this.choose({key: place})
              },
              make("span", {class: "place", text: String(place)}),
              make("code", {text: shownToken(this.data.tokens[place])}),
              make("span", {class: "track"}, bar),
              make("span", {class: "weight", text: fixed(weight, 4)})));
    });
    const others = token + 1 - look.keys.length;
    this.parts.keys.replaceChildren(
        make("p", {
          class: "figures",
          text: others > 0 ?
              `The other ${plural(others, "key")} have ${fixed(look.rest, 4)} together.` :
              "All keys of the row."
        }),
        make("ol", {class: "keys"}, ...items));
  }

  #drawFigures() {
    this.gridFigures.textContent = kMeasures[this.state.measure];
    const known = (this.data.logprobs ?? []).filter((value) => value !== null);
    const nats = -known.reduce((a, b) => a + b, 0) / Math.max(known.length, 1);
    const parts = [plural(this.data.tokens.length, "token")];
    if (known.length) parts.push(`mean surprise ${fixed(nats)} nats`);
    const differences = this.other ?
        this.data.ids.map((_, i) => this.difference(i)).filter((value) => value !== null) :
        [];
    if (differences.length)
      parts.push(`${
          signed(
              differences.reduce((a, b) => a + b, 0) /
              differences.length)} nats a token against ${this.other.data.model.id}`);
    const pruned = this.#pruned();
    if (pruned)
      parts.push(
          `hard Focus drops ${percent(pruned.dropped / Math.max(pruned.visible, 1))} of this row`);
    this.textFigures.textContent = parts.join(" · ");
  }
}
