// What an answer is: whole, refused, told to be broken, or wrong. Pure functions over bytes that have arrived.
//
// k6 reads a body to its end before a script sees it, and gives what came also where the connection was cut: then its
// `error` is set and its `status` is 0.

const ENDINGS = ['stop', 'length', 'tool_calls', 'content_filter'];
const BROKEN = 'stream_interrupted';

/**
 * Answer: `kind` is
 * - `whole`: it came to its proper end;
 * - `refused`: one plain error, before anything was said;
 * - `interrupted`: a stream that broke and says so: one error event, then the connection is cut;
 * - `wrong`: anything else. `why` says what.
 */
function answer(kind, why, rest) {
    return { kind, why, content: '', reasoning: '', calls: [], finish: '', code: '', usage: null, ...rest };
}

const wrong = (why, rest) => answer('wrong', why, rest);

/** Read the answer to a chat request. `got`: status, error (of the transport, '' for none) and body. */
export function readChat(got, stream) {
    const isStream = /^\s*(data|event|id|retry)?:/.test(got.body || '');
    if (stream && isStream) {
        return readStream(got);
    }
    const value = parsed(got.body);
    const early = unanswered(got, value);
    if (early) {
        return early;
    }
    if (stream) {
        return wrong('a stream was asked for, and one piece came');
    }
    return readWhole(value);
}

/** Read the answer to a request of another endpoint; `valid(value)` says what is missing in it, or ''. */
export function readOther(got, valid) {
    const value = parsed(got.body);
    const early = unanswered(got, value);
    if (early) {
        return early;
    }
    const missing = valid(value);
    return missing ? wrong(missing) : answer('whole', '', { usage: value.usage });
}

function unanswered(got, value) {
    if (got.status === 0) {
        return wrong(`no answer: ${got.error}`);
    }
    if (got.status !== 200) {
        return readError(value, `status ${got.status}`);
    }
    return value === undefined ? wrong('status 200, and its body is not JSON') : null;
}

function readError(value, where) {
    const error = value && value.error;
    const keys = error && typeof error === 'object' ? Object.keys(error).sort().join() : '';
    if (keys !== 'code,message,param,type' || !error.message) {
        return wrong(`${where} without a plain error`);
    }
    const kind = error.code === 'internal_error' ? 'wrong' : 'refused';
    return answer(kind, `${where}: ${error.message}`, { code: error.code || '' });
}

function readWhole(value) {
    const choice = (value.choices || [])[0];
    if (!choice || !choice.message) {
        return wrong('no choice in it');
    }
    const { message, finish_reason: finish } = choice;
    const said = {
        content: message.content || '',
        reasoning: message.reasoning || message.reasoning_content || '',
        calls: (message.tool_calls || []).map((call) => ({ id: call.id, ...call.function })),
        finish,
        usage: value.usage || null,
    };
    return ENDINGS.includes(finish) ? answer('whole', '', said) : wrong(`finish_reason ${finish}`, said);
}

/** Read a body of server-sent events. */
export function readStream(got) {
    const events = eventsOf(got.body);
    const done = events[events.length - 1] === '[DONE]';
    const said = { content: '', reasoning: '', calls: [], finish: '', usage: null };
    const seen = { ids: [], error: null };
    for (const [at, event] of (done ? events.slice(0, -1) : events).entries()) {
        const chunk = parsed(event);
        if (chunk === undefined) {
            return wrong(`event ${at} is not JSON: ${event.slice(0, 80)}`, said);
        }
        if (seen.error) {
            return wrong('something came behind the error event', said);
        }
        if (chunk.error) {
            seen.error = chunk;
        } else {
            take(chunk, said, seen);
        }
    }
    return seen.error ? broken(got, seen.error, said, done) : ended(got, said, seen, done);
}

function ended(got, said, seen, done) {
    if (got.error) {
        return wrong(`the connection broke, and nothing was said of it: ${got.error}`, said);
    }
    if (!ENDINGS.includes(said.finish)) {
        return wrong(said.finish ? `finish_reason ${said.finish}` : 'it ended without finish_reason', said);
    }
    if (!done) {
        return wrong('it ended without [DONE]', said);
    }
    return seen.ids.length > 1 ? wrong(`one stream with the ids ${seen.ids}`, said) : answer('whole', '', said);
}

function broken(got, chunk, said, done) {
    const told = readError(chunk, 'in the stream');
    const begun = said.content !== '' || said.calls.length > 0;
    if (told.kind === 'wrong') {
        return { ...told, ...said };
    }
    if (done || !got.error) {
        return wrong(`an error event (${told.code}), and then an end as if it were whole`, said);
    }
    if (said.finish) {
        return wrong(`an error event (${told.code}) behind finish_reason ${said.finish}`, said);
    }
    if (begun !== (told.code === BROKEN)) {
        return wrong(`error ${told.code} ${begun ? 'after' : 'before'} content`, said);
    }
    return { ...told, ...said, kind: begun ? 'interrupted' : 'refused' };
}

/** The data of each event, in order. Comments and other fields are left out. */
function eventsOf(body) {
    const events = [];
    for (const event of body.split(/\r?\n\r?\n/)) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith('data:'));
        if (data.length) {
            events.push(data.map((line) => line.slice(5).replace(/^ /, '')).join('\n'));
        }
    }
    return events;
}

function take(chunk, said, seen) {
    if (chunk.id && !seen.ids.includes(chunk.id)) {
        seen.ids.push(chunk.id);
    }
    said.usage = chunk.usage || said.usage;
    const choice = (chunk.choices || [])[0];
    if (!choice) {
        return;
    }
    const delta = choice.delta || {};
    said.content += delta.content || '';
    said.reasoning += delta.reasoning || delta.reasoning_content || '';
    said.finish = choice.finish_reason || said.finish;
    for (const part of delta.tool_calls || []) {
        const call = (said.calls[part.index] = said.calls[part.index] || { id: '', name: '', arguments: '' });
        const { name = '', arguments: text = '' } = part.function || {};
        call.id = part.id || call.id;
        call.name += name || '';
        call.arguments += text || '';
    }
}

/** The value of a JSON text; undefined when it is none. */
export function parsed(text) {
    try {
        return JSON.parse(text);
    } catch {
        return undefined;
    }
}
