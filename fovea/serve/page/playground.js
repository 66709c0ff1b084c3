// Playground: a text as tokens coloured by surprise; an alternative can be taken at any place.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {ApiError, post, stream} from "./api.js";
import {surpriseLegend, surpriseTint} from "./colors.js";
import {announce, byId, fixed, make, onEscape, percent, plural, shownToken} from "./dom.js";
import {chosenModel} from "./models.js";
import {TokenFlow} from "./token_flow.js";

const kAlternatives = 10;
const kDrawEvery = 60;  // ms
const kExample = "The keeper gave the key to the keeper. The keeper gave the";

// Tokens of the answer, one entry a token: {text, id, logprob, top: [[text, logprob, id]], isNew}.
let tokens = [];
let ids = null, idsText = "";  // the ids of the text, while the text is the one they were made from
let branches = [];             // earlier states, for Undo
let abort = null;
let chosen = -1, pointed = -1;
let flow;

const text = () => byId("play-text").value;
const surprise = (token) => token.logprob === null ? null : -token.logprob;

// --- drawing

function drawSide() {
  const index = pointed >= 0 ? pointed : chosen, token = tokens[index],
        side = byId("play-alternatives");
  const readout = byId("play-readout");
  if (!token) {
    readout.textContent = "Point at a token, or move through the text with the arrow keys.";
    side.replaceChildren();
    return;
  }
  readout.replaceChildren(`Token ${index} `, make("code", {text: shownToken(token.text)}));
  if (token.logprob === null) {
    readout.append(": nothing stands before it.");
    side.replaceChildren();
    return;
  }
  readout.append(`: probability ${percent(Math.exp(token.logprob))}, surprise ${
      fixed(surprise(token), 2)} nats`);
  side.replaceChildren(...token.top.map((alternative) => {
    const [name, logprob, id] = alternative,
                          isOwn = id !== undefined ? id === token.id : name === token.text;
    const share = Math.exp(logprob);
    return make(
        "li", {},
        make(
            "button", {
              type: "button",
              class: isOwn ? "own" : "",
              disabled: abort !== null,
              onclick: () => take(index, alternative),
              "aria-label": `Take ${shownToken(name)}, ${percent(share)}, and go on`
            },
            make("span", {class: "share", style: {width: `${100 * share}%`}}),
            make("code", {text: shownToken(name)}), make("span", {text: percent(share)})));
  }));
}

function drawFigures(seconds = 0, written = 0) {
  const known = tokens.filter((token) => token.logprob !== null);
  const mean = known.reduce((sum, token) => sum - token.logprob, 0) / Math.max(known.length, 1);
  const parts = [plural(tokens.length, "token")];
  if (known.length)
    parts.push(`mean surprise ${fixed(mean, 3)} nats`, `perplexity ${fixed(Math.exp(mean), 2)}`);
  if (written > 1 && seconds > 0) parts.push(`${fixed((written - 1) / seconds, 1)} tokens/s`);
  byId("play-figures").textContent = parts.join(" · ");
}

function drawButtons() {
  byId("play-go").hidden = abort !== null;
  byId("play-stop").hidden = abort === null;
  byId("play-score").disabled = abort !== null;
  byId("play-back").disabled = abort !== null || branches.length === 0;
  byId("play-lens").disabled = abort !== null || tokens.length === 0;
}

function lookOf(i) {
  const nats = surprise(tokens[i]);
  return {
    background: nats === null ? "" : surpriseTint(nats),
    className: tokens[i].isNew ? "new" : "",
    title: nats === null ? undefined : `${fixed(nats, 2)} nats, ${percent(Math.exp(-nats))}`,
  };
}

function drawAll() {
  byId("play-result").hidden = tokens.length === 0;
  flow.setTokens(tokens.map((token) => token.text));
  flow.paint(lookOf);
  byId("play-legend").replaceChildren(...surpriseLegend());
  drawFigures();
  drawSide();
  drawButtons();
}

function choose(index) {
  chosen = index;
  pointed = -1;
  flow.choose(index, false);
  drawSide();
}

// --- requests

function entriesOf(logprobs, isNew) {
  return logprobs.tokens.map((name, i) => {
    const named = logprobs.top_token_ids?.[i] ?? {};
    const top =
        Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([n,
                                                               logprob]) => [n, logprob, named[n]]);
    return {
      text: name,
      id: logprobs.token_ids?.[i],
      logprob: logprobs.token_logprobs[i],
      isNew: isNew(i),
      top: top.sort((a, b) => b[1] - a[1])
    };
  });
}

async function idsOfText(signal) {
  if (ids === null || idsText !== text()) {
    ids = (await post("tokenize", {model: chosenModel().id, prompt: text()}, signal)).tokens;
    idsText = text();
  }
  return ids;
}

function settings() {
  const body = {temperature: Number(byId("play-temperature").value)};
  if (byId("play-seed").value !== "") body.seed = Number(byId("play-seed").value);
  return body;
}

