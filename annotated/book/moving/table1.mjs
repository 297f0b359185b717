// table1: the four layers of Table 1, and dilated convolutions, for n, d, k and r.
// needs: chart, handles

/** Multiplications of a layer, products in a row, layers or steps to the farthest pair. */
export const LAYERS = {
  "self-attention": ({ n, d }) => ({ work: 2 * n * n * d, row: 2, path: 1, layers: 1 }),
  recurrent: ({ n, d }) => ({ work: 2 * n * d * d, row: n, path: n - 1, layers: 1 }),
  convolutional: ({ n, d, k }) => stack(k * n * d * d, 1, Math.ceil((n - 1) / (k - 1))),
  dilated: ({ n, d, k }) => stack(k * n * d * d, 1, steps(n, k)),
  restricted: ({ n, d, r }) => stack(2 * (2 * Math.floor(r / 2) + 1) * n * d, 2,
    Math.ceil((n - 1) / Math.floor(r / 2))),
};

const stack = (work, row, path) => ({ work, row, path, layers: path });

/** How often n is to be divided by k until one is left, rounded up. */
function steps(n, k) {
  let count = 0;
  for (let reach = 1; reach < n; reach *= k) count++;
  return count;
}

/** Everything that is shown of a layer; `all` is the work until every pair is connected. */
export function facts(name, at) {
  const { work, row, path, layers } = LAYERS[name](at);
  return { work, row, path, all: work * layers };
}

/** 5.4·10⁸, and small numbers as they are. */
export function power(x) {
  if (x < 1e5) return x.toLocaleString("en");
  const [digits, exponent] = x.toExponential(1).split("e");
  return `${digits}·10${[...String(+exponent)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`;
}

