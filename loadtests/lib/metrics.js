// What is counted in every script, and the limits that all share.

import { Counter, Rate, Trend } from 'k6/metrics';
import { FIRST_TOKEN_P95_MS } from './settings.js';

// One of each answer is true in exactly one of these four.
export const rates = {
    whole: new Rate('answers_whole'),
    refused: new Rate('answers_refused'),
    interrupted: new Rate('answers_interrupted'),
    wrong: new Rate('answers_wrong'),
};
export const firstToken = new Trend('first_token', true); // of streams; waiting for a slot is not in it
export const queued = new Trend('queued', true); // waiting for a slot
export const added = new Trend('added_latency', true); // through the gateway, less the same request to the backend
export const tokens = new Counter('answer_tokens');
export const atHome = new Rate('answers_at_home');
export const elsewhere = new Counter('answers_from_fallback');

/** The thresholds of every script; `firstTokenMs`: its own limit for the 95th percentile. */
export function thresholds(firstTokenMs, further = {}) {
    return {
        checks: ['rate>0.99'],
        answers_whole: ['rate>0.99'],
        answers_wrong: ['rate==0'],
        first_token: [`p(95)<${FIRST_TOKEN_P95_MS || firstTokenMs}`],
        ...further,
    };
}
