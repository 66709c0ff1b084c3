// Chat with the model's own template: stop, edit and send again, write again, export and import.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {post, stream} from "./api.js";
import {messageNode} from "./chat_message.js";
import {announce, byId, debounced, fixed, make, onEscape, plural, stored} from "./dom.js";
import {chosenModel} from "./models.js";

const kSettings = ["system", "temperature", "top-p", "max", "seed"];
const kDrawEvery = 50;  // ms
const kFollow = 60;  // px from the end within which the window follows the answer

let messages = [];   // {role, content, model?, figures?, failed?}
let running = null;  // {abort, message} while an answer is written
let editing = -1;    // the message that is being edited

const nodes = [];  // of `messages`, in order
const wanted = (id) => byId("chat-" + id).value.trim();
const save = debounced(() => {
  stored.write(
      "chat",
      JSON.stringify(
          messages.map(({role, content, figures, model}) => ({role, content, figures, model}))));
  stored.write(
      "chat-settings",
      JSON.stringify(Object.fromEntries(kSettings.map((id) => [id, byId("chat-" + id).value]))));
}, 200);

// --- the window follows the answer only where its end is in sight

const distanceToEnd = () => document.documentElement.scrollHeight - scrollY - innerHeight;
const toEnd = () => scrollTo({top: document.documentElement.scrollHeight});
function showLatestButton() {
  byId("chat-latest").hidden = !running || distanceToEnd() < kFollow;
}

// --- drawing

const actions = {
  edit(index) {
    editing = index;
    draw();
    nodes[index].querySelector("textarea").focus();
  },
  cancel(index) {
    editing = -1;
    draw();
    nodes[index].querySelector("button")?.focus();
  },
  /// An edited question is sent again; an edited answer is kept, and what follows it stays.
  save(index, text) {
    editing = -1;
    const message = messages[index];
    if (message.role === "user") {
      messages.splice(index, Infinity, {role: "user", content: text});
      answer();
    } else {
      messages[index] = {...messages[index], content: text, figures: "edited"};
      draw();
      save();
    }
  },
  again(index) {
    messages.splice(index);
    answer();
  },
  remove(index) {
    messages.splice(index);
    draw();
    save();
    byId("chat-input").focus();
  },
  async lens(index) {
    const model = chosenModel().id;
    try {
      const before = await post("tokenize", {model, messages: sent(index)});
      const prompt = messages[index].content;
      const own = await post("tokenize", {model, prompt, add_special_tokens: false});
      const ids = [...before.tokens, ...own.tokens].join(",");
      location.hash = new URLSearchParams({view: "lens", model, ids});
    } catch (error) {
      fail(messages[index], error);
    }
  },
};

function redrawMessage(message) {
  const index = messages.indexOf(message);
  if (index < 0) return;
  const node = messageNode(message, index, {
    isEditing: editing === index,
    isBusy: running !== null,
    isRunning: running?.message === message,
    actions
  });
  if (nodes[index])
    nodes[index].replaceWith(node);
  else
    byId("chat-log").append(node);
  nodes[index] = node;
}

function draw() {
  for (const node of nodes.splice(messages.length)) node.remove();
  messages.forEach(redrawMessage);
  byId("chat-empty").hidden = messages.length > 0;
  byId("chat-send").hidden = running !== null;
  byId("chat-stop").hidden = running === null;
  byId("chat-log").setAttribute("aria-busy", String(running !== null));
  for (const id of ["new", "import"]) byId("chat-" + id).disabled = running !== null;
  byId("chat-export").disabled = messages.length === 0;
  showLatestButton();
}

let growth = 0;  // timer of the next drawing

/// A fast model sends tokens faster than a screen shows them: they are drawn together.
function drawGrowth() {
  growth ||= setTimeout(() => {
    growth = 0;
    if (!running) return;
    const follows = distanceToEnd() < kFollow;
    redrawMessage(running.message);
    if (follows)
      toEnd();
    else
      showLatestButton();
  }, kDrawEvery);
}

function fail(message, error) {
  message.failed = error.message;
  redrawMessage(message);
}

// --- requests

function sent(count = messages.length) {
  const list = messages.slice(0, count).map(({role, content}) => ({role, content}));
  const system = wanted("system");
  return system ? [{role: "system", content: system}, ...list] : list;
}

function requestBody() {
  const body = {model: chosenModel().id, messages: sent(), stream_options: {include_usage: true}};
  const fields =
      {temperature: "temperature", top_p: "top-p", max_completion_tokens: "max", seed: "seed"};
  for (const [name, id] of Object.entries(fields)) {
    if (wanted(id) !== "") body[name] = Number(wanted(id));
  }
  return body;
}

