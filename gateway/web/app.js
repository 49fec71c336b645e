// The page: its state, the requests that fill it, and when it is drawn again.

import { aliasesOf } from "./aliases.js";
import { batchesOf } from "./batches.js";
import { canariesOf, evidenceOf } from "./canaries.js";
import { addSample, setHistory, toggle } from "./charts.js";
import { ask, follow, key, messageOf, NeedsKey, read } from "./client.js";
import { at, h, show } from "./dom.js";
import { fleetOf } from "./fleet.js";
import { span } from "./format.js";
import { openLogs, openText } from "./logs.js";
import { operationOf, questionOf, titleOf } from "./operation.js";
import { drawPlan, planOf } from "./plan.js";
import { bannerOf, problemsOf, verdictOf } from "./problems.js";
import { lookAtRequests, requestActions, wireRequests } from "./requests.js";
import { openTry, wireTry } from "./trybox.js";
import { eventsOf, usageOf } from "./usage.js";

const STATUS_EVERY = 15_000; // ms; every event triggers a request too
const USAGE_EVERY = 30_000; // the memory plan too
const REQUESTS_EVERY = 2_000;
const SOON = 200; // ms within which several events cause one request

const page = { status: null, at: 0, usage: null, plan: null, gone: null, connected: false, chosen: null, pending: new Set() };

// -- drawing --------------------------------------------------------------------------------------------------------

function render() {
  const { status, gone, usage, plan } = page;
  document.body.classList.toggle("stale", Boolean(gone));
  const now = status ? status.now : Date.now() / 1000;
  const problems = problemsOf(status, gone);
  const verdict = verdictOf(problems, status);
  announce(problems);
  at("verdict").className = `verdict ${verdict.level}`;
  at("verdict").textContent = verdict.text;
  document.title = `${verdict.title} spark-gateway`;
  at("live").textContent = gone ? "not connected" : page.connected ? "live" : "connecting";
  at("live").className = `live ${gone ? "bad" : page.connected ? "ok" : ""}`;
  show(at("banner"), bannerOf(problems, gone ? Date.now() / 1000 : now));
  if (!status) return;
  at("main").hidden = false;
  const several = status.shared && status.shared.joined ? `, one of ${status.shared.gateways} gateways` : "";
  const mode = status.mode ? `, mode ${status.mode}` : "";
  at("about").textContent = `${status.version}, up ${span(now - status.started)}${mode}${several}`;
  show(at("tools"), tools(status));
  renderOperation();
  show(at("aliases"), aliasesOf(status));
  show(at("fleet"), fleetOf(status, page.pending));
  at("batches-panel").hidden = !status.batches.length;
  show(at("batches"), batchesOf(status));
  at("plan-panel").hidden = !plan || (!plan.error && !plan.svg);
  show(at("plan"), planOf(plan));
  if (plan) drawPlan(at("plan"), plan);
  show(at("canaries"), canariesOf(status, page.chosen));
  show(at("evidence"), evidenceOf(status, page.chosen));
  show(at("usage"), usageOf(usage, status.budgets));
  show(at("events"), eventsOf(status.events));
}

/** Its seconds run on between two samples. */
function renderOperation() {
  const { status } = page;
  const operation = status && operationOf(status, status.now + (Date.now() - page.at) / 1000);
  at("operation-panel").hidden = !operation;
  show(at("operation"), operation);
}

/** Announce the problems to screen readers, once per change. */
let announced = "";
function announce(problems) {
  const text = problems.map((problem) => problem.text).join(" ");
  if (text === announced) return;
  at("announce").textContent = text || "All is well again.";
  announced = text;
}

function tools(status) {
  return [
    status.you.client ? h("span", { class: "muted" }, `as ${status.you.client}${status.you.admin ? ", admin" : ""}`) : null,
    status.you.admin ? status.modes.filter((mode) => mode !== status.mode).map((mode) =>
      h("button", { class: "quiet", "data-key": `mode ${mode}`, "data-action": "mode", "data-name": mode, disabled: isBusy(status) }, `Switch to ${mode}`)) : null,
    status.config && status.you.admin ? h("button", { class: "quiet", "data-action": "reload" }, "Reload routes.yaml") : null,
    key.get() ? h("button", { class: "quiet", "data-action": "forget" }, "Forget the key") : null,
  ];
}

const isBusy = (status) => Boolean(status.operation && status.operation.state === "running");

function notice(text, level = "ok") {
  at("notice").className = `notice ${level}`;
  at("notice").hidden = !text;
  at("notice").textContent = text;
}

// -- loading --------------------------------------------------------------------------------------------------------

async function loadStatus() {
  page.status = await read("/status");
  page.at = Date.now();
  page.gone = null;
  render();
}

async function loadUsage() {
  page.usage = await read("/status/usage");
  page.plan = await read("/status/plan").catch(() => page.plan); // of an app, which may be missing
  render();
}

let soon = 0;
function statusSoon() {
  clearTimeout(soon);
  soon = setTimeout(() => quietly(loadStatus), SOON);
}

const requestsSoon = () => quietly(() => lookAtRequests(page.status));

/** Errors are ignored here: the event stream fails too, and shows them. */
async function quietly(load) {
  try {
    await load();
  } catch (error) {
    if (error instanceof NeedsKey) askForKey(error.message);
  }
}

function onEvent(name, data) {
  const { status } = page;
  if (name === "batches" && status) {
    status.batches = data;
    return render();
  }
  if (name !== "sample") return statusSoon();
  if (!status) return undefined;
  status.now = data.at;
  page.at = Date.now();
  for (const [backend, now] of Object.entries(data.backends)) {
    const known = status.backends[backend];
    if (!known) return statusSoon();
    Object.assign(known, { now, inflight: now.inflight, foreign: now.foreign, elsewhere: now.elsewhere, queue: now.queue });
  }
  for (const [alias, now] of Object.entries(data.aliases)) if (status.aliases[alias]) status.aliases[alias].now = now;
  for (const [node, now] of Object.entries(data.nodes)) if (status.nodes[node]) Object.assign(status.nodes[node], now);
  addSample(data);
  return render();
}

