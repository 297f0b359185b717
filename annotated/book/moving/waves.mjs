// waves: a position and an offset, on the clocks of a few pairs and in the
// table's rows.

/** The encoding of a position (§3.5): sine and cosine of each pair. */
export function encoding(position, width) {
  const row = [];
  for (let i = 0; i < width; i += 2) {
    const angle = position / 10000 ** (i / width);
    row.push(Math.sin(angle), Math.cos(angle));
  }
  return row;
}

/** How far a pair of columns turns over an offset, in radians. */
export const turn = (offset, column, width) => offset / 10000 ** (column / width);

/** M_k times an encoding: each pair rotated by its own angle. */
export function rotate(row, offset) {
  return row.flatMap((_, i) => {
    if (i % 2) return [];
    const angle = turn(offset, i, row.length);
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    return [cos * row[i] + sin * row[i + 1], cos * row[i + 1] - sin * row[i]];
  });
}

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const width = model.get("width"), columns = model.get("columns");
    let position = model.asked.pos ?? 3, offset = model.asked.offset ?? 4;
    let column = columns.includes(Number(model.asked.dims)) ? Number(model.asked.dims) : columns[1];
    let touched = false;
    const act = (change) => (to) => { change(to); touched = true; show(); };

    const places = kit.range({ label: "position", min: 0, max: 60, value: position,
      oninput: act((to) => { position = to; }) });
    const offsets = kit.range({ label: "offset k", min: -20, max: 20, value: offset,
      format: (x) => String(x).replace("-", "−"), oninput: act((to) => { offset = to; }) });
    [position, offset] = [+places.input.value, +offsets.input.value];
    const which = kit.choice({ label: "Columns", value: column,
      options: columns.map((c) => [c, `${c}, ${c + 1}`]), onchange: act((to) => { column = to; }) });
    const clocks = make("div", { "aria-hidden": "true",
      style: "display:grid;grid-template-columns:repeat(auto-fit,minmax(6.5rem,1fr));gap:.6rem;margin:.8rem 0" });
    const strips = make("div", { "aria-hidden": "true" }), sum = make("p", { class: "fx-mono" });
    const voice = kit.voice();
    const minus = (x, digits) => x.toFixed(digits).replace("-", "−");

    /** The angle between the two hands, from where they point: at most half a turn. */
    function between() {
      const [a, b] = [position, position + offset].map((p) => {
        const [sin, cos] = encoding(p, width).slice(column);
        return Math.atan2(sin, cos);
      });
      return Math.atan2(Math.sin(b - a), Math.cos(b - a)) * 180 / Math.PI;
    }

    function clock(c) {
      // as the page draws them: from the right, against the clock
      const spot = (p, r) => [60 + r * Math.cos(turn(p, c, width)), 60 - r * Math.sin(turn(p, c, width))];
      const hand = (p, color, r) => {
        const [x, y] = spot(p, r);
        return [draw("line", { x1: 60, y1: 60, x2: x, y2: y, style: `stroke:${color};stroke-width:3` }),
          draw("circle", { cx: x, cy: y, r: 5, style: `fill:${color}` })];
      };
      const arc = Array.from({ length: 61 }, (_, i) =>
        spot(position + offset * i / 60, 26).map((v) => v.toFixed(1)).join(" "));
      return make("div", { style: "text-align:center" },
        draw("svg", { viewBox: "0 0 120 120" },
          draw("circle", { cx: 60, cy: 60, r: 54, style: `fill:var(--card);stroke-width:${c === column
            ? 3 : 1};stroke:var(${c === column ? "--ink" : "--line"})` }),
          draw("path", { d: `M${arc.join("L")}`, style: "fill:none;stroke:var(--soft);stroke-width:2" }),
          ...hand(position, "var(--data)", 50), ...hand(position + offset, "var(--accent)", 42)),
        make("span", { class: "fx-soft" }, `dims ${c}, ${c + 1}`));
    }

    function strip(p, color) {
      const row = encoding(p, width);
      return make("div", {}, make("span", { style: `color:${color}` }, `PE(${p})`.replace("-", "−")),
        draw("svg", { viewBox: `0 0 ${width} 5`, preserveAspectRatio: "none", style: "height:1.5rem" },
          ...row.map((x, i) => draw("rect", { x: i, y: 0, width: 1.02, height: 5,
            style: `fill:color-mix(in srgb,var(${x > 0 ? "--accent" : "--data"}) `
              + `${Math.round(100 * Math.abs(x))}%,var(--ground))` })),
          draw("rect", { x: column, y: 0, width: 2, height: 5,
            style: "fill:none;stroke:var(--ink);stroke-width:.35" })));
    }

    function show() {
      const from = encoding(position, width), to = rotate(from, offset);
      clocks.replaceChildren(...columns.map(clock));
      strips.replaceChildren(strip(position, "var(--data)"), strip(position + offset, "var(--accent)"));
      const angle = turn(offset, column, width);
      const turns = Math.floor(Math.abs(angle) / 2 / Math.PI), rest = Math.abs(angle) * 180 / Math.PI - 360 * turns;
      const whole = turns ? ` (${turns === 1 ? "a whole turn" : `${turns} turns`} and ${rest.toFixed(1)}°)` : "";
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      const sign = (x) => `${x < 0 ? "−" : "+"} ${Math.abs(x).toFixed(2)}`;
      const [a, b] = [from[column], from[column + 1]].map((x) => minus(x, 2));
      sum.replaceChildren(
        `${minus(cos, 2)}·(${a}) ${sign(sin)}·(${b}) = ${minus(to[column], 2)}`, make("br"),
        `${minus(-sin, 2)}·(${a}) ${sign(cos)}·(${b}) = ${minus(to[column + 1], 2)}`);
      voice.say(`From position ${position} to ${minus(position + offset, 0)}, columns ${column} and `
        + `${column + 1} turn by ${minus(angle * 180 / Math.PI, 1)}°${whole}: (${a}, ${b}) becomes `
        + `(${minus(to[column], 2)}, ${minus(to[column + 1], 2)}).`);
      if (touched) model.keep({ pos: position, offset, dims: column });
    }

    el.append(
      kit.guess({ voice, question: "Keep the offset and move the position. What happens to the angle between "
        + "the two hands of a clock?", options: [["it stays", "same"], ["it grows", "more"], ["it shrinks", "less"]],
      act: "Now move the position by ten or more.",
      begin() {
        [position, offset, touched] = [3, offset || 4, true];
        places.set(position);
        offsets.set(offset);
        show();
        return { position, offset, column, angle: between() };
      },
      seen(was) {
        if (Math.abs(position - was.position) < 10 || offset !== was.offset || column !== was.column) return null;
        const now = between(), change = Math.abs(now) - Math.abs(was.angle);
        return [Math.abs(change) < 0.05 ? "same" : change > 0 ? "more" : "less", `From position ${was.position} the hands are `
          + `${minus(was.angle, 1)}° apart, from position ${position} ${minus(now, 1)}°. Both hands turn alike, so one `
          + "matrix does the shift at every position."];
      },
      tell() { position += 20; touched = true; places.set(position); show(); } }).node,
      make("div", { class: "fx-row" }, places.node, offsets.node), clocks, which.node,
      make("p", { class: "fx-soft" }, "The two rows of the table, and the framed pair in numbers:"),
      strips, sum, voice.node);
    show();
  },
};
