// switches: an attention map, with rotary positions, groups of keys and a window to switch on and off.
// needs: chart

const LAYERS = [1, 6, 32], FAR = 40;

/** The sines and cosines of a position, in turn. */
export const sinusoid = (position, d) => Array.from({ length: d }, (_, c) =>
  (c % 2 ? Math.cos : Math.sin)(position / 10_000 ** ((c - (c % 2)) / d)));

/** Each pair of components turned by its angle at a position. */
function turn(x, position) {
  const table = sinusoid(position, x.length);
  return x.map((a, c) => (c % 2 ? x[c - 1] * table[c - 1] + a * table[c] : a * table[c + 1] - x[c + 1] * table[c]));
}

const dot = (a, b) => a.reduce((sum, one, i) => sum + one * b[i], 0);

/** The scores of a head: [query][key]. A group's keys are the mean of its heads'. */
export function scores({ x, wq, wk, heads }, { rotary, start, groups, head }) {
  const d = wq.length / heads, many = heads / groups, first = head - (head % many);
  const queries = wq.slice(head * d, (head + 1) * d);
  const keys = Array.from({ length: d }, (_, c) => wk[0].map((_, i) =>
    Array.from({ length: many }, (_, m) => wk[(first + m) * d + c][i]).reduce((a, b) => a + b) / many));
  const read = (matrix) => x.map((word, p) => {
    const added = rotary ? null : sinusoid(start + p, word.length);
    const made = matrix.map((row) => dot(row, rotary ? word : word.map((one, i) => one + added[i])));
    return rotary ? turn(made, start + p) : made;
  });
  const [q, k] = [read(queries), read(keys)];
  return q.map((one) => k.map((other) => dot(one, other) / Math.sqrt(d)));
}

/** A query sees its own key and those before it, as many as the window has. */
export const sees = (i, j, window) => j <= i && i - j < window;

/** The softmax of each row over what it sees. */
export function weights(map, window) {
  return map.map((row, i) => {
    const most = Math.max(...row.filter((_, j) => sees(i, j, window)));
    const e = row.map((score, j) => (sees(i, j, window) ? Math.exp(score - most) : 0));
    const sum = e.reduce((a, b) => a + b);
    return e.map((one) => one / sum);
  });
}

/** The cell that differs most between two maps: [by how much, i, j]. */
export function moved(before, after) {
  let found = [0, 0, 0];
  after.forEach((row, i) => row.forEach((w, j) => {
    if (Math.abs(w - before[i][j]) > found[0]) found = [Math.abs(w - before[i][j]), i, j];
  }));
  return found;
}

/** How far apart two scores of one distance can be, among those that are seen. */
export function uneven(map, window) {
  const spreads = map.map((_, gap) => {
    const all = map.flatMap((row, i) => (sees(i, i - gap, window) && i >= gap ? [row[i - gap]] : []));
    return all.length ? Math.max(...all) - Math.min(...all) : 0;
  });
  return Math.max(...spreads);
}

/** The numbers that a layer's cache holds after n words: keys and values. */
export const kept = ({ groups, window }, n, d) => 2 * groups * Math.min(window, n) * d;

/** How many words back a word can hear of through so many layers. */
export const reach = (layers, window) => layers * (window - 1);