async function live() {
  const on = {
    connected: async () => {
      page.connected = true;
      await loadStatus();
      setHistory(await read("/status/history"));
      quietly(loadUsage);
      requestsSoon();
    },
    event: onEvent,
    gone: () => {
      page.connected = false;
      page.gone ??= Date.now() / 1000;
      render();
    },
  };
  try {
    await follow(on);
  } catch (error) {
    if (!(error instanceof NeedsKey)) throw error;
    askForKey(error.message);
  }
}

// -- keys and buttons -------------------------------------------------------------------------------------------------

let following = false;
async function start() {
  if (following) return;
  following = true;
  at("key-form").hidden = true;
  await live();
  following = false;
}

function askForKey(message) {
  page.status = page.usage = page.plan = null;
  at("main").hidden = true;
  at("verdict").textContent = "A key is needed";
  at("verdict").className = "verdict";
  at("about").textContent = at("live").textContent = "";
  show(at("tools"));
  show(at("banner"));
  at("key-error").hidden = !key.get();
  at("key-error").textContent = message;
  key.forget();
  at("key-form").hidden = false;
  at("key").focus();
}

/** Do it, say what went wrong, and look at the status. */
async function trying(title, work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof NeedsKey) askForKey(error.message);
    else notice(`${title}: ${error.message}`, "bad");
  }
  statusSoon();
}

function cancelBatch(id) {
  if (!confirm(`Cancel ${id}? What is done stays.`)) return;
  trying(`Cancel ${id}`, async () => {
    await posted(`/v1/batches/${encodeURIComponent(id)}/cancel`);
    notice(`${id} is being cancelled.`);
  });
}

async function act(path, name, done) {
  const doing = `${path} ${name}`;
  page.pending.add(doing);
  render();
  await trying(doing, async () => {
    notice(done(await posted(path === "reload" ? "/admin/reload" : `/admin/backends/${encodeURIComponent(name)}/${path}`)));
  });
  page.pending.delete(doing);
}

/** Ask what an operation would do, and begin it if that is what is wanted. */
const operate = (title, path, body = {}) => trying(title, async () => {
  const plan = await posted(path, { ...body, dry_run: true });
  if (plan.refusals.length) return notice(`${title} is refused: ${plan.refusals.join("; ")}`, "bad");
  if (!confirm(questionOf(plan))) return undefined;
  await posted(path, body);
  return notice("");
});

const operateOne = (kind) => ({ name }) => operate(`${kind} ${name}`, `/admin/backends/${encodeURIComponent(name)}/${kind}`);

async function posted(path, body, method = "POST") {
  const answer = await ask(path, { method, body });
  if (!answer.ok) throw new Error(await messageOf(answer));
  return answer.json();
}

function cancelOperation(id) {
  const { operation } = page.status;
  if (!confirm(`Cancel ${operation ? titleOf(operation) : "the operation"}? Its command is killed; an engine that it has started goes on loading until it is stopped.`)) return;
  trying("cancel", () => posted(`/admin/operations/${id}`, undefined, "DELETE"));
}

const ACTIONS = {
  "cancel-batch": ({ name }) => cancelBatch(name),
  try: ({ name }) => openTry(page.status, name),
  toggle: ({ name }) => toggle(name),
  evidence: ({ name, check }) => {
    page.chosen = { name, check };
    render();
  },
  forget: () => {
    key.forget();
    location.reload();
  },
  drain: ({ name }) => {
    if (confirm(`Drain ${name}? What runs there ends, nothing new comes until it is resumed.`)) {
      act("drain", name, (reply) => `${name} is ${reply.state}; ${reply.inflight} under way there.`);
    }
  },
  resume: ({ name }) => act("resume", name, (reply) => `${name} is ${reply.state}.`),
  probe: ({ name }) => {
    notice(`Probing ${name}: it is asked as soon as nothing else runs there.`);
    act("probe", name, (reply) => `${name} was probed: ${reply.problems.length ? reply.problems.join("; ") : "nothing is wrong"}.`);
  },
  mode: ({ name }) => operate(`Switch to ${name}`, "/admin/mode", { mode: name }),
  start: operateOne("start"),
  stop: operateOne("stop"),
  restart: operateOne("restart"),
  logs: ({ name }) => openLogs(name),
  cancel: ({ name }) => cancelOperation(name),
  ...requestActions(() => requestsSoon(), (...words) => notice(...words)),
  reload: () => act("reload", "", () => "routes.yaml was read again."),
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-action]");
  if (button) ACTIONS[button.dataset.action](button.dataset);
});

document.querySelector("footer").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || !key.get()) return;
  event.preventDefault();
  openText(link.getAttribute("href"));
});

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(at("key").value.trim());
  at("key").value = "";
  start();
});

wireTry();
wireRequests(() => requestsSoon());
setInterval(() => { if (!document.hidden && page.connected) quietly(loadStatus); }, STATUS_EVERY);
setInterval(() => { if (!document.hidden && page.connected) quietly(loadUsage); }, USAGE_EVERY);
setInterval(() => { if (!document.hidden && page.connected) requestsSoon(); }, REQUESTS_EVERY);
setInterval(() => { if (!page.gone && page.status && isBusy(page.status)) renderOperation(); }, 1000);
setInterval(() => { if (page.gone) render(); }, 1000);
start();
