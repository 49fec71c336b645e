// A text in a dialog: the log of an engine, followed while it is open, and what the links of the footer lead to.

import { ask, messageOf } from "./client.js";
import { at } from "./dom.js";

const KEPT = 400_000; // characters
let stop = null;

export const openLogs = (name) =>
  open(`Log of ${name}`, "Asking its node ...", `/admin/backends/${encodeURIComponent(name)}/logs?lines=200&follow=true`);

/** What a path of the gateway answers, which a link cannot ask for where a key is needed. */
export const openText = (path) => open(`/${path}`, "", `/${path}`);

async function open(title, text, path) {
  const dialog = at("logs");
  stop?.abort();
  stop = new AbortController();
  at("logs-title").textContent = title;
  at("logs-text").textContent = text;
  if (!dialog.open) dialog.showModal();
  try {
    await follow(path, stop.signal);
  } catch (error) {
    if (error.name !== "AbortError") at("logs-text").textContent += `\n${error.message}`;
  }
}

async function follow(path, signal) {
  const box = at("logs-text");
  const answer = await ask(path, { signal });
  if (!answer.ok) throw new Error(await messageOf(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  box.textContent = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
    box.textContent = (box.textContent + value.replace(/^\n$/, "")).slice(-KEPT);
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
}

at("logs").addEventListener("close", () => stop?.abort());
at("logs-close").addEventListener("click", () => at("logs").close());
