// The page: asking, and the runs that were made.

import { byId, el, foreign, visible } from "./dom.js";
import { Refused, asPage, begin, cancel, choices, follow, latest, useKey } from "./runs.js";
import { RunView } from "./view.js";

const form = byId("ask");
let known = null; // what the server offers
let shown = new AbortController(); // of what is on the page: nobody listens any more to what was before

// --- telling

function tell(error) {
  const notice = byId("notice");
  notice.hidden = error === null;
  notice.textContent = error === null ? "" : visible(error.message ?? error);
  if (error instanceof Refused && error.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  }
}

const telling = (work) => async (...given) => {
  try {
    tell(null);
    await work(...given);
  } catch (error) {
    tell(error);
  }
};

// --- what can be asked for

const option = (value, text) => el("option", { value }, visible(text));

async function start() {
  known = await choices();
  byId("key-form").hidden = true;
  byId("layout").hidden = false;
  byId("model").textContent = visible(`${known.model} · ${known.level}`);
  byId("tools").replaceChildren(
    ...known.tools.map((tool, number) => {
      const id = `tool-${number}`;
      const box = el("input", { type: "checkbox", id, value: tool.name, checked: !tool.refused, disabled: Boolean(tool.refused) });
      const said = tool.refused ? `not offered: ${tool.refused}` : tool.description.split("\n")[0];
      return el("label", { class: "check", for: id }, box, el("span", {}, el("b", {}, visible(tool.name)), " ", el("span", { class: "faint" }, visible(said))));
    }),
  );
  byId("protocol").replaceChildren(
    option("", `${known.protocol} (default)`),
    ...known.protocols.filter((name) => name !== known.protocol).map((name) => option(name, name)),
  );
  byId("engine").replaceChildren(
    option("", known.enforced ? "default" : "default (no grammar)"),
    ...known.engines.map((name) => option(name, name === "free" ? "free (no grammar)" : name)),
  );
  byId("both").disabled = !comparable();
  await list();
  await openHash();
}

/** Whether there is a grammar to do without. */
const comparable = () => Boolean(known.enforced) && known.engines.includes("free");

function wanted() {
  const tools = [...byId("tools").querySelectorAll("input:checked")].map((box) => box.value);
  return {
    question: byId("question").value,
    tools,
    protocol: byId("protocol").value || null,
    engine: byId("engine").value || null,
    max_steps: Number(byId("steps").value),
    temperature: Number(byId("temperature").value),
    seed: Number(byId("seed").value),
    cite: byId("cite").checked,
  };
}

// --- showing runs

const actions = {
  stop: telling(async (view) => {
    if (view.id) await cancel(view.id);
  }),
  save: telling(async (view) => {
    const url = URL.createObjectURL(await asPage(view.id));
    const link = el("a", { href: url, download: `${view.id}.html` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }),
};

function show(views) {
  shown.abort();
  shown = new AbortController();
  byId("empty").hidden = true;
  byId("difference").hidden = true;
  byId("arms").className = views.length > 1 ? "two" : "";
  byId("arms").replaceChildren(...views.map((view) => view.element));
  return shown.signal;
}

/** Feed a view with events, until they end or something else is on the page; whether they ended. */
async function watch(view, events, signal) {
  try {
    for await (const event of events) view.take(event);
    view.finish();
    return true;
  } catch (error) {
    if (signal.aborted) return false;
    view.failed(error.message);
    if (error instanceof Refused) tell(error);
    return false;
  }
}

function tellDifference(views) {
  const [left, right] = views.map((view) => view.facts);
  const rows = Object.keys({ ...left, ...right }).map((name) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, foreign(left[name] ?? "")), el("td", {}, foreign(right[name] ?? ""))),
  );
  const heads = views.map((view, number) => el("th", { scope: "col" }, view.label || `run ${number + 1}`));
  byId("difference").replaceChildren(
    el("h2", {}, "Side by side"),
    el("table", {}, el("thead", {}, el("tr", {}, el("td"), ...heads)), el("tbody", {}, ...rows)),
  );
  byId("difference").hidden = false;
}

