// A run, as its events arrive: live, or all at once from a trace.

import { el, foreign, plural, seconds, visible } from "./dom.js";

const LABELS = { noted: "", excluded: "no more calls of ", refused: "", closed: "the tools are closed: " };
const WAITING = { queued: "waits for its turn", running: "running …" };

/** A turn as it was written, every stretch with its author and its time. */
class Tokens {
  constructor() {
    this.pieces = [];
    this.text = el("div", {
      class: "tokens", tabindex: "0", role: "group",
      "aria-label": "The turn as it was written; the arrow keys go from token to token",
    });
    this.pace = el("div", { class: "pace", "aria-hidden": "true" });
    this.reading = el("p", { class: "reading faint", role: "status" });
    this.summary = el("summary", {}, "Every token");
    this.element = el("details", { open: true }, this.summary, this.text, this.pace, this.reading);
    this.at = -1;
    for (const part of [this.text, this.pace]) {
      part.addEventListener("pointerover", (event) => this.point(event));
      part.addEventListener("click", (event) => this.point(event));
    }
    this.text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step && this.pieces.length) {
        event.preventDefault();
        this.choose(Math.min(this.pieces.length - 1, Math.max(0, this.at + step)));
      }
    });
  }

  add(piece) {
    const number = String(this.pieces.length);
    const reasoning = piece.reasoning ? " reasoning" : "";
    piece.mark = el("span", { class: `by-${piece.author}${reasoning}`, "data-at": number }, visible(piece.text));
    piece.bar = el("i", { class: piece.author, "data-at": number });
    this.pieces.push(piece);
    this.text.append(piece.mark);
    this.pace.append(piece.bar);
    this.scale();
  }

  scale() {
    const longest = Math.max(1e-6, ...this.pieces.map((each) => each.seconds ?? 0));
    if (longest === this.longest) {
      const last = this.pieces.at(-1);
      if (last) last.bar.style.height = `${(100 * (last.seconds ?? 0)) / longest}%`;
      return;
    }
    this.longest = longest;
    for (const each of this.pieces) each.bar.style.height = `${(100 * (each.seconds ?? 0)) / longest}%`;
  }

  /** The whole turn, once it is there: what came live is replaced by what is recorded. */
  whole(completion, pace) {
    const { author, at } = this.pieces[this.at] ?? {};
    this.pieces = [];
    this.at = -1;
    this.longest = undefined;
    this.text.replaceChildren();
    this.pace.replaceChildren();
    let prompt = completion.timings.prompt_s;
    for (const piece of stretches(completion, pace)) {
      if (prompt > 0 && piece.seconds !== null && piece.seconds >= 0.98 * prompt) {
        piece.prompt = prompt; // the first that had to wait for the prompt
        piece.seconds = Math.max(0, piece.seconds - prompt);
        prompt = 0;
      }
      this.add(piece);
    }
    this.pace.hidden = this.pieces.filter((each) => each.seconds !== null).length < 2;
    if (author !== undefined && at < this.pieces.length) this.choose(at);
    else this.reading.textContent = this.pieces.length ? "Point at a token, or tap it." : "";
  }

  point(event) {
    const at = event.target.dataset?.at;
    if (at !== undefined) this.choose(Number(at));
  }

  choose(at) {
    for (const part of ["mark", "bar"]) {
      this.pieces[this.at]?.[part].classList.remove("here");
      this.pieces[at][part].classList.add("here");
    }
    this.at = at;
    const piece = this.pieces[at];
    const said = [piece.reasoning ? `${piece.author}, reasoning` : piece.author];
    if (piece.tokens) said.push(plural(piece.tokens, "token"));
    if (piece.seconds !== null) said.push(seconds(piece.seconds));
    if (piece.prompt) said.push(`after ${seconds(piece.prompt)} of reading the prompt`);
    this.reading.replaceChildren(foreign(JSON.stringify(piece.text), "code"), ` ${said.join(" · ")}`);
    const box = this.text.getBoundingClientRect();
    const here = piece.mark.getBoundingClientRect();
    if (here.top < box.top || here.bottom > box.bottom) this.text.scrollTop += here.top - box.top - box.height / 2;
  }
}

