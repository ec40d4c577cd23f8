// The inline part of Markdown as DOM nodes: emphasis, code, links. Linear in the text's length.

import { element } from "./dom.js";

const TOKEN = /\\[!-/:-@[-`{-~]|`+|\*+|_+|\[|https?:\/\/[^\s<>"'`*[\]]*[^\s<>"'`*[\].,;:!?)]|\n/g;
const LINK = /\[([^[\]\n]{1,400})\]\(((?:https?:\/\/|mailto:)[^\s()<>]{1,2000})\)/y;
const DEEPEST = 12;
const TAGS = { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] };

/** The nodes of one paragraph. */
export function inline(text) {
  const codes = closings(text);
  const open = [{ marker: null, nodes: [] }];
  const add = (...nodes) => open.at(-1).nodes.push(...nodes);
  let at = 0;
  TOKEN.lastIndex = 0;
  for (let found; (found = TOKEN.exec(text)) !== null; at = TOKEN.lastIndex) {
    if (found.index > at) add(text.slice(at, found.index));
    const [token] = found;
    const where = { text, token, index: found.index, end: TOKEN.lastIndex };
    if (token === "\n") add(element("br"));
    else if (token[0] === "\\") add(token[1]);
    else if (token[0] === "`") TOKEN.lastIndex = code(where, codes, add);
    else if (token === "[") TOKEN.lastIndex = link(where, add);
    else if (token[0] === "h") add(anchor(token, token));
    else emphasis(where, open);
  }
  add(text.slice(at));
  while (open.length > 1) unwind(open);
  return open[0].nodes.filter((node) => node !== "");
}

/** For each length of a run of backticks the places of such runs, the last first. */
function closings(text) {
  const places = new Map();
  for (const { 0: run, index } of [...text.matchAll(/`+/g)].reverse()) {
    if (!places.has(run.length)) places.set(run.length, []);
    places.get(run.length).push(index);
  }
  return places;
}

function code({ text, token, index, end }, places, add) {
  const runs = places.get(token.length) ?? [];
  while (runs.length && runs.at(-1) <= index) runs.pop();
  if (!runs.length) {
    add(token);
    return end;
  }
  const close = runs.pop();
  const inside = text.slice(end, close).replaceAll("\n", " ");
  const isPadded = /^ .*[^ ].* $/.test(inside);
  add(element("code", {}, isPadded ? inside.slice(1, -1) : inside));
  return close + token.length;
}

function link({ text, index, end }, add) {
  LINK.lastIndex = index;
  const found = LINK.exec(text);
  add(found ? anchor(found[2], found[1]) : "[");
  return found ? LINK.lastIndex : end;
}

const anchor = (href, words) => element("a", { href, target: "_blank", rel: "noopener noreferrer" }, words);

/** Opens or closes emphasis, or is only asterisks. */
function emphasis({ text, token, index, end }, open) {
  const [before, after] = [text[index - 1] ?? " ", text[end] ?? " "];
  const inWord = token[0] === "_" && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
  const known = token.length in TAGS && !inWord;
  const opener = open.findLastIndex(({ marker }) => marker === token);
  if (known && opener > 0 && !/\s/.test(before)) {
    while (open.length - 1 > opener) unwind(open);
    const { nodes } = open.pop();
    const tags = TAGS[token.length];
    open.at(-1).nodes.push(tags.reduceRight((inner, tag) => [element(tag, {}, ...inner)], nodes)[0]);
  } else if (known && open.length < DEEPEST && !/\s/.test(after)) {
    open.push({ marker: token, nodes: [] });
  } else {
    open.at(-1).nodes.push(token);
  }
}

/** What was opened and never closed is the asterisks it was written with. */
function unwind(open) {
  const { marker, nodes } = open.pop();
  open.at(-1).nodes.push(marker, ...nodes);
}