function remember(views) {
  const ids = views.map((view) => view.id).filter(Boolean);
  const hash = ids.length ? `#runs=${ids.join(",")}` : "#";
  if (location.hash !== hash) history.pushState(null, "", hash);
}

/** Ask once for each of the arms, one after the other, so that neither takes the other's time. */
async function work(arms) {
  const views = arms.map(({ label, body }) => new RunView(body.question, label, actions));
  const signal = show(views);
  byId("main").focus({ preventScroll: true });
  byId("main").scrollIntoView({ block: "start" });
  byId("go").disabled = byId("both").disabled = true;
  try {
    for (const [number, { body }] of arms.entries()) {
      if (!(await watch(views[number], begin(body, signal), signal))) return;
    }
    remember(views);
    if (views.length > 1) tellDifference(views);
  } finally {
    byId("go").disabled = false;
    byId("both").disabled = !comparable();
    await list();
  }
}

/** Open runs that were made, side by side. */
async function open(ids) {
  const views = ids.map((id, number) => new RunView(id, ids.length > 1 ? `run ${number + 1}` : "", actions));
  const signal = show(views);
  const whole = await Promise.all(views.map((view, number) => watch(view, follow(ids[number], signal), signal)));
  if (views.length > 1 && whole.every(Boolean)) tellDifference(views);
}

async function openHash() {
  const ids = location.hash.match(/^#runs=([\w,-]+)$/)?.[1].split(",").slice(0, 2) ?? [];
  if (ids.length) await open(ids);
}

// --- past runs

const parts = { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" };
const [ofThisYear, ofOthers] = [parts, { year: "numeric", ...parts }].map((each) => new Intl.DateTimeFormat(undefined, each));

function when(created) {
  const date = new Date(created * 1000);
  return (date.getFullYear() === new Date().getFullYear() ? ofThisYear : ofOthers).format(date);
}

async function list() {
  const runs = await latest();
  const chosen = new Set(ticked());
  byId("none").hidden = runs.length > 0;
  byId("list").replaceChildren(
    ...runs.map((run) => {
      const question = visible(run.question);
      const box = el("input", { type: "checkbox", value: run.id, checked: chosen.has(run.id), "aria-label": `Compare: ${question}` });
      const facts = [run.status, run.protocol ? (run.enforced ? "held" : "free") : null, when(run.created)];
      const button = el(
        "button", { type: "button" },
        el("bdi", { class: "question" }, question),
        el("span", { class: "faint" }, facts.filter(Boolean).join(" · ")),
      );
      button.addEventListener("click", telling(async () => {
        byId("main").scrollIntoView({ block: "start" });
        history.pushState(null, "", `#runs=${run.id}`);
        await open([run.id]);
      }));
      return el("li", {}, box, button);
    }),
  );
  tick();
}

const ticked = () => [...byId("list").querySelectorAll("input:checked")].map((box) => box.value);

function tick() {
  byId("compare").disabled = ticked().length !== 2;
}

// --- what people do

form.addEventListener("submit", (event) => {
  event.preventDefault();
  telling(() => work([{ label: "", body: wanted() }]))();
});
byId("both").addEventListener("click", telling(async () => {
  if (!form.reportValidity()) return;
  const body = wanted();
  const engine = body.engine === "free" ? null : body.engine;
  await work([{ label: "held", body: { ...body, engine } }, { label: "free", body: { ...body, engine: "free" } }]);
}));
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !byId("go").disabled) form.requestSubmit();
});
byId("refresh").addEventListener("click", telling(list));
byId("list").addEventListener("change", tick);
byId("compare").addEventListener("click", telling(async () => {
  const ids = ticked();
  byId("main").scrollIntoView({ block: "start" });
  history.pushState(null, "", `#runs=${ids.join(",")}`);
  await open(ids);
}));
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  telling(start)();
});
addEventListener("popstate", telling(openHash));

/** The model may still be loading. */
async function startOnceLoaded() {
  try {
    tell(null);
    await start();
  } catch (error) {
    tell(error);
    if (error.code === "loading") setTimeout(startOnceLoaded, 1000);
  }
}
startOnceLoaded();
