// path: how a letter reaches a vector, step by step, in each kind of layer.

const KINDS = { recurrent: "recurrent", convolution: "convolution", dilated: "dilated convolution",
  attention: "self-attention", window: "self-attention in a window" };
const WIDTHS = [3, 5, 7, 9];

/** The vectors of one step, [position, the vectors that it depends on], each by position and step. */
function row(kind, step, n, k) {
  if (kind === "recurrent") { // one vector a step: the letter, and the state before
    return [[step - 1, [[step - 1, 0], ...(step > 1 ? [[step - 2, step - 1]] : [])]]];
  }
  const all = Array.from({ length: n }, (_, p) => p), gap = kind === "dilated" ? 2 ** (step - 1) : 1;
  const near = (p, q) => kind === "attention" || (Math.abs(p - q) <= gap * Math.floor(k / 2) && (p - q) % gap === 0);
  return all.map((p) => [p, all.filter((q) => near(p, q)).map((q) => [q, step - 1])]);
}

const name = ([p, step]) => `${p},${step}`;

/** How the letter `from` gets to the vector `to`: the steps until it is there (all that a
 *  recurrent layer has), the vectors that depend on it, and a shortest path. A state that
 *  was computed before the letter came never does: then the path is empty. */
export function travel({ kind, n, k, from, to }) {
  const rows = [], known = new Set([name([from, 0])]), recurs = kind === "recurrent";
  for (let step = 1; step <= n; step++) {
    rows.push(row(kind, step, n, k));
    for (const [p, reads] of rows[step - 1]) if (reads.some((one) => known.has(name(one)))) known.add(name([p, step]));
    if (!recurs && known.has(name([to, step]))) break;
  }
  const path = [];
  let at = [to, recurs ? to + 1 : rows.length];
  while (known.has(name(at))) {
    path.unshift(at);
    if (!at[1]) break;
    const reads = rows[at[1] - 1].find(([p]) => p === at[0])[1].filter((one) => known.has(name(one)));
    const far = ([p]) => Math.abs(p - from);
    at = reads.reduce((best, one) => (far(one) < far(best) ? one : best));
  }
  return { rows, known, path };
}

/** How many steps the path has. */
export const count = (at) => travel(at).path.length - 1;

