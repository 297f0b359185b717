// learn: the preface's model, trained from nothing while the reader looks on; every
// part of it is a switch.
// needs: product, kernel, tape, learner, serve, chart

/** What can be changed, each value with its name; 1 and 0 are a switch. */
export const VALUES = {
  positions: { 1: "positions", 0: "no positions" },
  mask: { 1: "causal mask", 0: "no mask" },
  residual: { 1: "residuals", 0: "no residuals" },
  network: { 1: "networks", 0: "no networks" },
  factor: { 1: "factor 1/√d_k", 0: "no factor" },
  warmup: { 1: "warm-up", 0: "no warm-up" },
  norm: { post: "norm after", pre: "norm before", none: "no norm" },
  heads: { 4: "4 heads", 2: "2 heads", 1: "1 head" },
  layers: { 1: "1 + 1 layers", 2: "2 + 2 layers" },
  rate: { 1: "rate × 1", 0.1: "rate × 0.1", 3: "rate × 3", 10: "rate × 10" },
  size: { book: "64 wide, 64 words", small: "32 wide, 32 words" },
};
/** As it is in the book. */
export const USUAL = {
  positions: 1, mask: 1, residual: 1, network: 1, factor: 1, warmup: 1,
  norm: "post", heads: 4, layers: 1, rate: 1, size: "book", seed: 0,
};
const SMALL = { width: 32, inner: 128, words: 32 };
// seconds from which on the small one is offered
const SLOW = 45;
const STEPS = 400;

/** Questions with their answers: the first whose test holds of a training is right. */
const when = (a, b) => ["When will it first write your word backwards?", [
  [`before step ${a}`, ({ first }) => first !== null && first < a],
  [`from ${a} to ${b}`, ({ first }) => first !== null && first <= b],
  ["later, or never", () => true]]];
const where = (text, a, b) => [`${text} Where does the loss end?`, [
  [`below ${a}`, ({ loss }) => loss < a],
  [`from ${a} to ${b}`, ({ loss }) => loss <= b],
  [`above ${b}`, () => true]]];
const learns = (text) => [`${text} Does it learn?`, [
  ["it learns", ({ exact }) => exact >= 0.95],
  ["it half learns", ({ exact }) => exact > 0.05],
  ["it does not learn", () => true]]];
/** Name, what changes, question, answers. */
export const EXPERIMENTS = [
  ["Nothing changed", {}, ...when(100, 200)],
  ["Positions off", { positions: 0 }, ...where("It reads a bag of letters.", 0.5, 2)],
  ["Mask off", { mask: 0 }, "Each letter can see the one that it is asked for. What comes of it?", [
    ["a high loss", ({ loss }) => !(loss < 0.1)],
    ["a low loss, right words", ({ exact }) => exact > 0.5],
    ["a low loss, wrong words", () => true]]],
  ["One head, factor off", { heads: 1, factor: 0 }, ...learns("Nothing divides its scores by √64 = 8.")],
  ["Networks off", { network: 0 }, ...learns("More than half of its numbers go.")],
  ["Residuals off", { residual: 0 }, ...learns("Each sub-layer replaces what it gets.")],
  ["Residuals off, two layers", { residual: 0, layers: 2 }, ...learns("The same with two layers on each side.")],
  ["Warm-up off", { warmup: 0 }, ...learns("It begins with the highest rate.")],
  ["Rate × 10", { rate: 10 }, ...where("Ten times as fast?", 0.1, 3)],
  ["Rate × 0.1", { rate: 0.1 }, ...when(200, 300)],
];
const OTHER = ["Your own", {}, ...learns("Your own.")];

/** The settings that an address asks for; what it does not know, as in the book. */
export function settings(asked) {
  return Object.fromEntries(Object.entries(USUAL).map(([name, usual]) => {
    const text = asked[name], known = name === "seed" ? /^\d{1,4}$/.test(text) : Object.hasOwn(VALUES[name], text);
    return [name, !known ? usual : typeof usual === "number" ? Number(text) : text];
  }));
}

/** What differs from the book. */
export function state(set) {
  return Object.fromEntries(Object.entries(set).filter(([name, value]) => value !== USUAL[name]));
}

/** A training's name: its differences, but for the seed. */
export function named(set) {
  const { seed, ...parts } = state(set);
  return Object.entries(parts).map(([name, value]) => VALUES[name][value]).join(", ") || "unchanged";
}

