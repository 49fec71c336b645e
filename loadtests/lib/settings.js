// What a run is told through the environment. loadtests/README.md explains every name; a test holds it to this list.

const read = (name, otherwise) => __ENV[name] || otherwise;
const list = (text) => text.split(',').map((part) => part.trim()).filter(Boolean);
const base = (url) => url.replace(/\/+$/, '').replace(/\/v1$/, '');

export const BASE_URL = base(read('BASE_URL', 'http://127.0.0.1:4000')); // the gateway's root, with or without /v1
export const API_KEY = read('API_KEY', 'none');
export const MODEL = read('MODEL', 'spark-qwen36');
export const MODELS = list(read('MODELS', MODEL)); // for the scripts that ask several
export const DURATION = read('DURATION', '30s');
export const VUS = Number(read('VUS', '8')); // clients at a time
export const TIMEOUT = read('TIMEOUT', '120s'); // an answer that takes longer is counted as none

// What only some fleets have. Empty = that part of a script is left out.
export const THINKING_MODEL = read('THINKING_MODEL', '');
export const EMBEDDING_MODEL = read('EMBEDDING_MODEL', '');
export const DIRECT_URL = base(read('DIRECT_URL', '')); // the backend behind DIRECT_MODEL, asked beside the gateway
export const DIRECT_MODEL = read('DIRECT_MODEL', MODEL);
export const DIRECT_KEY = read('DIRECT_KEY', 'none');
export const CONTROL_URL = base(read('CONTROL_URL', '')); // of a simulated fleet: its answers are foreseeable

// Limits. 0 = the script's own.
export const FIRST_TOKEN_P95_MS = Number(read('FIRST_TOKEN_P95_MS', '0'));
export const ADDED_MEDIAN_MS = Number(read('ADDED_MEDIAN_MS', '20'));
export const ADDED_P95_MS = Number(read('ADDED_P95_MS', '250')); // a backend's own unevenness is in it, twice

export const SUMMARY = read('SUMMARY', ''); // a file for the summary as JSON

export const SIMULATED = CONTROL_URL !== '';

/** Seconds in a duration as k6 writes it: `90s`, `5m`, `1h30m`, `500ms`. */
export function seconds(duration) {
    const units = { h: 3600, m: 60, s: 1, ms: 0.001 };
    const parts = [...duration.matchAll(/(\d+(?:\.\d+)?)(ms|h|m|s)/g)];
    if (!parts.length || parts.map((part) => part[0]).join('') !== duration) {
        throw new Error(`'${duration}' is no duration; write 30s, 5m or 1h30m`);
    }
    return parts.reduce((sum, [, number, unit]) => sum + Number(number) * units[unit], 0);
}
