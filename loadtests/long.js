// Long prompts: 100 to 400 KB as far as the window goes, a second turn on each, and prompts that fit nowhere.

import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { ask, post, ready } from './lib/ask.js';
import { thresholds } from './lib/metrics.js';
import { readChat } from './lib/reading.js';
import { DURATION, MODEL, VUS } from './lib/settings.js';
import { nonce, pick, prose } from './lib/text.js';

export { handleSummary } from './lib/summary.js';

const SIZES = [100_000, 200_000, 400_000]; // bytes
const DENSE = 3.5; // bytes a token, at least, in plain English words
const THIN = 8; // at most
const TOO_LONG = new RegExp(
    "^status 400: This model's maximum context length is \\d+ tokens\\. " +
        'However, your prompt contains \\d+ input tokens\\.',
);

export const options = {
    scenarios: {
        long: { executor: 'constant-vus', vus: Math.ceil(VUS / 2), duration: DURATION, gracefulStop: '120s' },
        too_long: { executor: 'constant-vus', vus: 1, duration: DURATION, exec: 'tooLong' },
    },
    thresholds: thresholds(60000, { 'first_token{turn:second}': ['p(95)<60000'] }),
};

export function setup() {
    const window = ready([MODEL])[MODEL].max_model_len;
    const sizes = SIZES.filter((bytes) => bytes / DENSE + 2048 < window);
    if (!sizes.length) {
        exec.test.abort(`The window of '${MODEL}' (${window} tokens) is too small for long prompts. Set another MODEL.`);
    }
    return { window, sizes };
}

export default function long({ sizes }) {
    const messages = [{ role: 'user', content: `${nonce()}\n${prose(pick(sizes))}\nWhat is 12*17?` }];
    const first = turn(messages, 'first');
    if (first.kind !== 'whole' || exec.scenario.progress >= 1) {
        return;
    }
    messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: 'And 13*17?' });
    turn(messages, 'second');
}

function turn(messages, which) {
    const answer = ask({ model: MODEL, stream: Math.random() < 0.8, messages, max_tokens: 1024 }, { turn: which });
    if (answer.kind === 'whole') {
        check(answer, { 'something is said': ({ content }) => content.trim() !== '' });
    }
    return answer;
}

/** More than any backend of the alias takes: said at once, in the words that agents shorten their history on. */
export function tooLong({ window }) {
    const stream = Math.random() < 0.5;
    const body = { model: MODEL, stream, messages: [{ role: 'user', content: `${nonce()} ${prose(window * THIN)}` }] };
    const got = post(body);
    const answer = readChat(got, stream);
    check(answer, {
        'a prompt that fits nowhere is refused as that': ({ code }) => code === 'context_length_exceeded',
        'the refusal has the words that agents know': ({ why }) => TOO_LONG.test(why),
    });
    sleep(1);
}
