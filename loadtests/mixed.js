// A mixed fleet: several models at once, thinking switched on and off, JSON by a schema, completions, embeddings, and
// the model list that clients read with every page.

import { check, sleep } from 'k6';
import { ask, askOther, get, ready } from './lib/ask.js';
import { thresholds } from './lib/metrics.js';
import { parsed } from './lib/reading.js';
import { DURATION, EMBEDDING_MODEL, MODELS, SIMULATED, THINKING_MODEL, VUS } from './lib/settings.js';
import { essay, nonce, pick, product } from './lib/text.js';
import { leaked } from './lib/tools.js';

export { handleSummary } from './lib/summary.js';

const one = (exec) => ({ executor: 'constant-vus', vus: 1, duration: DURATION, exec, gracefulStop: '60s' });

export const options = {
    scenarios: {
        chat: { executor: 'constant-vus', vus: VUS, duration: DURATION, gracefulStop: '60s' },
        json: one('json'),
        completions: one('completions'),
        models: one('models'),
        ...(THINKING_MODEL ? { thinking: one('thinking') } : {}),
        ...(EMBEDDING_MODEL ? { embeddings: one('embeddings') } : {}),
    },
    thresholds: thresholds(10000),
};

export function setup() {
    ready([...new Set([...MODELS, THINKING_MODEL].filter(Boolean))]);
}

export default function chat() {
    const { messages, right } = product();
    const answer = ask({ model: pick(MODELS), stream: Math.random() < 0.6, messages });
    if (answer.kind === 'whole') {
        check(answer, { 'something is said': ({ content }) => content.trim() !== '' });
        if (SIMULATED) {
            check(answer, { 'it is the answer to this question': ({ content }) => content.includes(right) });
        }
    }
    sleep(Math.random() * 0.2);
}

/** The same model, told to think and told not to. */
export function thinking() {
    const stream = Math.random() < 0.5;
    const on = ask({ model: THINKING_MODEL, stream, messages: essay(20), reasoning_effort: 'high' });
    if (on.kind === 'whole') {
        check(on, {
            'thoughts are in their own field': ({ reasoning }) => reasoning.trim() !== '',
            'no thoughts are in the text': ({ content }) => !/<\/?think/.test(content) && !leaked(content),
        });
    }
    const off = ask({ model: THINKING_MODEL, stream, messages: essay(20), reasoning_effort: 'none' });
    if (off.kind === 'whole') {
        check(off, {
            'no thoughts where none are wanted': ({ reasoning }) => reasoning.trim() === '',
            'no thoughts are in the text': ({ content }) => !/<\/?think/.test(content),
        });
    }
    sleep(0.2);
}

const SCHEMA = {
    type: 'object',
    properties: { city: { type: 'string' }, degrees: { type: 'integer' } },
    required: ['city', 'degrees'],
    additionalProperties: false,
};

export function json() {
    const answer = ask({
        model: pick(MODELS),
        messages: [{ role: 'user', content: `${nonce()}: It is 21 degrees in Oslo. Say so as JSON.` }],
        response_format: { type: 'json_schema', json_schema: { name: 'report', schema: SCHEMA, strict: true } },
    });
    if (answer.kind === 'whole') {
        const value = parsed(answer.content) || {};
        check(value, {
            'JSON fits its schema': ({ city, degrees }) => typeof city === 'string' && Number.isInteger(degrees),
        });
    }
    sleep(0.5);
}

export function completions() {
    const body = { model: pick(MODELS), prompt: `${nonce()}: Once upon a time`, max_tokens: 32 };
    const valid = ({ choices }) => {
        const first = (choices || [])[0] || {};
        return first.text && first.finish_reason ? '' : 'no text in it';
    };
    askOther('/v1/completions', body, valid);
    sleep(0.5);
}

export function embeddings() {
    const input = [`${nonce()} one`, `${nonce()} two`];
    const valid = ({ data }) => {
        const whole = Array.isArray(data) && data.length === input.length;
        return whole && data.every(({ embedding }) => embedding.length > 0) ? '' : 'not one vector for each input';
    };
    askOther('/v1/embeddings', { model: EMBEDDING_MODEL, input }, valid);
    sleep(0.5);
}

export function models() {
    const got = get('/v1/models');
    const offered = ((parsed(got.body) || {}).data || []).map(({ id }) => id);
    check(offered, {
        'every model is offered all the time': (names) => MODELS.every((model) => names.includes(model)),
    });
    sleep(0.5);
}
