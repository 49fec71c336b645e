// The end of a run: one line per limit, and everything as JSON where SUMMARY names a file.

import { SUMMARY } from './settings.js';

const shown = (value) => (Number.isInteger(value) ? `${value}` : value.toFixed(3));

function limits(metrics) {
    return Object.entries(metrics).flatMap(([name, metric]) =>
        Object.entries(metric.thresholds || {}).map(([limit, { ok }]) => {
            const key = /^[a-z0-9().]+/.exec(limit)[0].trim();
            const value = metric.values[key];
            return `  ${ok ? 'ok  ' : 'FAIL'} ${name} ${limit}${value === undefined ? '' : ` (${shown(value)})`}`;
        }),
    );
}

function failed(group) {
    const own = group.checks.filter((check) => check.fails > 0);
    const lines = own.map(({ name, passes, fails }) => `  ${fails} of ${passes + fails} times not: ${name}`);
    return [...lines, ...group.groups.flatMap(failed)];
}

/** Every script exports this. */
export function handleSummary(data) {
    const { passes = 0, fails = 0 } = (data.metrics.answers_whole || { values: {} }).values;
    // k6 calls a limit kept when nothing was measured.
    const kept = passes + fails ? limits(data.metrics) : ['  nothing was answered'];
    const lines = [...kept, ...failed(data.root_group), ''];
    return { stdout: lines.join('\n'), ...(SUMMARY ? { [SUMMARY]: JSON.stringify(data) } : {}) };
}
