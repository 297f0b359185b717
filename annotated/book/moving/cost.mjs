// cost: what a run needs, and how long a machine takes. The address has it all.
// needs: chart, handles

/** The parameters of a Transformer with d_ff = 4d and one shared matrix. */
export const parameters = ({ d, layers, vocab }) =>
  layers * (28 * d * d + 32 * d) + vocab * d;

/** Operations of a forward pass for a source and a target token. */
export function forward({ d, layers, vocab }, length = 28) {
  const attention = 4 * d * d, feed = 8 * d * d;
  const source = layers * (attention + feed) + layers * 2 * d * d;
  const target = layers * (attention + 2 * d * d + feed) + d * vocab;
  return 2 * (source + target + 2.5 * layers * 2 * d * length);
}

/** Operations of a run; the backward pass takes twice the forward pass. */
export const operations = (run) => 3 * run.tokens * forward(run) * run.steps;

/** Weights, gradients and Adam's two moments, in float32: bytes. */
export const state = (run) => 16 * parameters(run);

/** Hours on so many devices at so many TFLOP/s, of which a share is used. */
export const hours = (run) =>
  operations(run) / (run.devices * run.speed * 1e12 * run.share / 100) / 3600;

const SCALES = {
  d: [64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048],
  layers: [1, 2, 3, 4, 6, 8, 12, 16, 24],
  vocab: [500, 1000, 2000, 4000, 8000, 16000, 32000, 37000, 64000],
  tokens: [500, 1000, 2000, 5000, 10000, 25000, 50000, 100000, 400000],
  steps: [1000, 3000, 10000, 30000, 100000, 300000, 1000000],
  devices: [1, 2, 4, 8, 16, 64, 256, 1024],
  speed: [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 9.5, 20, 50, 100, 200, 500, 1000],
  share: [5, 10, 20, 30, 40, 50, 60, 80, 100],
};
const NAMES = { d: "width", layers: "layers in each stack", vocab: "vocabulary",
  tokens: "tokens per step", steps: "steps", devices: "devices", speed: "TFLOP/s of each",
  share: "share in use" };

/** What an address may ask of a setting: a number within reason, or else what it was. */
export function allowed(key, asked, otherwise) {
  const x = Number(asked), most = key === "share" ? 100 : 1000 * Math.max(...SCALES[key]);
  return x >= Math.min(...SCALES[key]) / 1000 && x <= most ? x : otherwise;
}

/** 3.3·10¹⁸ */
export function power(x) {
  const [digits, exponent] = x.toExponential(1).split("e");
  return `${digits}·10${[...String(+exponent)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`;
}