function figuresOf({began, first, last, events, usage, end}) {
  if (first === 0) return "";
  const count = usage?.completion_tokens ?? events;
  const parts = [plural(count, "token")];
  if (count > 1 && last > first)
    parts.push(`${fixed(1000 * (count - 1) / (last - first), 1)} tokens/s`);
  parts.push(`first after ${fixed((first - began) / 1000, 2)} s`);
  if (end === "length") parts.push("longest answer reached");
  if (end === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

async function write(message, body, signal) {
  const state = {began: performance.now(), first: 0, last: 0, events: 0, usage: null, end: ""};
  try {
    for await (const event of stream("v1/chat/completions", body, signal)) {
      state.usage = event.usage ?? state.usage;
      const choice = event.choices?.[0];
      state.end = choice?.finish_reason ?? state.end;
      if (!choice?.delta?.content) continue;
      state.last = performance.now();
      state.first ||= state.last;
      ++state.events;
      message.content += choice.delta.content;
      drawGrowth();
    }
  } catch (error) {
    if (error.name === "AbortError")
      state.end = "stopped";
    else
      message.failed = error.message;
  }
  message.figures = figuresOf(state);
}

async function answer() {
  if (running || !chosenModel()) return;
  const message = {role: "assistant", content: "", model: chosenModel().id}, body = requestBody();
  running = {abort: new AbortController(), message};
  messages.push(message);
  draw();
  toEnd();
  await write(message, body, running.abort.signal);
  running = null;
  if (message.content === "" && !message.failed)
    message.failed = message.figures === "" ? "Stopped." : "The answer is empty.";
  draw();
  save();
  announce(message.failed ?? "The answer is complete.");
}

function send() {
  const text = byId("chat-input").value;
  if (running || !chosenModel() || text.trim() === "") return;
  messages.push({role: "user", content: text});
  byId("chat-input").value = "";
  growInput();
  answer();
}

// --- files

function exportChat() {
  const data = {model: chosenModel()?.id, messages: sent()};
  const link = make("a", {
    download: "fovea-chat.json",
    href: URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], {type: "application/json"}))
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/// Takes our own files, and a bare list of OpenAI's messages.
function importChat(text) {
  const data = JSON.parse(text);
  const list = Array.isArray(data) ? data : data.messages;
  const isMessage =
      (m) => ["system", "user", "assistant"].includes(m?.role) && typeof m.content === "string";
  if (!Array.isArray(list) || !list.every(isMessage))
    throw new Error("expected a list of messages with role and content");
  byId("chat-system").value =
      list.filter((m) => m.role === "system").map((m) => m.content).join("\n");
  messages = list.filter((m) => m.role !== "system").map(({role, content}) => ({role, content}));
  for (const node of nodes.splice(0)) node.remove();
  editing = -1;
  draw();
  save();
}

async function importFile(event) {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  try {
    importChat(await file.text());
  } catch (error) {
    byId("chat-empty").hidden = false;
    announce(`The file was not read: ${error.message}`);
    alert(`${file.name} is no conversation: ${error.message}`);
  }
}

// --- start

function growInput() {
  const input = byId("chat-input");
  input.style.height = "auto";
  input.style.height = Math.min(input.scrollHeight, innerHeight * 0.38) + "px";
}

function restore() {
  try {
    messages = JSON.parse(stored.read("chat")) ?? [];
    for (const [id, value] of Object.entries(JSON.parse(stored.read("chat-settings")) ?? {})) {
      if (kSettings.includes(id)) byId("chat-" + id).value = value;
    }
  } catch {
    messages = [];
  }
}

function listen() {
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("chat-input").addEventListener("input", growInput);
  byId("chat-input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  onEscape("chat", () => running?.abort.abort());
  byId("chat-stop").addEventListener("click", () => {
    running?.abort.abort();
    byId("chat-input").focus();
  });
  byId("chat-latest").addEventListener("click", toEnd);
  byId("chat-new").addEventListener("click", () => actions.remove(0));
  byId("chat-export").addEventListener("click", exportChat);
  byId("chat-import").addEventListener("click", () => byId("chat-file").click());
  byId("chat-file").addEventListener("change", importFile);
  for (const id of kSettings) byId("chat-" + id).addEventListener("change", save);
  addEventListener("scroll", showLatestButton, {passive: true});
}

export function startChat() {
  restore();
  listen();
  draw();
  return {
    show() {
      const refuses = chosenModel()?.fovea.chat_template === false;
      byId("chat-input").placeholder =
          refuses ? "This model has no chat template: use the Playground" : "Message";
      byId("chat-input").disabled = byId("chat-send").disabled = refuses;
      if (messages.length) toEnd();
      if (!refuses && matchMedia("(hover: hover)").matches)
        byId("chat-input").focus({preventScroll: true});
    },
    modelChanged() {
      if (!byId("chat").hidden) this.show();
    },
  };
}
