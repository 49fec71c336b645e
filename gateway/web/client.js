// Requests to the gateway, and to no other server, with the key of this tab if one is required.

const KEY = "gateway-key";
const SILENCE = 20_000; // ms without a byte after which the stream is closed (a sample comes every 5 s)
const PAUSES = [500, 1000, 2000, 4000, 8000]; // ms between two attempts to connect

export class NeedsKey extends Error {}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

function headers(more = {}) {
  const given = key.get();
  return given ? { ...more, authorization: `Bearer ${given}` } : more;
}

/** Fetch an answer of any status. The path is below that of this page, which a proxy may serve below one of its own. Throws NeedsKey on 401, TypeError without an answer. */
export async function ask(path, { method = "GET", body = undefined, signal = undefined } = {}) {
  const form = body instanceof FormData; // which the browser gives its content-type
  const more = body === undefined || form ? {} : { "content-type": "application/json" };
  const answer = await fetch(`.${path}`, {
    method, signal, headers: headers(more), cache: "no-store", body: body === undefined || form ? body : JSON.stringify(body),
  });
  if (answer.status === 401) throw new NeedsKey(await messageOf(answer));
  return answer;
}

export async function read(path) {
  const answer = await ask(path);
  if (!answer.ok) throw new Error(await messageOf(answer));
  return answer.json();
}

/** The message of an error answer. */
export async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

/** The events of a stream of server-sent events: [name, data], and ["comment", text]. Ends with the stream. */
export async function* eventsOf(answer, onBytes = () => {}) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onBytes();
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith(":")) yield ["comment", line.slice(1).trim()];
        else if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length) yield [name, data.join("\n")];
    }
  }
}

/** Stay connected to /events for ever. `on`: `connected()` (await'ed before anything is read), `event(name, data)`,
 *  `gone(error)`; NeedsKey ends it. */
export async function follow(on) {
  let failures = 0;
  for (;;) {
    const stop = new AbortController();
    let watchdog = 0;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), SILENCE);
    };
    try {
      heard();
      const answer = await ask("/events?samples=true", { signal: stop.signal });
      if (!answer.ok) throw new Error(await messageOf(answer));
      await on.connected();
      failures = 0;
      for await (const [name, data] of eventsOf(answer, heard)) {
        if (name !== "comment") on.event(name, JSON.parse(data));
      }
      throw new Error("the stream has ended");
    } catch (error) {
      if (error instanceof NeedsKey) throw error;
      on.gone(error);
    } finally {
      clearTimeout(watchdog);
      stop.abort();
    }
    await new Promise((done) => setTimeout(done, PAUSES[Math.min(failures++, PAUSES.length - 1)]));
  }
}
