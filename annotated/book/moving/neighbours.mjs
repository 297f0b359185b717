// neighbours: a layer that is asked for the letters around each, with one head, two and four.
// needs: chart

const COUNTS = [1, 2, 4], COLORS = { 1: "var(--accent)", 2: "var(--good)", 4: "var(--data)" };
const WHERE = { "-2": "two before", "-1": "one before", 1: "one after", 2: "two after" };

/** The heads that are off, as the data names them. */
export const key = (off) => [...off].sort().join("");

/** The share of all answers that are right. */
export const share = (right) => right.reduce((sum, one) => sum + one, 0) / right.length;

/** What a run says of the letter at `at`: where, what stands there, what it says and how sure it is. */
export function answers({ word, offsets, runs }, heads, off, at) {
  const { said, sure } = runs[heads].states[key(off)], far = Math.max(...offsets);
  return offsets.map((offset, q) => ({ where: WHERE[offset], truth: word[at + offset], says: said[at - far][q],
    sure: sure[at - far][q] }));
}

/** The share of the misses that is left. */
export const left = (before, after) => (1 - share(after)) / (1 - share(before));

const percent = (x) => `${Math.round(100 * x)} %`;
const list = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);

export default {
  render({ model, el, kit }) {
    const { make } = kit, asked = model.asked;
    const data = Object.fromEntries(["word", "offsets", "runs", "every"].map((name) => [name, model.get(name)]));
    const { word, offsets, runs } = data, far = Math.max(...offsets), last = word.length - 1 - far;
    let heads = COUNTS.includes(Number(asked.heads)) ? Number(asked.heads) : 1;
    let at = asked.at ?? 5;
    let off = new Set([...(asked.off ?? "")].map(Number).filter((i) => i < heads)), touched = false;
    const looked = new Set(); // whose curves are drawn
    const right = (h = heads, less = off) => runs[h].states[key(less)].right;
    const act = (to) => {
      if (to.heads && to.heads !== heads) off = new Set();
      heads = to.heads ?? heads;
      at = to.at ?? at;
      off = to.off ?? off;
      touched = true;
      show();
    };
    const count = kit.choice({ label: "Heads", options: COUNTS.map((n) => [n, String(n)]), value: heads,
      onchange: (n) => act({ heads: n }) });
    const flip = (i) => {
      const to = new Set(off);
      if (!to.delete(i)) to.add(i);
      act({ off: to });
    };
    const row = make("div", { class: "fx-row", role: "group", "aria-label": "Heads that are heard" });
    const letter = kit.range({ label: "letter", min: far, max: last, value: at,
      format: (i) => `${+i + 1}, ${word[i]}`, oninput: (i) => act({ at: i }) });
    at = +letter.input.value;
    const place = make("div"), told = make("div"), maps = {};
    const bars = kit.chart.bars(kit, "Right answers by question");
    const chart = kit.chart.lines(kit, { label: "Loss of each training that was looked at, by step", xLabel: "step", yLabel: "loss",
      height: 190 });
    const voice = kit.voice();

    function grid() {
      const map = maps[heads] ??= kit.grid({ label: "Where each head looks from the letter asked about, in per cent",
        rows: Array.from({ length: heads }, (_, i) => `head ${i + 1}`), columns: [...word], size: "1.75rem",
        tell: (i, j) => `From “${word[at]}” head ${i + 1} gives ${percent(runs[heads].maps[i][at][j])} to “${word[j]}”, letter ${
          j + 1}.`,
        text: (w) => (w >= 0.05 ? String(Math.round(100 * w)) : ""),
        onpress: (_, j) => act({ at: Math.min(last, Math.max(far, j)) }) });
      map.set(runs[heads].maps.map((one) => one[at]),
        runs[heads].maps.flatMap((_, i) => offsets.map((offset) => [i, at + offset])));
      map.node.querySelectorAll("tbody th").forEach((name, i) => { name.style.opacity = off.has(i) ? 0.45 : 1; });
      if (place.firstChild !== map.node) place.replaceChildren(map.node);
    }

    function show() {
      looked.add(heads);
      count.set(heads);
      letter.set(at);
      if (row.children.length !== heads + 1) {
        row.replaceChildren(make("span", { class: "fx-soft" }, "Heard"), ...Array.from({ length: heads }, (_, i) =>
          kit.button(`head ${i + 1}`, () => flip(i))));
      }
      [...row.querySelectorAll("button")].forEach((one, i) => one.setAttribute("aria-pressed", String(!off.has(i))));
      grid();
      const shares = right(), here = answers(data, heads, off, at);
      bars.set(offsets.map((offset, q) => [WHERE[offset], shares[q], percent(shares[q])]));
      told.replaceChildren(kit.table(["asked for", "stands there", "it says", "how sure"], here.map((one) =>
        [one.where, one.truth, `${one.says} ${one.says === one.truth ? "✓" : "✗"}`, percent(one.sure)])));
      told.firstChild.tabIndex = 0; // it may scroll
      const drawn = COUNTS.filter((n) => looked.has(n)), most = Math.max(...drawn.flatMap((n) => runs[n].losses));
      const steps = runs[heads].losses.length * data.every;
      chart.set({ x: { from: 0, to: steps, ticks: [0, steps / 2, steps].map((x) => [x, String(x)]) },
        y: { from: 0, to: most, ticks: kit.chart.ticks(most) },
        series: drawn.map((n) => ({ name: `${n} ${n === 1 ? "head" : "heads"}`,
          points: runs[n].losses.map((loss, i) => [(i + 1) * data.every, loss]),
          style: `stroke:${COLORS[n]}${n === heads ? ";stroke-width:3" : ""}` })) });
      const without = off.size ? `, without ${off.size === heads ? "any" : list([...off].sort().map((i) => `head ${i + 1}`))},` : "";
      const whole = off.size ? ` instead of ${percent(share(right(heads, new Set())))}` : "";
      const good = here.filter((one) => one.says === one.truth).length;
      voice.say(`With ${heads} ${heads === 1 ? "head" : "heads"}${without} ${percent(share(shares))}${whole} of the answers are right: `
        + `${list(offsets.map((offset, q) => `${WHERE[offset]} ${percent(shares[q])}`))}. Around “${word[at]}” it says `
        + `${list(here.map((one) => `“${one.says}”`))}, of which ${good} ${good === 1 ? "is" : "are"} right.`);
      if (touched) model.keep({ heads, at, off: key(off) });
    }

    const none = new Set(), before = right(1, none);
    el.append(
      kit.guess({ voice, question: `With one head ${percent(1 - share(before))} of the answers are wrong. Now the same layer with `
        + "four heads, each a quarter as wide, and as many parameters in all. How much of that is left?",
      options: [["as much, or more", "more"], ["about half", "half"], ["less than a fifth", "few"]],
      act: "Now give it four heads.",
      begin() { act({ heads: 1, off: none }); return null; },
      seen() {
        if (heads !== 4 || off.size) return null;
        const after = right(), rest = left(before, after), gains = after.map((x, q) => x - before[q]);
        const best = gains.indexOf(Math.max(...gains));
        return [rest < 0.2 ? "few" : rest < 0.75 ? "half" : "more", `From one head to four the misses went from ${
          percent(1 - share(before))} to ${percent(1 - share(after))}; most was gained for the letter ${WHERE[offsets[best]]}, which went `
          + `from ${percent(before[best])} to ${percent(after[best])}. Each head has a weight of its own to spend.`];
      },
      tell() { act({ heads: 4 }); } }).node,
      make("div", { class: "fx-row" }, count.node, row),
      make("div", { class: "fx-cols", style: "--cols:3fr 2fr" },
        make("div", {}, letter.node, place, told),
        make("div", {}, make("p", { class: "fx-soft" }, "Right, of all answers:"), bars.node,
          make("p", { class: "fx-soft", style: "margin-top:1rem" }, "While it was trained:"), chart.node)),
      voice.node);
    show();
  },
};
