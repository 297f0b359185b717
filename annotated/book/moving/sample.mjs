// sample: temperature, top-k and top-p, on a model of letters that one can see whole.
// needs: handles

const LETTERS = "$abcdefghijklmnopqrstuvwxyz"; // $ ends a word
const WORDS = 200, LONGEST = 12;

/** What may be drawn, likeliest first, of counts by letter: { letter, before, after }.
 *  `before` is the model's probability, `after` that of the draw, 0 where it is cut
 *  away: the temperature first, then the k likeliest, then the nucleus of p. */
export function cut(counts, { T, k, p }) {
  const whole = Object.values(counts).reduce((a, b) => a + b, 0);
  const rows = [...LETTERS].filter((x) => counts[x])
    .map((letter) => ({ letter, before: counts[letter] / whole }));
  const most = Math.max(...rows.map((row) => Math.log(row.before) / T));
  for (const row of rows) row.after = Math.exp(Math.log(row.before) / T - most);
  rows.sort((a, b) => b.after - a.after);
  const keep = (some) => {
    const left = rows.filter(some), sum = left.reduce((a, row) => a + row.after, 0);
    for (const row of rows) row.after = left.includes(row) ? row.after / sum : 0;
  };
  keep((_, i) => i < k);
  let mass = 0;
  const nucleus = rows.filter((row) => {
    const inside = row.after > 0 && mass < p - 1e-12;
    mass += row.after;
    return inside;
  });
  keep((row) => nucleus.includes(row));
  return rows;
}

/** The three letters on which the next one depends. */
export const context = (text) => `^^^${text}`.slice(-3);

/** Words that begin so, each letter drawn from what is left, from a seed. */
export function draw(follows, begin, how, seed, count = WORDS) {
  const known = {};
  let state = (2654435761 * seed) % 2 ** 32;
  return Array.from({ length: count }, () => {
    let text = begin;
    while (text.length < LONGEST) {
      const last = context(text);
      const rows = known[last] ??= cut(follows[last] ?? { $: 1 }, how);
      state = (1664525 * state + 1013904223) % 2 ** 32;
      let left = state / 2 ** 32, at = 0;
      while (at < rows.length - 1 && left >= rows[at].after) left -= rows[at++].after;
      if (rows[at].letter === "$") break;
      text += rows[at].letter;
    }
    return text;
  });
}

/** How many of the words are known, and how many there are without repetition. */
export const judge = (words, known) => ({ real: words.filter((word) => known.has(word)).length,
  different: new Set(words).size });

const TEMPERATURES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5];
const OPEN = { T: 1, k: LETTERS.length, p: 1 };

