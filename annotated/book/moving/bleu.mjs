// bleu: a translation that one edits, its runs of words, and the score of
// the corpus to which it belongs.

const split = (text) => text.split(/\s+/).filter(Boolean);
const runs = (words, n) => words.slice(n - 1).map((_, i) => words.slice(i, i + n).join(" "));

/** Which runs of n words of a translation its reference has too; of several
 *  equal ones the last are counted. */
export function matched(translation, reference, n) {
  const left = new Map();
  for (const run of runs(split(reference), n)) left.set(run, (left.get(run) ?? 0) + 1);
  return runs(split(translation), n).reverse().map((run) => {
    const found = (left.get(run) ?? 0) > 0;
    if (found) left.set(run, left.get(run) - 1);
    return found;
  }).reverse();
}

/** BLEU of a corpus, not smoothed: counts, totals, penalty and score. */
export function bleu(translations, references) {
  const counts = [], totals = [];
  for (const n of [1, 2, 3, 4]) {
    const all = translations.flatMap((text, i) => matched(text, references[i], n));
    counts.push(all.filter(Boolean).length);
    totals.push(all.length);
  }
  const [said, wanted] = [translations, references].map((texts) => texts.flatMap(split).length);
  const penalty = said >= wanted ? 1 : said ? Math.exp(1 - wanted / said) : 0;
  const product = counts.reduce((all, count, i) => (totals[i] ? all * count / totals[i] : 0), 1);
  return { counts, totals, penalty, said, wanted, score: 100 * penalty * product ** 0.25 };
}

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const references = model.get("references"), original = model.get("hypotheses");
    const texts = original.map((text, i) => model.asked[`t${i + 1}`] ?? text);
    let which = Math.min(Number(model.asked.edit ?? 3), texts.length) - 1, touched = false;

    const field = make("input", { type: "text", "aria-label": "The translation", spellcheck: "false",
      style: "width:100%", oninput: () => { texts[which] = field.value; touched = true; show(); } });
    const choose = kit.choice({ label: "Edit sentence", value: which,
      options: texts.map((_, i) => [i, String(i + 1)]),
      onchange: (to) => { which = to; field.value = texts[which]; show(); } });
    const again = kit.button("As it was", () => {
      texts[which] = field.value = original[which];
      show();
    });
    const said = make("p"), lit = make("div", { "aria-hidden": "true", class: "fx-scroll" });
    const bars = kit.bars("Precisions and penalty"), voice = kit.voice();

    function show() {
      const words = split(texts[which]);
      said.replaceChildren(make("span", { class: "fx-soft" }, "Its reference: "), references[which]);
      const grid = make("div", { style: "display:grid;gap:3px;margin:.7rem 0;"
        + `grid-template-columns:repeat(${Math.max(1, words.length)},minmax(max-content,1fr))` },
      ...words.map((word) => make("span", { style: "text-align:center;font-size:.85em" }, word)));
      let row = 2;
      for (const n of [1, 2, 3, 4]) {
        matched(texts[which], references[which], n).forEach((found, i) => {
          grid.append(make("span", { style: `grid-area:${row + i % n}/${i + 1}/auto/span ${n};`
            + "height:.7rem;border-radius:2px;border:1px solid var(--blue);"
            + (found ? "background:var(--blue)" : "") }));
        });
        row += n;
      }
      lit.replaceChildren(grid);
      const { counts, totals, penalty, said: c, wanted, score } = bleu(texts, references);
      bars.set([...counts.map((count, i) => [`p${"₁₂₃₄"[i]}`, totals[i] ? count / totals[i] : 0,
        `${count}/${totals[i]}`]), ["penalty", penalty, penalty.toFixed(2)]]);
      const own = [1, 2, 3, 4].map((n) => matched(texts[which], references[which], n)
        .filter(Boolean).length);
      voice.say(`Sentence ${which + 1} shares ${own.join(", ")} runs of one, two, three and four words with `
        + `its reference. With ${c} words for ${wanted}, the BLEU of all ${texts.length} sentences is `
        + `${score.toFixed(1)}.`);
      if (touched) {
        const state = { edit: which + 1 };
        texts.forEach((text, i) => { if (text !== original[i]) state[`t${i + 1}`] = text; });
        model.keep(state);
      }
    }

    field.value = texts[which];
    el.append(
      kit.guess({ question: "You change one word in the middle of a long, perfect translation. How many "
        + "runs of up to four words break?", options: [
        ["1", false, "every run that crosses the word breaks with it."],
        ["4", false, "those are the runs of four alone."],
        ["10", true, "the word, two pairs, three threes and four fours."]] }),
      make("div", { class: "fx-row" }, choose.node, again), said, field, lit,
      make("div", {}, make("p", { class: "fx-soft" }, "Of all sentences together:"), bars.node),
      voice.node);
    show();
  },
};
