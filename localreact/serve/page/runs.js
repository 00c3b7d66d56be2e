// What this page asks of the server.

let key = sessionStorage.getItem("localreact key") ?? "";

export function useKey(given) {
  key = given;
  sessionStorage.setItem("localreact key", given);
}

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, told.error?.message ?? answer.statusText, told.error?.code);
}

const json = async (path, options) => (await ask(path, options)).json();
const at = (id) => `/v1/runs/${encodeURIComponent(id)}`;

export const choices = () => json("/v1/runs/choices");
export const latest = async () => (await json("/v1/runs?limit=40")).data;
export const cancel = (id) => json(`${at(id)}/cancel`, { method: "POST" });
export const asPage = async (id) => (await ask(`${at(id)}/page`)).blob();

/** Begin a run; it goes on even if this page, or the signal, stops listening. Gives its events. */
export async function* begin(wanted, signal) {
  const body = JSON.stringify({ ...wanted, stream: true, background: true });
  yield* toTheEnd(await ask("/v1/runs", { method: "POST", body, signal }), null, signal);
}

/** The events of a run, from the first to the last; those to come, too. */
export async function* follow(id, signal) {
  yield* toTheEnd(await ask(`${at(id)}/events`, { signal }), id, signal);
}

/** A connection that breaks is made again, after the last event that came. */
async function* toTheEnd(answer, id, signal) {
  let last = -1;
  for (let tries = 0; ; tries++) {
    try {
      for await (const { number, event } of eventsOf(answer)) {
        [last, tries] = [number, 0];
        id ??= event.run_id;
        yield event;
        if (event.event === "RunEnded") return;
      }
      return; // a trace that has no end
    } catch (error) {
      if (id === null || tries >= 5 || signal.aborted || error instanceof Refused) throw error;
      await new Promise((go) => setTimeout(go, 300 * 2 ** tries));
      answer = await ask(`${at(id)}/events?after=${last}`, { signal }).catch((again) => {
        if (again instanceof Refused) throw again;
        return answer; // its body is spent, so that the next try comes soon
      });
    }
  }
}

/** Server-Sent Events of a response. Who reads no further closes the connection. */
export async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const lines = text.slice(0, end).split("\n");
        const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        const data = field("data");
        if (data !== undefined) yield { number: Number(field("id")), event: JSON.parse(data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
