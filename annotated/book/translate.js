// Made from book/figures/: kit.mjs, engine.mjs, translate.mjs. Edit them there.
(() => {
"use strict";
const kit = (() => {
// What the figures share: a host on the page, and native controls.
// A figure gets it as render({ model, el, kit }) and imports nothing.

const SPACE = "http://www.w3.org/2000/svg";

const LOOK = `
.fx{--ink:#22211f;--soft:#5d5a55;--line:#d5d0c7;--ground:#fcfcfa;--card:#f7f6f3;
--cell:#eef1f4;--blue:#0f5fa6;--warm:#a83f0c;--good:#20663c;--bad:#9a2b1d;
color:var(--ink);background:var(--ground);border:1px solid var(--line);border-radius:8px;
padding:1rem 1.1rem;font:15px/1.45 var(--book-interface,system-ui,sans-serif);
font-variant-numeric:tabular-nums;text-align:left;container-type:inline-size}
html[data-theme=dark] .fx,body[data-jp-theme-light=false] .fx,html[theme=dark] .fx,
body.vscode-dark .fx{--ink:#dcd8d0;--soft:#a9a59d;--line:#3a3f45;--ground:#1a1d20;
--card:#22262a;--cell:#24292e;--blue:#7fb8e8;--warm:#eba47a;--good:#7fcf9b;--bad:#f2a093}
.fx *{box-sizing:border-box}
.fx p{margin:.35rem 0;font:inherit;color:inherit;max-width:none}
.fx-row{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center}
.fx-row+.fx-row{margin-top:.5rem}
.fx-cols{display:grid;gap:1rem 1.6rem;align-items:start;margin-top:.7rem}
@container (min-width:36rem){.fx-cols{grid-template-columns:var(--cols,1fr 1fr)}}
.fx-cols>*{min-width:0}
.fx-range{display:flex;gap:.6rem;align-items:center;flex:1 1 15rem;min-width:0}
.fx-range>span{flex:none}
.fx-range input{flex:1;min-width:5rem;accent-color:var(--blue);height:1.7rem;margin:0}
.fx-range output{flex:none;min-width:3.2em;text-align:right}
.fx button,.fx select,.fx input[type=text]{font:inherit;color:var(--ink);background:var(--card);
border:1px solid var(--soft);border-radius:5px;padding:.25rem .7rem;min-height:2rem;max-width:100%}
.fx button{cursor:pointer}
.fx button:hover:not(:disabled){border-color:var(--blue)}
.fx button:disabled{opacity:.55;cursor:default}
.fx button[aria-pressed=true]{background:var(--blue);border-color:var(--blue);color:var(--ground)}
.fx :focus-visible{outline:3px solid var(--warm)!important;outline-offset:2px}
.fx label{max-width:100%;min-width:0}
.fx-guess{border-bottom:1px solid var(--line);padding-bottom:.7rem;margin-bottom:.8rem}
.fx-guess .fx-row{margin-top:.4rem}
.fx-say{display:block;margin-top:.8rem;padding-top:.6rem;border-top:1px solid var(--line);
min-height:3.4em}
.fx-soft{color:var(--soft)}
.fx-scroll{overflow-x:auto}
.bd-article .fx table,.fx table{border-collapse:collapse;margin:0;border:0;background:none;
font:inherit;width:auto}
.fx table.fx-map{table-layout:fixed}
.bd-article .fx table.fx-map :is(th,td),.fx table.fx-map :is(th,td){padding:0;border:0;
width:var(--cell-w,1.85rem);height:var(--cell-w,1.85rem);text-align:center;font-weight:400;
position:static;vertical-align:middle;background:none;color:var(--ink);line-height:1.1}
.bd-article .fx table.fx-map td,.fx table.fx-map td{border:1px solid var(--ground);
background:color-mix(in srgb,var(--blue) calc(var(--w)*100%),var(--cell))}
.fx table.fx-map td.dark{color:var(--ground)}
.bd-article .fx table.fx-map tbody th,.fx table.fx-map tbody th{width:auto;
padding:0 .5rem 0 0;text-align:right;white-space:nowrap}
.fx table.fx-map.long thead th{height:4.6rem;vertical-align:bottom}
.fx table.fx-map.long thead th span{writing-mode:vertical-rl;transform:rotate(180deg);
white-space:nowrap;max-height:7rem}
.fx table.fx-map td.frame{outline:2px solid var(--warm);outline-offset:-3px}
.fx-bars{display:grid;grid-template-columns:minmax(2.5rem,auto) 1fr minmax(3.6em,auto);
gap:.3rem .6rem;align-items:center;margin:.2rem 0}
.fx-bar{display:contents}
.fx-bar i{display:block;height:.95rem;border-radius:2px;background:var(--blue);
width:calc(var(--w)*100%)}
.fx-bar b{font-weight:400;text-align:right}
.fx svg{display:block;width:100%;height:auto;overflow:visible;font:13px var(--book-interface,sans-serif)}
.fx svg text{fill:var(--ink)}
.bd-article .fx table.fx-plain :is(th,td),.fx table.fx-plain :is(th,td){padding:.2em .7em;
border:0;border-bottom:1px solid var(--line);text-align:right;font-weight:400;position:static;
background:none;color:var(--ink)}
.fx table.fx-plain thead th{color:var(--soft)}
.fx details{margin-top:.6rem}
.fx summary{color:var(--soft);cursor:pointer;width:fit-content}
.fx-mono{font-family:var(--pst-font-family-monospace,ui-monospace,monospace)}
.fx-hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media print{.fx{display:none}.moves>img[hidden],.moves>svg[hidden]{display:block!important}}
`;

// --- elements ---------------------------------------------------------------

/** An element: make("p", { class: "x", onclick }, "text", child). */
function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for drawings. */
function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SPACE, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

let names = 0;

// --- controls ---------------------------------------------------------------

/** A labelled slider; set(value) moves it without calling oninput. */
function range({ label, min, max, step = 1, value, format = String, oninput }) {
  const shown = make("output", { "aria-hidden": "true" });
  const input = make("input", { type: "range", min, max, step, value });
  const tell = () => {
    shown.textContent = format(+input.value);
    input.setAttribute("aria-valuetext", format(+input.value));
  };
  input.addEventListener("input", () => {
    tell();
    oninput(+input.value);
  });
  tell();
  const node = make("label", { class: "fx-range" }, make("span", {}, label), input, shown);
  return { node, input, set: (to) => { input.value = to; tell(); } };
}

/** Buttons of which one is pressed; set(value) presses without calling. */
function choice({ label, options, value, onchange }) {
  const all = options.map(([key, text]) =>
    make("button", { type: "button", onclick: () => { set(key); onchange(key); } }, text));
  const set = (to) => options.forEach(([key], i) =>
    all[i].setAttribute("aria-pressed", String(key === to)));
  set(value);
  const node = make("div", { class: "fx-row", role: "group", "aria-label": label },
    make("span", { class: "fx-soft" }, label), ...all);
  return { node, set };
}

function button(text, onclick, more = {}) {
  return make("button", { type: "button", onclick, ...more }, text);
}

/** A question before one acts; nobody has to answer it. */
function guess({ question, options }) {
  const verdict = make("p", { role: "status" });
  const row = make("div", { class: "fx-row" }, ...options.map(([text, right, why]) =>
    button(text, (event) => {
      for (const other of row.children) other.setAttribute("aria-pressed", "false");
      event.currentTarget.setAttribute("aria-pressed", "true");
      verdict.replaceChildren(make("strong", {}, right ? "Right: " : "Not so: "), why);
    })));
  return make("div", { class: "fx-guess" },
    make("p", {}, make("strong", {}, "Predict first, or just try. "), question), row, verdict);
}

/** A matrix of weights. The arrow keys move through it; tell(i, j) says what
 *  a cell means, and is shown below it; text(value) is what stands in a cell,
 *  and onpress(i, j) follows a click or Enter. */
function grid({ label, rows, columns, tell, digits = 0, size, text, onpress }) {
  const long = columns.some((name) => name.length > 3);
  const cells = rows.map((_, i) => columns.map((_, j) => make("td", {
    role: "gridcell", tabindex: i + j ? -1 : 0,
    onfocus: () => point(i, j), onmouseenter: () => point(i, j),
    ...(onpress && { style: "cursor:pointer", onclick: () => { onpress(i, j); point(i, j); } }),
  })));
  const below = make("p", { class: "fx-soft" }, "Point at a cell, or reach it with the arrow keys.");
  const point = (i, j) => { below.textContent = tell(i, j); };
  const head = columns.map((name) => make("th", { scope: "col" }, make("span", {}, name)));
  const table = make("table", {
    class: `fx-map${long ? " long" : ""}`, role: "grid", "aria-label": label,
    style: size ? `--cell-w:${size}` : null,
    onkeydown: (event) => {
      if (onpress && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        event.target.click();
      }
      const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1],
        ArrowRight: [0, 1] }[event.key] ?? [0, 0];
      if (!down && !right) return;
      event.preventDefault();
      const i = cells.findIndex((row) => row.includes(event.target));
      const to = cells[i + down]?.[cells[i].indexOf(event.target) + right];
      if (!to) return;
      event.target.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    },
  }, make("thead", {}, make("tr", {}, make("td", { style: "visibility:hidden" }), ...head)),
  make("tbody", {}, ...cells.map((row, i) =>
    make("tr", {}, make("th", { scope: "row" }, rows[i]), ...row))));
  const set = (values, frames = []) => {
    cells.forEach((row, i) => row.forEach((cell, j) => {
      const value = values[i][j];
      cell.style.setProperty("--w", value.toFixed(3));
      cell.textContent = text ? text(value) : digits && value >= 0.005 ? value.toFixed(digits) : "";
      cell.className = value > 0.5 ? "dark" : "";
      cell.setAttribute("aria-label", tell(i, j));
    }));
    for (const [i, j] of frames) cells[i]?.[j]?.classList.add("frame");
  };
  return { node: make("div", {}, make("div", { class: "fx-scroll" }, table), below), set };
}

/** Rows of name, bar and number; set([[name, part of the whole, text], …]). */
function bars(label) {
  const node = make("div", { class: "fx-bars", role: "img", "aria-label": label });
  const set = (rows) => {
    node.setAttribute("aria-label", `${label}: ${rows.map(([n, , t]) => `${n} ${t}`).join(", ")}`);
    node.replaceChildren(...rows.map(([name, part, text, color]) =>
      make("div", { class: "fx-bar" }, make("span", {}, name),
        make("span", {}, make("i", { style: `--w:${part}${color ? `;background:${color}` : ""}` })),
        make("b", {}, text))));
  };
  return { node, set };
}

/** The same numbers for who would rather read them. */
function table(head, rows) {
  return make("div", { class: "fx-scroll" }, make("table", { class: "fx-plain" },
    make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) =>
      make("tr", {}, ...row.map((text) => make("td", {}, String(text))))))));
}

