// cost: what a run takes on a device, in hours, energy and money. The address has it all.
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

/** The share of a device's speed, in per cent, known at the most similar width. */
export function known(shares, d) {
  const width = Object.keys(shares).map(Number).reduce((best, one) =>
    (Math.abs(one - d) < Math.abs(best - d) ? one : best));
  return { width, share: 100 * shares[width] };
}

/** Hours on so many devices at so many TFLOP/s, of which a share is used. */
export const hours = (run) =>
  operations(run) / (run.devices * run.speed * 1e12 * run.share / 100) / 3600;

/** Hours, kilowatt-hours, and dollars: of rent, or of electricity alone. */
export function bill(run) {
  const time = hours(run), energy = time * run.devices * run.watts * run.overhead / 1000;
  return { hours: time, energy, rent: time * run.devices * run.rent, electricity: energy * run.kwh };
}

const SCALES = {
  d: [64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048],
  layers: [1, 2, 3, 4, 6, 8, 12, 16, 24],
  vocab: [500, 1000, 2000, 4000, 8000, 16000, 32000, 37000, 64000],
  tokens: [500, 1000, 1500, 2000, 5000, 10000, 25000, 50000, 100000, 400000],
  steps: [1000, 3000, 10000, 30000, 100000, 300000, 1000000],
  devices: [1, 2, 4, 8, 16, 64, 256, 1024],
  share: Array.from({ length: 100 }, (_, i) => i + 1),
};
const NAMES = { d: "width", layers: "layers in each stack", vocab: "vocabulary",
  tokens: "tokens per step", steps: "steps", devices: "devices", share: "share of the peak" };
const FIELDS = { speed: "TFLOP/s of one", watts: "watts of one", rent: "$ per hour of one",
  kwh: "$ per kWh", overhead: "data centre’s factor" };
const BOUNDS = { speed: [1e-4, 1e6], watts: [0, 1e6], rent: [0, 1e5], kwh: [0, 100], overhead: [1, 10] };
const OWN = "your own";

/** What an address or a field may ask of a setting: a number within reason, or else what it was. */
export function allowed(key, asked, otherwise) {
  const x = asked == null || !String(asked).trim() ? NaN : Number(asked), list = SCALES[key];
  const [least, most] = BOUNDS[key] ?? [Math.min(...list) / 1000, key === "share" ? 100 : 1000 * Math.max(...list)];
  return x >= least && x <= most ? x : otherwise;
}

/** 3.3·10¹⁸ */
export function power(x) {
  const [digits, exponent] = x.toExponential(1).split("e");
  return `${digits}·10${[...String(+exponent)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("")}`;
}

/** Hours as one says them. */
export function time(hours) {
  const pick = [[1 / 60, 3600, "seconds"], [1, 60, "minutes"], [48, 1, "hours"],
    [24 * 730, 1 / 24, "days"], [Infinity, 1 / 8766, "years"]];
  const [, times, unit] = pick.find(([most]) => hours < most);
  return `${two(hours * times)} ${unit}`;
}

