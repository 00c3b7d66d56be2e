// Small parts. Whatever a model, a tool or a person wrote comes in as text nodes: nothing here makes markup of a string.

/** An element; children that are strings become text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;

/** Text with what can't be seen, or would move what can, spelled out. */
export function visible(text) {
  return String(text).replace(HIDDEN, (each) => "\\u" + each.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** Somebody else's text, whose direction stays its own. */
export function foreign(text, tag = "bdi") {
  return el(tag, {}, visible(text));
}

export function seconds(value) {
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
}

export function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}
