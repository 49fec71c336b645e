// An agent's tools, as many and as long as agents send, and what makes a call a call.

import { parsed } from './reading.js';
import { prose } from './text.js';

const NAMES = (
    'get_weather read_file write_file list_files search_files run_command fetch_page search_web send_message ' +
    'create_task update_task list_tasks read_memory write_memory query_database resize_image play_sound'
).split(' ');

function tool(name, index) {
    const place = name === 'get_weather' ? 'city' : 'path';
    return {
        type: 'function',
        function: {
            name,
            description: `${name.replace('_', ' ')}. ${prose(2000, index)}`,
            parameters: {
                type: 'object',
                properties: {
                    [place]: { type: 'string', description: 'What it is about.' },
                    limit: { type: 'integer', description: 'At most so many lines.' },
                },
                required: [place],
            },
        },
    };
}

/** 17 tools, about 40 KB. */
export const TOOLS = NAMES.map(tool);

// How models write calls when nobody takes them out of their text.
const MARKS = ['<tool_call', '</tool_call', '<function=', '<|tool_call', '<｜DSML｜', '<｜tool', '[TOOL_CALLS]'];
const LEAKED = /<\|python_tag\|>|```tool_code|"arguments"\s*:\s*\{/;

/** Does the text have a call in it, or a piece of one? */
export const leaked = (text) => MARKS.some((mark) => text.includes(mark)) || LEAKED.test(text);

/** A call of a known tool, with an id and arguments that are an object with what is required. */
export function valid(call) {
    const definition = TOOLS.find((one) => one.function.name === call.name);
    const values = parsed(call.arguments);
    if (!definition || !call.id || values === null || typeof values !== 'object') {
        return false;
    }
    return definition.function.parameters.required.every((name) => typeof values[name] === 'string');
}
