// chart: bars, and curves with their axes.

const BARS = "display:grid;grid-template-columns:minmax(2.5rem,auto) 1fr minmax(3.6em,auto);"
  + "gap:.3rem .6rem;align-items:center;margin:.2rem 0";

/** Rows of name, bar and number; set([[name, part of the whole, text], …]). */
export function bars({ make }, label) {
  const node = make("div", { style: BARS, role: "img", "aria-label": label });
  const set = (rows) => {
    node.setAttribute("aria-label", `${label}: ${rows.map(([n, , t]) => `${n} ${t}`).join(", ")}`);
    node.replaceChildren(...rows.map(([name, part, text, color]) =>
      make("div", { style: "display:contents" }, make("span", {}, name),
        make("span", {}, make("i", { style: `display:block;height:.95rem;border-radius:2px;`
          + `background:${color ?? "var(--data)"};width:${100 * part}%` })),
        make("b", { style: "font-weight:400;text-align:right" }, text))));
  };
  return { node, set };
}

/** Round numbers up to the largest, with text. */
export function ticks(most, form = (n) => String(+n.toPrecision(3))) {
  const unit = 10 ** Math.floor(Math.log10(most));
  const step = unit * (most / unit < 2 ? 0.5 : most / unit < 5 ? 1 : 2);
  return [0, 1, 2, 3, 4, 5].map((n) => n * step).filter((n) => n <= most * 1.001)
    .map((n) => [n, form(n)]);
}

/** Curves; set({ x, y, series, mark }) draws them and returns the scales. x and y
 *  are { from, to, ticks, log }, a series { name, points, style }, the mark a point. */
export function lines({ make, draw }, { label, xLabel, yLabel, width = 380, height = 230 }) {
  const [left, right, top, bottom] = [44, 12, 26, 38];
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label,
    style: "max-width:28rem" });
  const names = make("div", { class: "fx-row fx-soft" });
  const along = (axis, from, to) => {
    const at = axis.log ? Math.log : Number;
    return (v) => from + (to - from) * (at(v) - at(axis.from)) / (at(axis.to) - at(axis.from));
  };
  const set = ({ x, y, series, mark }) => {
    const [px, py] = [along(x, left, width - right), along(y, height - bottom, top)];
    svg.replaceChildren(
      draw("text", { x: 0, y: 12 }, yLabel),
      draw("text", { x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, xLabel),
      ...y.ticks.flatMap(([v, text]) => [
        draw("line", { x1: left, x2: width - right, y1: py(v), y2: py(v), style: "stroke:var(--line)" }),
        draw("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, text)]),
      ...x.ticks.map(([v, text]) =>
        draw("text", { x: px(v), y: height - 20, "text-anchor": "middle" }, text)),
      ...series.map(({ points, style }) => draw("path", { style: `fill:none;stroke-width:2;${style}`,
        d: points.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("") })),
      mark ? draw("circle", { cx: px(mark[0]), cy: py(mark[1]), r: 6, style: "fill:var(--accent)" }) : "");
    names.replaceChildren(...series.filter((one) => one.name).map(({ name, style }) =>
      make("span", {}, draw("svg", { viewBox: "0 0 30 8", "aria-hidden": "true",
        style: "display:inline-block;width:30px;margin-right:.4em;vertical-align:middle" },
      draw("path", { d: "M0 4H30", style: `stroke-width:2;${style}` })), name)));
    return [px, py];
  };
  return { node: make("div", {}, svg, names), svg, set };
}
