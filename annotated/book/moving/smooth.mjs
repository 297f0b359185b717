// smooth: the loss of a smoothed label by the probability that a model gives it.
// needs: chart, handles

/** What smoothing asks for: of the label, and of any other word. */
export const target = (epsilon, vocab) => ({ label: 1 - epsilon + epsilon / vocab, other: epsilon / vocab });

/** The cross-entropy, if the label gets p and the others share the rest evenly. */
export function loss(p, epsilon, vocab) {
  const { label, other } = target(epsilon, vocab);
  const rest = other ? (vocab - 1) * other * Math.log((1 - p) / (vocab - 1)) : 0;
  return -label * Math.log(p) - rest;
}

/** The lowest loss, which is the entropy of the target. */
export const floor = (epsilon, vocab) => (epsilon ? loss(target(epsilon, vocab).label, epsilon, vocab) : 0);

/** The gradient of the label's logit: the next step lowers it where this is positive. */
export const slope = (p, epsilon, vocab) => p - target(epsilon, vocab).label;

/** The place that came true, by where the lowest point is. */
export const lowest = (epsilon, vocab) => {
  const { label } = target(epsilon, vocab);
  return label < 0.7 ? "half" : label < 0.97 ? "nine" : "one";
};

const EPSILONS = [0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4], VOCABS = [8, 1000, 37000];
const FROM = 0.3, TO = 0.999;

const small = (x) => (x === 0 ? "0" : x < 0.001 ? x.toExponential(1).replace("e-", "·10⁻").replace(/⁻(\d)$/, (_, n) =>
  `⁻${"⁰¹²³⁴⁵⁶⁷⁸⁹"[n]}`) : x.toFixed(3));
const number = (n) => n.toLocaleString("en");

export default {
  render({ model, el, kit }) {
    const { make } = kit, asked = model.asked;
    const of = (list, x, otherwise) => (list.includes(Number(x)) ? Number(x) : otherwise);
    const at = { epsilon: of(EPSILONS, asked.epsilon, model.get("epsilon")), vocab: of(VOCABS, asked.vocab, model.get("vocab")),
      p: Number(asked.p) >= FROM && Number(asked.p) <= TO ? Number(asked.p) : 0.5 };
    let touched = false;
    const looked = new Set();
    const act = (to) => {
      Object.assign(at, to);
      touched = true;
      show();
    };
    const epsilon = kit.range({ label: "ε", min: 0, max: EPSILONS.length - 1, value: EPSILONS.indexOf(at.epsilon),
      format: (i) => String(EPSILONS[i]), oninput: (i) => act({ epsilon: EPSILONS[i] }) });
    const p = kit.range({ label: "label’s probability", min: 1000 * FROM, max: 1000 * TO, value: 1000 * at.p,
      format: (x) => (x / 1000).toFixed(3), oninput: (x) => act({ p: x / 1000 }) });
    const vocab = kit.choice({ label: "Vocabulary", options: VOCABS.map((n) => [n, number(n)]), value: at.vocab,
      onchange: (n) => act({ vocab: n }) });
    const chart = kit.chart.lines(kit, { label: "Loss by the probability of the label, for each ε that was looked at",
      xLabel: "probability of the label", yLabel: "loss (nats)" });
    const hold = kit.handles.on(kit, chart.svg, "pan-y"), bars = kit.chart.bars(kit, "Asked for, and said"), voice = kit.voice();

    function show() {
      epsilon.set(EPSILONS.indexOf(at.epsilon));
      p.set(1000 * at.p);
      vocab.set(at.vocab);
      looked.add(at.epsilon);
      const curve = (e) => Array.from({ length: 141 }, (_, i) => FROM + (TO - FROM) * i / 140).map((x) => [x, loss(x, e, at.vocab)]);
      const drawn = [...looked].sort((a, b) => a - b), most = Math.max(...drawn.flatMap((e) => curve(e).map((point) => point[1])));
      const [px, py] = chart.set({ x: { from: FROM, to: 1, ticks: [0.4, 0.6, 0.8, 1].map((x) => [x, String(x)]) },
        y: { from: 0, to: most, ticks: kit.chart.ticks(most) },
        series: drawn.map((e) => ({ name: `ε = ${e}`, points: curve(e),
          style: e === at.epsilon ? "stroke:var(--data);stroke-width:3" : "stroke:var(--soft)" })) });
      const now = loss(at.p, at.epsilon, at.vocab);
      hold([{ place: [px(at.p), py(now)], color: "var(--accent)", move: ([x]) => {
        const to = FROM + (1 - FROM) * (x - px(FROM)) / (px(1) - px(FROM));
        act({ p: Math.round(1000 * Math.min(TO, Math.max(FROM, to))) / 1000 });
      } }]);
      const wanted = target(at.epsilon, at.vocab), others = 1 - at.p, push = slope(at.p, at.epsilon, at.vocab);
      const still = Math.abs(push) < 0.0005;
      bars.set([["label, asked for", wanted.label, wanted.label.toFixed(3)], ["label, said", at.p, at.p.toFixed(3), "var(--accent)"],
        ["others, asked for", 1 - wanted.label, (1 - wanted.label).toFixed(3)], ["others, said", others, others.toFixed(3), "var(--accent)"]]);
      const least = floor(at.epsilon, at.vocab), where = at.epsilon ? `, where the label has ${wanted.label.toFixed(3)}`
        : ", which takes a probability of 1";
      voice.say(`With ε = ${at.epsilon} and ${number(at.vocab)} words the loss is ${now.toFixed(3)} at ${at.p.toFixed(3)}, and at best `
        + `${least.toFixed(3)}${where}. Each other word should get ${small(wanted.other)}. The gradient of the label’s logit is ${
          still ? "" : push > 0 ? "+" : "−"}${Math.abs(push).toFixed(3)}: ${still ? "nothing pushes" : push > 0
          ? "a step makes the model less sure" : "a step makes the model surer"}.`);
      if (touched) model.keep(at);
    }

    el.append(
      kit.guess({ voice, question: "Without smoothing the loss falls all the way to a probability of 1. Where is its lowest point "
        + "with ε = 0.1?",
      options: [["still at 1, but higher", "one"], ["just above 0.9", "nine"], ["at 0.5", "half"]],
      act: "Now set ε to 0.1, and move the dot to the lowest point.",
      begin() { act({ epsilon: 0, vocab: model.get("vocab"), p: 0.5 }); return { sure: loss(0.99, 0, at.vocab) }; },
      seen(was) {
        if (at.epsilon !== 0.1 || Math.abs(slope(at.p, 0.1, at.vocab)) > 0.005) return null;
        const { label } = target(0.1, at.vocab);
        return [lowest(0.1, at.vocab), `The loss is lowest, ${floor(0.1, at.vocab).toFixed(3)}, where the model says what it is asked `
          + `for, ${label.toFixed(3)}. At 0.99 it is ${loss(0.99, 0.1, at.vocab).toFixed(3)}; without smoothing it was ${
            was.sure.toFixed(3)} there. To be surer than the target costs.`];
      },
      tell() { act({ epsilon: 0.1, p: Math.round(1000 * target(0.1, at.vocab).label) / 1000 }); } }).node,
      make("div", { class: "fx-cols" }, chart.node,
        make("div", {}, make("p", { class: "fx-soft" }, "Drag the dot along the curve, or by numbers:"), epsilon.node, p.node,
          vocab.node, make("div", { style: "margin-top:.8rem" }, bars.node))),
      voice.node);
    show();
  },
};