/** Hours as one says them. */
export function time(hours) {
  const pick = [[1 / 60, 3600, "seconds"], [1, 60, "minutes"], [48, 1, "hours"],
    [24 * 730, 1 / 24, "days"], [Infinity, 1 / 8766, "years"]];
  const [, times, unit] = pick.find(([most]) => hours < most);
  const value = hours * times;
  return `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} ${unit}`;
}

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const presets = model.get("presets"), paper = model.get("paper");
    const at = { ...presets.base };
    for (const key of Object.keys(at)) at[key] = allowed(key, model.asked[key], at[key]);
    let touched = false;
    const sliders = Object.fromEntries(Object.entries(SCALES).map(([key, list]) => {
      // a value of the address that no step of the slider has is kept
      const nearest = () => list.reduce((best, x, i) =>
        (Math.abs(Math.log(x / at[key])) < Math.abs(Math.log(list[best] / at[key])) ? i : best), 0);
      const slider = kit.range({ label: NAMES[key], min: 0, max: list.length - 1, value: nearest(),
        format: (i) => `${(list[i] === list[nearest()] ? at[key] : list[i]).toLocaleString("en",
          { maximumFractionDigits: key === "share" ? 0 : 2 })}${key === "share" ? " %" : ""}`,
        oninput: (i) => { at[key] = list[i]; touched = true; show(); } });
      return [key, { node: slider.node, place: () => slider.set(nearest()) }];
    }));
    const start = make("div", { class: "fx-row", role: "group", "aria-label": "Start from" },
      make("span", { class: "fx-soft" }, "Start from"),
      ...Object.entries(presets).map(([name, one]) => kit.button(name, () => set(one))));
    function set(to) {
      Object.assign(at, to);
      Object.values(sliders).forEach((slider) => slider.place());
      touched = true;
      show();
    }
    // the model as a block, whose corner is dragged
    const [most, high] = [Math.max(...SCALES.d), Math.max(...SCALES.layers)];
    const corner = (d, layers) => [30 + 250 * Math.min(1, d / most), 130 - 110 * Math.min(1, layers / high)];
    const near = (list, x) => list.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best));
    const block = kit.draw("svg", { viewBox: "0 0 300 150", style: "max-width:22rem", "aria-hidden": "true" });
    const hold = kit.handles.on(kit, block, "none");
    function drag([x, y]) {
      const d = near(SCALES.d, (x - 30) / 250 * most), layers = near(SCALES.layers, (130 - y) / 110 * high);
      if (d !== at.d || layers !== at.layers) set({ d, layers });
    }
    function draw({ d, layers }) {
      const [x, y] = corner(d, layers), [ours, theirs] = ["fill:var(--data);opacity:.35",
        "fill:none;stroke:var(--soft);stroke-dasharray:4 3"];
      const rect = ([x, y], style) => kit.draw("rect", { x: 30, y, width: x - 30, height: 130 - y, style });
      const text = (x, y, words, more) => kit.draw("text", { x, y, ...more }, words);
      block.replaceChildren(rect([x, y], ours), rect(corner(presets.base.d, presets.base.layers), theirs),
        kit.draw("path", { d: "M30 10V130H290", style: "fill:none;stroke:var(--line)" }),
        text(280, 145, `width ${d.toLocaleString("en")}`, { "text-anchor": "end" }),
        text(36, 14, `${layers} ${layers > 1 ? "layers" : "layer"} in each stack`));
      hold([{ place: [x, y], color: "var(--accent)", move: drag }]);
    }
    const bars = kit.chart.bars(kit, "Where the operations of a step go"), facts = make("div");
    const voice = kit.voice();

    function show() {
      const whole = forward(at), { d, layers, vocab } = at;
      const parts = [["feed-forward", 2 * layers * 16 * d * d], ["projections", 2 * layers * 12 * d * d],
        ["output", 2 * d * vocab]];
      parts.push(["mixing", whole - parts.reduce((sum, [, x]) => sum + x, 0)]);
      bars.set(parts.map(([name, x]) => [name, x / whole, `${(100 * x / whole).toFixed(1)} %`]));
      draw(at);
      const total = operations(at);
      facts.replaceChildren(kit.table(["", ""], [
        ["parameters", `${(parameters(at) / 1e6).toFixed(1)} million`],
        ["operations of a step", power(total / at.steps)],
        ["operations of the run", power(total)],
        ["weights, gradients, moments", `${(state(at) / 2 ** 30).toFixed(2)} GiB`],
        ["at full speed", time(hours({ ...at, share: 100 }))]]));
      voice.say(`This run needs ${power(total)} operations, ${(total / paper).toPrecision(2)} times `
        + `what the paper's base model needs, and takes ${time(hours(at))}.`);
      if (touched) model.keep(at);
    }

    el.append(
      kit.guess({ voice, question: "Twice as wide, all else equal: how many times the operations?", options: [
        ["twice", 2], ["between three and four times", 3], ["four times", 4]],
      act: "Now double the width, and nothing else.",
      begin() { set({ ...presets.base, d: 512 }); return { ...at }; },
      seen(was) {
        if (at.d !== 2 * was.d || Object.keys(was).some((key) => key !== "d" && at[key] !== was[key])) return null;
        const times = operations(at) / operations(was);
        return [times < 2.5 ? 2 : times < 3.9 ? 3 : 4, `From ${power(operations(was))} to ${power(operations(at))} `
          + `operations it is ${times.toFixed(1)} times as many. The layers’ matrices take four times as many, the `
          + "output layer over the vocabulary only twice."];
      },
      tell() { set({ ...at, d: 2 * at.d }); } }).node,
      start,
      make("div", { class: "fx-cols" },
        make("div", {}, make("p", { class: "fx-soft" }, "Drag the corner of the model (dashed: the paper’s base "
          + "model), or set all by numbers:"), block, ...Object.values(sliders).map((one) => one.node)),
        make("div", {}, facts, make("p", { class: "fx-soft" }, "Where they go:"), bars.node)),
      voice.node);
    show();
  },
};
