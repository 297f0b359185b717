// cache: the rows of a KV cache during a beam search, step by step.
// needs: chart

/** For each live hypothesis, the row of the step before that it continues. */
export const parents = (before, now) => now.map((ids) =>
  before.findIndex((one) => one.join() === ids.slice(0, -1).join()));

/** Bytes of the keys and values of so many rows and positions, in float32. */
export const bytes = (rows, positions, { layers, d }) => rows * positions * layers * 2 * d * 4;

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const words = model.get("words"), searches = model.get("searches"); // by beam: [step][row] ids
    const size = model.get("size");
    const beams = Object.keys(searches).map(Number);
    let beam = beams.includes(Number(model.asked.beam)) ? Number(model.asked.beam) : beams[beams.length - 1];
    let step = Math.min(searches[beam].length - 1, Math.max(0, Math.round(Number(model.asked.step)) || 0));
    let touched = Object.keys(model.asked).length > 0;

    const width = kit.range({ label: "beam", min: Math.min(...beams), max: Math.max(...beams),
      value: beam, oninput: (to) => { beam = to; step = 0; show(); } });
    const next = kit.button("Next step", () => { step++; show(); });
    const again = kit.button("Start over", () => { step = 0; show(); });
    const place = make("div", { class: "fx-scroll", tabindex: 0, role: "group",
      "aria-label": "The rows of the cache" });
    const bars = kit.chart.bars(kit, "Kept, and copied so far"), voice = kit.voice();
    const kilo = (x) => `${(x / 1024).toLocaleString("en")} kB`;

    /** How many positions are copied on the way into a step. */
    function copied(now) {
      return parents(searches[beam][now - 1], searches[beam][now])
        .filter((parent, row) => parent !== row).length * now;
    }

    /** The rows that do not continue themselves. */
    const taken = () => parents(searches[beam][step - 1], searches[beam][step])
      .flatMap((parent, row) => (parent === row ? [] : [row]));

    function show() {
      const steps = searches[beam], rows = steps[step];
      next.disabled = step === steps.length - 1;
      again.disabled = step === 0;
      const from = step ? parents(steps[step - 1], rows) : rows.map((_, i) => i);
      place.replaceChildren(make("table", { class: "fx-plain" },
        kit.headings(["row", ...rows[0].map((_, i) => `position ${i}`), "from"]),
        make("tbody", {}, ...rows.map((ids, row) => make("tr", {},
          make("td", {}, String(row)),
          ...ids.map((id, i) => make("td", { style: `text-align:center;color:var(--ink);${
            i === ids.length - 1 ? "box-shadow:inset 0 0 0 2px var(--accent)"
              : from[row] !== row ? "background:color-mix(in srgb,var(--data) 35%,var(--cell))"
                : "background:var(--cell)"}` }, words[id])),
          make("td", {}, step ? `row ${from[row]}` : "–"))))));
      let moved = 0;
      for (let now = 1; now <= step; now++) moved += copied(now);
      const kept = bytes(rows.length, step + 1, size), all = bytes(1, moved, size);
      const most = Math.max(kept, all, 1);
      bars.set([["kept", kept / most, kilo(kept)], ["copied", all / most, kilo(all), "var(--accent)"]]);
      const changed = from.flatMap((parent, row) => (parent === row ? [] : [`row ${row} from row ${parent}`]));
      const whole = rows.length * (step + 1);
      voice.say(`Step ${step + 1}: `
        + (changed.length ? `${changed.join(", ")}: ${step} position${step > 1 ? "s" : ""} of each copied. `
          : step ? "every row continues itself. " : "")
        + `${rows.length} new position${rows.length > 1 ? "s are" : " is"} computed (framed); without a `
        + `cache it would be ${whole}.`);
      if (touched) model.keep({ beam, step });
      touched = true;
    }

    el.append(
      kit.guess({ voice, question: "A hypothesis is dropped, and another goes on in two ways. What must be "
        + "computed again for the row that it takes over?", options: [["its whole past", "all"],
        ["nothing", "none"], ["the last two positions", "two"]],
      act: "Now go on until a row is taken over (“from” is another row).",
      begin() { beam = beams[beams.length - 1]; width.set(beam); step = 0; show(); },
      seen() {
        if (!step || !taken().length) return null;
        const rows = searches[beam][step].length, again = rows * (step + 1);
        return ["none", `In step ${step + 1} row ${taken()[0]} is taken over: its past of ${step} `
          + `position${step > 1 ? "s is" : " is"} copied, not computed. As in every step, each row computes its newest `
          + `position alone: ${rows} instead of ${again} for all.`];
      },
      tell() {
        do step++; while (step < searches[beam].length - 1 && !taken().length);
        show();
      } }).node,
      make("div", { class: "fx-row" }, width.node, next, again), place, bars.node,
      make("p", { class: "fx-soft" }, `Blue cells have been copied. Kilobytes for ${size.layers} layers `
        + `of width ${size.d}, in float32.`), voice.node);
    show();
  },
};
