// beam: a search with k hypotheses over a language small enough to draw.

const START = "<s>", END = "</s>";

export const penalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/** Beam search as in the package: for each step the candidates, likeliest
 *  first, each with its fate; and the sentences that ended, best first. */
export function search(chances, k, alpha, limit = 6) {
  let alive = [{ words: [START], logP: 0 }], ended = [];
  const steps = [];
  for (let length = 1; length <= limit && alive.length; length++) {
    const grown = alive.flatMap(({ words, logP }) =>
      Object.entries(chances[words[words.length - 1]]).filter(([, p]) => p > 0)
        .map(([word, p]) => ({ words: [...words, word], logP: logP + Math.log(p) })))
      .sort((a, b) => b.logP - a.logP);
    alive = [];
    grown.forEach((one, rank) => {
      const ends = one.words[one.words.length - 1] === END;
      one.fate = "dropped";
      if (rank >= 2 * k) return;
      if (ends) {
        one.fate = "ended";
        ended.push({ ...one, score: one.logP / penalty(length, alpha) });
      } else if (alive.length < k) {
        one.fate = "kept";
        alive.push(one);
      }
    });
    ended.sort((a, b) => b.score - a.score);
    steps.push({ grown, ended: ended.map((one) => ({ ...one })) });
    const hope = (alive[0]?.logP ?? -Infinity) / penalty(limit, alpha);
    if (ended.length >= k && ended[k - 1].score >= hope) break;
  }
  return { steps, ended: ended.slice(0, k) };
}

/** The chances after a word, one of them set, the others in proportion. */
export function reweigh(nexts, word, p) {
  const rest = 1 - nexts[word];
  return Object.fromEntries(Object.entries(nexts).map(([name, chance]) => [name,
    name === word ? p : rest ? chance * (1 - p) / rest
      : (1 - p) / (Object.keys(nexts).length - 1)]));
}

/** What a link carries of the chances that are not the original ones: all of a
 *  word's, in their order. */
export const changed = (chances, original) => Object.fromEntries(Object.keys(chances)
  .filter((last) => Object.keys(chances[last]).some((word) => chances[last][word] !== original[last][word]))
  .map((last) => [`after ${last}`, Object.values(chances[last]).map((p) => +p.toPrecision(6)).join(" ")]));

/** The chances that a link asks for: the original ones of each word for which it
 *  has nothing, or nothing that is a distribution over its next words. */
export const restored = (asked, original) => Object.fromEntries(Object.entries(original).map(([last, nexts]) => {
  const words = Object.keys(nexts), ps = (asked[`after ${last}`] ?? "").split(" ").map(Number);
  const fits = ps.length === words.length && ps.every((p) => p >= 0)
    && Math.abs(ps.reduce((a, b) => a + b) - 1) < 1e-3;
  return [last, fits ? Object.fromEntries(words.map((word, i) => [word, ps[i]])) : { ...nexts }];
}));