/// Reads the text, and lets the model go on for `count` tokens. The text grows as the stream comes.
async function read(count, signal) {
  const prompt = await idsOfText(signal), before = text(), began = {at: 0};
  if (prompt.length === 0) throw new ApiError("Write a text first.", 400);
  const body = {
    model: chosenModel().id,
    prompt,
    echo: true,
    logprobs: kAlternatives,
    max_tokens: count,
    ...settings()
  };
  tokens = [];
  let last = 0, added = "";
  const add = (choice) => {
    if (!choice?.logprobs) return;
    const start = tokens.length;
    tokens.push(...entriesOf(choice.logprobs, (i) => start + i >= prompt.length));
    last = performance.now();
    began.at ||= last;
  };
  try {
    if (count === 0) {
      add((await post("v1/completions", body, signal)).choices[0]);
    } else {
      for await (const event of stream("v1/completions", body, signal)) {
        add(event.choices?.[0]);
        scheduleDraw();
      }
    }
  } finally {
    const fresh = tokens.slice(prompt.length);
    added = await textOf(fresh, signal);
    byId("play-text").value = before + added;
    if (fresh.every((token) => token.id !== undefined)) {
      ids = [...prompt, ...fresh.map((token) => token.id)];
      idsText = text();
    }
    drawAll();
    drawFigures((last - began.at) / 1000, fresh.length);
  }
}

/// The text of new tokens: their bytes may make characters only together, so the server joins them.
async function textOf(fresh) {
  if (fresh.length === 0) return "";
  if (fresh.some((token) => token.id === undefined))
    return fresh.map((token) => token.text).join("");
  try {
    return (await post(
                "detokenize", {model: chosenModel().id, tokens: fresh.map((token) => token.id)}))
        .prompt;
  } catch {
    return fresh.map((token) => token.text).join("");
  }
}

let growth = 0;  // timer of the next drawing

/// A fast model sends tokens faster than a screen shows them: they are drawn together.
function scheduleDraw() {
  growth ||= setTimeout(() => {
    growth = 0;
    if (!abort) return;
    const node = flow.node, isAtEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 40;
    drawAll();
    if (isAtEnd) flow.revealEnd();
  }, kDrawEvery);
}

async function run(count) {
  if (abort || !chosenModel()) return;
  abort = new AbortController();
  drawButtons();
  byId("play-figures").textContent = "Reading …";
  try {
    await read(count, abort.signal);
    announce(`Done: ${byId("play-figures").textContent}`);
  } catch (error) {
    if (error.name !== "AbortError") {
      byId("play-result").hidden = false;
      byId("play-figures").textContent = error.message;
      announce(error.message);
    }
  } finally {
    abort = null;
    drawButtons();
    drawSide();
    remember();
  }
}

const codePoints = (string) => [...string];

/// The ids up to a token, with the alternative in its place: the model goes on from there.
async function take(index, [name, , id]) {
  if (abort) return;
  branches.push({text: text(), ids, idsText, tokens, chosen});
  const model = chosenModel().id, before = tokens.slice(0, index).map((token) => token.id);
  try {
    const added = id !== undefined ?
        [id] :
        (await post("tokenize", {model, prompt: name, add_special_tokens: false})).tokens;
    const all = [...before, ...added];
    byId("play-text").value = await cutText(index, name, all, model);
    ids = all;
    idsText = text();
  } catch (error) {
    announce(error.message);
    return;
  }
  chosen = index;
  await run(Number(byId("play-max").value));
  flow.choose(index);
}

/// The text up to a token plus another token. Where the tokens' own texts make the whole text, that is
/// a cut; else the server joins the ids.
async function cutText(index, name, all, model) {
  const kept = tokens.slice(0, index).map((token) => token.text).join("");
  const whole = tokens.map((token) => token.text).join("");
  const at = whole.length - text().length;  // a begin mark stands before the text
  if (!name.startsWith("bytes:") && at >= 0 && whole.endsWith(text()) && kept.length >= at)
    return kept.slice(at) + name;
  return codePoints((await post("detokenize", {model, tokens: all})).prompt).join("");
}

function undo() {
  const state = branches.pop();
  if (!state) return;
  byId("play-text").value = state.text;
  ({ids, idsText, tokens, chosen} = state);
  drawAll();
  flow.choose(chosen);
  remember();
}

function remember() {
  if (byId("playground").hidden) return;
  history.replaceState(
      null, "",
      "#" +
          new URLSearchParams({view: "playground", model: chosenModel()?.id ?? "", text: text()}));
}

function openLens() {
  const known = tokens.every((token) => token.id !== undefined);
  location.hash = new URLSearchParams({
    view: "lens",
    model: chosenModel().id,
    token: Math.max(chosen, 0),
    ...(known ? {ids: tokens.map((token) => token.id).join(",")} : {text: text()})
  });
}

export function startPlayground() {
  flow = new TokenFlow("Tokens of the text", {
    pick: choose,
    point: (index) => {
      pointed = index;
      drawSide();
    },
  });
  byId("play-flow").append(flow.node);
  byId("play-text").value = kExample;
  byId("play-form").addEventListener("submit", (event) => {
    event.preventDefault();
    branches.push({text: text(), ids, idsText, tokens, chosen});
    run(Number(byId("play-max").value));
  });
  byId("play-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
      byId("play-form").requestSubmit();
  });
  onEscape("playground", () => abort?.abort());
  byId("play-stop").addEventListener("click", () => abort?.abort());
  byId("play-score").addEventListener("click", () => run(0));
  byId("play-back").addEventListener("click", undo);
  byId("play-lens").addEventListener("click", openLens);
  return {
    show(address) {
      if (address.has("text") && address.get("text") !== text()) {
        byId("play-text").value = address.get("text");
        tokens = [];
        chosen = -1;
        drawAll();
        run(0);
      } else {
        flow.layOut();
        remember();
      }
    },
    redraw: () => byId("play-legend").replaceChildren(...surpriseLegend()),
  };
}
