// What the figures share: a host on the page, and native controls.
// A figure gets it as render({ model, el, kit }) and imports nothing.

const SPACE = "http://www.w3.org/2000/svg";

const LOOK = `
.fx{%(light)--told:70%;color:var(--ink);background:var(--ground);border:1px solid var(--line);
border-radius:8px;padding:1rem 1.1rem;font:15px/1.45 var(--book-interface,system-ui,sans-serif);
font-variant-numeric:tabular-nums;text-align:left;container-type:inline-size;max-width:50rem}
.bd-article .fx{max-width:none}
html[data-theme=dark] .fx,body[data-jp-theme-light=false] .fx,html[theme=dark] .fx,
body.vscode-dark .fx{%(dark)--told:37%}
.fx *{box-sizing:border-box}
.fx p{margin:.35rem 0;font:inherit;color:inherit;max-width:none}
.fx-row{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center}
.fx-row[hidden]{display:none}
.fx-row+.fx-row{margin-top:.5rem}
.fx-cols{display:grid;gap:1rem 1.6rem;align-items:start;margin-top:.7rem}
@container (min-width:36rem){.fx-cols{grid-template-columns:var(--cols,1fr 1fr)}}
.fx-cols>*{min-width:0}
.fx-range{display:flex;gap:.6rem;align-items:center;flex:1 1 15rem;min-width:0}
.fx-range>span{flex:none}
.fx-range input{flex:1;min-width:5rem;accent-color:var(--data);height:1.7rem;margin:0}
.fx-range output{flex:none;min-width:3.2em;text-align:right}
.fx button,.fx select,.fx input[type=text]{font:inherit;color:var(--ink);background:var(--card);
border:1px solid var(--soft);border-radius:5px;padding:.25rem .7rem;min-height:2rem;max-width:100%}
.fx select,.fx input[type=text]{font-size:16px}
.fx button{cursor:pointer}
.fx button:hover:not(:disabled){border-color:var(--data)}
.fx button:disabled{opacity:.55;cursor:default}
.fx button[aria-pressed=true]{background:var(--data);border-color:var(--data);color:var(--ground)}
.fx :focus-visible{outline:3px solid var(--accent)!important;outline-offset:2px}
.fx label{max-width:100%;min-width:0}
.fx-guess{border:1px solid var(--task-edge);border-radius:6px;
padding:.5rem .9rem .6rem;margin-bottom:.9rem}
.fx-row+.fx-guess,.fx-row+div>.fx-guess{margin-top:.8rem}
.fx-guess .fx-row{margin-top:.4rem}
.fx .fx-tell{border-color:transparent;background:none;color:var(--soft);text-decoration:underline}
.fx .of-encoder{--data:var(--encoder)}.fx .of-decoder{--data:var(--decoder)}
.fx-right::after{content:" ✓"}.fx-wrong::after{content:" ✗"}
.fx .fx-verdict:not(:empty){border-left:4px solid var(--accent);padding:.3rem .7rem;margin:.8rem 0 0;
background:var(--card)}
.fx-say{display:block;margin-top:.8rem;padding-top:.6rem;border-top:1px solid var(--line);
min-height:3.4em}
.fx output{color:inherit;font:inherit}
.fx-soft{color:var(--soft)}
.fx-link{margin-top:.4rem}
.fx-scroll{overflow-x:auto}
.bd-article .fx table,.fx table{border-collapse:collapse;margin:0;border:0;background:none;
font:inherit;width:auto}
.fx table tr{background:none!important}
.fx table.fx-map{table-layout:fixed}
.bd-article .fx table.fx-map :is(th,td),.fx table.fx-map :is(th,td){padding:0;border:0;
width:var(--cell-w,1.85rem);height:var(--cell-w,1.85rem);text-align:center;font-weight:400;
position:static;vertical-align:middle;background:none;color:var(--ink);line-height:1.1}
.bd-article .fx table.fx-map td,.fx table.fx-map td{border:1px solid var(--ground);
background:color-mix(in srgb,var(--data) calc(var(--w)*100%),var(--cell))}
/* where a number stands in a cell, ink can be read on the deepest */
.bd-article .fx table.fx-told td,.fx table.fx-told td{
background:color-mix(in srgb,var(--data) calc(var(--w)*var(--told)),var(--cell))}
.bd-article .fx table.fx-map tbody th,.fx table.fx-map tbody th{width:auto;
padding:0 .5rem 0 0;text-align:right;white-space:nowrap}
.fx table.fx-map.long thead th{height:4.6rem;vertical-align:bottom}
.fx table.fx-map.long thead th span{writing-mode:vertical-rl;transform:rotate(180deg);
white-space:nowrap;max-height:7rem}
.fx table.fx-map td.frame{outline:2px solid var(--accent);outline-offset:-3px}
.fx svg{display:block;width:100%;height:auto;overflow:visible;font:13px var(--book-interface,sans-serif)}
.fx svg text{fill:var(--ink)}
.bd-article .fx table.fx-plain :is(th,td),.fx table.fx-plain :is(th,td){padding:.2em .7em;
border:0;border-bottom:1px solid var(--line);text-align:right;font-weight:400;position:static;
background:none;color:var(--ink)}
@container (max-width:24rem){.bd-article .fx table.fx-plain :is(th,td),
.fx table.fx-plain :is(th,td){padding:.2em;font-size:13px}}
.fx table.fx-plain thead th{color:var(--soft)}
.fx details{margin-top:.6rem}
.fx summary{color:var(--soft);cursor:pointer;width:fit-content}
.fx-mono{font-family:var(--pst-font-family-monospace,ui-monospace,monospace)}
@media print{.fx{display:none}.moves>img[hidden],.moves>svg[hidden]{display:block!important}}
`;