/** The number of the experiment that these settings are; none is -1. */
export function experiment(set) {
  return EXPERIMENTS.findIndex(([, changes]) => named({ ...USUAL, ...changes }) === named(set));
}

/** Letters from a to z, of whatever was typed. */
export function letters(text) {
  return text.normalize("NFD").toLowerCase().replace(/[^a-z]/g, "").slice(0, 12);
}

const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
const last = ({ losses }) => mean(losses.slice(-10));
const percent = (part) => `${+(100 * part).toFixed(1)}\u00a0%`;
const round = (loss) => loss.toFixed(loss < 0.1 ? 4 : 2);

/** Which answer to its question came true, and the numbers for it. */
export function outcome(run) {
  const loss = last(run), [was] = (EXPERIMENTS[experiment(run.set)] ?? OTHER)[3].find(([, holds]) => holds({ ...run, loss }));
  return [was, `It was “${was}”: the loss went from ${round(run.losses[0])} to ${round(loss)}, new words right from none to `
    + `${percent(run.exact)}, and “${run.word}” ${run.first === null ? "was never right" : `was first right at step ${run.first}`}.`];
}

/** What is said at the end, of nothing but this training and of those among runs that
 *  were the same with other seeds. */
export function ending(run, runs = []) {
  const { word, text, first, since, exact, losses, seconds, set } = run, loss = last(run);
  const right = text === [...word].reverse().join("");
  const parts = [`“${word}”${since ? `, given at step ${since},` : ""} becomes ${text ? `“${text}”` : "nothing"}, `
    + `which is ${right ? "right" : "wrong"}; ${first === null ? "it was never right when it was asked"
      : `it was first right at step ${first}`}. `
    + `Of 200 new words ${percent(exact)} are right to the last letter. The loss is ${round(loss)}; `
    + `${losses.length} steps took ${seconds.toFixed(0)} s.`];
  const others = runs.filter((one) => one.done && one.name === run.name && one.set.seed !== set.seed);
  if (others.length) parts.push(`The same with ${others.map((one) => `seed ${one.set.seed}: ${percent(one.exact)}`).join(", ")}.`);
  return parts.join(" ");
}

/** Where it trains: a Worker, made of the text of what the modules export; where that
 *  is refused, the page itself, in slices of time. */
export function workplace({ product, kernel, tape, learner, serve }, hear) {
  const alone = () => {
    const port = { slice: 12, postMessage: (data) => hear({ data }) }, heap = kernel.heap(product.PRODUCT);
    serve.serve(port, (changes) => new learner.Learner(heap, tape.Tape, changes));
    return { where: "on this page", post: (data) => port.onmessage({ data }) };
  };
  const lines = Object.entries({ ...product, ...kernel, ...tape, ...learner, ...serve }).map(
    ([name, value]) => `const ${name} = ${typeof value === "function" ? value : JSON.stringify(value)};`);
  lines.push("const room = heap(PRODUCT);", "self.slice = 100;",
    "serve(self, (changes) => new Learner(room, Tape, changes));");
  try {
    const worker = new Worker(URL.createObjectURL(new Blob([lines.join("\n")], { type: "text/javascript" })));
    let begun = null;
    const it = { where: "in a Worker", post: (data) => {
      if (data.go) begun = data;
      worker.postMessage(data);
    } };
    worker.onmessage = hear;
    worker.onerror = (event) => {
      event.preventDefault();
      worker.terminate();
      Object.assign(it, alone()).post(begun);
    };
    return it;
  } catch {
    return alone();
  }
}

const LOOK = ".fx .ln-word{font-size:1.35rem;min-height:1.6em;overflow-wrap:anywhere}"
  + ".fx .ln-go{background:var(--data);color:var(--ground)}.fx .ln-yes{color:var(--good);font-weight:600}"
  + ".fx .ln-no{color:var(--bad);text-decoration:underline dotted}"
  + ".fx input[type=text]{width:9.5em}"
  + ".fx progress{flex:1 1 8rem;accent-color:var(--data)}";
const scale = (from, to, ticks) => ({ from, to, log: from > 0, ticks: ticks.map((v) => [v, String(v)]) });
const LOSS = scale(5e-4, 10, [10, 1, 0.1, 0.01, 0.001]);
const STEP = scale(0, STEPS, [0, 100, 200, 300, STEPS]);
// of earlier runs, all grey
const DASHES = ["none", "6 4", "2 3"];