function folded(label, ...body) {
  return make("details", {}, make("summary", {}, label), ...body);
}

/** A curve over x with a mark that moves; set(x, y) puts it there. */
function curve({ label, xs, ys, xLabel, yLabel, yMax, width = 360, height = 220 }) {
  const [left, right, top, bottom] = [38, 8, 24, 36];
  const high = yMax ?? Math.max(...ys);
  const last = xs[xs.length - 1];
  const x = (value) => left + (width - left - right) * (value - xs[0]) / (last - xs[0]);
  const y = (value) => top + (height - top - bottom) * (1 - value / high);
  const path = xs.map((at, i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}`);
  const unit = 10 ** Math.floor(Math.log10(high));
  const ticks = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => n * unit).filter((n) => n <= high);
  const mark = draw("circle", { r: 6, style: "fill:var(--warm)" });
  const node = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("text", { x: 0, y: 12 }, yLabel),
    ...ticks.flatMap((n) => [
      draw("line", { x1: left, x2: width - right, y1: y(n), y2: y(n), style: "stroke:var(--line)" }),
      draw("text", { x: left - 6, y: y(n) + 4, "text-anchor": "end" }, String(+n.toPrecision(2))),
    ]),
    draw("text", { x: left, y: height - 14, "text-anchor": "middle" }, String(xs[0])),
    draw("text", { x: width - right, y: height - 14, "text-anchor": "end" }, String(last)),
    draw("text", { x: (left + width) / 2, y: height - 14, "text-anchor": "middle" }, xLabel),
    draw("path", { d: path.join(""), style: "fill:none;stroke:var(--blue);stroke-width:1.6" }),
    mark);
  const set = (atX, atY) => {
    mark.setAttribute("cx", x(atX));
    mark.setAttribute("cy", y(atY));
  };
  return { node, set };
}

/** Round numbers from 0 to the largest, as [number, text]. */
function ticks(most, form = (n) => String(+n.toPrecision(3))) {
  const unit = 10 ** Math.floor(Math.log10(most));
  const step = unit * (most / unit < 2 ? 0.5 : most / unit < 5 ? 1 : 2);
  return [0, 1, 2, 3, 4, 5].map((n) => n * step).filter((n) => n <= most * 1.001)
    .map((n) => [n, form(n)]);
}

/** Curves; set({ x, y, series, mark }) draws them. x and y are { from, to,
 *  ticks, log }, a series { name, points, style }, the mark a point. */
function lines({ label, xLabel, yLabel, width = 380, height = 230 }) {
  const [left, right, top, bottom] = [44, 12, 26, 38];
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label,
    style: "max-width:28rem" });
  const names = make("div", { class: "fx-row fx-soft" });
  const along = (axis, from, to) => {
    const at = axis.log ? Math.log : Number;
    return (v) => from + (to - from) * (at(v) - at(axis.from)) / (at(axis.to) - at(axis.from));
  };
  const set = ({ x, y, series, mark }) => {
    const [px, py] = [along(x, left, width - right), along(y, height - bottom, top)];
    svg.replaceChildren(
      draw("text", { x: 0, y: 12 }, yLabel),
      draw("text", { x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, xLabel),
      ...y.ticks.flatMap(([v, text]) => [
        draw("line", { x1: left, x2: width - right, y1: py(v), y2: py(v), style: "stroke:var(--line)" }),
        draw("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, text)]),
      ...x.ticks.map(([v, text]) =>
        draw("text", { x: px(v), y: height - 20, "text-anchor": "middle" }, text)),
      ...series.map(({ points, style }) => draw("path", { style: `fill:none;stroke-width:2;${style}`,
        d: points.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("") })),
      mark ? draw("circle", { cx: px(mark[0]), cy: py(mark[1]), r: 6, style: "fill:var(--warm)" }) : "");
    names.replaceChildren(...series.filter((one) => one.name).map(({ name, style }) =>
      make("span", {}, draw("svg", { viewBox: "0 0 30 8", "aria-hidden": "true",
        style: "display:inline-block;width:30px;margin-right:.4em;vertical-align:middle" },
      draw("path", { d: "M0 4H30", style: `stroke-width:2;${style}` })), name)));
  };
  return { node: make("div", {}, svg, names), set };
}

/** One sentence a change, aloud once it has settled. */
function voice() {
  const node = make("output", { class: "fx-say", "aria-live": "polite" });
  return { node, say: (...parts) => node.replaceChildren(...parts) };
}

// --- the state in the address -----------------------------------------------

/** "#film:step=75&head=2" as { step: "75", head: "2" }; null for another. */
function parseState(hash, name) {
  const start = `#${name}:`;
  if (!hash.startsWith(start)) return null;
  return Object.fromEntries(new URLSearchParams(hash.slice(start.length)));
}

function writeState(name, state) {
  return `#${name}:${new URLSearchParams(state)}`;
}

// --- the host ---------------------------------------------------------------

/** Give life to the figures of this name that stand on the page. */
function host(name, figure, more = {}) {
  // only a page of the site has a script of its own: an address is the
  // reader's there, and Jupyter's in Jupyter
  const own = Boolean(document.currentScript?.src);
  const start = () => {
    for (const box of document.querySelectorAll(`.moves-${name}:not([data-live])`)) {
      box.dataset.live = "";
      bring(box, name, figure, more, own);
    }
  };
  if (own && document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", start);
  } else {
    start();
    setTimeout(start); // an output that is not yet in its page
  }
}

function bring(box, name, figure, more, own) {
  const data = JSON.parse(box.querySelector("script.moves-data").textContent);
  if (!document.getElementById("fx-look")) {
    document.head.append(make("style", { id: "fx-look" }, LOOK));
  }
  const el = make("div", { class: "fx" });
  // arrow keys inside a figure do not turn the page
  el.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) event.stopPropagation();
  });
  const still = box.querySelector("img, svg");
  const frame = still.closest("a") ?? still;
  let later = 0;
  const model = {
    get: (key) => data[key],
    set: (key, value) => { data[key] = value; },
    on() {},
    save_changes() {},
    /** What the address asks for, as text. */
    asked: own ? parseState(decodeURIComponent(location.hash), name) ?? {} : {},
    /** What a link to the figure as it stands will ask for. */
    keep(state) {
      if (!own) return;
      clearTimeout(later);
      later = setTimeout(() => history.replaceState(null, "", writeState(name, state)), 300);
    },
    /** A large file that is loaded when somebody wants it: bytes. */
    load: () => large(box),
  };
  figure.render({ model, el, kit: { ...KIT, ...more } });
  frame.after(el);
  frame.hidden = true;
  frame.style.display = "none";
  if (own && Object.keys(model.asked).length) el.scrollIntoView({ block: "center" });
}

