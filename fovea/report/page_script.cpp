// The script of the report: theme switch, fading of variants, attention maps. Plain JavaScript,
// nothing is loaded. Texts reach the page through textContent only.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

constexpr std::string_view kScript = R"js(
"use strict";
const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const cssColor = (name) => getComputedStyle(root).getPropertyValue(name).trim();
let redrawMaps = () => {};

// --- theme
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
function showTheme() {
  byId("theme").textContent = isDark() ? "Light theme" : "Dark theme";
  redrawMaps();
}
byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
});
systemDark.addEventListener("change", showTheme);

// --- fading a variant in all charts
for (const chip of document.querySelectorAll("[data-toggle]")) {
  chip.addEventListener("click", () => {
    const shown = chip.getAttribute("aria-pressed") !== "true";
    chip.setAttribute("aria-pressed", String(shown));
    for (const mark of document.querySelectorAll("[data-variant]")) {
      if (mark.dataset.variant === chip.dataset.toggle) mark.classList.toggle("faded", !shown);
    }
  });
}

// --- attention maps
function unpack(map) {
  const bytes = Uint8Array.from(atob(map.weights), (c) => c.charCodeAt(0));
  const step = (map.high - map.low) / 65535;
  const weights = new Float32Array(bytes.length / 2);
  for (let k = 0; k < weights.length; k++) weights[k] = map.low + step * (bytes[2 * k] | bytes[2 * k + 1] << 8);
  return (i, j) => weights[i * (i + 1) / 2 + j];
}
function parseColor(text) {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16 & 255, value >> 8 & 255, value & 255];
}
function makeRamp() {
  const stops = [0, 1, 2].map((k) => parseColor(cssColor("--ramp-" + k)));
  return (share) => {
    const x = Math.min(Math.max(share, 0), 1) * 2, k = Math.min(Math.floor(x), 1), f = x - k;
    return stops[k].map((c, n) => Math.round(c + f * (stops[k + 1][n] - c)));
  };
}
const shownToken = (t) => t.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
function element(name, text, className) {
  const node = document.createElement(name);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}
function fillSelect(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => {
    const option = element("option", text);
    option.value = value;
    return option;
  }));
  select.value = entries.some(([value]) => String(value) === String(chosen)) ? chosen : entries[0][0];
}

