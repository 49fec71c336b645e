// Failover under load: backends of a simulated fleet are killed, ended, made to break and brought back, one after the
// other. Every request ends whole, or with one clear error; whoever asks in one piece notices nothing.

import { check, fail, sleep } from 'k6';
import exec from 'k6/execution';
import http from 'k6/http';
import { ask, ready } from './lib/ask.js';
import { thresholds } from './lib/metrics.js';
import { CONTROL_URL, DURATION, MODELS, VUS, seconds } from './lib/settings.js';
import { essay, nonce, pick, product } from './lib/text.js';
import { TOOLS, leaked, valid } from './lib/tools.js';

export { handleSummary } from './lib/summary.js';

const LENGTH = seconds(DURATION);
const AWAY = Math.min(10, LENGTH / 8); // seconds that a backend is away
const PATIENCE = 120; // seconds until all are back at the end

export const options = {
    scenarios: {
        clients: { executor: 'constant-vus', vus: VUS, duration: DURATION, gracefulStop: '60s' },
        breaker: { executor: 'per-vu-iterations', vus: 1, exec: 'breaker', maxDuration: `${LENGTH + 60}s` },
    },
    thresholds: thresholds(30000, {
        answers_whole: ['rate>0.7'],
        'answers_whole{stream:no}': ['rate>0.99'],
        answers_refused: ['rate<0.01'],
        answers_interrupted: ['rate<0.3'], // what has begun when a backend goes, and nothing else
        answers_from_fallback: ['count>0'], // else nothing was shown
    }),
    teardownTimeout: `${PATIENCE + 30}s`,
};

export function setup() {
    if (!CONTROL_URL) {
        exec.test.abort('This breaks backends: it needs a simulated fleet. Set CONTROL_URL (`gateway demo` prints it).');
    }
    const offered = ready(MODELS);
    const steps = MODELS.map((model) => offered[model].x_gateway.steps).filter((chain) => chain.length > 1);
    const victims = [...new Set(steps.map(([first]) => first[0]))];
    if (!victims.length) {
        exec.test.abort(`None of ${MODELS} has a backend to fall back on.`);
    }
    return { victims, first: Object.fromEntries(MODELS.map((model) => [model, offered[model].x_gateway.steps[0]])) };
}

export default function client() {
    const stream = Math.random() < 0.6;
    const model = pick(MODELS);
    if (Math.random() < 0.3) {
        const messages = [{ role: 'user', content: `${nonce()}: Call get_weather for the weather in Oslo.` }];
        const answer = ask({ model, stream, messages, tools: TOOLS });
        if (answer.kind === 'whole') {
            check(answer, {
                'a request with tools yields a call': ({ calls }) => calls.length > 0 && calls.every(valid),
                'no call is left in the text': ({ content }) => !leaked(content),
            });
        }
    } else if (Math.random() < 0.3) {
        const { messages, right } = product();
        const answer = ask({ model, stream, messages });
        if (answer.kind === 'whole') {
            check(answer, { 'it is the answer to this question': ({ content }) => content.includes(right) });
        }
    } else {
        const words = 100 + Math.floor(Math.random() * 400);
        const answer = ask({ model, stream, messages: essay(words) });
        if (answer.kind === 'whole') {
            check(answer, { 'no word is missing': ({ content }) => content.trim().split(/\s+/).length === words });
        }
    }
    sleep(Math.random() * 0.2);
}

function steer(victim, action, body = {}) {
    const url = `${CONTROL_URL}/_sim/${victim}/${action}`;
    const got = http.post(url, JSON.stringify(body));
    if (got.status !== 200) {
        fail(`${url}: ${got.error || got.body}`);
    }
}

function heal(victim) {
    http.del(`${CONTROL_URL}/_sim/${victim}/fault`);
    steer(victim, 'revive');
}

const HARMS = [
    (victim) => steer(victim, 'kill'),
    (victim) => steer(victim, 'fault', { kind: 'die_mid', after: 20, count: 3 }),
    (victim) => steer(victim, 'terminate'),
    (victim) => steer(victim, 'fault', { kind: 'status', status: 500, count: 3 }),
];

/** Break one after the other, each as soon as it has something under way. */
export function breaker({ victims }) {
    const until = Date.now() + (LENGTH - AWAY) * 1000;
    for (let turn = 0; Date.now() < until; turn++) {
        const victim = victims[turn % victims.length];
        while (!running(victim)) {
            if (Date.now() >= until) {
                return;
            }
            sleep(0.05);
        }
        HARMS[Math.floor(turn / victims.length) % HARMS.length](victim);
        sleep(AWAY);
        heal(victim);
    }
}

const running = (victim) => http.get(`${CONTROL_URL}/_sim`).json(victim).running;

export function teardown({ victims, first }) {
    victims.forEach(heal);
    const until = Date.now() + PATIENCE * 1000;
    for (const model of MODELS) {
        let answer = ask({ model, messages: product().messages });
        while (!first[model].includes(answer.backend) && Date.now() < until) {
            sleep(0.25);
            answer = ask({ model, messages: product().messages });
        }
        check(answer, { 'a backend that is back is used again': ({ backend }) => first[model].includes(backend) });
    }
}