export default {
  render({ model, el, kit }) {
    const { make, button } = kit, set = settings(model.asked), runs = [], usual = model.get("word");
    const given = model.get("losses");
    let run = null, paused = false, work = null, head = -1, map = null, told = null, count = 1;

    const word = () => letters(field.value) || usual;
    const field = make("input", { type: "text", value: letters(model.asked.word ?? usual), maxlength: 12,
      spellcheck: "false", autocapitalize: "none", oninput: () => { work?.post({ word: word() }); keep(); } });
    const which = make("select", { onchange: () => change({ ...USUAL, seed: set.seed, size: set.size,
      ...EXPERIMENTS[which.value][1] }) },
      ...EXPERIMENTS.map(([name], i) => make("option", { value: i }, `${i + 1}. ${name}`)),
      make("option", { value: -1, hidden: true }, OTHER[0]));
    const controls = Object.entries(VALUES).map(([name, values]) => {
      const pick = (value) => change(settings({ ...set, [name]: value }));
      if (values[0]) {
        const box = make("input", { type: "checkbox", onchange: () => pick(Number(box.checked)) });
        return [make("label", {}, box, ` ${values[1]}`), () => { box.checked = set[name]; }];
      }
      const list = make("select", { "aria-label": name, onchange: () => pick(list.value) },
        ...Object.entries(values).map(([value, text]) => make("option", { value }, text)));
      return [list, () => { list.value = set[name]; }];
    });
    const seed = make("input", { type: "text", inputmode: "numeric", style: "width:4em",
      onchange: () => change(settings({ ...set, seed: seed.value })) });
    const question = make("div"), slow = make("p");
    const go = button("Start", () => (run && !run.done ? pause(!paused) : start()), { class: "ln-go" });
    const again = button("Another seed", () => { change({ seed: set.seed + 1 }); start(); });
    const bar = make("progress", { max: STEPS, value: 0, "aria-label": "steps" });
    const progress = make("p", { class: "fx-soft" }), written = make("p", { class: "fx-mono ln-word" });
    const curve = kit.chart.lines(kit, { label: "The loss at each step", xLabel: "step", yLabel: "loss (nats per token)" });
    const heads = make("div"), weights = make("div"), list = make("div"), voice = kit.voice();

    const keep = () => model.keep({ ...state(set), ...(word() === usual ? {} : { word: word() }) });

    /** Sets what is given, and asks about it. */
    function change(changes, quiet) {
      Object.assign(set, changes);
      for (const [, show] of controls) show();
      seed.value = set.seed;
      which.value = experiment(set);
      const [, , text, options] = EXPERIMENTS[which.value] ?? OTHER;
      voice.verdict.replaceChildren();
      question.replaceChildren(kit.guess({ voice, question: text, options: options.map(([name]) => [name, name]),
        act: "Now let it train to the end.",
        seen: () => (run?.done && run.name === named(set) ? outcome(run) : null) }).node);
      if (!quiet) keep();
    }

    function start() {
      work ??= workplace(kit, hear);
      const { size, ...changes } = set;
      run = { set: { ...set }, name: named(set), losses: [], word: word(), since: 0, first: null };
      slow.replaceChildren();
      voice.say(`It begins: ${run.name}, seed ${set.seed}.`);
      work.post({ go: { ...changes, ...(size === "small" ? SMALL : {}) }, run: runs.push(run), word: run.word, pause: false });
      pause(false);
    }

    function pause(to) {
      paused = to;
      work.post({ pause: to });
      go.textContent = paused ? "Go on" : "Pause";
    }

    function draw() {
      const line = (losses, style, name) => ({ name, style,
        points: losses.map((loss, i) => [i + 1, Math.min(LOSS.to, Math.max(LOSS.from, loss || LOSS.to))]) });
      const earlier = runs.filter((one) => one !== run).slice(-DASHES.length);
      const title = (one) => `${one.name}, seed ${one.set.seed}`;
      curve.set({ x: STEP, y: LOSS,
        series: [...(given && run ? [line(given.slice(0, run.losses.length), "stroke:var(--accent);stroke-width:1", "PyTorch, unchanged")] : []),
          ...earlier.map((one, i) => line(one.losses,
            `stroke:var(--soft);stroke-width:1.3;opacity:.8;stroke-dasharray:${DASHES[i]}`, title(one))),
          ...(run ? [line(run.losses, "stroke:var(--data)", title(run))] : [])] });
    }

    /** The map of a head, or the mean of all (-1). */
    function look() {
      if (head >= told.maps.length) head = -1;
      const { maps, word } = told, rows = [...word].reverse().concat("end"), columns = [...word, "end"];
      const value = (i, j) => (head < 0 ? mean(maps.map((one) => one[i][j])) : maps[head][i][j]);
      if (map?.word !== word) {
        map = kit.grid({ label: "Where it looks", rows, columns, size: "1.55rem",
          tell: (i, j) => `While it writes ${rows[i]}, it gives ${columns[j]} (place ${j + 1}) ${map.value(i, j).toFixed(2)}.` });
        map.word = word;
        weights.replaceChildren(map.node);
      }
      map.value = value;
      map.set(rows.map((_, i) => columns.map((_, j) => value(i, j))));
      if (count === maps.length) return;
      count = maps.length;
      heads.replaceChildren(kit.choice({ label: "head", value: head, options: [[-1, "mean"], ...maps.map((_, i) => [i, i + 1])],
        onchange: (to) => { head = to; look(); } }).node);
    }

    function hear({ data }) {
      if (data.run !== runs.length) return;
      const { step, text, word, first, done } = data, { losses } = run, news = run.first === null && first;
      if (word !== run.word) run.since = step;
      losses.splice(step - data.losses.length, STEPS, ...data.losses);
      told = Object.assign(run, data, { losses });
      bar.value = step;
      const target = [...word].reverse().join(""), left = run.seconds / step * (STEPS - step);
      written.replaceChildren(make("span", { class: "fx-soft" }, `${word} → `),
        ...[...text].map((letter, i) => make("span", { class: letter === target[i] ? "ln-yes" : "ln-no" }, letter)),
        text ? "" : "(nothing)");
      progress.textContent = `Step ${step} of ${STEPS}, ${percent(run.exact)} of new words right`
        + `${step ? `, loss ${round(last(run))}` : ""}${done || step < 10 ? "" : `, ${left.toFixed(0)} s left`}. `
        + `${run.kernel}, ${work.where}.${word.length === 9 ? "" : " In training words have nine letters."}`;
      if (step >= 10 && left > SLOW && !slow.firstChild && run.set.size === "book") {
        slow.append(button("Take a smaller model", () => { change({ size: "small" }); start(); }),
          " It needs a quarter of the time.");
      }
      draw();
      look();
      if (news) voice.say(`At step ${first} “${word}” is written backwards for the first time.`);
      if (!done) return;
      voice.say(ending(run, runs));
      slow.replaceChildren();
      go.textContent = "Start";
      list.replaceChildren(kit.table(["training", "seed", "loss", "right", "first right", "seconds"],
        runs.filter((one) => one.done).map((one) => [one.name, one.set.seed, round(last(one)), percent(one.exact),
          one.first ?? "–", one.seconds.toFixed(0)])));
    }

    // not while nobody looks
    document.addEventListener("visibilitychange", () => {
      if (run && !run.done && !paused) work.post({ pause: document.hidden });
    });
    el.append(make("style", {}, LOOK),
      make("div", { class: "fx-row" }, make("label", {}, "Experiment ", which)), question,
      make("div", { class: "fx-row" }, go, again, make("label", {}, "your word ", field), bar),
      progress, written,
      make("div", { class: "fx-cols", style: "--cols:minmax(14rem,1fr) minmax(0,auto)" }, curve.node,
        make("div", {}, make("p", { class: "fx-soft" }, "Letters written (rows) and read (columns)"), weights, heads)),
      voice.node, slow,
      kit.folded("Change a part", make("div", { class: "fx-row" }, ...controls.map(([node]) => node),
        make("label", {}, "seed ", seed)),
      make("p", { class: "fx-soft" }, "PyTorch draws otherwise: its seeds are other trainings.")),
      kit.folded("The trainings so far", list));
    const blank = [...word(), ""];
    told = { word: word(), maps: [blank.map(() => blank.map(() => 0))] };
    written.append(make("span", { class: "fx-soft" }, `${word()} → ?`));
    progress.append("Nothing runs before you press Start. Then this page trains an encoder "
      + "and a decoder, on 64 new words in each step.");
    voice.say("It has not begun.");
    change({}, true);
    draw();
    look();
  },
};
