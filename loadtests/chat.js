// Chat: people and scripts that ask one thing at a time, two of three with a stream.

import { check, sleep } from 'k6';
import { ask, ready } from './lib/ask.js';
import { besideScenario, besideThresholds, pair } from './lib/beside.js';
import { thresholds } from './lib/metrics.js';
import { DIRECT_MODEL, DIRECT_URL, DURATION, MODEL, SIMULATED, VUS } from './lib/settings.js';
import { essay, product } from './lib/text.js';

export { handleSummary } from './lib/summary.js';

export const options = {
    scenarios: {
        chat: { executor: 'constant-vus', vus: VUS, duration: DURATION, gracefulStop: '60s' },
        ...besideScenario,
    },
    thresholds: thresholds(5000, {
        ...besideThresholds,
        'answers_whole{stream:yes}': ['rate>0.99'],
        'answers_whole{stream:no}': ['rate>0.99'],
    }),
};

export function setup() {
    ready(DIRECT_URL ? [MODEL, DIRECT_MODEL] : [MODEL]);
}

export default function chat() {
    const stream = Math.random() < 2 / 3;
    if (Math.random() < 0.5) {
        calculate(stream);
    } else {
        tell(stream);
    }
    sleep(Math.random() * 0.2);
}

function calculate(stream) {
    const { messages, right } = product();
    const answer = ask({ model: MODEL, stream, messages });
    if (answer.kind !== 'whole') {
        return;
    }
    check(answer, { 'something is said': ({ content }) => content.trim() !== '' });
    if (SIMULATED) {
        check(answer, { 'it is the answer to this question': ({ content }) => content.includes(right) });
    }
}

function tell(stream) {
    const words = 40 + Math.floor(Math.random() * 160);
    const answer = ask({ model: MODEL, stream, messages: essay(words) });
    if (answer.kind !== 'whole') {
        return;
    }
    check(answer, { 'something is said': ({ content }) => content.trim() !== '' });
    if (SIMULATED) {
        check(answer, { 'no word is missing': ({ content }) => content.trim().split(/\s+/).length === words });
    }
}

export function beside() {
    pair({ messages: product().messages, max_tokens: 16 });
}
