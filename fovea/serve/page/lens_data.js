// The lens's numbers of one model on one text: rows of attention, telemetry, log-probabilities.
// Rows are fetched in blocks around the chosen token and kept.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {post} from "./api.js";

const kMostRows = 64;          // of one request
const kMostEntries = 250_000;  // weights in one answer

export class LensData {
  constructor(model, k) {
    this.model = model;  // an entry of /v1/models
    this.k = k;
    this.rows = new Map();    // row -> [layer] -> [head] -> {keys, weights, rest}
    this.pruned = new Map();  // row -> [layer] -> {visible, dropped, keys}
    this.tokens = [];
    this.ids = [];
    this.layers = [];  // telemetry, kernels and groups of each layer
    this.logprobs = null;
  }

  get #block() {
    const {layers, heads} = this.model.fovea;
    return Math.min(kMostRows, Math.max(1, Math.floor(kMostEntries / (layers * heads * this.k))));
  }

  /// `source` is {text} or {ids}. The row is the last one where `row` is negative or too large.
  async open(source, row, signal) {
    await this.#fetch(source, [-1], signal);
    const last = this.tokens.length - 1;
    if (row >= 0 && row < last) await this.row(row, signal);
    const body = {
      model: this.model.id,
      prompt: this.ids,
      echo: true,
      logprobs: 1,
      max_tokens: 0,
      temperature: 0
    };
    const answer = await post("v1/completions", body, signal);
    this.logprobs = answer.choices[0].logprobs.token_logprobs;
  }

  async row(row, signal) {
    if (!this.rows.has(row)) {
      const size = this.#block, from = Math.floor(row / size) * size, rows = [];
      for (let r = from; r < Math.min(from + size, this.tokens.length); ++r) {
        if (!this.rows.has(r)) rows.push(r);
      }
      await this.#fetch({ids: this.ids}, rows, signal);
    }
    return this.rows.get(row);
  }

  async #fetch(source, rows, signal) {
    const answer =
        await post("v1/attention", {model: this.model.id, ...source, rows, k: this.k}, signal);
    this.tokens = answer.tokens;
    this.ids = answer.ids;
    for (const row of answer.rows) {
      this.rows.set(row, []);
      this.pruned.set(row, []);
    }
    this.layers = answer.layers;
    for (const layer of answer.layers) {
      for (const {head, rows: of} of layer.heads) {
        for (const {row, keys, weights, rest} of of )
          (this.rows.get(row)[layer.layer] ??= [])[head] = {keys, weights, rest};
      }
      for (const entry of layer.pruned ?? []) this.pruned.get(entry.row)[layer.layer] = entry;
    }
  }

  layer(number) {
    return this.layers.find((layer) => layer.layer === number);
  }

  /// The weights of a row in one head, or nothing while they are not here.
  look(row, layer, head) {
    return this.rows.get(row)?.[layer]?.[head];
  }

  weight(row, layer, head, key) {
    const look = this.look(row, layer, head), at = look ? look.keys.indexOf(key) : -1;
    return at < 0 ? 0 : look.weights[at];
  }

  get hasSigns() {
    return this.layers.some((layer) => layer.signed);
  }
}