/** The spans of a completion, cut where its pace says; what that doesn't cover, as it is. */
function* stretches(completion, pace) {
  const cuts = [...(pace ?? [])];
  for (const span of completion.spans ?? []) {
    const { author, reasoning = false } = span;
    const letters = [...span.text];
    let at = 0;
    let left = span.tokens?.length ?? 0;
    while (cuts.length && (at < letters.length || left > 0)) {
      const [size, tokens, took] = cuts.shift();
      yield { author, reasoning, text: letters.slice(at, at + size).join(""), seconds: took, tokens };
      at += size;
      left -= tokens;
    }
    if (at < letters.length) yield { author, reasoning, text: letters.slice(at).join(""), seconds: null, tokens: left };
  }
}

class Step {
  constructor(event) {
    this.number = event.step;
    this.facts = el("span", { class: "faint" }, "reading …");
    this.fields = new Map();
    this.said = el("div");
    this.tokens = new Tokens();
    const prompt = event.prompt ?? [];
    const size = prompt.reduce((sum, each) => sum + each.text.length, 0);
    const shown = prompt.map((each) => {
      const by = each.trusted ? "trusted" : each.tokens?.length ? "sampled" : "runtime";
      return el("span", { class: `by-${by}` }, visible(each.text));
    });
    this.element = el(
      "section", { class: "step" },
      el("div", { class: "head" }, el("h3", {}, `Step ${event.step}`), this.facts),
      event.closing ? el("p", { class: "faint" }, `The tools are closed: ${event.closing}`) : null,
      this.said,
      this.tokens.element,
      el("details", {}, el("summary", {}, `What was new in the prompt (${size} characters)`), el("pre", {}, el("bdi", {}, ...shown))),
    );
  }

  /** The text of a field, made when it is first needed. */
  field(name, label) {
    if (!this.fields.has(name)) {
      const text = document.createTextNode("");
      const tag = name === "tool" || name === "arguments" ? "code" : "span";
      const line = name === "arguments" && this.fields.has("tool") ? this.fields.get("tool").line : el("p", { class: `said is-${name}` });
      if (!line.childNodes.length) line.append(el("b", {}, label));
      line.append(el(tag, {}, el("bdi", {}, text)));
      this.said.append(line);
      this.fields.set(name, { text, line });
    }
    return this.fields.get(name).text;
  }

  set(name, label, text) {
    this.field(name, label).data = visible(text);
  }

  note(text, kind = "faint") {
    this.said.append(el("p", { class: kind }, visible(text)));
  }

  read(turn) {
    if (turn.thought) this.set("thought", "Thought", turn.thought);
    if (turn.tool !== undefined) {
      this.set("tool", "Action", turn.tool);
      this.set("arguments", "", ` ${JSON.stringify(turn.arguments)}`);
    } else if (turn.missing !== null && turn.missing !== undefined) this.set("missing", "Missing", turn.missing);
    else if (turn.answer !== null && turn.answer !== undefined) this.set("answer", "Answer", turn.answer);
  }

  completed({ completion, pace }) {
    const { usage, timings, stop } = completion;
    const parts = [`${usage.sampled} sampled`, `${usage.forced} forced`];
    if (usage.reasoning) parts.push(`${usage.reasoning} reasoning`);
    if (timings.generate_s) parts.push(`read ${seconds(timings.prompt_s)}`, `wrote ${seconds(timings.generate_s)}`);
    if (stop !== "complete" && stop !== "eog") parts.push(stop);
    this.facts.textContent = parts.join(" · ");
    if (completion.reasoning) this.set("reasoning", "Reasoning", completion.reasoning);
    this.tokens.whole(completion, pace);
  }

  observed({ observation, seconds: took, shown }) {
    this.calling?.remove();
    const state = !observation.executed ? "not executed" : `${observation.ok ? "" : "failed · "}${seconds(took)}`;
    this.said.append(
      el("p", { class: "said" }, el("b", {}, "Observation"), foreign(observation.tool), el("span", { class: "faint" }, ` · ${state}`)),
      el("pre", { class: "observation" }, foreign(shown ?? observation.content)),
    );
    for (const { run_id: id, status } of observation.inner ?? []) {
      const link = el("a", { href: `#runs=${encodeURIComponent(id)}` }, `run ${visible(id)}`);
      this.said.append(el("p", { class: "faint" }, "Worked on by ", link, ` · ${visible(status)}`));
    }
    if (shown !== null && shown !== undefined) {
      const size = observation.content.length;
      this.said.append(el("details", {}, el("summary", {}, `The whole result (${size} characters)`), el("pre", { class: "observation" }, foreign(observation.content))));
    }
  }
}

