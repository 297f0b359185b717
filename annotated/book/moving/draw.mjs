// draw: a table whose rows have been trained once each, drawn from several
// seeds; which comparisons then contradict the mean of all seeds.

/** For each row one of its runs: the same ones again for the same number. */
export function pick(number, rows, seeds) {
  let state = Math.imul(number, 0x9e3779b9) >>> 0;
  return Object.fromEntries(rows.map((row) => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5) >>> 0;
    return [row, (state >>> 16) % seeds];
  }));
}

const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

/** One row's value minus the other's, in the mean of all seeds. */
export const apart = (values, [one, other]) => mean(values[one]) - mean(values[other]);

/** The share of all draws of two runs that contradict this mean. */
export function lottery(values, [one, other]) {
  const whole = apart(values, [one, other]);
  const draws = values[one].flatMap((a) => values[other].map((b) => (a - b) * whole < 0));
  return mean(draws.map(Number));
}

/** The pairs that a draw contradicts under a measure: its runs are the same ones
 *  under each, so that a draw counts for all of them. */
export function contradicted(values, pairs, number) {
  const rows = [...new Set(pairs.flat())], picked = pick(number, rows, values[rows[0]].length);
  return pairs.filter(([a, b]) => (values[a][picked[a]] - values[b][picked[b]]) * apart(values, [a, b]) < 0);
}

const MOST = 1e6; // draws

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const measures = model.get("measures"), pairs = model.get("pairs");
    const names = model.get("names") ?? {}, rows = [...new Set(pairs.flat())];
    const named = ([a, b]) => `${names[a] ?? a} > ${names[b] ?? b}`;
    let measure = Object.hasOwn(measures, model.asked.measure) ? model.asked.measure : Object.keys(measures)[0];
    let number = Math.min(MOST, Math.max(0, Math.floor(Number(model.asked.draw ?? 0)) || 0));
    const seen = new Set(); // all draws
    let drawn = new Set(); // those since the prediction
    let touched = "draw" in model.asked;

    const which = kit.choice({ label: "Compare", value: measure,
      options: Object.entries(measures).map(([key, one]) => [key, one.name]),
      onchange: (to) => { measure = to; show(); } });
    const again = kit.button("Train each row once: draw", next);
    const all = kit.button("All seeds", () => { number = 0; show(); });
    const [width, row, left] = [400, 21, 176];
    const svg = draw("svg", { viewBox: `0 0 ${width} ${row * pairs.length + 30}`, role: "img",
      style: "max-width:28rem;margin-top:.7rem" });
    const rest = make("div", {});
    const voice = kit.voice();

    function next() {
      number = number % MOST + 1;
      show();
    }

    function show() {
      const { values, unit, digits } = measures[measure];
      const picked = number ? pick(number, rows, values[rows[0]].length) : null;
      const found = pairs.map((pair) => {
        const whole = apart(values, pair);
        const [a, b] = pair;
        const now = picked ? values[a][picked[a]] - values[b][picked[b]] : whole;
        const every = values[a].flatMap((x) => values[b].map((y) => x - y));
        return { name: named(pair), whole, now, every, flips: now * whole < 0,
          odds: lottery(values, pair) };
      });
      const most = Math.max(...found.flatMap(({ every }) => every.map(Math.abs)));
      const x = (v) => left + (width - left - 8) * (v + most) / (2 * most);
      const foot = row * pairs.length + 6;
      svg.replaceChildren(
        draw("line", { x1: x(0), x2: x(0), y1: 0, y2: foot, style: "stroke:var(--soft)" }),
        ...found.flatMap(({ name, now, every, flips }, i) => [
          draw("text", { x: left - 8, y: row * i + 15, "text-anchor": "end",
            style: flips ? "fill:var(--accent);font-weight:600" : "" }, flips ? `✗ ${name}` : name),
          ...every.map((v) => draw("circle", { cx: x(v), cy: row * i + 11, r: 2.5,
            style: "fill:var(--soft);opacity:.45" })),
          draw("circle", { cx: x(now), cy: row * i + 11, r: 5,
            style: `fill:var(${flips ? "--accent" : "--data"})` })]),
        draw("text", { x: x(0), y: foot + 16, "text-anchor": "middle" }, "equal"),
        draw("text", { x: width, y: foot + 16, "text-anchor": "end" }, `${unit} →`));
      const flipped = found.filter(({ flips }) => flips).map(({ name }) => name);
      if (number) {
        seen.add(number);
        drawn.add(number);
      }
      const own = [...seen].map((n) => contradicted(values, pairs, n).length);
      const expected = found.reduce((sum, { odds }) => sum + odds, 0);
      svg.setAttribute("aria-label", `Differences of ${pairs.length} comparisons; those that `
        + `contradict the mean of all seeds: ${flipped.join(", ") || "none"}`);
      all.setAttribute("aria-pressed", String(!number));
      voice.say(number
        ? `Draw ${number}: ${flipped.length} of ${pairs.length} comparisons contradict the mean of `
          + `all seeds${flipped.length ? ` (${flipped.join(", ")})` : ""}. On average it is `
          + `${mean(own).toFixed(1)} in your ${own.length === 1 ? "draw" : `${own.length} draws`}, and `
          + `${expected.toFixed(2)} in all possible ones.`
        : `All seeds: each large dot is a difference of two means, each small one that of two single `
          + `runs. Now draw a table of single runs.`);
      rest.replaceChildren(kit.folded("As a table", kit.table(
        ["comparison", "means", ...(number ? [`draw ${number}`] : []), "against"],
        found.map(({ name, whole, now, odds, every }) => [name, whole.toFixed(digits),
          ...(number ? [now.toFixed(digits)] : []), `${Math.round(odds * every.length)} of ${every.length}`]))));
      if (touched) model.keep({ measure, draw: number });
      touched = true;
    }

    const [first] = Object.values(measures), sure = pairs.map((pair) => Math.abs(apart(first.values, pair)));
    const can = sure.filter((_, i) => lottery(first.values, pairs[i]) > 0);
    const middle = [...sure].sort((a, b) => a - b)[Math.floor(sure.length / 2)];
    const why = `${can.length} of ${pairs.length} can. Their differences are at most `
      + `${Math.max(0, ...can).toFixed(first.digits)} ${first.unit}; half of all are ${middle.toFixed(first.digits)} or more.`;
    const small = can.length > 0 && Math.max(...can) < middle;
    el.append(
      kit.guess({ voice, question: `If each row is trained once instead of ${first.values[rows[0]].length} times, `
        + `which of the ${pairs.length} comparisons can point the other way?`, options: [
        ["any of them", "any"], ["those with a small difference", "small"], ["none", "none"]],
      act: "Now draw ten times, and watch which ones do.",
      begin() { [measure, number, drawn] = [Object.keys(measures)[0], 0, new Set()]; which.set(measure); show(); },
      seen() {
        if (drawn.size < 10 || measure !== Object.keys(measures)[0]) return null;
        const met = new Set([...drawn].flatMap((n) => contradicted(first.values, pairs, n)).map(named));
        return [can.length === 0 ? "none" : small ? "small" : "any", `In ${drawn.size === 10 ? "ten" : drawn.size} `
          + `draws ${met.size} of ${pairs.length} comparisons pointed the other way at least once`
          + `${met.size ? ` (${[...met].join(", ")})` : ""}. In all possible draws ${why}`];
      },
      tell() { for (let n = 0; n < 10; n++) next(); } }).node,
      make("div", { class: "fx-row" }, which.node, again, all),
      svg, voice.node, rest);
    show();
  },
};
