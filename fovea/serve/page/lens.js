// Lens: where each layer and head looks, of one model or of two beside each other. The address
// holds the whole state, so a finding is a link.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {post} from "./api.js";
import {differenceLegend, groupLegend, surpriseLegend, weightLegend} from "./colors.js";
import {
  announce, byId, copyText, debounced, fillSelect, fixed, make, onEscape, shownToken, signed
} from "./dom.js";
import {LensData} from "./lens_data.js";
import {LensPanel} from "./lens_panel.js";
import {chosenModel, modelNamed, models} from "./models.js";

const kExample = "The keeper gave the key to the keeper. The keeper gave the";
const kNumbers = ["token", "layer", "head", "key"];
const kChoices = ["color", "measure", "k"];

let state = {token: -1, layer: 0, head: 0, key: -1};
let source = null;    // {text} or {ids, text}: what the panels show
let givenIds = null;  // ids of the text box, while its text is theirs
let panels = [];
let abort = null;     // of a whole look
let rowAbort = null;  // of the rows of a token
let opened = "";      // the model, text and the like of the panels

const text = () => byId("lens-text").value;
const choices = () =>
    Object.fromEntries(kChoices.map((name) => [name, byId("lens-" + name).value]));
const current = () => ({...state, ...choices()});

// --- the address

function addressOf() {
  const address = new URLSearchParams({view: "lens", model: chosenModel()?.id ?? ""});
  if (givenIds && givenIds.text === text())
    address.set("ids", givenIds.ids.join(","));
  else
    address.set("text", text());
  if (byId("lens-beside").value) address.set("beside", byId("lens-beside").value);
  for (const name of kNumbers)
    if (state[name] >= 0) address.set(name, state[name]);
  for (const [name, value] of Object.entries(choices())) address.set(name, value);
  return "#" + address;
}

const remember = debounced(() => {
  if (!byId("lens").hidden) history.replaceState(null, "", addressOf());
}, 120);

async function readAddress(address) {
  for (const name of kNumbers) {
    const value = Number.parseInt(address.get(name), 10);
    if (Number.isFinite(value)) state[name] = value;
  }
  for (const name of kChoices) {
    const select = byId("lens-" + name), value = address.get(name);
    if ([...select.options].some((option) => option.value === value)) select.value = value;
  }
  if (address.has("beside") && modelNamed(address.get("beside")))
    byId("lens-beside").value = address.get("beside");
  if (address.has("ids")) {
    const ids = address.get("ids").split(",").map(Number).filter(Number.isInteger);
    const {prompt} = await post("detokenize", {model: chosenModel().id, tokens: ids});
    byId("lens-text").value = prompt;
    givenIds = {ids, text: text()};
  } else if (address.has("text")) {
    byId("lens-text").value = address.get("text");
  }
}

// --- a whole look

function showBusy(isBusy, message = "") {
  byId("lens-go").hidden = isBusy;
  byId("lens-stop").hidden = !isBusy;
  byId("lens-state").textContent = message;
}

function clampState(data) {
  const last = data.tokens.length - 1, layers = data.layers.map((layer) => layer.layer);
  if (state.token < 0 || state.token > last) state.token = last;
  if (state.key > last) state.key = -1;
  if (!layers.includes(state.layer)) state.layer = layers[0];
  if (state.head >= data.layers[0].heads.length || state.head < 0) state.head = 0;
}

async function look() {
  abort?.abort();
  const mine = abort = new AbortController();
  const names = [chosenModel(), modelNamed(byId("lens-beside").value)].filter(Boolean);
  source = givenIds && givenIds.text === text() ? {ids: givenIds.ids} : {text: text()};
  opened = JSON.stringify([names.map((model) => model.id), text(), byId("lens-k").value]);
  showBusy(true, "Reading …");
  try {
    const all = [];
    for (const model of names) {
      const data = new LensData(model, Number(byId("lens-k").value));
      await data.open(source, state.token, mine.signal);
      all.push(data);
    }
    showPanels(all);
    showBusy(false);
    announce("The lens is ready.");
  } catch (error) {
    if (mine !== abort) return;
    opened = "";
    showBusy(false, error.name === "AbortError" ? "Stopped." : error.message);
  }
}

function showPanels(all) {
  clampState(all[0]);
  panels = all.map((data) => new LensPanel(data, choose));
  byId("lens-panels").replaceChildren(...panels.map((panel) => panel.node));
  byId("lens-panels").classList.toggle("two", panels.length > 1);
  const {layers} = all[0];
  fillSelect(byId("lens-layer"), layers.map(({layer}) => [layer, layer]), state.layer);
  fillSelect(byId("lens-head"), layers[0].heads.map(({head}) => [head, head]), state.head);
  const allow = (name, isThere) => {
    const option = [...byId("lens-color").options].find(({value}) => value === name);
    option.disabled = !isThere;
    if (!isThere && byId("lens-color").value === name) byId("lens-color").value = "attention";
  };
  allow("difference", panels.length > 1);
  allow("groups", all.some((data) => data.layers.some((layer) => layer.focus)));
  allow("dropped", all.some((data) => data.layers.some((layer) => layer.pruned?.length)));
  for (const panel of panels) panel.pointed = (index) => drawReadout(index);
  byId("lens-result").hidden = false;
  // The panels have their width only now.
  for (const panel of panels) panel.flow.layOut();
  choose({token: state.token});
}