/** "the dog barks" of ["<s>", "the", "dog", "barks", "</s>"]. */
export const sentence = (words) => words.filter((w) => w !== START && w !== END).join(" ");

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const original = model.get("chances");
    const chances = restored(model.asked, original);
    const arrows = Object.entries(original).flatMap(([last, nexts]) =>
      Object.keys(nexts).length > 1 ? Object.keys(nexts).map((word) => [last, word]) : []);
    let k = model.asked.beam ?? 2, alpha = model.asked.alpha ?? 0;
    let beside = Math.min(4, Math.max(0, Math.round(Number(model.asked.beside)) || 0)); // a second beam, 0 for none
    let shown = Math.max(0, Math.round(Number(model.asked.step)) || 0), touched = Object.keys(model.asked).length > 0;
    let arrow = arrows.find(([last]) => `after ${last}` in changed(chances, original)) ?? arrows[0];

    const searches = make("div");
    const voice = kit.voice();
    const next = kit.button("Next word", () => { shown++; show(); });
    const again = kit.button("Start over", () => { shown = 0; show(); });
    const beam = kit.range({ label: "beam", min: 1, max: 4, value: k,
      oninput: (x) => { k = x; show(); } });
    const other = kit.range({ label: "and below it", min: 0, max: 4, value: beside,
      format: (x) => x || "none", oninput: (x) => { beside = x; show(); } });
    const steep = kit.range({ label: "α", min: 0, max: 2, step: 0.1, value: alpha,
      format: (x) => x.toFixed(1), oninput: (x) => { alpha = x; show(); } });
    [k, alpha] = [+beam.input.value, +steep.input.value];
    const chance = kit.range({ label: "is", min: 0.01, max: 0.99, step: 0.01, value: 0,
      format: (x) => x.toFixed(2), oninput: (x) => {
        chances[arrow[0]] = reweigh(chances[arrow[0]], arrow[1], x);
        show();
      } });
    const name = (word) => ({ [START]: "the start", [END]: "the end" }[word] ?? `“${word}”`);
    const pick = make("select", { "aria-label": "Which probability to change",
      onchange: () => { arrow = arrows[pick.value]; show(); } },
    ...arrows.map(([last, word], i) =>
      make("option", { value: i }, `${name(word)} after ${name(last)}`)));
    pick.value = arrows.indexOf(arrow);

    function tree(steps, winner) {
      const columns = [[{ words: [START], logP: 0, fate: "kept" }], ...steps.map((s) => s.grown)];
      const high = 44 * Math.max(3, ...columns.map((c) => c.length)), wide = 132;
      const spot = new Map();
      columns.forEach((column, x) => column.forEach((one, i) => spot.set(one.words.join(" "),
        [10 + x * wide, high * (i + 0.5) / column.length])));
      const nodes = columns.flat().map((one) => {
        const [x, y] = spot.get(one.words.join(" "));
        const parent = spot.get(one.words.slice(0, -1).join(" "));
        const wins = winner && winner.slice(0, one.words.length).join() === one.words.join();
        const gone = one.fate === "dropped";
        const color = wins ? "var(--accent)" : gone ? "var(--line)" : "var(--data)";
        const last = one.words[one.words.length - 1];
        return draw("g", {},
          parent ? draw("path", { d: `M${parent[0] + 92} ${parent[1]}L${x} ${y}`,
            style: `stroke:${color};fill:none;stroke-width:${wins ? 3 : 1.3};`
              + (gone ? "stroke-dasharray:4 3" : "") }) : "",
          draw("rect", { x, y: y - 18, width: 92, height: 36, rx: 5,
            style: `fill:var(--card);stroke:${color};stroke-width:${wins ? 2.5 : 1.3};`
              + (gone ? "stroke-dasharray:4 3" : "") }),
          draw("text", { x: x + 46, y: y - 2, "text-anchor": "middle",
            style: gone ? "fill:var(--soft)" : "" }, { [START]: "start", [END]: "end" }[last] ?? last),
          draw("text", { x: x + 46, y: y + 13, "text-anchor": "middle",
            style: "font-size:12px;fill:var(--soft)" }, one.logP.toFixed(2)));
      });
      const size = Math.max(10 + columns.length * wide, 340); // letters stay legible: it scrolls instead
      return draw("svg", { viewBox: `0 0 ${size} ${high}`, role: "img",
        style: `min-width:${Math.round(0.85 * size)}px;max-width:${size}px`,
        "aria-label": "The tree of the search so far; the sentence below says what happened" },
      ...nodes);
    }

    /** One search, as far as it has come: its tree, what has ended, a sentence. */
    function one(width, { steps, ended }) {
      const step = Math.min(shown, steps.length), over = step === steps.length;
      const place = make("div", { class: "fx-scroll", tabindex: 0 }, tree(steps.slice(0, step), over ? ended[0]?.words : null));
      const found = over ? ended : step ? steps[step - 1].ended : [];
      searches.append(beside ? make("p", {}, make("strong", {}, `A beam of ${width}`)) : "", place,
        found.length ? kit.table(["ended", "log-probability", "score"],
          found.map((it) => [sentence(it.words), it.logP.toFixed(2), it.score.toFixed(2)])) : "");
      place.scrollLeft = place.scrollWidth; // on a phone: what is new
      if (!step) return `A beam of ${width} is about to choose its first word.`;
      const list = (fate) => steps[step - 1].grown.filter((it) => it.fate === fate)
        .map((it) => `“${sentence(it.words)}”`).join(", ");
      const fates = ["kept", "ended", "dropped"].filter(list).map((fate) => `${fate} ${list(fate)}`).join("; ");
      return `Step ${step}: ${fates}.${over && ended.length ? ` The search is over: “${
        sentence(ended[0].words)}” wins with ${ended[0].score.toFixed(2)}.` : ""}`;
    }

    function show() {
      const all = [k, beside].filter(Boolean).map((width) => [width, search(chances, width, alpha)]);
      const most = Math.max(...all.map(([, { steps }]) => steps.length));
      shown = Math.min(shown, most);
      next.disabled = shown === most;
      again.disabled = shown === 0;
      chance.set(chances[arrow[0]][arrow[1]]);
      searches.replaceChildren();
      const told = all.map(([width, found]) => [width, one(width, found)]);
      voice.say(beside ? told.map(([width, text]) => `${shown ? `Beam ${width}. ` : ""}${text}`).join(" ") : told[0][1]);
      if (touched) {
        model.keep({ beam: k, alpha, ...(beside && { beside }), step: shown, ...changed(chances, original) });
      }
      touched = true;
    }

    const two = search(original, 2, 0).ended[0], same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
    const greedy = () => {
      const [one] = search(chances, 1, alpha).ended;
      return { text: sentence(one?.words ?? []), logP: one?.logP ?? -Infinity };
    };
    function reset() {
      Object.assign(chances, structuredClone(original));
      [k, alpha, shown, arrow, beside] = [1, 0, 0, arrows[0], 0];
      beam.set(1);
      other.set(0);
      steep.set(0);
      pick.value = 0;
      show();
    }
    el.append(
      kit.guess({ voice, question: "A beam of 1 is greedy search. Which change lets it find what a beam of 2 finds?",
        options: [["a larger α", "alpha"], ["a first word “it” that is less likely than “the”", "first"],
          ["“barks” surer after “dog”", "later"]],
        act: (key) => `${two ? `A beam of 2 finds “${sentence(two.words)}”. ` : ""}Now let a beam of 1 run to its end `
          + `with ${{ alpha: "α at 1 or more", later: "“barks” after “dog” at 0.95 or more" }[key]
            ?? "“it” less likely than “the”"}.`,
        begin: () => { reset(); return greedy(); },
        seen(was, key = "first") {
          const { "<s>": start, dog } = chances, only = (last) => Object.keys(chances).every((word) =>
            word === last || same(chances[word], original[word]));
          const done = { alpha: alpha >= 1 && only(), first: !alpha && start.it < start.the && only("<s>"),
            later: !alpha && dog?.barks >= 0.95 && only("dog") }[key];
          if (k > 1 || !done || shown < search(chances, 1, alpha).steps.length) return null;
          const now = greedy(), found = now.text === sentence(two?.words ?? []);
          return [found ? key : "none", `Before, it found “${was.text}” with a log-probability of `
            + `${was.logP.toFixed(2)}; now it finds ${now.text === was.text ? "the same" : `“${now.text}”`} with `
            + `${now.logP.toFixed(2)}. ${found ? "The best sentence now begins in first place."
              : "A beam of 1 keeps one beginning, and this change does not make it the other one."}`];
        },
        tell(key = "first") {
          if (key === "alpha") { alpha = 1; steep.set(1); }
          else if (key === "later" && chances.dog?.barks) chances.dog = reweigh(chances.dog, "barks", 0.99);
          else chances["<s>"] = reweigh(chances["<s>"], "it", 0.05);
          shown = 99;
          show();
        } }).node,
      make("div", { class: "fx-row" }, beam.node, other.node, steep.node),
      make("div", { class: "fx-row" },
        make("label", { class: "fx-soft" }, "the probability of ", pick), chance.node),
      make("div", { class: "fx-row" }, next, again), searches, voice.node);
    show();
  },
};
