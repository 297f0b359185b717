// scale: one query and eight keys of growing width, with 1/√d_k and without.
// needs: chart

/** The weights of a row of dot products, divided by √d_k or not. */
export function weigh(products, width, factor) {
  const scores = products.map((x) => (factor ? x / Math.sqrt(width) : x));
  const most = Math.max(...scores);
  const exps = scores.map((x) => Math.exp(x - most));
  const total = exps.reduce((a, b) => a + b, 0);
  return exps.map((x) => x / total);
}

/** How undecided the weights are, in nats. */
export const entropy = (p) => p.reduce((sum, x) => (x > 0 ? sum - x * Math.log(x) : sum), 0);

/** The mean over all queries of the Jacobian's norm, at one of the widths. */
export const passing = (products, place, width, factor) => products.reduce((sum, rows) =>
  sum + jacobian(weigh(rows[place], width, factor)), 0) / products.length;

/** The Frobenius norm of the softmax's Jacobian, diag(p) − ppᵀ. */
export function jacobian(p) {
  let sum = 0;
  p.forEach((a, i) => p.forEach((b, j) => { sum += ((i === j) * a - a * b) ** 2; }));
  return Math.sqrt(sum);
}

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const widths = model.get("widths"), products = model.get("products"); // [query][width][key]
    let query = Object.keys(products).includes(model.asked.query) ? Number(model.asked.query) : 0, touched = false;
    let place = Math.max(0, widths.indexOf(Number(model.asked.d ?? 64)));
    let factor = model.asked.factor !== "no";

    const width = kit.range({ label: "d_k", min: 0, max: widths.length - 1, value: place,
      format: (i) => String(widths[i]), oninput: (i) => { place = i; act(); } });
    const which = kit.choice({ label: "Divide by √d_k", value: factor ? "yes" : "no",
      options: [["yes", "yes"], ["no", "no"]],
      onchange: (to) => { factor = to === "yes"; act(); } });
    const another = kit.button("Another query", () => {
      query = (query + 1) % products.length;
      act();
    });
    const bars = kit.chart.bars(kit, "Weights of the eight keys");
    const chart = kit.chart.lines(kit, { label: "The norm of the Jacobian by width, with the factor and without",
      xLabel: "d_k", yLabel: `norm of the softmax's Jacobian, mean of ${products.length}` });
    const voice = kit.voice();

    function set(to, divided) {
      [place, factor] = [to, divided];
      width.set(place);
      which.set(factor ? "yes" : "no");
      act();
    }

    const facts = () => {
      const p = weigh(products[query][place], widths[place], factor);
      return { d: widths[place], most: Math.max(...p), count: p.filter((w) => w >= 0.05).length };
    };

    function act() {
      touched = true;
      show();
    }

    function show() {
      const d = widths[place], row = products[query][place];
      const p = weigh(row, d, factor);
      bars.set(p.map((w, i) => [`key ${i + 1}`, w, w.toFixed(2)]));
      const curve = (yes) => widths.map((w, i) => [w, passing(products, i, w, yes)]);
      chart.set({ x: { from: widths[0], to: widths[widths.length - 1], log: true,
        ticks: widths.filter((_, i) => i % 3 === 0).map((w) => [w, String(w)]) },
      y: { from: 0, to: 0.55, ticks: kit.chart.ticks(0.5) },
      series: [{ name: "divided", points: curve(true), style: "stroke:var(--data)" },
        { name: "as they are", points: curve(false),
          style: "stroke:var(--accent);stroke-dasharray:5 4" }],
      mark: [d, passing(products, place, d, factor)] });
      voice.say(`At d_k = ${d}, ${factor ? "divided by its root" : "undivided"}, the largest weight is `
        + `${Math.max(...p).toFixed(2)}, the entropy ${entropy(p).toFixed(2)} of at most `
        + `${Math.log(p.length).toFixed(2)} nats, and the norm of the Jacobian ${jacobian(p).toFixed(3)}; `
        + `over ${products.length} queries it is ${passing(products, place, d, factor).toFixed(3)}.`);
      if (touched) model.keep({ d, factor: factor ? "yes" : "no", query });
    }

    el.append(
      kit.guess({ voice, question: `One query and ${products[0][0].length} random keys of `
        + `${widths[widths.length - 1].toLocaleString("en")} components, undivided. How many of the keys get a weight of `
        + "0.05 or more?", options: [["one or two", "few"], ["about half", "half"], ["nearly all", "all"]],
      act: `Now take the largest d_k, and do not divide.`,
      begin() { set(Math.max(0, widths.indexOf(64)), true); return facts(); },
      seen(was) {
        if (factor || place !== widths.length - 1) return null;
        const now = facts(), part = now.count / products[0][0].length;
        return [now.count <= 2 ? "few" : part < 0.75 ? "half" : "all", `Divided, at d_k = ${was.d}, ${was.count} of the keys `
          + `had 0.05 or more, and the largest weight was ${was.most.toFixed(2)}; now ${now.count} `
          + `${now.count === 1 ? "has" : "have"}, and it is ${now.most.toFixed(2)}. The products grow with d_k, and their `
          + "distances with them."];
      },
      tell() { set(widths.length - 1, false); } }).node,
      make("div", { class: "fx-row" }, width.node),
      make("div", { class: "fx-row" }, which.node, another),
      make("div", { class: "fx-cols" }, bars.node, chart.node), voice.node);
    show();
  },
};
