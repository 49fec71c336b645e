// The log of an engine, in a dialog, followed while it is open.

import { ask, messageOf } from "./client.js";
import { at } from "./dom.js";

const KEPT = 400_000; // characters
let stop = null;

export async function openLogs(name) {
  const dialog = at("logs");
  stop?.abort();
  stop = new AbortController();
  at("logs-title").textContent = `Log of ${name}`;
  at("logs-text").textContent = "Asking its node ...";
  if (!dialog.open) dialog.showModal();
  try {
    await follow(`/admin/backends/${encodeURIComponent(name)}/logs?lines=200&follow=true`, stop.signal);
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