function startMaps(data) {
  const sides = ["left", "right"].filter((side) => byId(side + "-map"));
  let marked = null;  // {i, j}
  const state = {};
  const variantOf = (side) => data.variants[+byId(side + "-variant").value];
  const mapOf = (side) => variantOf(side).maps.find(
      (m) => m.layer === +byId("map-layer").value && m.head === +byId("map-head").value);
  const distinct = (maps, key) => [...new Set(maps.map((m) => m[key]))].sort((a, b) => a - b).map((v) => [v, v]);

  function fillHeads(layer, head) {
    const maps = sides.flatMap((side) => variantOf(side).maps);
    fillSelect(byId("map-layer"), distinct(maps, "layer"), layer);
    fillSelect(byId("map-head"), distinct(maps.filter((m) => m.layer === +byId("map-layer").value), "head"), head);
  }
  const shade = (weight) => byId("map-root").checked ? Math.sqrt(Math.max(weight, 0)) : weight;

  function drawMap(side) {
    const canvas = byId(side + "-map"), map = mapOf(side);
    const pixels = Math.round(canvas.clientWidth * devicePixelRatio) || 300;
    canvas.width = canvas.height = pixels;
    const pen = canvas.getContext("2d");
    if (!map) { state[side] = null; return; }
    const tokens = data.texts[map.text], n = tokens.length, weight = unpack(map), ramp = makeRamp();
    const image = pen.createImageData(n, n);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) image.data.set([...ramp(shade(weight(i, j))), 255], 4 * (i * n + j));
    }
    const small = document.createElement("canvas");
    small.width = small.height = n;
    small.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, 0, 0, pixels, pixels);
    state[side] = {tokens, n, weight, ramp};
    let entropy = 0, first = 0, largest = 0;
    for (let i = 0; i < n; i++) {
      let top = 0;
      for (let j = 0; j <= i; j++) {
        const w = weight(i, j);
        if (w > 0) entropy -= w * Math.log2(w);
        top = Math.max(top, w);
      }
      first += weight(i, 0);
      largest += top;
    }
    byId(side + "-figures").textContent = `mean entropy ${(entropy / n).toFixed(2)} bits · largest weight ` +
        `${(largest / n).toFixed(2)} · on the first token ${(first / n).toFixed(2)}`;
  }
  function drawMark(side) {
    const at = state[side];
    if (!at || !marked || marked.i >= at.n) return;
    const canvas = byId(side + "-map"), pen = canvas.getContext("2d"), cell = canvas.width / at.n;
    pen.strokeStyle = cssColor("--bad");
    pen.lineWidth = Math.max(1, devicePixelRatio);
    pen.strokeRect(0, marked.i * cell, (marked.i + 1) * cell, cell);
    pen.lineWidth = 2 * Math.max(1, devicePixelRatio);
    pen.strokeRect(marked.j * cell, marked.i * cell, cell, cell);
  }
  function drawStrip(side) {
    const at = state[side], strip = byId(side + "-strip");
    if (!at) { strip.textContent = "This variant has no map of this layer and head."; byId(side + "-figures").textContent = ""; return; }
    const query = marked ? Math.min(marked.i, at.n - 1) : at.n - 1;
    strip.replaceChildren(...at.tokens.map((token, j) => {
      const later = j > query;
      const span = element("span", token === "\n" ? "⏎\n" : shownToken(token), later ? "later" : j === query ? "query" : "");
      if (!later) {
        const color = at.ramp(shade(at.weight(query, j)));
        span.style.background = `rgb(${color})`;
        // White on dark cells and black on light ones, by luminance.
        span.style.color = 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2] > 140 ? "#000" : "#fff";
      }
      span.addEventListener("click", () => mark(j, Math.min(marked ? marked.j : 0, j)));
      return span;
    }));
  }
  function readout() {
    const at = state.left || state.right, line = byId("map-readout");
    if (!at || !marked) { line.textContent = "\u00a0"; return; }
    const i = Math.min(marked.i, at.n - 1), j = Math.min(marked.j, i);
    line.replaceChildren("position " + i + " ", element("code", shownToken(at.tokens[i])), " looks at position " + j + " ",
                         element("code", shownToken(at.tokens[j])), ": ");
    sides.forEach((side, k) => {
      const its = state[side];
      if (!its || i >= its.n) return;
      line.append(`${k ? " · " : ""}${variantOf(side).name} `, element("b", its.weight(i, j).toFixed(3)));
    });
  }
  function draw() {
    sides.forEach((side) => { drawMap(side); drawMark(side); drawStrip(side); });
    readout();
    const ramp = makeRamp(), bar = byId("map-ramp"), pen = bar.getContext("2d");
    for (let x = 0; x < bar.width; x++) {
      pen.fillStyle = `rgb(${ramp(shade(x / (bar.width - 1)))})`;
      pen.fillRect(x, 0, 1, bar.height);
    }
  }
  function mark(i, j) {
    if (marked && marked.i === i && marked.j === j) return;
    marked = {i, j};
    draw();
  }
  sides.forEach((side) => {
    const canvas = byId(side + "-map");
    fillSelect(byId(side + "-variant"), data.variants.map((v, k) => [k, v.name]), data[side]);
    byId(side + "-variant").addEventListener("change", () => {
      fillHeads(byId("map-layer").value, byId("map-head").value);
      draw();
    });
    const point = (event) => {
      const at = state[side], box = canvas.getBoundingClientRect();
      if (!at) return;
      const place = (x) => Math.min(Math.max(Math.floor(x * at.n), 0), at.n - 1);
      const i = place((event.clientY - box.top) / box.height);
      mark(i, Math.min(place((event.clientX - box.left) / box.width), i));
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("keydown", (event) => {
      const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
      const at = state[side];
      if (!move || !at || !marked) return;
      event.preventDefault();
      const i = Math.min(Math.max(marked.i + move[0], 0), at.n - 1);
      mark(i, Math.min(Math.max(marked.j + move[1], 0), i));
    });
  });
  fillHeads(data.layer, data.head);
  byId("map-layer").addEventListener("change", () => { fillHeads(byId("map-layer").value, byId("map-head").value); draw(); });
  byId("map-head").addEventListener("change", draw);
  byId("map-root").addEventListener("change", draw);
  redrawMaps = draw;
  addEventListener("resize", draw);
  draw();
  // The first mark: the pair with the largest weight that is neither the first token nor the position itself.
  const at = state.right || state.left;
  let best = {i: 0, j: 0}, most = -1;
  for (let i = Math.floor(at.n / 2); i < at.n; i++) {
    for (let j = 1; j < i; j++) if (at.weight(i, j) > most) { most = at.weight(i, j); best = {i, j}; }
  }
  mark(best.i, best.j);
}
if (byId("attention-data")) startMaps(JSON.parse(byId("attention-data").textContent));
showTheme();
)js";

}  // namespace

std::string_view page_script() { return kScript; }

}  // namespace fovea