const two = (x) => x.toFixed(2);

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit, asked = model.asked;
    const sentence = model.get("words"), vectors = model.get("vectors"), n = sentence.length;
    const data = { wq: model.get("w_q"), wk: model.get("w_k"), heads: model.get("heads") };
    const d = data.wq.length / data.heads, one = sentence[1];
    const sizes = Array.from({ length: data.heads }, (_, i) => data.heads - i).filter((g) => data.heads % g === 0);
    const start = { rotary: true, start: 0, groups: data.heads, window: n, head: 0, words: "all", shown: "weights" };
    const whole = (key, from, to) => Math.min(to, Math.max(from, Math.round(Number(asked[key] ?? start[key])) || from));
    const at = { rotary: asked.rotary !== "false", start: whole("start", 0, FAR), head: whole("head", 0, data.heads - 1),
      groups: sizes.includes(Number(asked.groups)) ? Number(asked.groups) : start.groups, window: whole("window", 1, n),
      words: asked.words === "one" ? "one" : "all", shown: asked.shown === "scores" ? "scores" : "weights" };
    let touched = false;
    const act = (to) => {
      Object.assign(at, to);
      touched = true;
      show();
    };
    const words = () => (at.words === "one" ? sentence.map(() => one) : sentence);
    const map = (to = {}) => scores({ ...data, x: words().map((word) => vectors[word]) }, { ...at, ...to });
    const weigh = (to = {}) => weights(map(to), at.window);

    const kind = kit.choice({ label: "Positions", value: at.rotary, options: [[true, "turned: rotary"], [false, "added: sinusoids"]],
      onchange: (x) => act({ rotary: x }) });
    const group = kit.choice({ label: "Groups of keys", value: at.groups, options: sizes.map((g) => [g, String(g)]),
      onchange: (x) => act({ groups: x }) });
    const text = kit.choice({ label: "Words", value: at.words, options: [["all", "the sentence"], ["one", `“${one}”, ${n} times`]],
      onchange: (x) => act({ words: x }) });
    const shown = kit.choice({ label: "Shown", value: at.shown, options: [["weights", "weights"], ["scores", "scores"]],
      onchange: (x) => act({ shown: x }) });
    const slide = (label, key, min, max, format) => kit.range({ label, min, max, value: at[key], format, oninput: (x) => act({ [key]: x }) });
    const ranges = { start: slide("first position", "start", 0, FAR), window: slide("window", "window", 1, n, (w) => (+w === n ? "all" : `${w} of ${n}`)),
      head: slide("head", "head", 0, data.heads - 1, (h) => String(+h + 1)) };
    const voice = kit.voice();

    // the sentence on its way through a longer text
    const [wide, left] = [400, 4], unit = (wide - 2 * left) / (FAR + n);
    const block = draw("rect", { y: 4, height: 26, width: n * unit, rx: 4, style: "fill:var(--data)" });
    const label = draw("text", { y: 22, "text-anchor": "middle", style: "fill:var(--ground)" });
    const strip = draw("svg", { viewBox: `0 0 ${wide} 34`, role: "img", "aria-label": "Where the sentence stands in a longer text; "
      + "the slider “first position” moves it", style: "touch-action:pan-y;cursor:grab;max-width:32rem;margin:.8rem 0 .3rem" },
    draw("rect", { x: left, y: 12, width: wide - 2 * left, height: 10, style: "fill:var(--cell)" }), block, label);
    let grip = null;
    const drag = (event) => {
      const box = strip.getBoundingClientRect(), p = ((event.clientX - box.left) / box.width * wide - left) / unit;
      grip ??= p >= at.start && p <= at.start + n ? p - at.start : n / 2;
      const to = Math.min(FAR, Math.max(0, Math.round(p - grip)));
      if (to !== at.start) act({ start: to });
    };
    strip.addEventListener("pointerdown", (event) => {
      if (event.button) return; // the menu that opens would swallow the release
      strip.setPointerCapture(event.pointerId);
      drag(event);
    });
    strip.addEventListener("pointermove", (event) => { if (grip !== null) drag(event); });
    for (const over of ["pointerup", "pointercancel"]) strip.addEventListener(over, () => { grip = null; });

    let now = [], raw = [];
    const grid = kit.grid({ label: "The map of a head: queries are rows, keys are columns", rows: sentence, columns: sentence.map((_, j) => String(j)),
      size: "clamp(1.3rem,3.2cqw,1.9rem)", tell: (i, j) => {
        const who = `“${words()[i]}” at ${at.start + i}`, whom = `“${words()[j]}” at ${at.start + j}`;
        return sees(i, j, at.window) && now.length ? `${who} gives ${whom} ${two(now[i][j])}; the score is ${two(raw[i][j])}.`
          : `${who} does not see ${whom}.`;
      } });
    const [heads, sides] = ["thead th span", "tbody th"].map((what) => [...grid.node.querySelectorAll(what)]);
    const bars = kit.chart.bars(kit, "Numbers in the cache of a layer"), far = make("div");

    function saying() {
      const parts = [];
      if (at.start) {
        const [by, i, j] = moved(weigh({ start: 0 }), now), was = weigh({ start: 0 })[i]?.[j];
        parts.push(`Moved from position 0 to ${at.start}, ` + (by < 1e-6 ? "no weight has changed: all distances are what they were."
          : `the weight that changed most went from ${two(was)} to ${two(now[i][j])}: what “${words()[i]}” gives “${words()[j]}”, ${
            i - j} before it.`));
      }
      if (at.words === "one") {
        const by = uneven(raw, at.window);
        parts.push(by < 1e-6 ? "All scores of one distance are equal." : `Scores of one distance differ by up to ${two(by)}.`);
      }
      const numbers = `2 · ${at.groups} · ${Math.min(at.window, n)} · ${d} = ${kept(at, n, d)}`;
      parts.push(`The cache of a layer holds ${numbers} numbers: keys and values, ${at.groups} group${at.groups > 1 ? "s" : ""}, `
        + `${Math.min(at.window, n)} word${at.window > 1 ? "s" : ""}, width ${d}.`);
      if (at.window < n) parts.push(`Through 6 layers a word hears of those up to ${reach(6, at.window)} before it.`);
      return parts.join(" ");
    }

    function show() {
      raw = map();
      now = weights(raw, at.window);
      kind.set(at.rotary);
      group.set(at.groups);
      text.set(at.words);
      shown.set(at.shown);
      for (const key in ranges) ranges[key].set(at[key]);
      block.setAttribute("x", left + at.start * unit);
      label.setAttribute("x", left + (at.start + n / 2) * unit);
      label.textContent = `${at.start}–${at.start + n - 1}`;
      heads.forEach((head, j) => { head.textContent = at.start + j; });
      sides.forEach((side, i) => { side.textContent = words()[i]; });
      const seen = raw.flatMap((row, i) => row.filter((_, j) => sees(i, j, at.window)));
      const [low, high] = [Math.min(...seen), Math.max(...seen)];
      const tint = (score) => 0.1 + 0.9 * (score - low) / (high - low || 1);
      const before = weigh({ start: 0 });
      grid.set(at.shown === "weights" ? now : raw.map((row, i) => row.map((score, j) => (sees(i, j, at.window) ? tint(score) : 0))),
        now.flatMap((row, i) => row.flatMap((w, j) => (Math.abs(w - before[i][j]) > 0.05 ? [[i, j]] : []))));
      const most = kept(start, n, d), held = kept(at, n, d);
      bars.set([["in 2017", 1, String(most)], ["here", held / most, String(held), "var(--accent)"]]);
      far.replaceChildren(kit.table(["layers", "words back"], LAYERS.map((layers) =>
        [layers, at.window === n ? "all" : reach(layers, at.window)])));
      far.firstChild.tabIndex = 0; // it may scroll
      voice.say(saying());
      if (touched) model.keep(at);
    }

    const shift = (rotary) => {
      const [from, to] = [0, FAR].map((first) => weights(map({ ...start, rotary, start: first }), n)), [by, i, j] = moved(from, to);
      return { by, from: from[i][j], to: to[i][j] };
    };
    const added = shift(false);
    el.append(
      kit.guess({ voice, question: `A sentence moves from position 0 of a text to position ${FAR}. With sinusoids added, one of this head’s `
        + `weights goes from ${two(added.from)} to ${two(added.to)}. By how much does a weight change, at most, with rotary positions?`,
      options: [["about as much", "same"], ["less than half as much", "half"], ["not at all", "none"]],
      act: `Now drag the sentence to position ${FAR}, the end of its bar.`,
      begin() { act(start); return null; },
      seen() {
        if (Object.keys(start).some((key) => at[key] !== (key === "start" ? FAR : start[key]))) return null;
        const { by } = shift(true);
        return [by < 1e-6 ? "none" : by < added.by / 2 ? "half" : "same", `At position ${FAR} ${by < 1e-6 ? "all weights are"
          : `one weight is ${two(by)} from`} what they were at 0; with sinusoids one went from ${two(added.from)} to ${two(added.to)}. `
          + "All queries and keys are turned by the same angles more, so that none of their distances has changed."];
      },
      tell() { act({ ...start, start: FAR }); } }).node,
      kind.node, make("div", {}, strip), make("div", { class: "fx-row" }, ranges.start.node),
      make("div", { class: "fx-cols", style: "--cols:3fr 2fr" },
        make("div", {}, grid.node, make("p", { class: "fx-soft" }, "Framed: weights that are more than 0.05 from where they were at position 0.")),
        make("div", {}, group.node, make("div", { class: "fx-row" }, ranges.window.node), make("div", { class: "fx-row" }, ranges.head.node),
          text.node, shown.node,
          make("p", { class: "fx-soft", style: "margin-top:1rem" }, "Numbers in the cache of a layer:"), bars.node,
          make("p", { class: "fx-soft", style: "margin-top:1rem" }, "How far back a word hears of others:"), far)),
      voice.node);
    show();
  },
};