const FIELDS = { reasoning: "Reasoning", thought: "Thought", tool: "Action", arguments: "", answer: "Answer", missing: "Missing" };

export class RunView {
  /** `actions`: `stop(view)` and `save(view)`; `label` says which of two it is. */
  constructor(question, label, actions) {
    this.question = question;
    this.label = label;
    this.steps = [];
    this.count = { calls: 0, failed: 0, refused: 0, toolSeconds: 0 };
    this.status = el("span", { role: "status", class: "faint" }, WAITING.queued);
    this.reason = el("span", { class: "faint" });
    this.about = el("p", { class: "faint" }, label);
    this.title = el("h2", {}, foreign(question));
    this.result = el("div");
    this.body = el("div");
    this.stop = el("button", { type: "button", class: "small", hidden: true }, "Stop");
    this.save = el("button", { type: "button", class: "small", hidden: true }, "Save as a page");
    this.stop.addEventListener("click", () => actions.stop(this));
    this.save.addEventListener("click", () => actions.save(this));
    this.element = el(
      "article", { class: "run", "aria-label": `Run: ${visible(question)}` },
      this.title, this.about,
      el("div", { class: "head" }, el("p", {}, this.status, " ", this.reason), el("span", { class: "row" }, this.stop, this.save)),
      this.result, this.body,
    );
  }

  get step() {
    return this.steps.at(-1);
  }

  /** It went wrong before, or without, its end. */
  failed(message) {
    this.status.className = "bad";
    this.status.textContent = visible(message);
    this.stop.hidden = true;
  }

  /** Nothing more comes, though the trace doesn't say how it ended. */
  finish() {
    if (!this.ended) this.failed("unfinished");
  }

  take(event) {
    this[`on${event.event}`]?.(event);
  }

  onRunStarted(event) {
    this.started = event;
    this.id = event.run_id;
    this.title.replaceChildren(foreign(event.question));
    this.element.setAttribute("aria-label", `Run: ${visible(event.question)}`);
    const held = event.enforced ? `${event.level || "enforced"} (${event.enforced})` : event.level || "no grammar";
    const parts = [event.model, event.protocol, held];
    if (this.label) parts.unshift(this.label);
    this.about.textContent = visible(parts.join(" · "));
    this.status.textContent = WAITING.running;
    this.stop.hidden = false;
    this.save.hidden = false;
  }

  onStepStarted(event) {
    this.steps.push(new Step(event));
    this.body.append(this.step.element);
  }

  onTextDelta(event) {
    const text = this.step.field(event.field, FIELDS[event.field]);
    if (event.field === "arguments" && !text.data) text.data = " ";
    text.appendData(visible(event.text));
  }

  onSpanWritten({ span, seconds: took }) {
    this.step.facts.textContent = "writing …";
    this.step.tokens.add({
      author: span.author, text: span.text, reasoning: span.reasoning ?? false, seconds: took, tokens: span.tokens?.length ?? 0,
    });
  }

  onTurnCompleted(event) {
    this.step.completed(event);
  }

  onTurnRead(event) {
    this.step.read(event.turn);
  }

  onTurnRefused(event) {
    this.count.refused += 1;
    this.step.note(`Not a turn: ${event.problem}`, "bad");
  }

  onToolStarted(event) {
    this.step.calling = el("p", { class: "faint", role: "status" }, `${visible(event.tool)} is called …`);
    this.step.said.append(this.step.calling);
  }

  onToolEnded(event) {
    if (event.observation.executed) {
      this.count.calls += 1;
      this.count.failed += !event.observation.ok;
      this.count.toolSeconds += event.seconds;
    }
    this.step.observed(event);
  }