async function large(box) {
  const here = box.querySelector("script.moves-large");
  const text = here.textContent || await new Promise((done, fail) => {
    window.movesLarge = done;
    document.head.append(make("script", { src: here.dataset.file,
      onerror: () => fail(new Error(`${here.dataset.file} cannot be read`)) }));
  });
  const raw = atob(text);
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

const KIT = { make, draw, range, choice, button, guess, grid, bars, table, folded, curve,
  lines, ticks, voice };
return { make, draw, range, choice, button, guess, grid, bars, table, folded, curve, ticks, lines, voice, parseState, writeState, host };
})();
const engine = (() => {
// engine: the Transformer of the book in plain JavaScript, one sentence at a
// time: forward pass, keys and values kept, greedy and beam search.

const PAD = 0;
const BOS = 1;
const EOS = 2;
const UNK = 3;

/** Numbers of half precision, little-endian, as Float32Array. */
function halves(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const numbers = new Float32Array(bytes.byteLength / 2);
  for (let i = 0; i < numbers.length; i++) {
    const half = view.getUint16(2 * i, true);
    const sign = half & 0x8000 ? -1 : 1, power = half >> 10 & 31, part = half & 1023;
    if (power === 31) numbers[i] = part ? NaN : sign * Infinity;
    else if (power) numbers[i] = sign * (1 + part / 1024) * 2 ** (power - 15);
    else numbers[i] = sign * part * 2 ** -24;
  }
  return numbers;
}

/** Words at spaces; what the vocabulary lacks is unknown. */
function encode(text, words) {
  const ids = new Map(words.map((word, i) => [word, i]));
  return text.split(/\s+/).filter(Boolean).map((word) => Math.max(ids.get(word) ?? UNK, UNK));
}

function decode(ids, words) {
  return ids.filter((id) => id > UNK).map((id) => words[id]).join(" ");
}

/** The row of the table of positions (§3.5). */
function sinusoid(position, size) {
  return Float32Array.from({ length: size }, (_, i) => {
    const angle = position / 10000 ** ((i - i % 2) / size);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

function softmax(scores) {
  const most = Math.max(...scores);
  let total = 0;
  for (let i = 0; i < scores.length; i++) total += scores[i] = Math.exp(scores[i] - most);
  for (let i = 0; i < scores.length; i++) scores[i] /= total;
  return scores;
}

/** Log-probabilities of what may follow: PAD and BOS may not. */
function logProbabilities(logits) {
  const most = Math.max(...logits);
  let total = 0;
  for (const x of logits) total += Math.exp(x - most);
  const level = most + Math.log(total);
  const found = Float64Array.from(logits, (x) => x - level);
  found[PAD] = found[BOS] = -Infinity;
  return found;
}

/** The n largest entries as [index, value], the largest first. */
function largest(values, n) {
  const best = [];
  values.forEach((value, i) => {
    if (best.length === n && value <= best[n - 1][1]) return;
    let place = best.length;
    while (place && best[place - 1][1] < value) place--;
    best.splice(place, 0, [i, value]);
    best.length = Math.min(best.length, n);
  });
  return best;
}

/** config as TransformerConfig has it; layout [[name, shape], …] of numbers.
 *  silent holds heads, "cross.1.0", whose outputs are zero. */
class Transformer {
  constructor(config, layout, numbers) {
    this.config = config;
    this.silent = new Set();
    this.weights = {};
    let start = 0;
    for (const [name, shape] of layout) {
      const size = shape.reduce((a, b) => a * b, 1);
      this.weights[name] = numbers.subarray(start, start += size);
    }
    if (start !== numbers.length) throw new Error(`${numbers.length} numbers, not ${start}`);
    const table = (name) => this.weights[`embeddings.${name}`];
    this.target = table("target");
    this.source = table("source") ?? this.target;
    this.output = table("output") ?? this.target;
  }

  linear(name, x) {
    const weight = this.weights[`${name}.weight`], bias = this.weights[`${name}.bias`];
    const found = new Float32Array(bias);
    for (let i = 0, at = 0; i < found.length; i++) {
      let sum = 0;
      for (let j = 0; j < x.length; j++) sum += weight[at++] * x[j];
      found[i] += sum;
    }
    return found;
  }

  norm(name, x) {
    const weight = this.weights[`${name}.weight`], bias = this.weights[`${name}.bias`];
    let mean = 0, variance = 0;
    for (const value of x) mean += value / x.length;
    for (const value of x) variance += (value - mean) ** 2 / x.length;
    const scale = 1 / Math.sqrt(variance + 1e-5);
    return x.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
  }

  /** x plus a sub-layer, with the norm after the sum or before the layer. */
  residual(name, x, sublayer) {
    const pre = this.config.norm === "pre";
    const added = sublayer(pre ? this.norm(name, x) : x);
    const sum = x.map((value, i) => value + added[i]);
    return pre ? sum : this.norm(name, sum);
  }

  feedForward(name, x) {
    const inner = this.linear(`${name}.inner`, x).map((value) => Math.max(0, value));
    return this.linear(`${name}.outer`, inner);
  }

  /** Keys and values of x, kept. */
  extend(name, kept, x) {
    kept.k.push(this.linear(`${name}.w_k`, x));
    kept.v.push(this.linear(`${name}.w_v`, x));
  }

  /** What x finds in what is kept; its weights go into rows, by head. */
  attend(name, x, kept, rows, block) {
    const q = this.linear(`${name}.w_q`, x), heads = this.config.num_heads;
    const d = q.length / heads, wide = kept.v[0].length / heads;
    const found = new Float32Array(wide * heads);
    for (let head = 0; head < heads; head++) {
      const weights = softmax(Float32Array.from(kept.k, (k) => {
        let sum = 0;
        for (let i = head * d; i < (head + 1) * d; i++) sum += q[i] * k[i];
        return sum / Math.sqrt(d);
      }));
      rows.push(weights);
      if (this.silent.has(`${block}.${head}`)) continue;
      kept.v.forEach((v, j) => {
        for (let i = head * wide; i < (head + 1) * wide; i++) found[i] += weights[j] * v[i];
      });
    }
    return this.linear(`${name}.w_o`, found);
  }

  embed(table, id, position) {
    const size = this.config.d_model, places = sinusoid(position, size);
    return places.map((place, i) => table[id * size + i] * Math.sqrt(size) + place);
  }

  /** ids with EOS -> { memory, maps }, maps["encoder.0"][head][query][key]. */
  encode(ids) {
    const { num_heads: heads, num_encoder_layers: layers } = this.config;
    let xs = ids.map((id, i) => this.embed(this.source, id, i));
    const maps = {};
    for (let n = 0; n < layers; n++) {
      const layer = `encoder.layers.${n}`, kept = { k: [], v: [] };
      const pre = this.config.norm === "pre";
      for (const x of xs) this.extend(`${layer}.attention`, kept, pre ? this.norm(`${layer}.norm1`, x) : x);
      const map = maps[`encoder.${n}`] = Array.from({ length: heads }, () => []);
      xs = xs.map((x) => {
        const rows = [];
        x = this.residual(`${layer}.norm1`, x, (y) =>
          this.attend(`${layer}.attention`, y, kept, rows, `encoder.${n}`));
        rows.forEach((row, head) => map[head].push(row));
        return this.residual(`${layer}.norm2`, x, (y) => this.feedForward(`${layer}.feed_forward`, y));
      });
    }
    if (this.config.norm === "pre") xs = xs.map((x) => this.norm("encoder.norm", x));
    return { memory: xs, maps };
  }

  /** A decoder that has read nothing yet. */
  start(memory) {
    const layers = Array.from({ length: this.config.num_decoder_layers }, (_, n) => {
      const source = { k: [], v: [] };
      for (const x of memory) this.extend(`decoder.layers.${n}.cross_attention`, source, x);
      return { own: { k: [], v: [] }, source };
    });
    return { length: 0, layers };
  }

  /** The same decoder twice; what is kept is shared, not copied. */
  fork({ length, layers }) {
    return { length, layers: layers.map(({ own, source }) =>
      ({ own: { k: [...own.k], v: [...own.v] }, source })) };
  }

  /** One more token -> { logits, rows }, rows["cross.0"][head][key]. */
  step(state, id) {
    let x = this.embed(this.target, id, state.length++);
    const rows = {};
    state.layers.forEach(({ own, source }, n) => {
      const layer = `decoder.layers.${n}`;
      x = this.residual(`${layer}.norm1`, x, (y) => {
        this.extend(`${layer}.attention`, own, y);
        return this.attend(`${layer}.attention`, y, own, rows[`decoder.${n}`] = [], `decoder.${n}`);
      });
      x = this.residual(`${layer}.norm2`, x, (y) =>
        this.attend(`${layer}.cross_attention`, y, source, rows[`cross.${n}`] = [], `cross.${n}`));
      x = this.residual(`${layer}.norm3`, x, (y) => this.feedForward(`${layer}.feed_forward`, y));
    });
    if (this.config.norm === "pre") x = this.norm("decoder.norm", x);
    const size = x.length, logits = new Float32Array(this.output.length / size);
    for (let i = 0, at = 0; i < logits.length; i++) {
      let sum = 0;
      for (let j = 0; j < size; j++) sum += this.output[at++] * x[j];
      logits[i] = sum;
    }
    return { logits, rows };
  }
}

/** Greedy search after a prefix that is given: the tokens written, for each
 *  step its most probable tokens, and all maps, by block and head. */
function translate(model, src, { prefix = [], extra = 50, most = 5 } = {}) {
  const { memory, maps } = model.encode([...src, EOS]);
  const state = model.start(memory), limit = src.length + extra;
  const ids = [], steps = [];
  let last = BOS;
  for (let length = 1; length <= limit && last !== EOS; length++) {
    const { logits, rows } = model.step(state, last);
    for (const [block, heads] of Object.entries(rows)) {
      maps[block] ??= heads.map(() => []);
      heads.forEach((row, head) => maps[block][head].push(row));
    }
    const found = logProbabilities(logits);
    const likely = largest(found, most).map(([id, p]) => [id, Math.exp(p)]);
    last = prefix[length - 1] ?? (length < limit ? likely[0][0] : EOS);
    steps.push({ id: last, p: Math.exp(found[last]), likely });
    if (last !== EOS) ids.push(last);
  }
  return { ids, steps, maps };
}

const penalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/** Beam search as in chapter 16: [{ ids, logP, score }], the best first. */
function beamSearch(model, src, { beam = 4, alpha = 0.6, extra = 50, nbest = 1 } = {}) {
  const { memory } = model.encode([...src, EOS]);
  const limit = src.length + extra;
  let alive = [{ ids: [], logP: 0, state: model.start(memory), last: BOS }], ended = [];
  for (let length = 1; length <= limit && alive.length; length++) {
    const grown = alive.flatMap((one) => {
      const found = logProbabilities(model.step(one.state, one.last).logits);
      const next = length < limit ? largest(found, 2 * beam) : [[EOS, found[EOS]]];
      return next.filter(([, p]) => p > -Infinity)
        .map(([id, p]) => ({ ...one, last: id, logP: one.logP + p }));
    }).sort((a, b) => b.logP - a.logP).slice(0, 2 * beam);
    const ends = grown.filter((one) => one.last === EOS)
      .map(({ ids, logP }) => ({ ids, logP, score: logP / penalty(length, alpha) }));
    ended = [...ended, ...ends].sort((a, b) => b.score - a.score).slice(0, nbest);
    alive = grown.filter((one) => one.last !== EOS).slice(0, beam).map((one) =>
      ({ ...one, ids: [...one.ids, one.last], state: model.fork(one.state) }));
    const hope = (alive[0]?.logP ?? -Infinity) / penalty(limit, alpha);
    if (ended.length === nbest && ended[nbest - 1].score >= hope) break;
  }
  return ended;
}
return { PAD, BOS, EOS, UNK, halves, encode, decode, sinusoid, logProbabilities, largest, Transformer, translate, penalty, beamSearch };
})();
const translate = (() => {
// translate: the reader's own German through the model of chapter 19.
// needs: engine

/** Punctuation is a word of its own here. */
function tidy(text) {
  return text.replace(/([.,?!])/g, " $1 ").trim().replace(/\s+/g, " ");
}

/** The words that the model does not know. */
function unknown(text, words) {
  const known = new Set(words.slice(4));
  return text.split(" ").filter((word) => word && !known.has(word));
}

/** One map of a block: a head, or the mean of all where head is "mean". */
function mapOf(heads, head, width) {
  const chosen = head === "mean" ? heads : [heads[head]];
  return chosen[0].map((row, i) => Array.from({ length: width }, (_, j) =>
    chosen.reduce((sum, one) => sum + (one[i][j] ?? 0), 0) / chosen.length));
}

/** "2.2 MB" */
const megabytes = (characters) => `${(characters / 1e6).toFixed(1)} MB`;

const figure = {
  render({ model, el, kit }) {
    const { make, engine } = kit;
    const german = model.get("german"), english = model.get("english");
    const samples = model.get("samples"), config = model.get("config");
    const layout = model.get("layout");
    const bytes = 2 * layout.reduce((sum, [, shape]) => sum + shape.reduce((a, b) => a * b), 0);
    const [words, links] = [samples[0][0].split(" "), samples[0][2]];
    let net = null, result = null, text = "", prefix = [], block = "cross";
    let layer = config.num_decoder_layers - 1, head = "mean", chosen = null;

    const input = make("input", { type: "text", value: model.asked.text ?? samples[0][0],
      lang: "de", size: 34, "aria-label": "A German sentence",
      onkeydown: (event) => { if (event.key === "Enter") run(input.value); } });
    const pick = make("select", { "aria-label": "A sentence that it has not been trained on",
      onchange: () => { input.value = samples[pick.value][0]; run(input.value); } },
    ...samples.map(([source], i) => make("option", { value: i }, source)));
    const offer = `Load the model, ${megabytes(bytes * 4 / 3)}`;
    const load = kit.button(offer, async () => {
      load.disabled = true;
      load.textContent = "Loading …";
      try {
        net = new engine.Transformer(config, layout, engine.halves(await model.load()));
      } catch (error) {
        voice.say(`The model could not be loaded: ${error.message}.`);
        load.disabled = false;
        load.textContent = offer;
        return;
      }
      load.replaceWith(kit.button("Translate", () => run(input.value)));
      controls.hidden = false;
      run(input.value);
      input.focus();
    });
    const output = make("div", { class: "fx-row", lang: "en", role: "group",
      "aria-label": "The translation, word by word" });
    const others = make("div"), place = make("div"), voice = kit.voice();
    const title = make("p", { class: "fx-soft" });
    const layers = make("div"), heads = make("div");
    const silence = kit.button("Silence this head", () => {
      const name = `${block}.${layer}.${head}`;
      net.silent.has(name) ? net.silent.delete(name) : net.silent.add(name);
      run(text, prefix);
    });
    const kinds = kit.choice({ label: "Who looks", value: block, options: [
      ["cross", "English at German"], ["encoder", "German at German"],
      ["decoder", "English at English"]], onchange: (kind) => { block = kind; draw(); } });
    const controls = make("div", { hidden: true }, kinds.node,
      make("div", { class: "fx-row" }, layers, heads, silence));

    function pickers() {
      const count = block === "encoder" ? config.num_encoder_layers : config.num_decoder_layers;
      layer = Math.min(layer, count - 1);
      const numbers = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
      layers.replaceChildren(kit.choice({ label: "layer", value: layer, options: numbers(count),
        onchange: (to) => { layer = to; draw(); } }).node);
      heads.replaceChildren(kit.choice({ label: "head", value: head,
        options: [["mean", "mean"], ...numbers(config.num_heads)],
        onchange: (to) => { head = to; draw(); } }).node);
      silence.hidden = head === "mean";
      silence.setAttribute("aria-pressed", String(net.silent.has(`${block}.${layer}.${head}`)));
    }

    function show(rows, columns, weights, frames, act) {
      const map = kit.grid({ label: title.textContent, rows, columns, size: "1.7rem",
        tell: (i, j) => `${act} “${rows[i]}”, it gives “${columns[j]}” ${weights[i][j].toFixed(2)}.` });
      map.set(weights, frames);
      place.replaceChildren(map.node);
    }

    function draw() {
      pickers();
      const source = [...text.split(" "), "end"];
      const written = result.ids.map((id) => english[id]);
      const rows = { cross: [...written, "end"], encoder: source, decoder: ["start", ...written] }[block];
      const columns = block === "cross" ? source : rows;
      const weights = mapOf(result.maps[`${block}.${layer}`], head, columns.length);
      const gold = samples.find(([german, target]) => german === text && target === written.join(" "));
      title.textContent = `${head === "mean" ? "The mean of the heads" : `Head ${head + 1}`} of layer `
        + `${layer + 1}: rows look at columns`
        + (gold && block === "cross" ? "; frames are the gold alignment" : "");
      show(rows, columns, weights, gold && block === "cross" ? gold[2].map(([i, j]) => [j, i]) : [],
        { cross: "To write", encoder: "At", decoder: "Having read" }[block]);
    }

    function alternatives(at) {
      chosen = at;
      const { id, likely } = result.steps[at];
      const name = (token) => (token === engine.EOS ? "(end)" : english[token]);
      others.replaceChildren(make("div", { class: "fx-row" },
        make("span", { class: "fx-soft" }, `Instead of “${name(id)}”:`),
        ...likely.filter(([token]) => token !== id).map(([token, p]) =>
          kit.button(`${name(token)} ${p.toFixed(3)}`, () =>
            run(text, [...result.ids.slice(0, at), token])))));
    }

    function run(given, start = []) {
      if (!net) return;
      text = tidy(given);
      if (!text) return;
      prefix = start;
      result = engine.translate(net, engine.encode(text, german), { prefix });
      const written = result.ids.map((id) => english[id]).join(" ");
      output.replaceChildren(...result.steps.map(({ id, p }, i) =>
        kit.button(`${id === engine.EOS ? "(end)" : english[id]} ${p.toFixed(2)}`, () => alternatives(i),
          { title: "its alternatives" })));
      others.replaceChildren(make("p", { class: "fx-soft" },
        "Each word with its probability. Choose one to see what else it might have written."));
      draw();
      const strange = unknown(text, german);
      const target = samples.find(([german]) => german === text)?.[1];
      const least = result.steps.reduce((a, b) => (b.p < a.p ? b : a));
      const parts = [`“${text}” becomes “${written}”.`];
      if (strange.length) parts.push(`It has never met ${strange.map((word) => `“${word}”`).join(", ")}.`);
      if (prefix.length) parts.push("You chose its first words; it went on from them.");
      else if (target && !net.silent.size) {
        parts.push(target === written ? "That is right." : `It should be “${target}”.`);
      }
      if (net.silent.size) {
        parts.push(`Silent: ${[...net.silent].map((name) => {
          const [kind, n, h] = name.split(".");
          return `${kind} ${+n + 1}.${+h + 1}`;
        }).join(", ")}.`);
      } else if (!prefix.length) {
        const [best] = engine.beamSearch(net, engine.encode(text, german));
        const found = engine.decode(best.ids, english);
        parts.push(found === written ? "A beam of 4 finds the same."
          : `A beam of 4 finds “${found}”.`);
      }
      parts.push(`Its least certain word has ${least.p.toFixed(2)}.`);
      voice.say(parts.join(" "));
      model.keep({ text });
    }

    el.append(
      kit.guess({ question: "“Den Hund sucht der Junge .” begins with the dog. Will the English, too?",
        options: [
          ["yes", false, "in English the first one acts, and “den” says that the dog does not."],
          ["no", true, "“der” marks who acts, and English puts that first. Try both orders."]] }),
      make("div", { class: "fx-row" }, make("label", { class: "fx-soft" }, "German ", input), load),
      make("div", { class: "fx-row" }, make("label", { class: "fx-soft" },
        "or one that it was not trained on ", pick)),
      output, others, controls, title, place, voice.node,
      kit.folded("The words that it knows", make("p", { class: "fx-soft", lang: "de" },
        german.slice(4).sort((a, b) => a.localeCompare(b, "de")).join(" "))));
    title.textContent = "The mean of the last layer's heads: rows look at columns; "
      + "frames are the gold alignment";
    show([...samples[0][1].split(" "), "end"], [...words, "end"], model.get("seen"),
      links.map(([i, j]) => [j, i]), "To write");
    voice.say(`“${samples[0][0]}” should become “${samples[0][1]}”. Load the model to translate it, `
      + "or a sentence of your own.");
  },
};
return { tidy, unknown, mapOf, megabytes, figure };
})();
kit.host("translate", translate.figure, { engine });
})();
