// "Try it": sends a chat of several turns, a picture, sound to be written down or a text to be spoken through the gateway as a
// client would, and shows the route it took.

import { ask, eventsOf, messageOf, NeedsKey, read } from "./client.js";
import { at, h, show } from "./dom.js";
import { seconds } from "./format.js";

const MOST = 2000; // tokens of an answer here

let stop = null;
let turns = []; // of the conversation so far, as messages
let kinds = {}; // alias -> chat | hear | speak

const FIELDS = { // kind -> labels of the text and the file, and which files; null = there is none
  chat: ["Message", "Picture, if it is about one", "image/*"],
  hear: [null, "Sound to be written down", "audio/*,video/*"],
  speak: ["Text to be spoken", null, ""],
};

/** What an alias does, by the backends of its first step. */
function kindOf(alias, backends) {
  const serves = alias.steps[0].flatMap((name) => backends[name]?.serves || []);
  if (serves.includes("transcriptions")) return "hear";
  return serves.includes("speech") ? "speak" : "chat";
}

export function openTry(status, name) {
  kinds = Object.fromEntries(Object.entries(status.aliases).map(([alias, one]) => [alias, kindOf(one, status.backends)]));
  const names = Object.keys(status.aliases);
  at("try-alias").replaceChildren(...names.map((alias) => h("option", { value: alias, selected: alias === name }, alias)));
  at("try-alias").value = name;
  at("try-plan").hidden = !status.you.admin;
  begin();
  at("try").showModal();
  const first = at(kind() === "hear" ? "try-file" : "try-text");
  first.focus();
  if (first.select) first.select();
}

const kind = () => kinds[at("try-alias").value] || "chat";

/** A new conversation, with the fields that this alias takes. */
function begin() {
  turns = [];
  clear();
  showTurns();
  const [text, file, accepted] = FIELDS[kind()];
  for (const [label, field, words] of [["try-label", "try-text", text], ["try-file-label", "try-file", file]]) {
    at(label).hidden = at(field).hidden = words === null;
    at(label).textContent = words || "";
  }
  at("try-file").accept = accepted;
  at("try-file").value = "";
}

function showTurns() {
  show(at("try-turns"), turns.map(({ role, content }) =>
    h("p", {}, h("strong", {}, role === "user" ? "you: " : "answer: "), typeof content === "string" ? content : `${content[0].text} (with a picture)`)));
  at("try-turns").hidden = at("try-new").hidden = !turns.length;
  at("try-turns").scrollTop = at("try-turns").scrollHeight;
}

