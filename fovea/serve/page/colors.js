// Colours of weights, surprise and groups. Blue and orange are told apart in every common colour
// blindness; a negative weight is also underlined.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {make} from "./dom.js";

const kGroupColors = 8;
// Text on a colour must stay readable.
const kStrongest = 52;

let colors = {};

/// A colour of the theme as CSS text, read once for each theme.
export function themeColor(name) {
  colors[name] ??= getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  return colors[name];
}

export function forgetColors() {
  colors = {};
}

/// Small weights are lifted: the strength is the square root.
const lifted = (share) => Math.sqrt(Math.min(Math.abs(share), 1));

const tint = (name, strength, most = kStrongest) =>
    `color-mix(in srgb, var(--${name}) ${(most * strength).toFixed(1)}%, transparent)`;

export const weightTint = (weight) =>
    weight === 0 ? "" : tint(weight < 0 ? "series-2" : "series-1", lifted(weight));
/// Nats; 8 and more have the full colour.
export const surpriseTint = (nats) => tint("series-4", Math.min(nats / 8, 1));
/// Nats; 3 and more have the full colour.
export const differenceTint = (nats) =>
    tint(nats < 0 ? "series-2" : "series-1", Math.min(Math.abs(nats) / 3, 1));
export const groupColor = (group) => `var(--series-${group % kGroupColors})`;
export const groupTint = (group) => tint(`series-${group % kGroupColors}`, 1, 30);

/// Colour of a canvas: opaque for 1, the page's grid colour for 0.
export function canvasWeight(weight) {
  const alpha = 0.06 + 0.94 * lifted(weight);
  return {color: themeColor(weight < 0 ? "series-2" : "series-1"), alpha: weight === 0 ? 0 : alpha};
}

function bar(colorOf, left, right) {
  const canvas = make("canvas", {width: 112, height: 10, "aria-hidden": "true"});
  const pen = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; ++x) {
    const {color, alpha} = colorOf(x / (canvas.width - 1));
    pen.globalAlpha = alpha;
    pen.fillStyle = color;
    pen.fillRect(x, 0, 1, canvas.height);
  }
  return [make("span", {text: left}), canvas, make("span", {text: right})];
}

const half = kStrongest / 100;
export const surpriseLegend = () =>
    bar((x) => ({color: themeColor("series-4"), alpha: half * x}), "0", "8 nats of surprise");
export const differenceLegend = (first, second) => bar(
    (x) =>
        ({color: themeColor(x < 0.5 ? "series-2" : "series-1"), alpha: half * Math.abs(2 * x - 1)}),
    `−3 nats, ${first} better`, `+3 nats, ${second} better`);
export const weightLegend = (hasSigns) => hasSigns ?
    bar((x) => ({
          color: themeColor(x < 0.5 ? "series-2" : "series-1"),
          alpha: half * lifted(2 * x - 1)
        }),
        "−1", "1") :
    bar((x) => ({color: themeColor("series-1"), alpha: half * lifted(x)}), "0", "1");
export function groupLegend(groups) {
  return groups.map(
      (group) => make(
          "span", {}, make("span", {class: "swatch", style: {background: groupColor(group)}}),
          String(group)));
}
