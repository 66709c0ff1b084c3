// One message of the chat as nodes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {copyText, make} from "./dom.js";

/// Text with fenced code as <pre>; everything else stays as it was written.
export function bodyNodes(text) {
  const nodes = [];
  let code = null, plain = [];
  const flush = () => {
    const part = plain.join("\n");
    if (part !== "") nodes.push(make("span", {text: part}));
    plain = [];
  };
  for (const line of text.split("\n")) {
    if (!line.startsWith("```")) {
      (code ?? plain).push(line);
    } else if (code === null) {
      flush();
      code = [];
    } else {
      nodes.push(make("pre", {text: code.join("\n"), tabindex: 0}));
      code = null;
    }
  }
  if (code !== null) nodes.push(make("pre", {text: code.join("\n"), tabindex: 0}));
  flush();
  return nodes;
}

function editor(message, index, actions) {
  const box = make("textarea", {"aria-label": "Edit the message"});
  box.value = message.content;
  const done = () => actions.save(index, box.value);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape")
      actions.cancel(index);
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
      done();
    else
      return;
    event.preventDefault();
    event.stopPropagation();
  });
  return [
    box,
    make(
        "div", {class: "controls"}, make("button", {
          type: "button",
          class: "primary",
          text: message.role === "user" ? "Send again" : "Save",
          onclick: done
        }),
        make("button", {type: "button", text: "Cancel", onclick: () => actions.cancel(index)}))
  ];
}

function foot(message, index, isBusy, actions) {
  const button = (text, run, label = text) => make(
      "button",
      {type: "button", class: "quiet", text, "aria-label": label, disabled: isBusy, onclick: run});
  const buttons =
      [button("Copy", () => copyText(message.content)), button("Edit", () => actions.edit(index))];
  if (message.role === "assistant") {
    buttons.push(
        button("Again", () => actions.again(index), "Write this answer again"),
        button("Lens", () => actions.lens(index), "See in the Lens where the model looked"));
  }
  return make(
      "div", {class: "foot"}, ...buttons,
      make("span", {class: "figures", text: message.figures ?? ""}));
}

export function messageNode(message, index, {isEditing, isBusy, isRunning, actions}) {
  const isUser = message.role === "user";
  const item = make(
      "li", {class: `message ${isUser ? "user" : "assistant"}`},
      make("p", {class: "who", text: isUser ? "You" : message.model ?? "Model"}));
  if (isEditing) {
    item.append(...editor(message, index, actions));
    return item;
  }
  const body = make("div", {class: "body"}, ...bodyNodes(message.content));
  if (isRunning) body.append(make("span", {class: "cursor", "aria-hidden": "true"}));
  item.append(body);
  if (message.failed)
    item.append(make("p", {class: "failed", text: message.failed, role: "alert"}));
  if (!isRunning) item.append(foot(message, index, isBusy, actions));
  return item;
}
