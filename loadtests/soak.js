// Soak: a steady mix for as long as DURATION says, clients that leave midway among it. At the end nothing may be left
// under way, and the last third has to be as quick as the first.

import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { ask, get, post, ready } from './lib/ask.js';
import { thresholds } from './lib/metrics.js';
import { DURATION, FIRST_TOKEN_P95_MS, MODELS, SIMULATED, VUS, seconds } from './lib/settings.js';
import { essay, nonce, pick, product, prose } from './lib/text.js';
import { TOOLS, leaked, valid } from './lib/tools.js';

export { handleSummary } from './lib/summary.js';

const LIMIT = FIRST_TOKEN_P95_MS || 10000;
const PATIENCE = Math.min(30, 2 + seconds(DURATION)); // until everything is settled at the end

export const options = {
    scenarios: {
        mix: { executor: 'constant-vus', vus: VUS, duration: DURATION, gracefulStop: '60s' },
        leavers: { executor: 'constant-vus', vus: 1, duration: DURATION, exec: 'leave' },
    },
    thresholds: thresholds(LIMIT, {
        'first_token{part:first}': [`p(95)<${LIMIT}`],
        'first_token{part:last}': [`p(95)<${LIMIT}`],
    }),
};

export function setup() {
    ready(MODELS);
}

export default function mix() {
    const progress = exec.scenario.progress;
    const tags = { part: progress < 1 / 3 ? 'first' : progress > 2 / 3 ? 'last' : 'middle' };
    const request = { model: pick(MODELS), stream: Math.random() < 0.6 };
    const roll = Math.random();
    if (roll < 0.3) {
        call(request, tags);
    } else if (roll < 0.4) {
        const content = `${nonce()} ${prose(30000)} What is 12*17?`;
        plain({ ...request, messages: [{ role: 'user', content }] }, '204', tags);
    } else {
        const { messages, right } = product();
        plain({ ...request, messages }, right, tags);
    }
    sleep(Math.random());
}

function plain(request, right, tags) {
    const answer = ask(request, tags);
    if (answer.kind === 'whole') {
        check(answer, {
            'something is said': ({ content }) => content.trim() !== '',
            ...(SIMULATED ? { 'it is the answer to this question': ({ content }) => content.includes(right) } : {}),
        });
    }
}

function call(request, tags) {
    const messages = [{ role: 'user', content: `${nonce()}: Call get_weather for the weather in Oslo.` }];
    const answer = ask({ ...request, messages, tools: TOOLS }, tags);
    if (answer.kind === 'whole') {
        check(answer, {
            'a request with tools yields a call': ({ calls }) => calls.length > 0 && calls.every(valid),
            'no call is left in the text': ({ content }) => !leaked(content),
        });
    }
}

/** Asks for much and closes the connection before it is there. */
export function leave() {
    const timeout = `${100 + Math.floor(Math.random() * 900)}ms`;
    post({ model: pick(MODELS), stream: Math.random() < 0.5, messages: essay(5000) }, { timeout });
    sleep(1);
}

/** The sum of a gauge over its labels; NaN when it is not there. */
function gauge(name) {
    const got = get('/metrics');
    const lines = (got.body || '').split('\n');
    if (got.status !== 200 || !lines.some((line) => line.startsWith(`# TYPE ${name} `))) {
        return NaN;
    }
    const values = lines.filter((line) => line.startsWith(`${name}{`)).map((line) => Number(line.split(' ').pop()));
    return values.reduce((sum, value) => sum + value, 0);
}

export function teardown() {
    const left = () => gauge('gateway_inflight') + gauge('gateway_queue_depth');
    const until = Date.now() + PATIENCE * 1000;
    while (left() !== 0 && Date.now() < until) {
        sleep(0.25);
    }
    check(left(), { 'nothing is left under way': (requests) => requests === 0 });
}
