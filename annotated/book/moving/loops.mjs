// loops: six curves, six faults; which is which?

// `would` goes on "…": what the fault's own curve looks like
export const FAULTS = [
  { name: "no shift", panel: "C", would: "without the shift every answer is in the input, and the "
    + "loss is near zero after a few steps",
  why: "each position reads its own answer, so the loss is near zero at once, and an honest validation "
    + "finds a model that repeats the last word." },
  { name: "no causal mask", panel: "F", would: "without the mask the loop learns like the healthy one, "
    + "and the dots stay behind",
  why: "the answer is one place to the right. The line is as good as the healthy one's, and an honest "
    + "validation, with the mask, is not.",
  near: { C: "close, since both leak. But a missing mask has to learn where to look, and this line is "
    + "near zero at once." } },
  { name: "mean of the sentences' means", panel: "B", would: "another average of the same gradients "
    + "learns almost like the healthy loop",
  why: "tokens of short sentences count for more, and no curve shows it." },
  { name: "rate too high", panel: "A", would: "a rate thirty times too high ruins the model, and its "
    + "loss stays near three nats",
  why: "layer normalisation keeps every number finite, so a ruined model goes on without an error.",
  near: { E: "close, since both learn next to nothing. But a rate that is too high throws the loss up "
    + "once it has grown, and this line begins like the healthy one and stops." } },
  { name: "validation with dropout", panel: "D", would: "a validation with dropout lies on the line of "
    + "a loop with dropout",
  why: "an honest validation drops nothing, so its line should lie below that of a run with dropout." },
  { name: "shuffled targets", panel: "E", would: "with shuffled targets there is nothing to learn but "
    + "how frequent each symbol is, and line and dots stay high together",
  why: "it learns the frequency of symbols and the lengths, and there is nothing more to learn.",
  near: { A: "close, since both stay near three nats. But shuffled targets give a quiet line, and this "
    + "one has a bump soon after step 100." } },
];

export const SHOWS = {
  A: "line and dots stay near three nats, with a bump soon after step 100",
  B: "line and dots follow the healthy loop",
  C: "the line is near zero from the first steps on, and the dots are near five",
  D: "line and dots fall together, more slowly than the healthy loop",
  E: "line and dots stay near three nats",
  F: "the line falls like the healthy one, and the dots do not follow it",
};

/** What is said of a fault that was put to a panel. */
export function verdict(fault, panel) {
  if (fault.panel === panel) return `Right: ${fault.why}`;
  if (fault.near?.[panel]) return `Not so: ${fault.near[panel]}`;
  return `Not so: ${fault.would}; here ${SHOWS[panel]}.`;
}

/** The panels with the distance of their line, or of their dots where that is larger,
 *  from the healthy line: the nearest first. */
export function closest(panels, healthy, last) {
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  const at = (step) => healthy[Math.round(step / last * (healthy.length - 1))];
  return panels.map(({ name, line, dots }) => [name, Math.max(
    mean(line.map((y, i) => Math.abs(y - healthy[Math.round(i / (line.length - 1) * (healthy.length - 1))]))),
    mean(dots.map(([step, nll]) => Math.abs(nll - at(step)))))]).sort((a, b) => a[1] - b[1]);
}

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const panels = model.get("panels"), healthy = model.get("healthy"), last = model.get("last");
    const picked = Object.fromEntries(panels.map(({ name }) => [name, ""]));
    const voice = kit.voice(), set = {}, near = closest(panels, healthy, last);
    const [wide, high] = [200, 120];
    const path = (line) => line.map((y, i) => `${i ? "L" : "M"}${(i * wide / (line.length - 1)).toFixed(1)} `
      + `${(high - Math.min(y, 5) / 5 * high).toFixed(1)}`).join("");

    const cards = panels.map((panel) => {
      const said = make("p", { class: "fx-soft", style: "min-height:3em" });
      const pick = make("select", { "aria-label": `The fault of panel ${panel.name}`, style: "width:100%",
        onchange: () => set[panel.name](pick.value) },
      make("option", { value: "" }, "which fault?"),
      ...FAULTS.map((fault, i) => make("option", { value: i }, fault.name)));
      set[panel.name] = (to) => {
        picked[panel.name] = pick.value = to;
        const fault = FAULTS[to];
        said.textContent = fault ? verdict(fault, panel.name) : "";
        tell();
      };
      return make("div", {}, make("strong", {}, panel.name),
        draw("svg", { viewBox: `-24 -6 ${wide + 30} ${high + 24}`, role: "img",
          "aria-label": `Panel ${panel.name}: ${SHOWS[panel.name]}` },
        ...[0, 2.5, 5].map((y) => draw("g", {},
          draw("line", { x1: 0, x2: wide, y1: high * (1 - y / 5), y2: high * (1 - y / 5),
            style: "stroke:var(--line)" }),
          draw("text", { x: -5, y: high * (1 - y / 5) + 4, "text-anchor": "end" }, y))),
        draw("text", { x: wide, y: high + 16, "text-anchor": "end" }, `step ${last}`),
        draw("path", { d: path(healthy), style: "fill:none;stroke:var(--soft);opacity:.6;stroke-width:1.5" }),
        draw("path", { d: path(panel.line), style: "fill:none;stroke:var(--data);stroke-width:2" }),
        ...panel.dots.map(([step, nll]) => draw("circle", { r: 4.5, style: "fill:var(--accent)",
          cx: step / last * wide, cy: high * (1 - Math.min(nll, 5) / 5) }))),
        pick, said);
    });

    function tell() {
      const right = panels.filter(({ name }) => picked[name] !== "" && FAULTS[picked[name]].panel === name);
      const open = panels.filter(({ name }) => picked[name] === "").length;
      voice.say(right.length === panels.length
        ? "All six. A loss that is too good is a fault more often than a discovery."
        : `${right.length} of ${panels.length} are right, ${open} ${open === 1 ? "is" : "are"} open.`);
    }

    el.append(
      kit.guess({ voice, question: "One of the six cannot be seen in its curve at all. Which fault is that?",
        options: FAULTS.filter(({ panel }) => "FBA".includes(panel)).map(({ name, panel }) => [name, panel]),
        act: "Now find the panel that keeps to the grey line, and choose its fault.",
        seen() {
          const [name] = near[0], fault = FAULTS[picked[name]];
          if (fault?.panel !== name) return null;
          return [name, `It is “${fault.name}”: line and dots of panel ${name} are ${near[0][1].toFixed(2)} nats from the `
            + `healthy line on average; those of the next panel, ${near[1][0]}, ${near[1][1].toFixed(2)}.`];
        },
        tell() {
          const [name] = near[0];
          set[name](FAULTS.findIndex(({ panel }) => panel === name));
        } }).node,
      make("p", { class: "fx-soft" }, "Nats per token. Line: what the loop reports. Dots: a validation. "
        + "Grey: the healthy loop."),
      make("div", { style: "display:grid;gap:1rem 1.4rem;"
        + "grid-template-columns:repeat(auto-fill,minmax(min(100%,13rem),1fr))" }, ...cards),
      voice.node);
    tell();
  },
};
