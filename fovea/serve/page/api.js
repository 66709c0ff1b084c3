// Requests to this server: JSON, streams, the API key, and notice when the server is gone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
import {byId, stored} from "./dom.js";

export class ApiError extends Error {
  constructor(message, status, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const kGone = "The server does not answer. The page tries again until it is back.";
const kHealthEvery = 10_000, kHealthWhenGone = 1_500;  // ms

/// "back" is told when the server answers again.
export const server = new EventTarget();
let isGone = false, timer = 0;

function setGone(gone) {
  if (gone !== isGone) {
    isGone = gone;
    byId("notice").textContent = gone ? kGone : "";
    byId("notice").hidden = !gone;
    if (!gone) server.dispatchEvent(new Event("back"));
  }
  clearTimeout(timer);
  timer = setTimeout(checkHealth, gone ? kHealthWhenGone : kHealthEvery);
}

async function checkHealth() {
  if (document.hidden && !isGone) return setGone(false);
  try {
    setGone(!(await fetch("health", {cache: "no-store"})).ok);
  } catch {
    setGone(true);
  }
}

export function watchServer() {
  setGone(false);
}

async function askForKey() {
  const dialog = byId("key-dialog");
  byId("key-input").value = "";
  dialog.returnValue = "cancel";
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, {once: true}));
  if (dialog.returnValue !== "use") return false;
  stored.write("key", byId("key-input").value, "sessionStorage");
  return true;
}

async function errorOf(answer) {
  let error = {};
  try {
    error = (await answer.json()).error ?? {};
  } catch { /* no JSON: a proxy's page */
  }
  const wait = answer.headers.get("Retry-After");
  const message = error.message ?? `The server answered ${answer.status}.`;
  return new ApiError(
      wait ? `${message} Try again in ${wait} s.` : message, answer.status, error.code);
}

async function send(path, body, signal) {
  const key = stored.read("key", "sessionStorage");
  const headers = key ? {Authorization: "Bearer " + key} : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    setGone(true);
    throw new ApiError("The server does not answer.", 0);
  }
}

async function request(path, body, signal) {
  let answer = await send(path, body, signal);
  while (answer.status === 401 && await askForKey()) answer = await send(path, body, signal);
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

export async function get(path) {
  return (await request(path)).json();
}

export async function post(path, body, signal) {
  return (await request(path, body, signal)).json();
}

function parseEvent(block) {
  let kind = "message", data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    if (line.startsWith("data:")) data += line.slice(5).trimStart();
  }
  if (data === "" || data === "[DONE]") return {done: data !== ""};
  const value = JSON.parse(data);
  if (kind === "error" || value.error)
    throw new ApiError(value.error?.message ?? "The stream failed.", 500);
  return {value};
}

/// The events of a stream. A stream that ends without its end mark is an error.
export async function* stream(path, body, signal) {
  const reader = (await request(path, {...body, stream: true}, signal))
                     .body.pipeThrough(new TextDecoderStream())
                     .getReader();
  let rest = "";
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parseEvent(block);
        if (event.done) return;
        if (event.value) yield event.value;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    setGone(true);
    throw new ApiError("The connection broke in the middle of the answer.", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError("The connection broke in the middle of the answer.", 0);
}