// --- elements ---------------------------------------------------------------

/** An element: make("p", { class: "x", onclick }, "text", child). */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for drawings. */
export function draw(name, attributes = {}, ...children) {
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

/** A labelled slider; set(value) moves it without calling oninput. Whatever an
 *  address asks for, +input.value is one of its numbers. */
export function range({ label, min, max, step = 1, value, format = String, oninput }) {
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
export function choice({ label, options, value, onchange }) {
  const all = options.map(([key, text]) =>
    make("button", { type: "button", onclick: () => { set(key); onchange(key); } }, text));
  const set = (to) => options.forEach(([key], i) =>
    all[i].setAttribute("aria-pressed", String(key === to)));
  set(value);
  const node = make("div", { class: "fx-row", role: "group", "aria-label": label },
    make("span", { class: "fx-soft" }, label), ...all);
  return { node, set };
}

export function button(text, onclick, more = {}) {
  return make("button", { type: "button", onclick, ...more }, text);
}

/** A prediction, which nobody has to make. An answer arms the figure: begin(key)
 *  brings it to where the question starts, and returns what is remembered of that.
 *  Then the reader does what `act` says. Once seen(remembered, key) is no longer
 *  null, it is [the key that came true, a sentence with the numbers before and
 *  after], which is the verdict. tell(key) acts for the impatient. */
export function guess({ voice, question, options, act, begin, seen, tell }) {
  let said, before, armed = false;
  const todo = make("p", { class: "fx-soft" });
  const all = options.map((option) => button(option[0], () => arm(option), { "aria-pressed": "false" }));
  const arm = (option) => {
    armed = false;
    said = option ?? [];
    all.forEach((one, i) => {
      one.setAttribute("aria-pressed", String(options[i] === option));
      one.className = "";
    });
    voice.verdict.replaceChildren();
    before = begin?.(said[1]);
    armed = true;
    todo.textContent = typeof act === "function" ? act(said[1]) : act;
  };
  voice.heard = () => {
    const found = armed ? seen(before, said[1]) : null;
    if (!found) return;
    armed = false;
    const right = found[0] === said[1], at = options.indexOf(said);
    todo.textContent = "";
    if (at >= 0) all[at].className = right ? "fx-right" : "fx-wrong";
    voice.verdict.replaceChildren(
      ...(at < 0 ? [] : [make("strong", {}, right ? "Right" : "Not so"), `: you said “${said[0]}”. `]), found[1]);
  };
  const impatient = tell ? button("Just tell me", () => {
    arm(options[all.findIndex((one) => one.getAttribute("aria-pressed") === "true")]);
    tell(said[1]);
  }, { class: "fx-tell" }) : "";
  return { arm, node: make("div", { class: "fx-guess" },
    make("p", {}, make("strong", {}, "Predict: "), question),
    make("div", { class: "fx-row" }, ...all, impatient), todo) };
}

/** What somebody typed or pasted: composed letters, no signs that cannot be seen,
 *  single spaces for any room, and plain quotes unless they are kept. */
export function clean(text, quotes) {
  text = text.normalize("NFC").replace(/[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, "")
    .replace(/\s/g, " ");
  return quotes ? text : text.replace(/[‘’‚‹›]/g, "'").replace(/[“”„«»]/g, '"');
}

/** A matrix of weights. The arrow keys move through it; tell(i, j) says what
 *  a cell means, and is shown below it; text(value) is what stands in a cell,
 *  and onpress(i, j) follows a click or Enter. */
export function grid({ label, rows, columns, tell, digits = 0, size, text, onpress }) {
  const long = columns.some((name) => name.length > 3);
  const cells = rows.map((_, i) => columns.map((_, j) => make("td", {
    role: "gridcell", tabindex: i + j ? -1 : 0,
    onfocus: () => enter(i, j), onmouseenter: () => point(i, j),
    ...(onpress && { style: "cursor:pointer", onclick: () => onpress(i, j) }),
  })));
  const below = make("p", { class: "fx-soft" }, "Point at a cell, or reach it with the arrow keys.");
  let at, home = cells[0][0];
  const point = (...to) => {
    at = to;
    below.textContent = tell(...at);
  };
  // Tab leads to the cell that had the focus last, and to no other
  const enter = (i, j) => {
    home.tabIndex = -1;
    home = cells[i][j];
    home.tabIndex = 0;
    point(i, j);
  };
  const head = columns.map((name) => make("th", { scope: "col" }, make("span", {}, name)));
  const table = make("table", {
    class: `fx-map${long ? " long" : ""}${digits || text ? " fx-told" : ""}`, role: "grid", "aria-label": label,
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
      cells[i + down]?.[cells[i].indexOf(event.target) + right]?.focus();
    },
  }, make("thead", {}, make("tr", {}, make("td", { style: "visibility:hidden" }), ...head)),
  make("tbody", {}, ...cells.map((row, i) =>
    make("tr", {}, make("th", { scope: "row" }, rows[i]), ...row))));
  const set = (values, frames = []) => {
    cells.forEach((row, i) => row.forEach((cell, j) => {
      const value = values[i][j];
      cell.style.setProperty("--w", value.toFixed(3));
      cell.textContent = text ? text(value) : digits && value >= 0.005 ? value.toFixed(digits) : "";
      cell.className = "";
      cell.setAttribute("aria-label", tell(i, j));
    }));
    for (const [i, j] of frames) cells[i]?.[j]?.classList.add("frame");
    if (at) point(...at); // it speaks of these numbers
  };
  return { node: make("div", {}, make("div", { class: "fx-scroll" }, table), below), set };
}

/** The head of a table; over a column without a name stands a plain cell. */
function headings(names) {
  return make("thead", {}, make("tr", {}, ...names.map((name) =>
    name ? make("th", { scope: "col" }, name) : make("td"))));
}

/** The same numbers to read. */
export function table(head, rows) {
  return make("div", { class: "fx-scroll" }, make("table", { class: "fx-plain" },
    headings(head),
    make("tbody", {}, ...rows.map((row) =>
      make("tr", {}, ...row.map((text) => make("td", {}, String(text))))))));
}

export function folded(label, ...body) {
  return make("details", {}, make("summary", {}, label), ...body);
}

/** One sentence per change, read aloud; above it the verdict on a prediction. */
export function voice() {
  const said = make("output", { class: "fx-say", "aria-live": "polite" });
  const verdict = make("p", { class: "fx-verdict", role: "status" });
  const it = { node: make("div", {}, verdict, said), verdict, say(...parts) {
    said.replaceChildren(...parts);
    it.heard?.();
  } };
  return it;
}

// --- the state in the address -----------------------------------------------

/** "#film:step=75&head=2" as { step: "75", head: "2" }; null for another. */
function unescaped(hash) {
  try {
    return decodeURIComponent(hash);
  } catch {
    return hash;
  }
}

export function parseState(hash, name) {
  const start = `#${name}:`;
  if (!hash.includes("=")) hash = unescaped(hash); // a messenger has escaped all of it once more
  if (!hash.startsWith(start)) return null;
  return Object.fromEntries(new URLSearchParams(hash.slice(start.length)));
}

export function writeState(name, state) {
  return `#${name}:${new URLSearchParams(state)}`;
}

/** A button that copies a link to the figure as it stands; where the browser
 *  refuses, the link itself, selected. set(hash) says where it leads. */
function link() {
  let to = "";
  const told = make("span", { role: "status", class: "fx-soft" });
  const copy = async () => {
    const address = new URL(to, location.href).href;
    // said again, if it is copied again
    told.replaceChildren();
    try {
      await navigator.clipboard.writeText(address);
      told.textContent = "Copied.";
    } catch {
      const shown = make("input", { type: "text", readonly: true, value: address, "aria-label": "Link to this state" });
      told.replaceChildren("Selected, to be copied: ", shown);
      shown.focus();
      shown.select();
    }
  };
  const node = make("div", { class: "fx-row fx-link", hidden: true },
    button("Copy link to this state", copy, { class: "fx-tell" }), told);
  return { node, set(hash) {
    if (hash === to) return;
    to = hash;
    node.hidden = false;
    told.replaceChildren();
  } };
}

// --- the host ---------------------------------------------------------------

/** Give life to the figures of this name that stand on the page. */
export function host(name, figure, more = {}) {
  // only a page of the site has a script of its own: an address is the
  // reader's there, and Jupyter's in Jupyter
  const own = Boolean(document.currentScript?.src);
  const start = () => {
    for (const box of document.querySelectorAll(`.moves-${name}`)) {
      if (box.live) continue;
      // no attribute: a page that a browser has saved would have it, and nothing that lives
      box.live = true;
      bring(box, name, figure, more, own);
    }
  };
  if (own && document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", start);
  } else {
    start();
    // an output that is not yet in its page
    setTimeout(start);
  }
}

function bring(box, name, figure, more, own) {
  // where a page was saved, what stood there when it was
  box.querySelector(".fx")?.remove();
  const data = JSON.parse(box.querySelector("script.moves-data").textContent);
  if (!document.getElementById("fx-look")) {
    document.head.append(make("style", { id: "fx-look" }, LOOK));
  }
  const el = make("div", { class: "fx", tabindex: -1 });
  // arrow keys inside a figure do not turn the page
  el.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) event.stopPropagation();
  });
  const still = box.querySelector("img, svg");
  const frame = still.closest("a") ?? still;
  // a button that has gone, or can no more be pressed, hands on the focus
  const sign = (one) => one.textContent + one.closest("[role=group]")?.ariaLabel;
  el.addEventListener("click", ({ target }) => {
    const one = target.closest("button");
    if (!one) return;
    const was = sign(one), row = one.parentElement;
    requestAnimationFrame(() => {
      if (one.isConnected && !one.disabled || ![one, document.body].includes(document.activeElement)) return;
      const all = [...el.querySelectorAll("button:enabled")];
      (all.find((other) => sign(other) === was) ?? row.querySelector("button:enabled"))?.focus();
      if (!el.contains(document.activeElement)) el.focus();
    });
  });
  let later = 0;
  const here = link();
  const model = {
    get: (key) => data[key],
    /** What the address asks for, as text. */
    asked: own ? parseState(location.hash, name) ?? {} : {},
    /** What a link to the figure as it stands will ask for. */
    keep(state) {
      if (!own) return;
      const hash = writeState(name, state);
      here.set(hash);
      clearTimeout(later);
      later = setTimeout(() => history.replaceState(history.state, "", hash), 300);
    },
    /** A large file that is loaded when somebody wants it: bytes. */
    load: (which = "model") => large(box, which),
  };
  figure.render({ model, el, kit: { ...KIT, ...more } });
  el.append(here.node);
  frame.after(el);
  frame.hidden = true;
  frame.style.display = "none";
  if (own && Object.keys(model.asked).length) el.scrollIntoView({ block: "center" });
}

async function large(box, which) {
  const here = box.querySelector(`script.moves-large[data-name="${which}"]`);
  const text = here.textContent || await new Promise((done, fail) => {
    const { file } = here.dataset, over = () => fail(new Error(`${file} cannot be read`));
    // several may be on their way: each file gives its text to whoever has asked for it
    window.movesLarge = (text) => document.currentScript.take(text);
    document.head.append(Object.assign(make("script", { src: file, onload: over, onerror: over }), { take: done }));
  });
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i); // millions: no function for each
  return bytes;
}

const KIT = { make, draw, range, choice, button, guess, clean, grid, headings, table, folded, voice };
