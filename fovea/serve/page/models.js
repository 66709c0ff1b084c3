// The models of the server, and the one that the visitor chose.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {get} from "./api.js";
import {byId, fillSelect, plural, stored} from "./dom.js";

export let models = [];

/// The model of the menu, or nothing before the server told its models.
export const chosenModel = () => models.find((model) => model.id === byId("model").value);
export const modelNamed = (id) => models.find((model) => model.id === id);

export function chooseModel(id) {
  if (!modelNamed(id) || byId("model").value === id) return;
  byId("model").value = id;
  byId("model").dispatchEvent(new Event("change"));
}

export function modelFacts(model) {
  const facts = model.fovea;
  const parts = [
    plural(facts.layers, "layer"), plural(facts.heads, "head"),
    `context of ${model.max_model_len.toLocaleString("en")} tokens`
  ];
  const attention = [...new Set(facts.attention ?? [])];
  if (attention.length === 1) parts.push(attention[0]);
  return parts.join(" · ");
}

function showFacts() {
  const model = chosenModel();
  if (!model) return;
  for (const node of document.querySelectorAll("[data-model-name]")) node.textContent = model.id;
  for (const node of document.querySelectorAll("[data-model-facts]"))
    node.textContent = modelFacts(model);
}

export async function loadModels() {
  models = (await get("v1/models")).data;
  fillSelect(
      byId("model"), models.map(({id, parent}) => [id, parent ? `${id} (on ${parent})` : id]),
      byId("model").value || stored.read("model"));
  showFacts();
}

export function startModels() {
  byId("model").addEventListener("change", () => {
    stored.write("model", byId("model").value);
    showFacts();
  });
}