const list = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);
const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit, words = model.get("words"), asked = model.asked;
    const at = { word: words.includes(asked.word) ? asked.word : words[0], kind: Object.hasOwn(KINDS, asked.kind) ? asked.kind : "recurrent",
      k: WIDTHS.includes(Number(asked.k)) ? Number(asked.k) : 5 };
    const inside = (x) => Math.min(at.word.length - 1, Math.max(0, Math.round(Number(x)) || 0));
    at.from = inside(asked.from ?? 0);
    at.to = inside(asked.to ?? at.word.length - 1);
    let touched = false;
    const act = (to) => {
      Object.assign(at, to.word && to.word !== at.word ? { from: 0, to: to.word.length - 1 } : {}, to);
      touched = true;
      show();
    };
    const word = kit.choice({ label: "Word", value: at.word, options: words.map((one) => [one, one]), onchange: (x) => act({ word: x }) });
    const kind = kit.choice({ label: "Layer", value: at.kind, options: Object.entries(KINDS), onchange: (x) => act({ kind: x }) });
    const width = kit.range({ label: "window", min: 0, max: WIDTHS.length - 1, value: WIDTHS.indexOf(at.k),
      format: (i) => String(WIDTHS[i]), oninput: (i) => act({ k: WIDTHS[i] }) });
    const ends = [["from", "from the letter"], ["to", "to the vector of"]].map(([end, label]) => kit.range({ label, min: 0,
      max: at.word.length - 1, value: at[end], format: (i) => `${+i + 1}, ${at.word[i]}`, oninput: (i) => act({ [end]: i }) }));
    const [wide, high] = [400, 300], bottom = high - 34;
    const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "The vectors of each step above the "
      + "letters, and a path from a letter to a vector; the sentence says it",
    style: "touch-action:pan-y;cursor:pointer;max-width:32rem;margin:1rem auto 0" });
    const voice = kit.voice(), calm = globalThis.matchMedia("(prefers-reduced-motion: reduce)");
    const x = (p) => (p + 0.5) * wide / at.word.length;

    // a press on the letters says where the path begins, above them where it ends
    let end = null;
    const pick = (event) => {
      const box = svg.getBoundingClientRect(), p = inside((event.clientX - box.left) / box.width * at.word.length - 0.5);
      end ??= (event.clientY - box.top) / box.height * high > bottom ? "from" : "to";
      if (p !== at[end]) act({ [end]: p });
    };
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return; // the menu that opens would swallow the release
      svg.setPointerCapture(event.pointerId);
      pick(event);
    });
    svg.addEventListener("pointermove", (event) => { if (end) pick(event); });
    for (const over of ["pointerup", "pointercancel"]) svg.addEventListener(over, () => { end = null; });

    function picture({ rows, known, path }) {
      const r = Math.min(6, 75 / at.word.length), knows = (one) => known.has(name(one));
      const y = (step) => bottom - 8 - step * Math.min(48, (bottom - 20) / rows.length);
      const line = ([p, s], [q, t], color, thick) => draw("line", { x1: x(p), y1: y(s), x2: x(q), y2: y(t),
        style: `stroke:var(${color});stroke-width:${thick}` });
      const dot = (one, color) => draw("circle", { cx: x(one[0]), cy: y(one[1]), r,
        style: `stroke:var(--data);fill:var(${color ?? (knows(one) ? "--data" : "--ground")})` });
      const letters = [...at.word].map((text, p) => draw("text", { x: x(p), y: high - 8, "text-anchor": "middle",
        style: p === at.from ? "fill:var(--accent);font-size:17px;font-weight:700" : "font-size:15px" }, text));
      svg.replaceChildren(...rows.flatMap((one, i) => one.flatMap(([p, reads]) =>
        reads.map((q) => line([p, i + 1], q, "--line", 0.8)))), ...letters,
      ...[...at.word].map((_, p) => dot([p, 0], "--ground")), ...rows.flatMap((one, i) => one.map(([p]) => dot([p, i + 1], "--ground"))));
      const lit = [...rows.keys(), rows.length].map((step) => draw("g", {},
        ...path.slice(1).flatMap((one, i) => (one[1] === step ? [line(path[i], one, "--accent", 4)] : [])),
        ...(step ? rows[step - 1].map(([p]) => [p, step]) : [[at.from, 0]]).filter(knows).map((one) =>
          dot(one, path.some((other) => name(other) === name(one)) ? "--accent" : "--data"))));
      svg.append(...lit, draw("circle", { cx: x(at.to), cy: y(at.kind === "recurrent" ? at.to + 1 : rows.length), r: r + 4,
        style: "fill:none;stroke:var(--accent);stroke-width:2" }));
      if (!touched || calm.matches) return;
      const pause = Math.min(180, 1800 / rows.length);
      lit.forEach((one, step) => one.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 200, delay: pause * step, fill: "backwards" }));
    }

    function sentence(far) {
      const [a, b] = [at.from, at.to].map((p) => `${p + 1}, ${at.word[p]},`), apart = Math.abs(at.from - at.to), half = Math.floor(at.k / 2);
      if (far < 0) return `The vector of letter ${b} never depends on letter ${a} in a recurrent layer: it was computed before.`;
      return `From letter ${a} to the vector of letter ${b} ` + {
        recurrent: `a recurrent layer takes ${many(far, "step")}: one for the letter itself, and one for each after it.`,
        convolution: `convolutions over ${at.k} letters take ${many(far, "layer")}, each of which carries it up to ${
          many(half, "letter")} further.`,
        dilated: `convolutions over ${at.k} letters whose gaps double take ${many(far, "layer")}, which carry it up to ${
          list(Array.from({ length: far }, (_, i) => half * 2 ** i))} letters further.`,
        attention: `self-attention takes ${many(far, "layer")}, ${apart > 1 ? "however far apart they are" : "as from any other letter"}.`,
        window: `self-attention in a window of ${at.k} takes ${many(far, "layer")}, as many as a convolution over ${at.k}.`,
      }[at.kind];
    }

    function show() {
      const found = travel({ ...at, n: at.word.length });
      word.set(at.word);
      kind.set(at.kind);
      width.set(WIDTHS.indexOf(at.k));
      width.input.disabled = ["recurrent", "attention"].includes(at.kind);
      ends.forEach((one, i) => {
        one.input.max = at.word.length - 1;
        one.set(i ? at.to : at.from);
      });
      picture(found);
      voice.say(sentence(found.path.length - 1));
      if (touched) model.keep(at);
    }

    const [first] = words, start = { word: first, kind: "recurrent", k: 5, from: 0, to: first.length - 1 };
    const steps = (to) => count({ ...start, ...to, n: first.length });
    el.append(
      kit.guess({ voice, question: `From the first letter of “${first}” to the last vector a recurrent layer takes ${steps({})} steps. `
        + "A convolution makes each vector from five letters, two on either side. How many layers of it does that take?",
      options: [["2", "2"], ["4", "4"], ["8", "8"]],
      act: "Now press “convolution”.",
      begin() { act(start); return steps({}); },
      seen(was) {
        if (at.kind !== "convolution" || ["word", "k", "from", "to"].some((key) => at[key] !== start[key])) return null;
        const far = steps({ kind: "convolution" });
        return [String(far), `Instead of ${was} steps it takes ${many(far, "layer")}: each vector reads five letters, but `
          + `the first is at the edge of what it reads, and gets only two further in each layer. All the vectors of a layer are computed at once.`];
      },
      tell() { act({ ...start, kind: "convolution" }); } }).node,
      word.node, kind.node, svg,
      make("p", { class: "fx-soft" }, "Press a letter, where the path begins, and any vector, where it ends; or by numbers:"),
      make("div", { class: "fx-row" }, ...ends.map((one) => one.node), width.node), voice.node);
    show();
  },
};
