// dials: the learning rate of a run, by what one sets.
// needs: chart, handles

/** Equation 3, times a factor; steps count from 1. */
export const rate = (step, width, warmup, factor = 1) =>
  factor * width ** -0.5 * Math.min(step ** -0.5, step * warmup ** -1.5);

/** What brings the rate down to 0 over the last steps. */
export function cooling(step, last, steps) {
  if (!steps) return 1;
  return Math.min(1, Math.max(0, last - step + 1) / Math.min(steps, last));
}

/** The largest rate of a run, and the step that has it. */
export function peak(width, warmup, factor, last, cooldown) {
  let best = [1, 0];
  // after the warm-up the rate only falls, as the cool-down does
  for (let step = 1; step <= Math.min(last, warmup); step++) {
    const here = rate(step, width, warmup, factor) * cooling(step, last, cooldown);
    if (here > best[1]) best = [step, here];
  }
  return best;
}

const WIDTHS = [64, 128, 256, 512, 1024, 2048];
const WARMUPS = [100, 250, 500, 1000, 2000, 4000, 8000, 16000];
const FACTORS = [0.25, 0.5, 1, 2, 4];
const LASTS = [1000, 2000, 5000, 10000, 20000, 50000, 100000];
const COOLS = Array.from({ length: 21 }, (_, i) => 5 * i);

/** A rate as one writes it: 7.0·10⁻⁴. */
export function power(x) {
  if (!x) return "0";
  const [digits, exponent] = x.toExponential(1).split("e");
  const high = { "-": "⁻", ...Object.fromEntries([..."⁰¹²³⁴⁵⁶⁷⁸⁹"].map((c, i) => [i, c])) };
  return `${digits}·10${[...String(+exponent)].map((c) => high[c]).join("")}`;
}

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const paper = { ...model.get("paper"), factor: 1, cool: 0 };
    const lists = { width: WIDTHS, warmup: WARMUPS, factor: FACTORS, last: LASTS, cool: COOLS };
    const at = Object.fromEntries(Object.entries(paper).map(([key, value]) =>
      [key, lists[key].find((x) => x === Number(model.asked[key])) ?? value]));
    let touched = false;
    const count = (x) => x.toLocaleString("en");
    const dial = (key, label, format) => kit.range({ label, min: 0, max: lists[key].length - 1,
      value: lists[key].indexOf(at[key]), format: (i) => format(lists[key][i]),
      oninput: (i) => { at[key] = lists[key][i]; touched = true; show(); } });
    const dials = { width: dial("width", "width", count), warmup: dial("warmup", "warm-up", count),
      factor: dial("factor", "factor", (x) => `× ${x}`), last: dial("last", "steps", count),
      cool: dial("cool", "cool-down", (x) => `${x} %`) };
    function set(to) {
      Object.assign(at, to);
      for (const key in dials) dials[key].set(lists[key].indexOf(at[key]));
      show();
    }
    const near = (list, x) => list.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
    const drag = (key, value) => {
      if (at[key] === value) return;
      touched = true;
      set({ [key]: value });
    };
    const again = kit.button("The paper's", () => set(paper));
    const top = () => peak(at.width, at.warmup, at.factor, at.last, at.last * at.cool / 100);
    const chart = kit.chart.lines(kit, { label: "The learning rate by step; the sentence below reads it",
      xLabel: "step", yLabel: "learning rate, in 10⁻³" });
    const hold = kit.handles.on(kit, chart.svg, "pan-y"), voice = kit.voice();

    function curve({ width, warmup, factor, cool }, last) {
      const turns = [warmup, last - last * cool / 100].filter((x) => x >= 1 && x <= last);
      const steps = [...Array.from({ length: 201 }, (_, i) => Math.max(1, i * last / 200)), ...turns];
      return steps.sort((a, b) => a - b).map((s) =>
        [s, 1000 * rate(s, width, warmup, factor) * cooling(s, last, last * cool / 100)]);
    }

    function show() {
      const { width, warmup, factor, last, cool } = at;
      const series = [
        { name: "the paper's base model", points: curve(paper, last),
          style: "stroke:var(--soft);stroke-dasharray:5 4" },
        { name: "as set", points: curve(at, last), style: "stroke:var(--data)" }];
      const most = Math.max(...series.flatMap((one) => one.points.map(([, y]) => y)));
      const [step, high] = top();
      const cooled = Math.max(1, last - last * cool / 100);
      const end = rate(last, width, warmup, factor) * cooling(last, last, last * cool / 100);
      const [px, py] = chart.set({ x: { from: 0, to: last, ticks: [[0, "0"], [last / 2, count(last / 2)],
        [last * 0.97, count(last)]] },
      y: { from: 0, to: most * 1.05, ticks: kit.chart.ticks(most) }, series });
      const part = ([x]) => Math.min(1, Math.max(0, (x - px(0)) / (px(last) - px(0)))); // of the run
      hold([
        { place: [px(step), py(1000 * high)], color: "var(--accent)",
          move: (to) => drag("warmup", near(WARMUPS, last * part(to))) },
        { place: [px(cooled), py(1000 * rate(cooled, width, warmup, factor))], color: "var(--data)",
          move: (to) => drag("cool", 100 - 5 * Math.round(20 * part(to))) }]);
      voice.say(`The rate is largest in step ${count(step)}, ${power(high)}, and ${power(end)} in the `
        + `last; ${Math.round(100 * Math.min(1, warmup / last))} % of the run is warm-up.`);
      if (touched) model.keep(at);
    }

    el.append(
      kit.guess({ voice, question: "A model four times as wide, with the same warm-up: what is its peak?",
        options: [["the same", "same"], ["half as high", "half"], ["half as high, and later", "later"]],
        act: "Here is the paper’s. Now make it four times as wide, and change nothing else.",
        begin() { set(paper); return top(); },
        seen(was) {
          if (at.width !== 4 * paper.width || Object.keys(paper).some((key) => key !== "width"
            && at[key] !== paper[key])) return null;
          const now = top(), half = Math.abs(now[1] / was[1] - 0.5) < 0.01;
          return [half ? now[0] === was[0] ? "half" : "later" : "same", `The peak went from ${power(was[1])} in step `
            + `${count(was[0])} to ${power(now[1])} in step ${count(now[0])}. The width stands in front of the whole `
            + "formula, as one over its root; the warm-up alone says where the peak is."];
        },
        tell() { set({ ...paper, width: 4 * paper.width }); } }).node,
      make("div", { class: "fx-cols" },
        make("div", {}, make("p", { class: "fx-soft" },
          "Drag the two dots: the peak, and where the cool-down begins."), chart.node),
        make("div", {}, make("p", { class: "fx-soft" }, "Or by numbers:"), ...Object.values(dials).map((one) => one.node),
          make("div", { class: "fx-row" }, again))),
      voice.node);
    show();
  },
};
