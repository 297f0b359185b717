// pieces: the reader's own text in byte pairs, merge by merge.
// needs: chart, bytepairs

/** The least vocabulary above `vocab` that leaves a text fewer tokens, of those up to
 *  `most`; null if none does. A further merge never adds a token. count(n) counts. */
export function nextMerge(count, vocab, most) {
  const now = count(vocab);
  if (count(most) === now) return null;
  let [low, high] = [vocab, most]; // as many, fewer
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (count(middle) < now) high = middle;
    else low = middle;
  }
  return high;
}

const SIZES = [260, 261, 262, 265, 270, 280, 300, 350, 400, 500, 700, 1000, 1500, 2000, 3000, 4000];

export default {
  render({ model, el, kit }) {
    const { make } = kit, { encode, shown, spellings } = kit.bytepairs;
    const merges = model.get("merges"), order = model.get("order");
    const ranks = new Map(merges.map(([a, b], i) => [`${a},${b}`, 260 + i]));
    const table = spellings(merges, order), most = 260 + merges.length;
    const sizes = SIZES.filter((size) => size <= most);
    let vocab = Math.min(most, Math.max(260, Number(model.asked.vocab) || 500)), touched = false;
    const field = make("input", { type: "text", "aria-label": "Your text", spellcheck: "false",
      style: "width:100%", maxlength: 200, oninput: () => { touched = true; show(); } });
    field.value = model.asked.text ?? model.get("text");
    const nearest = () => sizes.filter((size) => size <= vocab).length - 1;
    const act = (to) => { vocab = to; touched = true; size.set(nearest()); show(); };
    const size = kit.range({ label: "vocabulary", min: 0, max: sizes.length - 1, value: nearest(),
      format: (i) => (i === nearest() ? vocab : sizes[i]).toLocaleString("en"),
      oninput: (i) => act(sizes[i]) });
    const typed = () => kit.clean(field.value, true);
    const here = kit.button("Next merge in this text", () =>
      act(nextMerge((n) => encode(typed(), ranks, order, n).length, vocab, most) ?? vocab));
    const more = kit.button("One merge more", () => act(Math.min(most, vocab + 1)));
    const less = kit.button("One less", () => act(Math.max(260, vocab - 1)));
    const chips = make("div", { class: "fx-row fx-mono", style: "gap:.25rem;margin:.8rem 0", role: "img" });
    const chart = kit.chart.lines(kit, { label: "Tokens of this text by the size of the vocabulary",
      xLabel: "vocabulary", yLabel: "tokens", height: 190 });
    const voice = kit.voice();
    const name = (id) => `“${shown(table[id])}”`;

    const count = (text) => encode(text, ranks, order, most).length;

    function show() {
      const text = typed(), ids = encode(text, ranks, order, vocab);
      here.disabled = encode(text, ranks, order, most).length === ids.length;
      more.disabled = vocab === most;
      less.disabled = vocab === 260;
      chips.setAttribute("aria-label", `The tokens: ${ids.map((id) => shown(table[id])).join(", ")}`);
      chips.replaceChildren(...ids.map((id) => make("span", { style: "padding:.1rem .3rem;"
        + `border-radius:4px;background:${id === vocab - 1 && vocab > 260
          ? "color-mix(in srgb,var(--accent) 35%,var(--cell))" : "var(--cell)"}` }, shown(table[id]))));
      const counts = sizes.map((at) => [at, encode(text, ranks, order, at).length]);
      const high = Math.max(1, ...counts.map(([, n]) => n));
      chart.set({ x: { from: 260, to: sizes[sizes.length - 1], log: true,
        ticks: [260, 500, 1000, 2000, 4000].filter((at) => at <= most).map((at) => [at, String(at)]) },
      y: { from: 0, to: high * 1.05, ticks: kit.chart.ticks(high) },
      series: [{ points: counts, style: "stroke:var(--data)" }], mark: [vocab, ids.length] });
      const letters = [...text].length;
      const times = ids.filter((id) => id === vocab - 1).length;
      const newest = vocab > 260 ? ` The newest token is ${name(vocab - 1)}, of ${name(merges[vocab - 261][0])}`
        + ` and ${name(merges[vocab - 261][1])}; this text has it ${times === 1 ? "once" : times
          ? `${times} times` : "nowhere"}.` : " No merge has been made: a token is a byte.";
      voice.say(`${letters} character${letters === 1 ? " is" : "s are"} ${ids.length} tokens with a vocabulary of `
        + `${vocab.toLocaleString("en")}.${newest}`);
      if (touched) model.keep({ vocab, text });
    }

    el.append(
      kit.guess({ voice, question: `“generators” is ${count("generators")} tokens of a vocabulary of `
        + `${most.toLocaleString("en")}, learned from an English manual of Python. And “GENERATORS”?`, options: [
        ["fewer", -1], ["as many", 0], ["more", 1]],
      act: "Now write it in capitals.",
      begin() { field.value = "generators"; act(most); },
      seen() {
        if (field.value.trim() !== "GENERATORS" || vocab !== most) return null;
        const [was, now] = ["generators", "GENERATORS"].map(count);
        return [Math.sign(now - was), `In small letters it is ${was} tokens, in capitals ${now}. To a tokenizer g and G are `
          + "two bytes like any others, and pairs of capitals were rare in what it learned from."];
      },
      tell() { field.value = "GENERATORS"; act(most); } }).node,
      field, make("div", { class: "fx-row" }, size.node), make("div", { class: "fx-row" }, here, less, more),
      chips, chart.node, voice.node);
    show();
  },
};
