// Starts the page: theme, models, and the part that the address names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {server, watchServer} from "./api.js";
import {startChat} from "./chat.js";
import {forgetColors} from "./colors.js";
import {byId, stored} from "./dom.js";
import {startLens} from "./lens.js";
import {chooseModel, chosenModel, loadModels, startModels} from "./models.js";
import {startPlayground} from "./playground.js";

const root = document.documentElement;
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";

function showTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark() ? "Light theme" : "Dark theme");
  forgetColors();
  for (const view of Object.values(views)) view.redraw?.();
}

function startTheme() {
  const theme = stored.read("theme");
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored.write("theme", root.dataset.theme);
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);
}

const views = {
  chat: startChat(),
  playground: startPlayground(),
  lens: startLens()
};

/// The part of an address: the one it names, else the lens for a text, else the one that suits the model.
function viewOf(address) {
  const named = address.get("view");
  if (named in views) return named;
  if (address.has("text") || address.has("ids")) return "lens";
  return chosenModel()?.fovea.chat_template ? "chat" : "playground";
}

function showView() {
  const address = new URLSearchParams(location.hash.slice(1));
  const name = viewOf(address);
  if (byId(name).hidden) scrollTo({top: 0});
  for (const key of Object.keys(views)) byId(key).hidden = key !== name;
  for (const link of document.querySelectorAll(".bar nav a")) {
    if (link.dataset.view === name)
      link.setAttribute("aria-current", "page");
    else
      link.removeAttribute("aria-current");
  }
  const title = name[0].toUpperCase() + name.slice(1);
  document.title = `${title} · Fovea`;
  if (address.has("model")) chooseModel(address.get("model"));
  views[name].show(address);
}

async function start() {
  startTheme();
  startModels();
  showTheme();
  watchServer();
  byId("skip").addEventListener("click", () => byId("main").focus());
  addEventListener("hashchange", showView);
  server.addEventListener(
      "back", () => loadModels().then(() => views.chat.modelChanged?.(), () => {}));
  try {
    await loadModels();
  } catch (error) {
    byId("notice").textContent = error.message;
    byId("notice").hidden = false;
  }
  showView();
}

start();
