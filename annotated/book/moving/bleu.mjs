// bleu: a translation that one edits, its runs of words, and the score of
// the corpus to which it belongs.
// needs: chart

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
    let which = (model.asked.edit - 1 in texts ? model.asked.edit : Math.min(3, texts.length)) - 1, touched = false;

    const field = make("input", { type: "text", "aria-label": "The translation", spellcheck: "false",
      style: "width:100%", oninput: () => { texts[which] = kit.clean(field.value); touched = true; show(); } });
    const choose = kit.choice({ label: "Edit sentence", value: which,
      options: texts.map((_, i) => [i, String(i + 1)]),
      onchange: (to) => edit(to) });
    const edit = (to) => { which = to; choose.set(to); field.value = texts[to]; show(); };
    const write = (text) => { texts[which] = field.value = text; touched = true; show(); };
    const runsOf = () => [1, 2, 3, 4].reduce((sum, n) =>
      sum + matched(texts[which], references[which], n).filter(Boolean).length, 0);
    const again = kit.button("As it was", () => write(original[which]));
    const said = make("p"), lit = make("div", { "aria-hidden": "true", class: "fx-scroll" });
    const bars = kit.chart.bars(kit, "Precisions and penalty"), voice = kit.voice();

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
            + "height:.7rem;border-radius:2px;border:1px solid var(--data);"
            + (found ? "background:var(--data)" : "") }));
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
      kit.guess({ voice, question: "You change one word in the middle of a long, perfect translation. How many "
        + "runs of up to four words break?", options: [["1", 1], ["4", 4], ["10", 10]],
      act: "Here is its reference, word for word. Now change one word in the middle of it.",
      begin: () => {
        const lengths = references.map((text) => split(text).length);
        edit(lengths.indexOf(Math.max(...lengths)));
        write(references[which]);
        return { which, runs: runsOf(), score: bleu(texts, references).score };
      },
      seen(was) {
        const [now, wanted] = [texts[which], references[which]].map(split);
        const other = wanted.flatMap((word, i) => (word === now[i] ? [] : [i]));
        if (which !== was.which || now.length !== wanted.length || other.length !== 1
          || Math.min(other[0], now.length - 1 - other[0]) < 3) return null;
        return [was.runs - runsOf(), `Of ${was.runs} runs ${runsOf()} are left, so ${was.runs - runsOf()} are `
          + "broken: the word, two pairs, three threes and four fours. The BLEU of all sentences fell from "
          + `${was.score.toFixed(1)} to ${bleu(texts, references).score.toFixed(1)}.`];
      },
      tell() {
        const words = split(references[which]);
        words[Math.floor(words.length / 2)] = "…";
        write(words.join(" "));
      } }).node,
      make("div", { class: "fx-row" }, choose.node, again), said, field, lit,
      make("div", {}, make("p", { class: "fx-soft" }, "Of all sentences together:"), bars.node),
      voice.node);
    show();
  },
};
