// The same request through the gateway and to the backend itself, in turns: what the gateway adds. The backend should
// have nothing else to do, or its own queue is measured.

import http from 'k6/http';
import { check, sleep } from 'k6';
import { added } from './metrics.js';
import { parsed } from './reading.js';
import {
    ADDED_MEDIAN_MS, ADDED_P95_MS, API_KEY, BASE_URL, DIRECT_KEY, DIRECT_MODEL, DIRECT_URL, DURATION,
} from './settings.js';

/** The scenario and its limit, or nothing without DIRECT_URL. The script exports the scenario's function, `beside`. */
export const besideScenario = DIRECT_URL
    ? { beside: { executor: 'constant-vus', vus: 1, duration: DURATION, exec: 'beside' } }
    : {};

export const besideThresholds = DIRECT_URL
    ? { added_latency: [`med<${ADDED_MEDIAN_MS}`, `p(95)<${ADDED_P95_MS}`] }
    : {};

let own = ''; // the backend's own name of the model

function timed(url, key, body) {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
    const got = http.post(`${url}/v1/chat/completions`, JSON.stringify(body), { headers, tags: { stream: 'no' } });
    return got.status === 200 ? got.timings.duration : NaN;
}

/** One pair. `body` has neither model nor stream; short answers are best. */
export function pair(body) {
    own = own || parsed(http.get(`${DIRECT_URL}/v1/models`).body).data[0].id;
    const ways = [
        () => timed(BASE_URL, API_KEY, { ...body, model: DIRECT_MODEL }),
        () => timed(DIRECT_URL, DIRECT_KEY, { ...body, model: own }),
    ];
    const first = Math.random() < 0.5 ? 0 : 1;
    const took = [];
    took[first] = ways[first]();
    took[1 - first] = ways[1 - first]();
    if (check(took, { 'both ways answer': (pair) => !pair.some(Number.isNaN) })) {
        added.add(took[0] - took[1]);
    }
    sleep(0.1);
}
