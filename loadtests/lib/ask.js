// Requests to the gateway, counted. Effects are here: sockets and metrics.

import exec from 'k6/execution';
import http from 'k6/http';
import { elsewhere, firstToken, queued, rates, tokens } from './metrics.js';
import { parsed, readChat, readOther } from './reading.js';
import { API_KEY, BASE_URL, TIMEOUT } from './settings.js';

const SHOWN = 5; // wrong answers that each client writes out
let shown = 0;

function options(further = {}) {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${API_KEY}` };
    return { headers, timeout: TIMEOUT, ...further };
}

/**
 * Ask for a chat completion. Returns the answer as lib/reading.js reads it, with `backend` (who answered; '' where
 * headers are lost with the connection). Every answer is counted under the tag `stream` and `further`.
 */
export function ask(body, further = {}) {
    const stream = body.stream === true;
    const sent = stream ? { ...body, stream_options: { include_usage: true } } : body;
    const tags = { stream: stream ? 'yes' : 'no', ...further };
    const got = http.post(`${BASE_URL}/v1/chat/completions`, JSON.stringify(sent), options({ tags }));
    const answer = { ...readChat(got, stream), ...route(got) };
    count(answer, got, tags);
    if (stream && answer.kind === 'whole') {
        // The gateway holds its status back until a backend has said something: the head comes with the first token.
        firstToken.add(Math.max(0, got.timings.waiting - answer.queuedMs), tags);
    }
    return answer;
}

/** POST to another path; `valid(value)` says what is missing in the answer, or ''. */
export function askOther(path, body, valid) {
    const tags = { stream: 'no' };
    const got = http.post(`${BASE_URL}${path}`, JSON.stringify(body), options({ tags }));
    const answer = { ...readOther(got, valid), ...route(got) };
    count(answer, got, tags);
    return answer;
}

/** GET a path, uncounted. */
export function get(path) {
    return http.get(`${BASE_URL}${path}`, options());
}

/** POST a chat request uncounted, for what is expected to be refused, or left midway. */
export function post(body, further = {}) {
    return http.post(`${BASE_URL}/v1/chat/completions`, JSON.stringify(body), options(further));
}

function route(got) {
    const header = (name) => got.headers[name] || '';
    return {
        backend: header('X-Gateway-Backend'),
        fallback: header('X-Gateway-Fallback'),
        queuedMs: Number(header('X-Gateway-Queue-Ms') || 0),
        requestId: header('X-Request-Id'),
    };
}

function count(answer, got, tags) {
    for (const [kind, rate] of Object.entries(rates)) {
        rate.add(kind === answer.kind, tags);
    }
    queued.add(answer.queuedMs, tags);
    tokens.add((answer.usage && answer.usage.completion_tokens) || 0, tags);
    elsewhere.add(answer.fallback ? 1 : 0, tags);
    if (answer.kind === 'wrong' && shown++ < SHOWN) {
        const end = (got.body || '').slice(-300);
        console.error(`wrong answer (request ${answer.requestId || 'id lost'}): ${answer.why}\n... ${end}`);
    }
}

/**
 * For every script's setup(): ends the run with a plain message when no gateway is there or a model is not offered, and
 * asks each model once, so that no threshold passes because nothing was counted. Returns name -> its /v1/models entry.
 */
export function ready(models) {
    const got = get('/v1/models');
    const value = parsed(got.body);
    if (got.status !== 200 || !value || !Array.isArray(value.data)) {
        const said = got.error || `status ${got.status}: ${(got.body || '').slice(0, 200)}`;
        exec.test.abort(`No gateway answers at ${BASE_URL}/v1/models (${said}). Set BASE_URL, and API_KEY if need be.`);
    }
    const offered = Object.fromEntries(value.data.map((model) => [model.id, model]));
    for (const model of models) {
        if (!offered[model]) {
            const names = Object.keys(offered).join(', ');
            exec.test.abort(`${BASE_URL} does not offer '${model}'. Set MODEL (or MODELS) to one of: ${names}`);
        }
        ask({ model, stream: true, messages: [{ role: 'user', content: 'Say hello.' }] });
    }
    return offered;
}