  onGuardActed(event) {
    if (event.action !== "refused") this.remark(`Guard (${event.guard}): ${LABELS[event.action]}${event.detail}`);
  }

  onProtocolChanged(event) {
    this.remark(`On with ${event.protocol}: the server ${event.reason}`);
  }

  onPlanned({ steps }) {
    const then = steps.length > 1 ? ` (then: ${steps.slice(1).join("; ")})` : "";
    this.remark(`Plan: ${steps.length ? steps[0] + then : "nothing is left to do"}`);
  }

  onCompacted({ told, left_out, summary, before, after }) {
    const how = summary && left_out === told ? "summed up" : "in short";
    this.remark(`Context: steps 1 to ${told} ${how}, ${before} tokens now ${after}`);
  }

  remark(text) {
    if (this.step) this.step.note(text);
    else this.body.append(el("p", { class: "faint" }, visible(text)));
  }

  onRunEnded(event) {
    this.ended = event;
    this.stop.hidden = true;
    this.step?.calling?.remove();
    if (this.step?.facts.textContent.endsWith("…")) this.step.facts.textContent = "the turn was never completed";
    this.status.className = event.status === "finished" ? "good" : "bad";
    this.status.textContent = event.status;
    this.reason.textContent = visible(event.reason);
    const shown = [];
    if (event.answer !== null) shown.push(el("div", { class: "answer" }, foreign(event.answer)));
    if (event.missing !== null) shown.push(el("p", {}, el("b", {}, "Missing: "), foreign(event.missing)));
    for (const { step, quote } of event.evidence ?? []) {
      shown.push(el("p", { class: "faint" }, `Step ${step} says: “`, foreign(quote), "”"));
    }
    shown.push(...this.times(event));
    this.result.replaceChildren(...shown);
  }

  times({ timings, usage, seconds: total }) {
    const grammar = Math.min(timings.constraint_s, timings.generate_s);
    const tools = this.count.toolSeconds;
    const rest = Math.max(0, total - timings.prompt_s - timings.generate_s - tools);
    const parts = [
      ["reading prompts", "read", timings.prompt_s], ["writing turns", "write", timings.generate_s - grammar],
      ["grammar", "grammar", grammar], ["tools", "tool", tools], ["the rest", "rest", rest],
    ];
    const sum = parts.reduce((all, [, , time]) => all + time, 0) || 1;
    const bars = parts.map(([, kind, time]) => {
      const bar = el("i", { class: kind });
      bar.style.width = `${(100 * time) / sum}%`;
      return bar;
    });
    const keys = parts.map(([name, kind, time]) => el("li", {}, el("span", { class: `key ${kind}` }), `${name} ${seconds(time)}`));
    const read = usage.prompt - usage.reused;
    return [
      el("p", { class: "faint" }, `${seconds(total)}, ${plural(usage.sampled + usage.forced, "token")}: ${usage.sampled} sampled, ${usage.forced} forced; ${read} read, ${usage.reused} reused; ${plural(this.steps.length, "step")}`),
      el("div", { class: "whole", role: "img", "aria-label": "Where the time went" }, ...bars),
      el("ul", { class: "keys" }, ...keys),
    ];
  }

  /** What two runs are compared by. */
  get facts() {
    const { started, ended, count } = this;
    if (!started) return {};
    const usage = ended?.usage;
    return {
      "held by": started.enforced ? `a grammar (${started.enforced})` : "nothing",
      protocol: started.protocol,
      model: started.model,
      status: ended?.status ?? "…",
      answer: ended?.answer ?? ended?.missing ?? "–",
      steps: String(this.steps.length),
      "refused texts": String(count.refused),
      "tool calls": count.failed ? `${count.calls}, ${count.failed} failed` : String(count.calls),
      tokens: usage ? `${usage.sampled + usage.forced} (${usage.sampled} sampled, ${usage.forced} forced)` : "…",
      prompts: usage ? `${usage.prompt - usage.reused} tokens read, ${usage.reused} reused` : "…",
      reading: ended ? seconds(ended.timings.prompt_s) : "…",
      writing: ended ? seconds(ended.timings.generate_s) : "…",
      "in all": ended ? seconds(ended.seconds) : "…",
    };
  }
}
