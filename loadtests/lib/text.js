// Prompts. Each begins with something of its own, so that no prefix cache answers for the backend.

const WORDS = (
    'the fleet keeps a log of every night and what the sparks said when somebody asked them for a plan of the ' +
    'harbour where ships with long names wait for weather that nobody has written down yet'
).split(' ');

/** Sixteen letters and digits that no other request has. */
export function nonce() {
    const half = () => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, '0');
    return `n${half()}${half()}`;
}

export const pick = (items) => items[Math.floor(Math.random() * items.length)];

/** `bytes` of prose, made of short words. */
export function prose(bytes, start = Math.floor(Math.random() * WORDS.length)) {
    const paragraph = [];
    for (let at = start; paragraph.length < 400; at += 7) {
        paragraph.push(WORDS[at % WORDS.length]);
    }
    const text = paragraph.join(' ') + '.\n';
    return text.repeat(Math.ceil(bytes / text.length)).slice(0, bytes);
}

/** A question with the one right answer, for any model: { messages, right }. */
export function product() {
    const [a, b] = [100 + Math.floor(Math.random() * 900), 100 + Math.floor(Math.random() * 900)];
    const content = `${nonce()}: What is ${a}*${b}? Only the number.`;
    return { messages: [{ role: 'user', content }], right: `${a * b}` };
}

/** A text of `words` words. */
export function essay(words) {
    return [{ role: 'user', content: `${nonce()}: Tell a story in ${words} words.` }];
}