// --- choices

async function choose(part) {
  Object.assign(state, part);
  byId("lens-layer").value = state.layer;
  byId("lens-head").value = state.head;
  draw();
  if ("key" in part)
    for (const panel of panels) panel.flow.reveal(state.key);
  if (panels.every((panel) => panel.data.rows.has(state.token))) return;
  rowAbort?.abort();
  const mine = rowAbort = new AbortController(), {token} = state;
  await new Promise((resolve) => setTimeout(resolve, 80));  // an arrow key that is held asks once
  if (mine.signal.aborted) return;
  byId("lens-state").textContent = "Reading …";
  try {
    for (const panel of panels) await panel.data.row(token, mine.signal);
    byId("lens-state").textContent = "";
    draw();
  } catch (error) {
    if (error.name !== "AbortError") byId("lens-state").textContent = error.message;
  }
}

function drawReadout(pointed = -1) {
  const {token, layer, head} = state, key = pointed >= 0 ? pointed : state.key,
                       line = byId("lens-readout");
  const name = (data, i) => make("code", {text: shownToken(data.tokens[i] ?? "")});
  const data = panels[0]?.data;
  if (!data) return;
  line.replaceChildren(`Token ${token} `, name(data, token), ` in layer ${layer}, head ${head}`);
  if (key < 0 || key > token) {
    const look = data.look(token, layer, head);
    if (look?.keys.length)
      line.append(
          ` looks most at ${look.keys[0]} `, name(data, look.keys[0]),
          `: ${fixed(look.weights[0], 4)}`);
  } else {
    line.append(` looks at ${key} `, name(data, key), ": ");
    panels.forEach((panel, i) => {
      const look = panel.data.look(token, layer, head), isListed = look?.keys.includes(key);
      const weight =
          isListed ? fixed(panel.data.weight(token, layer, head, key), 4) : "not among its largest";
      line.append(
          i ? ` · ${panel.data.model.id} ` :
              panels.length > 1 ? `${panel.data.model.id} ` :
                                  "",
          make("b", {text: weight}));
    });
  }
  const at = pointed >= 0 ? pointed : token;
  const logprobs = panels.map((panel) => panel.data.logprobs?.[at] ?? null);
  if (logprobs[0] !== null) {
    line.append(
        `. Token ${at} itself: ${logprobs.map((value) => fixed(value, 3)).join(" and ")} nats`);
    if (panels.length > 1 && panels[1].difference(at) !== null)
      line.append(`, ${signed(panels[1].difference(at))}`);
    line.append(" of log-probability");
  }
  line.append(".");
}

function drawLegend() {
  const {color} = choices(), names = panels.map((panel) => panel.data.model.id);
  const groups = panels.flatMap((panel) => panel.data.layer(state.layer)?.focus?.groups ?? [])
                     .map(({group}) => group);
  const parts = color === "surprise" ? surpriseLegend() :
      color === "difference"         ? [...differenceLegend("the other", "this model")] :
      color === "groups"             ? groupLegend([...new Set(groups)].sort((a, b) => a - b)) :
                                       weightLegend(panels.some((panel) => panel.data.hasSigns));
  byId("lens-legend").replaceChildren(...parts);
  byId("lens-legend").title = names.join(" and ");
}

function draw() {
  const now = current();
  panels.forEach((panel, i) => panel.draw(now, panels.length > 1 ? panels[1 - i] : null));
  drawReadout();
  drawLegend();
  remember();
}

function fillBeside() {
  const select = byId("lens-beside");
  fillSelect(select, [["", "no other model"], ...models.map(({id}) => [id, id])], select.value);
}

function listen() {
  byId("lens-form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = state.key = -1;
    look();
  });
  byId("lens-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
      byId("lens-form").requestSubmit();
  });
  byId("lens-stop").addEventListener("click", () => abort?.abort());
  onEscape("lens", () => abort?.abort());
  for (const name of ["beside", "k"])
    byId("lens-" + name).addEventListener("change", () => panels.length && look());
  byId("lens-layer").addEventListener("change", (event) => choose({
                                                  layer: Number(event.target.value)
                                                }));
  byId("lens-head").addEventListener("change", (event) => choose({
                                                 head: Number(event.target.value)
                                               }));
  for (const name of ["color", "measure"]) byId("lens-" + name).addEventListener("change", draw);
  byId("lens-link")
      .addEventListener("click", () => copyText(location.origin + location.pathname + addressOf()));
  byId("model").addEventListener("change", () => panels.length && !byId("lens").hidden && look());
}

export function startLens() {
  byId("lens-text").value = kExample;
  listen();
  return {
    async show(address) {
      fillBeside();
      if (!chosenModel()) return;
      const isDeep = address.has("text") || address.has("ids");
      try {
        if (isDeep) await readAddress(address);
      } catch (error) {
        showBusy(false, error.message);
        return;
      }
      const names = [chosenModel(), modelNamed(byId("lens-beside").value)].filter(Boolean);
      if (JSON.stringify([names.map((model) => model.id), text(), byId("lens-k").value]) !== opened)
        look();
      else
        choose({});
    },
    redraw: () => panels.length && draw(),
  };
}