export function wireTry() {
  at("try-close").addEventListener("click", () => at("try").close());
  at("try").addEventListener("close", () => stop?.abort());
  at("try-stop").addEventListener("click", () => stop?.abort());
  at("try-plan").addEventListener("click", explain);
  at("try-alias").addEventListener("change", begin);
  at("try-new").addEventListener("click", begin);
  at("try-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}

function clear() {
  show(at("try-route"));
  say("");
  for (const id of ["try-thoughts", "try-answer", "try-sound"]) at(id).hidden = true;
  at("try-thinking").textContent = at("try-answer").textContent = "";
}

const say = (text) => { at("try-state").textContent = text; };
const request = (message) => ({ model: at("try-alias").value, messages: [...turns, message], max_tokens: MOST });

async function message() {
  const [file] = at("try-file").files;
  const text = at("try-text").value;
  if (!file || kind() !== "chat") return { role: "user", content: text };
  const url = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
  return { role: "user", content: [{ type: "text", text }, { type: "image_url", image_url: { url } }] };
}

/** [path, body] of what is to be sent. */
async function asked(said) {
  const model = at("try-alias").value;
  if (kind() === "hear") {
    const form = new FormData();
    form.append("model", model);
    form.append("file", at("try-file").files[0]);
    return ["/v1/audio/transcriptions", form];
  }
  if (kind() === "speak") return ["/v1/audio/speech", { model, input: said.content, voice: await firstVoice() }];
  return ["/v1/chat/completions", { ...request(said), stream: true }];
}

async function firstVoice() {
  const { voices } = await read("/v1/audio/voices").catch(() => ({ voices: [] }));
  const [voice] = voices || [];
  return typeof voice === "string" ? voice : voice?.id || voice?.name || "alloy";
}

async function send() {
  clear();
  showTurns();
  if (kind() === "hear" ? !at("try-file").files.length : !at("try-text").value.trim()) return say(kind() === "hear" ? "choose a file first" : "write something first");
  stop = new AbortController();
  at("try-send").disabled = true;
  at("try-stop").disabled = false;
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  const route = {};
  say("waiting");
  try {
    const said = await message();
    const [path, body] = await asked(said);
    const answer = await ask(path, { method: "POST", body, signal: stop.signal });
    for (const [name, value] of answer.headers) if (name.startsWith("x-gateway-")) route[name.slice(10)] = value;
    route["request id"] = answer.headers.get("x-request-id");
    showRoute(route);
    if (!answer.ok) {
      return say(`refused (${answer.status}): ${await messageOf(answer)}`);
    }
    const outcome = await TAKE[kind()](answer, route, since);
    if (kind() === "chat" && outcome.startsWith("done")) {
      turns.push(said, { role: "assistant", content: at("try-answer").textContent });
      at("try-text").value = at("try-file").value = "";
    }
    route.total = seconds(since());
    showRoute(route);
    say(outcome);
  } catch (error) {
    say(stop.signal.aborted ? "stopped" : error instanceof NeedsKey ? `refused: ${error.message}` : `the stream broke: ${error.message}`);
  } finally {
    at("try-send").disabled = false;
    at("try-stop").disabled = true;
  }
  return undefined;
}

async function takeText(answer) {
  put("try-answer", (await answer.json()).text, "try-answer");
  return "done";
}

async function takeSound(answer) {
  URL.revokeObjectURL(at("try-sound").src);
  at("try-sound").src = URL.createObjectURL(await answer.blob());
  at("try-sound").hidden = false;
  at("try-sound").play().catch(() => {}); // the button is there
  return "done";
}

/** Show the answer as it arrives. Returns how it ended. */
async function take(answer, route, since) {
  let outcome = "the stream broke: it had no end";
  for await (const [name, data] of eventsOf(answer)) {
    if (name === "comment" && data.startsWith("x-gateway ")) {
      for (const pair of data.slice(10).split(";")) {
        const [what, value] = pair.trim().split("=");
        route[what] = value;
      }
      showRoute(route);
    }
    if (name === "comment" || data === "[DONE]") continue;
    const event = JSON.parse(data);
    if (event.error) return `the stream broke: ${event.error.message}`;
    for (const { delta, finish_reason: finish } of event.choices || []) {
      const thought = delta.reasoning ?? delta.reasoning_content;
      if (thought) put("try-thinking", thought, "try-thoughts");
      if (delta.content) {
        route["first token"] ??= seconds(since());
        put("try-answer", delta.content, "try-answer");
        say("answering");
      }
      if (finish) outcome = finish === "stop" ? "done" : `done (${finish})`;
    }
  }
  return outcome;
}

const TAKE = { chat: take, hear: takeText, speak: takeSound };

function put(id, text, place) {
  at(id).append(at(id).textContent ? text : text.trimStart());
  at(place).hidden = false;
}

const ROUTE = ["backend", "alias", "attempts", "queue-ms", "fallback", "routed", "adapted", "committed", "first token", "total", "request id"];
const WORDS = { backend: "answered by", "queue-ms": "waited (ms)", committed: "status sent" };

function showRoute(route) {
  const parts = ROUTE.filter((name) => route[name] !== undefined && route[name] !== null);
  show(at("try-route"), h("dl", { class: "route" }, parts.map((name) =>
    h("div", { class: name === "fallback" ? "warn" : null }, h("dt", {}, WORDS[name] || name), h("dd", {}, route[name])))));
}

async function explain() {
  clear();
  say("asking");
  try {
    const { model, ...rest } = request(await message());
    const answer = await ask("/admin/explain", { method: "POST", body: { alias: model, request: rest } });
    if (!answer.ok) return say(`refused (${answer.status}): ${await messageOf(answer)}`);
    const plan = await answer.json();
    say(plan.served ? `would go to ${plan.order.join(", then ")}` : `would be refused: ${plan.error.message}`);
    show(at("try-route"), h("ol", { class: "plan" }, plan.steps.map((step) =>
      h("li", {}, h("ul", {}, step.backends.map((backend) =>
        h("li", {}, h("strong", {}, backend.backend), ` ${backend.verdict}`, backend.reasons.length ? `: ${backend.reasons.join("; ")}` : "")))))));
  } catch (error) {
    say(error.message);
  }
  return undefined;
}