const SCALES = { n: [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
  d: [32, 64, 128, 256, 512, 1024, 2048], k: [3, 5, 7, 9, 15, 31], r: [3, 5, 9, 17, 33, 65, 129, 257] };
const LABELS = { n: "n, length", d: "d, width", k: "k, kernel", r: "r, window" };
const COLUMNS = { work: "multiplications of a layer", row: "products in a row", path: "longest path",
  all: "multiplications for all pairs" };
const STYLES = { "self-attention": "stroke:var(--data);stroke-width:3", recurrent: "stroke:var(--ink)",
  convolutional: "stroke:var(--good)", dilated: "stroke:var(--good);stroke-dasharray:6 4",
  restricted: "stroke:var(--accent);stroke-dasharray:2 3" };

export default {
  render({ model, el, kit }) {
    const { make } = kit, names = Object.keys(LAYERS), asked = model.asked;
    const at = { ...model.get("start") };
    for (const key of Object.keys(SCALES)) if (SCALES[key].includes(Number(asked[key]))) at[key] = Number(asked[key]);
    let column = Object.hasOwn(COLUMNS, asked.column) ? asked.column : "work", touched = false;
    const act = (to) => {
      Object.assign(at, to);
      touched = true;
      for (const key of Object.keys(SCALES)) dials[key].set(SCALES[key].indexOf(at[key]));
      show();
    };
    const dials = Object.fromEntries(Object.entries(SCALES).map(([key, list]) => [key, kit.range({ label: LABELS[key],
      min: 0, max: list.length - 1, value: list.indexOf(at[key]), format: (i) => list[i].toLocaleString("en"),
      oninput: (i) => act({ [key]: list[i] }) })]));
    const pick = make("select", { "aria-label": "What is drawn", onchange: () => {
      column = pick.value;
      touched = true;
      show();
    } }, ...Object.entries(COLUMNS).map(([key, text]) => make("option", { value: key }, text)));
    const chart = kit.chart.lines(kit, { label: "The chosen column of the table by length; the table has its numbers",
      xLabel: "n", yLabel: "" });
    const hold = kit.handles.on(kit, chart.svg, "pan-y"), numbers = make("div"), voice = kit.voice();

    function show() {
      const { n, d, r } = at, list = SCALES.n, ends = [list[0], list[list.length - 1]];
      pick.value = column;
      const series = names.map((name) => ({ name, style: STYLES[name],
        points: list.map((length) => [length, facts(name, { ...at, n: length })[column]]) }));
      const values = series.flatMap((one) => one.points.map(([, y]) => y));
      const [low, high] = [Math.min(...values), Math.max(...values, 10)].map(Math.log10);
      const every = Math.max(1, Math.ceil((high - low) / 5));
      const ticks = Array.from({ length: Math.floor((high - Math.ceil(low)) / every) + 1 }, (_, i) =>
        10 ** (Math.ceil(low) + i * every));
      const [px, py] = chart.set({ x: { from: ends[0], to: ends[1], log: true,
        ticks: list.filter((_, i) => i % 4 === 0).map((x) => [x, x.toLocaleString("en")]) },
      y: { from: 10 ** low, to: 10 ** high, log: true, ticks: ticks.map((y) => [y, y < 1e4 ? String(y)
        : power(y).replace("1.0·", "")]) }, series });
      hold([{ place: [px(n), py(facts("self-attention", at)[column])], color: "var(--accent)",
        move: ([x]) => {
          const near = list.reduce((best, one) => (Math.abs(px(one) - x) < Math.abs(px(best) - x) ? one : best));
          if (near !== at.n) act({ n: near });
        } }]);
      numbers.replaceChildren(kit.table(["layer", "of a layer", "in a row", "longest path", "all pairs"],
        names.map((name) => {
          const { work, row, path, all } = facts(name, at);
          return [name, power(work), power(row), power(path), power(all)];
        })));
      numbers.firstChild.tabIndex = 0; // it may scroll
      const [attends, recurs, narrow] = ["self-attention", "recurrent", "restricted"].map((name) => facts(name, at));
      voice.say(`At n = ${n.toLocaleString("en")} and d = ${d.toLocaleString("en")} a layer of self-attention takes `
        + `${power(attends.work)} multiplications, a recurrent one ${power(recurs.work)}: they are equal at n = ${
          d.toLocaleString("en")}. The signal of the first position is one step from the last, instead of ${
          power(recurs.path)}. A window of ${r} takes ${power(narrow.work)} a layer, and ${power(narrow.all)} in the ${
          power(narrow.path)} ${narrow.path === 1 ? "layer" : "layers"} that connect them.`);
      if (touched) model.keep({ ...at, column });
    }

    const start = { n: 1024, d: 512, k: 3, r: 33 };
    const same = () => ["n", "d"].every((key) => at[key] === start[key]);
    el.append(
      kit.guess({ voice, question: "1,024 positions, and each attends to 33 around it: the work of a layer is a fraction "
        + "of full attention’s. How much work is it until the last position has heard of the first?",
      options: [["less than full attention", "less"], ["as much", "same"], ["more", "more"]],
      act: "Now draw the multiplications for all pairs, with a window of 33.",
      begin() {
        column = "work";
        act({ ...start, r: 3 });
        return null;
      },
      seen() {
        if (column !== "all" || at.r !== start.r || !same()) return null;
        const [full, narrow] = ["self-attention", "restricted"].map((name) => facts(name, at));
        const times = narrow.all / full.all;
        return [times < 0.8 ? "less" : times < 1.25 ? "same" : "more", `A layer takes ${power(narrow.work)} instead of `
          + `${power(full.work)} multiplications, but it takes ${narrow.path} of them to get across: ${power(narrow.all)}, `
          + `${times.toFixed(1)} times full attention’s. A window saves where far positions need not hear of each other.`];
      },
      tell() { column = "all"; act(start); } }).node,
      make("div", { class: "fx-cols" },
        make("div", {}, make("label", {}, "Draw the ", pick), chart.node),
        make("div", {}, make("p", { class: "fx-soft" }, "Drag the dot along n, or by numbers:"),
          ...Object.values(dials).map((dial) => dial.node))),
      numbers, voice.node);
    show();
  },
};
