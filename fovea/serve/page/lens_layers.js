// What a lens panel tells of layers: temperature and entropy, kernels of Multi-Token Attention, groups
// of Focus.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {groupColor} from "./colors.js";
import {fixed, make, makeSvg, percent, plural, shownToken, signed} from "./dom.js";

const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;

export function table(columns, rows) {
  const head = columns.map((text) => make("th", {text, scope: "col"}));
  const body = rows.map(
      (row) => make(
          "tr", {},
          ...row.map(
              (cell) => typeof cell === "object" ? make("td", {class: "text", text: cell.text}) :
                                                   make("td", {text: cell}))));
  return make(
      "div", {class: "scroll"},
      make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

/// One number a layer as a line with dots; a dot chooses the layer.
function layerChart(title, values, chosen, pick) {
  const width = 260, height = 84, left = 34, bottom = 66, top = 8;
  const known = values.filter(isFinite), low = Math.min(0, ...known),
        high = Math.max(1e-9, ...known);
  const x = (i) =>
      values.length < 2 ? (left + width) / 2 : left + i * (width - left - 6) / (values.length - 1);
  const y = (value) => bottom - (value - low) / (high - low) * (bottom - top);
  const label = (text, at) =>
      makeSvg("text", {x: left - 5, y: at + 4, "text-anchor": "end", fill: "var(--muted)", text});
  const svg = makeSvg(
      "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} by layer`},
      makeSvg("path", {d: `M${left} ${bottom}H${width}`, stroke: "var(--chart-baseline)"}),
      label(fixed(high, 2), top), label(fixed(low, low ? 2 : 0), bottom));
  const points =
      values.map((value, i) => isFinite(value) ? `${x(i).toFixed(1)},${y(value).toFixed(1)}` : "")
          .filter(Boolean);
  svg.append(makeSvg(
      "polyline",
      {points: points.join(" "), fill: "none", stroke: "var(--series-1)", "stroke-width": 1.6}));
  values.forEach((value, i) => {
    if (!isFinite(value)) return;
    const dot = makeSvg(
        "circle", {
          cx: x(i),
          cy: y(value),
          r: i === chosen ? 5 : 3,
          stroke: "var(--surface)",
          "stroke-width": 1,
          fill: i === chosen ? "var(--series-2)" : "var(--series-1)",
          onclick: () => pick(i)
        },
        makeSvg("title", {text: `layer ${i}: ${fixed(value)}`}));
    dot.style.cursor = "pointer";
    svg.append(dot);
  });
  for (const i of new Set([0, values.length - 1])) {
    svg.append(makeSvg(
        "text",
        {x: x(i), y: height - 3, "text-anchor": "middle", fill: "var(--muted)", text: String(i)}));
  }
  return make(
      "figure", {},
      make("figcaption", {text: `${title}: layer ${chosen}, ${fixed(values[chosen])}`}), svg);
}

export function layerCharts(layers, chosen, pickLayer) {
  const pick = (i) => pickLayer(layers[i].layer),
        at = layers.findIndex((layer) => layer.layer === chosen);
  const series = [
    ["Temperature", layers.map((layer) => layer.temperature ?? NaN)],
    ["Entropy, nats", layers.map((layer) => mean(layer.entropy))],
    ["Weight on the first token", layers.map((layer) => mean(layer.sink_mass))]
  ];
  const numbers = table(
      ["layer", "temperature", "entropy", "largest weight", "on the first token", "settings"],
      layers.map(
          (layer) =>
              [String(layer.layer), fixed(layer.temperature), fixed(mean(layer.entropy)),
               fixed(mean(layer.largest_weight)), fixed(mean(layer.sink_mass)),
               {text: layer.pipeline ?? ""}]));
  return [
    make(
        "div", {class: "charts"},
        ...series.filter(([, values]) => values.some(isFinite))
            .map(([title, values]) => layerChart(title, values, at, pick))),
    make("details", {class: "more"}, make("summary", {text: "Numbers"}), numbers)
  ];
}

// --- Multi-Token Attention

const kCell = 16;

function kernelPicture({weights, queries, keys, where}, name) {
  const most = Math.max(1e-12, ...weights.map(Math.abs));
  const svg = makeSvg(
      "svg", {
        width: keys * kCell,
        height: queries * kCell,
        viewBox: `0 0 ${keys * kCell} ${queries * kCell}`,
        role: "img",
        "aria-label": `Kernel ${where} the softmax: ${name}`
      },
      makeSvg("rect", {
        width: keys * kCell,
        height: queries * kCell,
        fill: "var(--chart-grid)",
        "fill-opacity": 0.5
      }));
  weights.forEach(
      (weight, i) => svg.append(makeSvg(
          "rect", {
            x: i % keys * kCell,
            y: Math.floor(i / keys) * kCell,
            width: kCell - 1,
            height: kCell - 1,
            fill: `var(--series-${weight < 0 ? 2 : 1})`,
            "fill-opacity": Math.abs(weight) / most
          },
          makeSvg("title", {text: `${placeName(i, queries, keys)}: ${signed(weight)}`}))));
  return svg;
}

/// A cell of a kernel in words: the last row is the current query, the middle column the current key.
function placeName(i, queries, keys) {
  const query = queries - 1 - Math.floor(i / keys), key = i % keys - Math.floor((keys - 1) / 2);
  const back =
      query === 0 ? "this query" : `${plural(query, "query").replace("querys", "queries")} back`;
  return `${back}, ${key === 0 ? "this key" : `key ${key < 0 ? "−" : "+"}${Math.abs(key)}`}`;
}

function kernelFigure(kernel) {
  const {weights, queries, keys} = kernel, own = (queries - 1) * keys + Math.floor((keys - 1) / 2);
  const total = weights.reduce((sum, weight) => sum + Math.abs(weight), 0) || 1;
  const neighbours = weights.map((weight, i) => [i, weight])
                         .filter(([i, weight]) => i !== own && weight !== 0)
                         .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
                         .slice(0, 3);
  const added =
      neighbours.map(([i, weight]) => `${signed(weight)} from ${placeName(i, queries, keys)}`)
          .join("; ");
  return make(
      "figure", {}, make("figcaption", {
        class: "figures",
        text: `${kernel.where === "before" ? "Before" : "After"} the softmax: ${kernel.class}`
      }),
      kernelPicture(kernel, kernel.class), make("p", {
        class: "figures",
        text: `Own weight ${signed(weights[own])}; neighbours ${
                  percent(1 - Math.abs(weights[own]) / total)} of all sizes` +
            (added ? `: ${added}.` : ".")
      }));
}

/// Nothing for a layer without Multi-Token Attention and talking heads.
export function kernelParts(layer, head) {
  const kernels = (layer.kernels ?? []).filter((kernel) => kernel.head === head),
        mixes = layer.head_mixes ?? [];
  if (kernels.length === 0 && mixes.length === 0) return null;
  const parts = [
    make("p", {
      class: "figures",
      text:
          "Rows are queries, the current one at the bottom; columns are keys around the current one. Blue adds, orange takes away."
    }),
    make("div", {class: "kernels"}, ...kernels.map(kernelFigure))
  ];
  if (mixes.length) {
    parts.push(
        make("h3", {text: "Heads mixed with each other"}),
        table(
            ["softmax", "mean diagonal", "least diagonal", "mean size elsewhere"],
            mixes.map(
                (mix) =>
                    [mix.where, fixed(mix.diagonal_mean), fixed(mix.diagonal_least),
                     fixed(mix.other_mean_size)])));
  }
  return parts;
}

// --- Focus

export function focusParts(layer, pruned, tokens, token) {
  const focus = layer.focus;
  if (!focus) return null;
  const swatch = (group) => make("span", {class: "swatch", style: {background: groupColor(group)}});
  const own = focus.first_choices?.[token];
  const parts = [make("p", {
    class: "figures",
    text: `The hard rule keeps ${percent(focus.pairs_kept)} of all pairs and ${
        percent(focus.distant_kept)} of distant ones.`
  })];
  if (own !== undefined)
    parts.push(make(
        "p", {class: "figures"}, "The chosen token is in group ", swatch(own), String(own), "."));
  if (pruned) {
    const names = pruned.keys.slice(0, 12)
                      .map((key) => `${key} “${shownToken(tokens[key] ?? "")}”`)
                      .join(", ");
    parts.push(make("p", {
      class: "figures",
      text: `Hard Focus drops ${pruned.dropped} of its ${plural(pruned.visible, "visible key")}` +
          (names ? `: ${names}${pruned.dropped > 12 ? ", …" : ""}.` : ".")
    }));
  }
  const groups = focus.groups.map(
      (group) =>
          [String(group.group), percent(group.share), fixed(group.confidence), group.main_class,
           percent(group.purity), {
             text:
                 group.top_tokens.map((top) => `${shownToken(top.text)} (${top.count})`).join("  ")
           }]);
  const groupTable =
      table(["group", "share", "confidence", "mostly", "purity", "frequent tokens"], groups);
  groupTable.querySelectorAll("tbody tr")
      .forEach((row, i) => row.firstChild.prepend(swatch(focus.groups[i].group)));
  parts.push(groupTable);
  if (focus.pairs.length) {
    const pairs = focus.pairs.map(
        (pair) =>
            [{text: `${shownToken(pair.query_text)} (${pair.query})`},
             {text: `${shownToken(pair.key_text)} (${pair.key})`}, String(pair.query - pair.key),
             fixed(pair.agreement)]);
    parts.push(make(
        "details", {class: "more"}, make("summary", {text: "Distant pairs that agree most"}),
        table(["looks", "back at", "distance", "agreement"], pairs)));
  }
  return parts;
}
