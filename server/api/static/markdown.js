// Markdown as DOM nodes, a subset, built anew only where the text has grown. HTML stays text.

import { copyText } from "./clipboard.js";
import { button, element } from "./dom.js";
import { inline } from "./markdown_inline.js";

const FENCE = /^ {0,3}(?=(`{3,}|~{3,}))\1([^`]*)$/; // the lookahead never gives back: linear
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DEEPEST = 8;

/** Text that grows in an element of the page. */
export class MarkdownView {
  #blocks = [];

  constructor(box) {
    this.box = box;
  }

  /** Shows the text; blocks that are as they were keep their nodes, so that a selection stays. */
  show(text) {
    const blocks = parse(text.split("\n"));
    const same = blocks.findIndex((block, index) => block.source !== this.#blocks[index]?.source);
    const kept = same < 0 ? blocks.length : same;
    while (this.box.childNodes.length > kept) this.box.lastChild.remove();
    this.box.append(...blocks.slice(kept).map((block) => block.build()));
    this.#blocks = blocks;
  }
}

/** Blocks with the source each was made from and a way to build it. */
function parse(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const block = blank(lines, at) ?? fence(lines, at) ?? heading(lines, at) ?? rule(lines, at) ??
      (depth < DEEPEST ? quote(lines, at, depth) ?? list(lines, at, depth) : undefined) ??
      paragraph(lines, at);
    if (block.build) blocks.push({ ...block, source: lines.slice(at, block.end).join("\n") });
    at = block.end;
  }
  return blocks;
}

const build = (lines, depth) => parse(lines, depth).map((block) => block.build());

const blank = (lines, at) => (lines[at].trim() ? undefined : { end: at + 1 });

function fence(lines, at) {
  const [, mark, words] = FENCE.exec(lines[at]) ?? [];
  if (!mark) return undefined;
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return { end: Math.min(end + 1, lines.length), build: () => codeBlock(text, words.trim().split(/\s/)[0]) };
}

function codeBlock(text, language) {
  const copy = button("Copy", () => copyText(text, copy));
  return element(
    "figure",
    { className: "code" },
    element("figcaption", {}, element("span", {}, language || "code"), copy),
    element("pre", { tabIndex: 0 }, element("code", {}, text)),
  );
}

function heading(lines, at) {
  const [, marks, text] = HEADING.exec(lines[at]) ?? [];
  if (!marks) return undefined;
  // The page's own headings end at the third level: a model's cannot come before them.
  const level = Math.min(marks.length + 3, 6);
  return { end: at + 1, build: () => element(`h${level}`, {}, ...inline(text)) };
}

const rule = (lines, at) =>
  RULE.test(lines[at]) ? { end: at + 1, build: () => element("hr") } : undefined;

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  if (end === at) return undefined;
  const inside = lines.slice(at, end).map((line) => QUOTE.exec(line)[1]);
  return { end, build: () => element("blockquote", {}, ...build(inside, depth + 1)) };
}

/** Items of one kind, each with the deeper lines that follow it. */
function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]) ?? [];
  if (!mark) return undefined;
  const ordered = /\d/.test(mark);
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const [, margin, other, text] = ITEM.exec(lines[end]) ?? [];
    const deeper = lines[end].search(/\S/) > indent.length;
    if (other && margin.length <= indent.length && /\d/.test(other) === ordered) items.push([text]);
    else if (deeper) items.at(-1).push(lines[end].slice(indent.length + 2));
    else if (!lines[end].trim() && goesOn(lines[end + 1], indent)) items.at(-1).push("");
    else break;
  }
  const properties = ordered ? { start: parseInt(mark, 10) } : {};
  const rows = (item) => element("li", {}, ...tight(build(item, depth + 1)));
  return { end, build: () => element(ordered ? "ol" : "ul", properties, ...items.map(rows)) };
}

const goesOn = (line, indent) =>
  line !== undefined && line.trim() !== "" && (ITEM.test(line) || line.search(/\S/) > indent.length);

/** An item's first paragraph is its text. */
const tight = ([first, ...rest]) =>
  first?.tagName === "P" ? [...first.childNodes, ...rest] : [first, ...rest].filter(Boolean);

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines[end])) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return { end, build: () => element("p", {}, ...inline(text)) };
}

const interrupts = (line) =>
  [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(line));