export default {
  render({ model, el, kit }) {
    const { make } = kit, follows = model.get("follows"), known = new Set(model.get("words"));
    const given = model.get("begin"), asked = model.asked;
    const within = (x, least, most, otherwise) => (x >= least && x <= most ? Number(x) : otherwise);
    let begin = tidy(asked.begin ?? given), seed = within(asked.draw, 1, 1e6, 1), touched = false;
    const how = { T: TEMPERATURES.includes(+asked.T) ? +asked.T : 1, k: within(asked.k, 1, OPEN.k, OPEN.k),
      p: within(asked.p, 0.05, 1, 1) };
    function tidy(text) {
      return text.normalize("NFD").toLowerCase().replace(/[^a-z]/g, "").slice(0, 8);
    }

    const act = (to) => {
      Object.assign(how, to);
      touched = true;
      dials.T.set(TEMPERATURES.indexOf(how.T));
      dials.k.set(how.k);
      dials.p.set(how.p);
      show();
    };
    const dials = {
      T: kit.range({ label: "temperature", min: 0, max: TEMPERATURES.length - 1, value: TEMPERATURES.indexOf(how.T),
        format: (i) => String(TEMPERATURES[i]), oninput: (i) => act({ T: TEMPERATURES[i] }) }),
      k: kit.range({ label: "top-k", min: 1, max: OPEN.k, value: how.k,
        format: (k) => (k === OPEN.k ? "all" : String(k)), oninput: (k) => act({ k }) }),
      p: kit.range({ label: "top-p", min: 0.05, max: 1, step: 0.05, value: how.p,
        format: (p) => p.toFixed(2), oninput: (p) => act({ p }) }),
    };
    const field = make("input", { type: "text", size: 9, maxlength: 8, spellcheck: "false", autocapitalize: "off",
      value: begin, oninput: () => { begin = tidy(field.value); touched = true; show(); } });
    const again = kit.button("Draw others", () => { seed++; act({}); });
    const open = kit.button("As it is", () => act(OPEN));
    const plot = kit.draw("svg", { viewBox: "0 0 380 220", role: "img", style: "max-width:28rem" });
    const hold = kit.handles.on(kit, plot, "pan-y");
    const words = make("div", { class: "fx-row fx-mono", style: "gap:.3rem .5rem" }), counted = make("p");
    const voice = kit.voice();

    const [left, high, base] = [8, 165, 190];
    function bars(rows) {
      const wide = (380 - 2 * left) / Math.max(8, rows.length), top = Math.max(...rows.flatMap((r) => [r.before, r.after]));
      const y = (x) => base - high * x / top, kept = rows.filter((row) => row.after > 0).length;
      plot.setAttribute("aria-label", `The next letter after “${begin}”, likeliest first: ${rows.map((row) =>
        `${row.letter === "$" ? "end" : row.letter} ${row.after ? row.after.toFixed(2) : "cut away"}`).join(", ")}`);
      plot.replaceChildren(
        ...rows.flatMap((row, i) => [
          kit.draw("rect", { x: left + i * wide + 1, y: y(row.after), width: Math.max(1, wide - 2),
            height: base - y(row.after), rx: 1, style: "fill:var(--data)" }),
          kit.draw("rect", { x: left + i * wide + 1, y: y(row.before), width: Math.max(1, wide - 2),
            height: base - y(row.before), rx: 1, style: "fill:none;stroke:var(--soft);stroke-dasharray:3 2" }),
          kit.draw("text", { x: left + (i + 0.5) * wide, y: base + 15, "text-anchor": "middle",
            style: row.after ? "" : "fill:var(--soft)" }, row.letter === "$" ? "∎" : row.letter)]),
        kit.draw("path", { d: `M${left} ${base}H${380 - left}`, style: "stroke:var(--line)" }),
        kit.draw("path", { d: `M${left + kept * wide} 14V${base}`, style: "stroke:var(--accent);stroke-width:2" }),
        kit.draw("text", { x: left, y: 218, style: "fill:var(--soft)" }, "letter, likeliest first; ∎ ends the word"));
      hold([{ place: [left + kept * wide, 14], color: "var(--accent)", move([x]) {
        const k = Math.min(OPEN.k, Math.max(1, Math.round((x - left) / wide)));
        const to = k >= rows.length ? OPEN.k : k;
        if (to !== how.k) act({ k: to });
      } }]);
    }

    const facts = () => judge(draw(follows, begin, how, seed), known);
    const list = (n, one, many) => `${n} ${n === 1 ? one : many}`;
    function show() {
      const counts = follows[context(begin)];
      plot.style.display = counts ? "" : "none";
      words.replaceChildren();
      counted.textContent = "";
      if (!counts) {
        voice.say(`No word of the manual ${begin.length < 3 ? "begins with" : "goes on after"} “${begin.slice(-3)}”, `
          + "so this model has nothing to draw from.");
        return;
      }
      const rows = cut(counts, how), drawn = draw(follows, begin, how, seed), { real, different } = judge(drawn, known);
      bars(rows);
      words.append(...drawn.slice(0, 10).map((word) => make("span", { style: "padding:.05rem .35rem;border-radius:4px;"
        + `background:var(${known.has(word) ? "--cell" : "--ground"})` }, `${word}${known.has(word) ? " ✓" : ""}`)));
      counted.textContent = `${WORDS} drawn: ${real} in the manual (✓), ${different} different.`;
      const left = rows.filter((row) => row.after), lost = rows.reduce((sum, row) => sum + (row.after ? 0 : row.before), 0);
      voice.say(`After “${begin}” the model knows ${list(rows.length, "next letter", "next letters")}; `
        + `${left.length === rows.length ? "all" : left.length} may be drawn${lost
          ? `, and ${lost.toFixed(2)} of its probability is cut away` : ""}. The likeliest had ${
          rows[0].before.toFixed(2)} and has ${rows[0].after.toFixed(2)}. Of ${WORDS} words drawn ${real} ${
          real === 1 ? "is" : "are"} in the manual, and ${different} ${different === 1 ? "is" : "are"} different.`);
      if (touched) model.keep({ begin, ...how, draw: seed });
    }

    function reset() {
      begin = given;
      field.value = given;
      seed = 1;
      act(OPEN);
      return facts();
    }
    const start = judge(draw(follows, given, OPEN, 1), known);
    el.append(
      kit.guess({ voice, question: `${WORDS} words are drawn as the model has them: ${start.different} different ones, `
        + `and ${start.real} of the ${WORDS} are in the manual. At a temperature of 0.3, how many are different?`,
      options: [["nearly as many", "many"], ["about half as many", "half"], ["a third, or fewer", "few"]],
      act: "Here are those of temperature 1. Now lower it to 0.3, and cut nothing away.",
      begin: reset,
      seen(was) {
        if (how.T !== 0.3 || how.k !== OPEN.k || how.p !== 1 || begin !== given || seed !== 1) return null;
        const now = facts(), part = now.different / was.different;
        return [part > 0.75 ? "many" : part > 0.36 ? "half" : "few", `${now.different} instead of ${was.different} are `
          + `different, and ${now.real} instead of ${was.real} are words of the manual. A sharper distribution is more `
          + "often right, and says the same things again."];
      },
      tell() { reset(); act({ T: 0.3 }); } }).node,
      make("div", { class: "fx-row" }, make("label", {}, "words that begin with ", field), again, open),
      make("div", { class: "fx-cols" },
        make("div", {}, make("p", { class: "fx-soft" },
          "Dashed: as the model has it. Filled: as it is drawn. Drag the dot to cut."), plot),
        make("div", {}, dials.T.node, dials.k.node, dials.p.node, make("p", { class: "fx-soft" }, "Ten of them:"),
          words, counted)),
      voice.node);
    show();
  },
};
