// Agents: sessions of three tasks with 17 tools. Each task is a call, its result, and an answer in words.

import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { ask, ready } from './lib/ask.js';
import { besideScenario, besideThresholds, pair } from './lib/beside.js';
import { atHome, thresholds } from './lib/metrics.js';
import { DIRECT_MODEL, DIRECT_URL, DURATION, MODELS, SIMULATED, VUS } from './lib/settings.js';
import { nonce, pick, prose } from './lib/text.js';
import { TOOLS, leaked, valid } from './lib/tools.js';

export { handleSummary } from './lib/summary.js';

export const options = {
    scenarios: {
        agents: { executor: 'constant-vus', vus: VUS, duration: DURATION, gracefulStop: '60s' },
        ...besideScenario,
    },
    // By chance it would be 66 % where two backends are side by side. A session leaves its own when that is the busier.
    thresholds: thresholds(10000, { ...besideThresholds, answers_at_home: ['rate>0.75'] }),
};

const TASKS = [
    ['get_weather', 'Call get_weather for the weather in Oslo.'],
    ['read_file', 'Call read_file on README.md.'],
    ['run_command', 'Call run_command on build.sh.'],
];

export function setup() {
    ready(DIRECT_URL ? [...MODELS, DIRECT_MODEL] : MODELS);
}

export default function session() {
    const model = pick(MODELS);
    const messages = [{ role: 'system', content: `Session ${nonce()}. You are an agent. ${prose(4000)}` }];
    const backends = [];
    for (const [tool, words] of TASKS) {
        messages.push({ role: 'user', content: words });
        if (!task(model, messages, tool, backends) || exec.scenario.progress >= 1) {
            return; // also when the time is over
        }
        sleep(Math.random() * 0.2);
    }
    countHome(backends);
}

/** How many answers of a session came from the backend that gave most of them, where its prefix is cached. */
function countHome(backends) {
    const times = backends.map((one) => backends.filter((other) => other === one).length);
    const home = backends[times.indexOf(Math.max(...times))];
    backends.forEach((one) => atHome.add(one === home));
}

/** One task of a session, appended to `messages`. False when it came to no proper end. */
function task(model, messages, tool, backends) {
    const stream = Math.random() < 0.8;
    const called = ask({ model, stream, messages, tools: TOOLS, max_tokens: 4096 });
    if (called.kind !== 'whole' || !isCall(called, tool)) {
        return false;
    }
    const secret = nonce();
    messages.push({
        role: 'assistant',
        content: called.content || null,
        tool_calls: called.calls.map(({ id, ...call }) => ({ id, type: 'function', function: call })),
    });
    for (const { id } of called.calls) {
        messages.push({ role: 'tool', tool_call_id: id, content: `${secret}: all is well.` });
    }
    const told = ask({ model, stream, messages, tools: TOOLS, max_tokens: 4096 });
    if (told.kind !== 'whole' || !isText(told, secret)) {
        return false;
    }
    messages.push({ role: 'assistant', content: told.content });
    backends.push(called.backend, told.backend);
    return true;
}

function isCall(answer, tool) {
    return check(answer, {
        'a request with tools yields a call': ({ calls }) => calls.length > 0,
        'the call is of a known tool, with its arguments': ({ calls }) => calls.length > 0 && calls.every(valid),
        'the call is the one that was asked for': ({ calls }) => calls.some(({ name }) => name === tool),
        'a call ends with finish_reason tool_calls': ({ finish }) => finish === 'tool_calls',
        'no call is left in the text': ({ content, reasoning }) => !leaked(content) && !leaked(reasoning),
    });
}

function isText(answer, secret) {
    return check(answer, {
        'a result yields an answer': ({ content, calls }) => content.trim() !== '' || calls.length > 0,
        'no call is left in the text': ({ content, reasoning }) => !leaked(content) && !leaked(reasoning),
        ...(SIMULATED ? { 'the answer is about this result': ({ content }) => content.includes(secret) } : {}),
    });
}

export function beside() {
    const messages = [{ role: 'user', content: `${nonce()}: What is 12*17?` }];
    pair({ messages, tools: TOOLS, max_tokens: 16 });
}
