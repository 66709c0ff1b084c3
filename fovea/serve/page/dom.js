// Nodes, texts and numbers. Texts reach the page through textContent only.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0

export const byId = (id) => document.getElementById(id);

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text")
      node.textContent = value;
    else if (name.startsWith("on"))
      node.addEventListener(name.slice(2), value);
    else if (name === "style")
      Object.assign(node.style, value);
    else
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/// make("button", {class: "quiet", text: "Copy", onclick: copy}, ...children)
export const make = (name, properties = {}, ...children) =>
    fill(document.createElement(name), properties, children);
export const makeSvg = (name, properties = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);

export function fillSelect(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => make("option", {value, text})));
  const known = entries.some(([value]) => String(value) === String(chosen));
  if (entries.length) select.value = known ? chosen : entries[0][0];
}

/// A token as it is drawn: a line break, a tab and bytes that are no character get a sign.
export function shownToken(text) {
  const bytes = /^bytes:((?:\\x[0-9a-f]{2})+)$/i.exec(text);
  if (bytes) return "⟨" + bytes[1].slice(2).replaceAll("\\x", " ") + "⟩";
  if (text === "") return "∅";
  return text.replace(/\r/g, "␍").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

export const fixed = (value, digits = 3) =>
    typeof value === "number" && isFinite(value) ? value.toFixed(digits).replace(/^-/, "−") : "–";
export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + fixed(value, digits);
export const percent = (share) => {
  const value = 100 * share;
  return (value >= 9.95 || value === 0 ? value.toFixed(0) :
              value >= 0.095           ? value.toFixed(1) :
                                         value.toFixed(3)) +
      " %";
};
export const plural = (count, word) =>
    `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

export function announce(text) {
  byId("announce").textContent = text;
}

/// Runs on Escape while a part of the page is shown, wherever the focus is.
export function onEscape(view, run) {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId(view).hidden) run();
  });
}

/// The last of many calls runs, `delay` ms after it.
export function debounced(run, delay) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), delay);
  };
}

/// A browser may forbid storage; then nothing is kept.
export const stored = {
  read(key, store = "localStorage") {
    try {
      return window[store].getItem("fovea-" + key);
    } catch {
      return null;
    }
  },
  write(key, value, store = "localStorage") {
    try {
      if (value === null)
        window[store].removeItem("fovea-" + key);
      else
        window[store].setItem("fovea-" + key, value);
    } catch { /* full, or forbidden */
    }
  },
};

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // without https only this server's own address has a clipboard
    const box = make("textarea", {class: "hidden"});
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  announce("Copied");
}
