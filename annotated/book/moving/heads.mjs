// heads: every head of a model on a sentence; the one that is chosen is shown with
// its words, the job that it does best, and what is lost without it.

/** The mean over the rows of the largest weight. */
export const sharpness = (map) =>
  map.reduce((sum, row) => sum + Math.max(...row), 0) / map.length;

/** For each row the column with the largest weight. */
export const looks = (map) => map.map((row) => row.indexOf(Math.max(...row)));

/** The head whose loss costs most. */
export const dearest = (heads) => heads.reduce((best, one) => (one.lost > best.lost ? one : best));

const KINDS = { encoder: "the encoder’s own", decoder: "the decoder’s own", cross: "cross-attention" };
const nameOf = ({ kind, layer, head }) => `${kind} ${layer + 1}.${head + 1}`;

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const samples = model.get("samples"), heads = model.get("heads"), asked = model.asked;
    let number = Object.keys(samples).includes(asked.sentence) ? Number(asked.sentence) : 0, touched = false;
    let chosen = Math.max(0, heads.findIndex((one) => nameOf(one) === asked.head));
    const mapOf = ({ kind, layer, head }) => samples[number].maps[kind][layer][head];
    const pick = make("select", { "aria-label": "The sentence", onchange: () => {
      number = Number(pick.value);
      touched = true;
      show();
    } }, ...samples.map(({ source }, i) => make("option", { value: i }, source.slice(0, -1).join(" "))));
    pick.value = number;
    const all = heads.map((one, i) => make("button", { type: "button", "aria-label": nameOf(one), class: `of-${one.kind}`,
      onclick: () => { chosen = i; touched = true; show(); } }));
    const rows = [...new Set(heads.map(({ kind, layer }) => `${kind} ${layer + 1}`))];
    const thumbs = make("div", { class: "hd" }, ...rows.flatMap((row) => [make("span", {}, row),
      ...all.filter((_, i) => nameOf(heads[i]).startsWith(`${row}.`))]));
    const title = make("p", {}), place = make("div"), facts = make("div"), voice = kit.voice();

    function small(map) {
      const most = Math.max(map.length, map[0].length);
      return draw("svg", { viewBox: `0 0 ${most} ${most}`, "aria-hidden": "true" },
        ...map.flatMap((row, i) => row.map((w, j) => (w < 0.04 ? "" : draw("rect", { x: j, y: i, width: 1,
          height: 1, style: `fill:currentColor;opacity:${w.toFixed(2)}` })))));
    }

    function show() {
      const { source, target } = samples[number], one = heads[chosen], map = mapOf(one);
      heads.forEach((head, i) => {
        all[i].replaceChildren(small(mapOf(head)));
        all[i].setAttribute("aria-pressed", String(i === chosen));
      });
      const queries = one.kind === "encoder" ? source : target, keys = one.kind === "decoder" ? target : source;
      title.replaceChildren(make("strong", {}, nameOf(one)),
        `: rows ${one.kind === "encoder" ? "are words read" : "have been read, the next is about to be written"}`);
      const grid = kit.grid({ label: `Where ${nameOf(one)} looks`, rows: queries, columns: keys, size: "1.5rem",
        tell: (i, j) => `From “${queries[i]}” it gives “${keys[j]}” ${map[i][j].toFixed(2)}.` });
      grid.set(map);
      place.className = `of-${one.kind}`;
      place.replaceChildren(grid.node);
      facts.replaceChildren(kit.table(["", ""], [["job that it does best", one.job],
        ["score at it", one.score.toFixed(2)], ["a baseline gets", one.base.toFixed(2)],
        ["sentences spoiled without it", `${(100 * one.lost).toFixed(1)} %`]]));
      const at = looks(map), most = at.map((j, i) => [map[i][j], i, j]).sort((a, b) => b[0] - a[0])[0];
      voice.say(`${nameOf(one)}: the largest weight of a row is ${sharpness(map).toFixed(2)} on average. `
        + `Most of all it looks from “${queries[most[1]]}” at “${keys[most[2]]}” (${most[0].toFixed(2)}). Its best job `
        + `is “${one.job}”, and without it ${(100 * one.lost).toFixed(1)} % of the sentences are no longer right.`);
      if (touched) model.keep({ sentence: number, head: nameOf(one) });
    }

    const worst = dearest(heads);
    el.append(
      make("style", {}, ".fx .hd{display:grid;grid-template-columns:auto repeat(4,minmax(0,4.2rem));gap:.35rem;"
        + "align-items:center}.fx .hd button{padding:.15rem;min-height:0;color:var(--data)}"
        + ".fx .hd button[aria-pressed=true]{background:var(--cell);border-color:var(--accent);color:var(--data);"
        + "box-shadow:0 0 0 2px var(--accent)}.fx .hd span{font-size:.85em}"),
      kit.guess({ voice, question: "Of these heads, one costs most to lose. Where is it?",
        options: Object.entries(KINDS).map(([kind, text]) => [text, kind]),
        act: "Now look through the heads: the table says how many sentences each spoils. Find the worst.",
        begin() { chosen = heads.findIndex((one) => one !== worst); show(); },
        seen(_, key) {
          if (heads[chosen] !== worst) return null;
          const other = dearest(heads.filter(({ kind }) => (key ? kind === key : kind !== worst.kind)));
          const spoilt = (one) => `${nameOf(one)} ${(100 * one.lost).toFixed(1)} %`;
          return [worst.kind, `Without ${spoilt(worst)} of the sentences are no longer right`
            + `${other === worst ? "" : `; without the dearest of ${KINDS[other.kind]}, ${spoilt(other)}`}.`];
        },
        tell() { chosen = heads.indexOf(worst); touched = true; show(); } }).node,
      make("div", { class: "fx-row" }, make("label", {}, "Sentence ", pick)),
      make("div", { class: "fx-cols", style: "--cols:minmax(0,1fr) minmax(0,1.1fr)" },
        make("div", {}, make("p", { class: "fx-soft" }, "Choose a head"), thumbs),
        make("div", {}, title, place, facts)), voice.node);
    show();
  },
};
