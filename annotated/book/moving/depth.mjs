// depth: a stack at its random start, by its layers, its norms and its residual sums.
// needs: chart, handles

const NORMS = { post: "after the sum", pre: "in the branch", none: "none" };
const NAMES = { post: "post-norm", pre: "pre-norm", none: "no norm" };
const COLORS = { post: "var(--data)", pre: "var(--good)", none: "var(--accent)" };
const DRAWN = { size: "size of the stream", alike: "how alike the positions are", gradient: "gradient of each network" };

/** The data has a stack by this name. */
export const key = ({ norm, sums }) => `${norm}${sums ? "" : "-bare"}`;

/** After the last of so many layers: size, likeness, and the first layer's gradient by the last's. */
export function facts(stack, layers) {
  const gradient = stack.gradient[layers];
  return { size: stack.size[layers - 1], alike: stack.alike[layers - 1], ratio: gradient[0] / gradient.at(-1) };
}

/** By what each layer after the first multiplies the size, on average. */
export const factor = (stack, layers) =>
  (stack.size[layers - 1] / stack.size[0]) ** (1 / Math.max(1, layers - 1));

const raised = (n) => [...String(n)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");

/** 50,000, 5.1, 0.54, and 4.1·10⁻⁷. */
export function say(x) {
  if (x >= 1e7 || x < 1e-3) {
    const [digits, exponent] = x.toExponential(1).split("e");
    return `${digits}·10${raised(+exponent)}`;
  }
  return x >= 99.5 ? (+x.toPrecision(2)).toLocaleString("en") : x.toPrecision(2);
}

export default {
  render({ model, el, kit }) {
    const { make } = kit, stacks = model.get("stacks"), learned = model.get("learned"), asked = model.asked;
    const DEPTHS = Object.keys(stacks.post.gradient).map(Number), most = DEPTHS.at(-1);
    const at = { norm: Object.hasOwn(NORMS, asked.norm) ? asked.norm : "post", sums: asked.sums !== "0",
      layers: DEPTHS.includes(Number(asked.layers)) ? Number(asked.layers) : most };
    let drawn = Object.hasOwn(DRAWN, asked.draw) ? asked.draw : "size", touched = false;
    const looked = new Map(); // the stacks whose curves are drawn
    const act = (to) => {
      Object.assign(at, to);
      touched = true;
      show();
    };
    const norm = kit.choice({ label: "Norm", value: at.norm, options: Object.entries(NORMS), onchange: (x) => act({ norm: x }) });
    const sums = kit.choice({ label: "Residual sum", value: at.sums, options: [[true, "with"], [false, "without"]],
      onchange: (x) => act({ sums: x }) });
    const layers = kit.range({ label: "layers", min: 0, max: DEPTHS.length - 1, value: DEPTHS.indexOf(at.layers),
      format: (i) => String(DEPTHS[i]), oninput: (i) => act({ layers: DEPTHS[i] }) });
    const pick = make("select", { "aria-label": "What is drawn", onchange: () => {
      drawn = pick.value;
      touched = true;
      show();
    } }, ...Object.entries(DRAWN).map(([name, text]) => make("option", { value: name }, text)));
    const chart = kit.chart.lines(kit, { label: "The chosen measure by layer; the table has its numbers",
      xLabel: "layer", yLabel: "" });
    const hold = kit.handles.on(kit, chart.svg, "pan-y"), numbers = make("div"), voice = kit.voice();
    const curve = (name) => (drawn === "gradient" ? stacks[name].gradient[at.layers] : stacks[name][drawn].slice(0, at.layers));

    function scale(values) {
      if (drawn === "alike") {
        return { from: Math.min(0, ...values), to: 1, ticks: [0, 0.5, 1].map((y) => [y, String(y)]) };
      }
      const [low, high] = [Math.min(0.5, ...values), Math.max(2, ...values)].map(Math.log10);
      const every = Math.max(1, Math.ceil((high - low) / 5)), first = Math.ceil(low / every) * every;
      const ticks = Array.from({ length: Math.floor((high - first) / every) + 1 }, (_, i) => first + i * every);
      return { from: 10 ** low, to: 10 ** high, log: true, ticks: ticks.map((n) => [10 ** n,
        Math.abs(n) < 3 ? String(+(10 ** n).toFixed(2)) : `10${raised(n)}`]) };
    }

    function show() {
      const here = key(at);
      norm.set(at.norm);
      sums.set(at.sums);
      layers.set(DEPTHS.indexOf(at.layers));
      pick.value = drawn;
      looked.set(here, { norm: at.norm, sums: at.sums });
      const series = [...looked].map(([name, one]) => ({ name: `${NAMES[one.norm]}${one.sums ? "" : ", no sum"}`,
        points: curve(name).map((y, i) => [i + 1, y]), style: `stroke:${COLORS[one.norm]}${one.sums ? "" : ";stroke-dasharray:6 4"}${
          name === here ? ";stroke-width:3" : ""}` }));
      const y = scale(series.flatMap((one) => one.points.map((point) => point[1])));
      const [px, py] = chart.set({ x: { from: 1, to: most, ticks: [1, 6, 12, 18, 24].filter((x) => x <= most).map((x) =>
        [x, String(x)]) }, y, series });
      hold([{ place: [px(at.layers), py(curve(here).at(-1))], color: "var(--accent)", move: ([x]) => {
        const near = DEPTHS.reduce((best, one) => (Math.abs(px(one) - x) < Math.abs(px(best) - x) ? one : best));
        if (near !== at.layers) act({ layers: near });
      } }]);
      numbers.replaceChildren(kit.table(["stack", "size", "alike", "first gradient by last"], [...looked].map(([name, one]) => {
        const { size, alike, ratio } = facts(stacks[name], at.layers);
        return [`${NAMES[one.norm]}${one.sums ? "" : ", no sum"}`, say(size), alike.toFixed(2), say(ratio)];
      })));
      numbers.firstChild.tabIndex = 0; // it may scroll
      const { size, alike, ratio } = facts(stacks[here], at.layers), many = `${at.layers} ${at.layers === 1 ? "layer" : "layers"}`;
      const run = learned.find((one) => one.layers === at.layers && one.norm === at.norm && one.sums === at.sums);
      voice.say(`${many}, ${NAMES[at.norm]}, ${at.sums ? "with" : "without"} residual sums: at the end the size of the stream is `
        + `${say(size)}, and the likeness of its positions ${alike.toFixed(2)}. ${at.layers === 1 ? ""
          : `The first layer’s gradient is ${say(ratio)} times the last’s. `}${run ? `A model with ${many} of this kind on each side, `
          + `trained to reverse words, got ${run.exact.map((x) => `${Math.round(100 * x)} %`).join(", ")} of them right (by seed).` : ""}`);
      if (touched) model.keep({ norm: at.norm, sums: +at.sums, layers: at.layers, draw: drawn });
    }

    const start = { norm: "post", sums: true, layers: most };
    el.append(
      kit.guess({ voice, question: `${most} layers, each with its residual sum and the norm after it: the size of the stream is 1. `
        + "Take the norms out. How large is it after the last layer?",
      options: [["less than 1", "small"], ["about 5", "some"], ["1,000 or more", "huge"]],
      act: "Now take the norms out, and leave the sums.",
      begin() { act(start); return facts(stacks.post, most); },
      seen(was) {
        if (at.norm !== "none" || !at.sums || at.layers !== most) return null;
        const now = facts(stacks.none, most);
        return [now.size < 1 ? "small" : now.size < 70 ? "some" : "huge", `From ${say(was.size)} it went to ${say(now.size)}: each `
          + `layer multiplies it by ${factor(stacks.none, most).toFixed(1)}, on average. The first layer’s gradient went from ${
            say(was.ratio)} times the last’s to ${say(now.ratio)} times.`];
      },
      tell() { act({ ...start, norm: "none" }); } }).node,
      norm.node, sums.node,
      make("div", { class: "fx-cols" },
        make("div", {}, make("label", {}, "Draw the ", pick), chart.node),
        make("div", {}, make("p", { class: "fx-soft" }, "Drag the dot along the layers, or by numbers:"), layers.node, numbers)),
      voice.node);
    show();
  },
};