/** Two digits, or all of those before the point. */
export function two(x) {
  const digits = x >= 9.95 ? 0 : x >= 0.995 || x === 0 ? 1 : x >= 0.0995 ? 2 : 3;
  return (digits ? x : Math.round(x)).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Dollars, with cents below ten. */
export const dollars = (x) => (x > 0 && x < 0.01 ? "less than a cent" : `$${x < 9.995 ? x.toFixed(2)
  : Math.round(x).toLocaleString("en")}`);

export default {
  render({ model, el, kit }) {
    const { make } = kit, asked = model.asked;
    const presets = model.get("presets"), devices = model.get("devices"), papers = model.get("papers");
    const at = { ...model.get("prices") };
    // a share that is null is the one that is known of the device
    const numbers = (name) => (({ count, speed, watts, rent }) => ({ devices: count, speed, watts, rent, share: null }))(devices[name]);
    Object.assign(at, presets.base, numbers(presets.base.device));
    if (Object.hasOwn(devices, asked.device)) Object.assign(at, { device: asked.device }, numbers(asked.device));
    else if (asked.device === OWN || "speed" in asked) Object.assign(at, { device: OWN, share: now().share });
    for (const key of Object.keys({ ...SCALES, ...FIELDS })) {
      if (key in asked && (key !== "speed" || at.device === OWN)) at[key] = allowed(key, asked[key], at[key]);
    }
    let touched = false;
    /** The run with its share, and where that comes from. */
    function now() {
      if (at.share !== null) return { ...at, why: "set by you" };
      const { shares, how } = devices[at.device], { width, share } = known(shares, at.d);
      return { ...at, share, why: width === at.d ? how : `an estimate: ${how} at width ${width.toLocaleString("en")}` };
    }
    function set(to) {
      Object.assign(at, to);
      touched = true;
      Object.values(sliders).forEach((slider) => slider.place());
      Object.values(fields).forEach((field) => field.place());
      show();
    }
    function choose(name) {
      set(name === OWN ? { device: OWN, share: now().share } : { device: name, ...numbers(name) });
    }

    const sliders = Object.fromEntries(Object.entries(SCALES).map(([key, list]) => {
      // a value of the address that no step of the slider has is kept
      const nearest = () => list.reduce((best, x, i) =>
        (Math.abs(Math.log(x / now()[key])) < Math.abs(Math.log(list[best] / now()[key])) ? i : best), 0);
      const slider = kit.range({ label: NAMES[key], min: 0, max: list.length - 1, value: nearest(),
        format: (i) => `${(list[i] === list[nearest()] ? now()[key] : list[i]).toLocaleString("en",
          { maximumFractionDigits: key === "share" ? 0 : 2 })}${key === "share" ? " %" : ""}`,
        oninput: (i) => set({ [key]: list[i] }) });
      return [key, { node: slider.node, place: () => slider.set(nearest()) }];
    }));
    const fields = Object.fromEntries(Object.entries(FIELDS).map(([key, label]) => {
      const input = make("input", { type: "text", inputmode: "decimal", size: 6, oninput: () => {
        at[key] = allowed(key, input.value.trim().replace(",", "."), at[key]);
        touched = true;
        show();
      }, onchange: () => place() });
      const place = () => { input.value = +at[key].toPrecision(4); };
      place();
      return [key, { node: make("label", {}, `${label} `, input), place }];
    }));
    const start = make("div", { class: "fx-row", role: "group", "aria-label": "Start from" },
      make("span", { class: "fx-soft" }, "Start from"), ...Object.entries(presets).map(([name, one]) =>
        kit.button(name, () => set({ ...one, ...numbers(one.device) }))));
    const device = kit.choice({ label: "On", value: at.device, onchange: choose,
      options: [...Object.keys(devices), OWN].map((name) => [name, name]) });
    const own = make("div", { class: "fx-row" }, fields.speed.node);

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

    // speed times time is the run: one line, and on it all devices
    const chart = kit.chart.lines(kit, { label: "Speed in use against time: the run is a falling line, on which all "
      + "devices lie; the table has the numbers of the chosen one", xLabel: "time", yLabel: "TFLOP/s in use, of all devices" });
    const pull = kit.handles.on(kit, chart.svg, "pan-y");
    const UNITS = [[1 / 3600, "1 s"], [1 / 60, "1 min"], [1, "1 h"], [24, "1 day"], [720, "1 month"], [8766, "1 year"],
      [87660, "10 years"], [876600, "100 years"]];
    function plot(run) {
      const total = operations(run) / 3.6e15; // in TFLOP/s times hours
      const all = Object.entries(devices).map(([name, one]) =>
        [name, one.count * one.speed * known(one.shares, at.d).share / 100]);
      const used = run.devices * run.speed * run.share / 100, peak = run.devices * run.speed;
      const speeds = [...all.map(([, speed]) => speed), used, peak];
      const [low, top] = [Math.min(...speeds) / 2, Math.max(...speeds) * 2];
      const list = UNITS.filter(([h]) => h >= total / top && h <= total / low);
      const ticks = [];
      for (let e = Math.ceil(Math.log10(low)); 10 ** e <= top; e++) ticks.push([10 ** e, e < 4 ? String(+(10 ** e).toPrecision(1)) : power(10 ** e).replace("1.0·", "")]);
      const [from, to] = [total / top, total / low];
      const [px, py] = chart.set({ x: { from, to, log: true, ticks: list }, y: { from: low, to: top, log: true, ticks },
        series: [{ points: [[from, top], [to, low]], style: "stroke:var(--data)" },
          { name: "its peak", points: [[from, peak], [to, peak]], style: "stroke:var(--soft);stroke-dasharray:4 3" }] });
      for (const [name, speed] of all) {
        if (name === at.device) continue;
        const [x, y] = [px(total / speed), py(speed)], left = x > 210;
        chart.svg.append(kit.draw("circle", { cx: x, cy: y, r: 4, style: "fill:var(--data)" }), kit.draw("text",
          { x: x + (left ? -8 : 8), y: y + (left ? 12 : -4), "text-anchor": left ? "end" : "start", style: "fill:var(--soft);font-size:11px" }, name));
      }
      pull([{ place: [px(total / used), py(used)], color: "var(--accent)", move([x]) {
        const share = SCALES.share.reduce((best, one) =>
          (Math.abs(px(total / peak * 100 / one) - x) < Math.abs(px(total / peak * 100 / best) - x) ? one : best));
        if (share !== at.share) set({ share });
      } }]);
    }

    const bars = kit.chart.bars(kit, "Where the operations of a step go"), facts = make("div"), costs = make("div");
    const why = make("p", { class: "fx-soft" }), voice = kit.voice();
    const whose = ({ device, devices: n }) => (device === OWN ? `${n} × a device of your own`
      : n === devices[device].count ? device : `${n} × ${device.replace(/^\d+ × /, "")}`);

    function show() {
      const run = now(), whole = forward(at), { d, layers, vocab } = at, total = operations(at), cost = bill(run);
      const parts = [["feed-forward", 2 * layers * 16 * d * d], ["projections", 2 * layers * 12 * d * d],
        ["output", 2 * d * vocab]];
      parts.push(["mixing", whole - parts.reduce((sum, [, x]) => sum + x, 0)]);
      bars.set(parts.map(([name, x]) => [name, x / whole, `${(100 * x / whole).toFixed(1)} %`]));
      facts.replaceChildren(kit.table(["", ""], [
        ["parameters", `${(parameters(at) / 1e6).toFixed(1)} million`],
        ["operations of a step", power(total / at.steps)],
        ["pairs of tokens in all", power(at.tokens * at.steps)],
        ["weights, gradients, moments", `${(state(at) / 2 ** 30).toFixed(2)} GiB`]]));
      device.set(at.device);
      own.hidden = at.device !== OWN;
      why.textContent = `${Math.round(run.share)} % of ${two(run.speed)} TFLOP/s each, ${run.why}.`;
      draw(at);
      plot(run);
      const rows = [["operations it needs", "needs", power], ["paid for, as in Table 2", "paid", power],
        ["time", "hours", time], ["energy in kWh", "energy", two], ["rent", "rent", dollars],
        ["electricity alone", "electricity", dollars]];
      const columns = [{ ...cost, needs: total, paid: total / run.share * 100 }, ...Object.values(papers).map((one) =>
        ({ ...one, energy: one.kwh, electricity: one.kwh * at.kwh }))];
      costs.replaceChildren(kit.table(["", "this run", ...Object.keys(papers).map((name) => `the paper’s ${name}`)],
        rows.map(([name, key, form]) => [name, ...columns.map((one) => form(one[key]))])));
      costs.firstChild.tabIndex = 0; // it may scroll
      const { base } = papers;
      voice.say(`On ${whose(run)}, at ${Math.round(run.share)} % of the peak, this run takes ${time(cost.hours)} and `
        + `${two(cost.energy)} kWh, which is ${dollars(cost.rent)} to rent or ${dollars(cost.electricity)} of electricity; `
        + `the paper’s base model took ${time(base.hours)}, ${two(base.kwh)} kWh and ${dollars(base.rent)}.`);
      if (touched) model.keep(Object.fromEntries(Object.entries(at).filter(([, value]) => value !== null)));
    }

    const target = Object.keys(devices).find((name) => name.startsWith("H100"));
    const same = (was) => ["d", "layers", "vocab", "tokens", "steps"].every((key) => at[key] === was[key]);
    el.append(
      kit.guess({ voice, question: `The paper’s base model took ${two(papers.base.kwh)} kWh on eight P100s. One H100 may draw `
        + "four times as much as one of those. What does it need for the same run?", options: [
        ["about as much", 1], ["a third of that", 3], ["a tenth of that", 10]],
      act: "Now choose the H100, and nothing else.",
      begin() { set({ ...presets.base, ...numbers(presets.base.device), ...model.get("prices") }); return { ...at, bill: bill(now()) }; },
      seen(was) {
        if (at.device !== target || at.devices !== 1 || at.share !== null || !same(was)) return null;
        const cost = bill(now()), times = was.bill.energy / cost.energy;
        return [times < 2 ? 1 : times < 6 ? 3 : 10, `From ${two(was.bill.energy)} to ${two(cost.energy)} kWh, ${
          times.toFixed(0)} times less: the H100 draws ${(at.watts / was.watts).toFixed(1)} times as much as one of the eight, `
          + `but alone, and for ${time(cost.hours)} instead of ${time(was.bill.hours)}.`];
      },
      tell() { choose(target); } }).node,
      start, device.node, own,
      make("div", { class: "fx-cols" },
        make("div", {}, make("p", { class: "fx-soft" }, "Drag the dot along the run: how much of its peak the device reaches."),
          chart.node, sliders.share.node, why, sliders.devices.node),
        make("div", {}, make("p", { class: "fx-soft" }, "Drag the corner of the model (dashed: the paper’s base model)."),
          block, kit.folded("The run by numbers", ...["d", "layers", "vocab", "tokens", "steps"].map((key) => sliders[key].node),
            facts, make("p", { class: "fx-soft" }, "Where the operations go:"), bars.node))),
      make("div", { class: "fx-row", role: "group", "aria-label": "Assumptions", style: "margin:.9rem 0 .6rem" },
        make("span", { class: "fx-soft" }, "Assumed:"), ...["watts", "overhead", "rent", "kwh"].map((key) => fields[key].node)),
      costs, voice.node);
    show();
  },
};
