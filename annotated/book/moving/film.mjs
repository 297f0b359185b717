// film: what a model writes, where it looks and what it loses, at each of
// the moments of its training that were kept.

/** The first step at which the text is right, and the one from which on it
 *  stays so; null where there is none. */
export function found(frames, target) {
  let first = null, stays = null;
  for (const { step, text } of frames) {
    if (text !== target) stays = null;
    else {
      first ??= step;
      stays ??= step;
    }
  }
  return { first, stays };
}

/** For each letter (or word) written whether it is the right one there. */
export function marked(text, target, unit = "") {
  const wanted = target.split(unit);
  return text ? text.split(unit).map((part, i) => [part, part === wanted[i]]) : [];
}

/** The loss as it is drawn: the mean of the last few steps. */
export function smooth(losses, width) {
  return losses.map((_, i) => {
    const part = losses.slice(Math.max(0, i - width + 1), i + 1);
    return part.reduce((a, b) => a + b, 0) / part.length;
  });
}

/** The share of the weight that lies on the cells of `path`, of the rows that
 *  have such cells. */
export function onPath(weights, path) {
  const rows = new Set(path.map(([i]) => i)).size;
  return path.reduce((sum, [i, j]) => sum + weights[i][j], 0) / rows;
}

/** Parts of the training as choices, each with the step that it begins with. */
function moments(frames) {
  const steps = frames[frames.length - 1].step, a = Math.round(steps / 4), b = Math.round(steps / 2);
  return [[`before step ${a}`, 0], [`from ${a} to ${b}`, a], [`after step ${b}`, b + 1], ["never", "never"]];
}

/** The one of them in which the text is right for the first time. */
export function moment(frames, target) {
  const { first } = found(frames, target);
  return first === null ? "never" : moments(frames).filter(([, from]) => first >= from).pop()[1];
}

/** A curve over x, drawn as far as its mark; set(x, y) puts that there. */
function curve(draw, { label, xs, ys, xLabel, yLabel, yMax, width = 360, height = 220 }) {
  const [left, right, top, bottom] = [38, 8, 24, 36];
  const high = yMax ?? Math.max(...ys);
  const last = xs[xs.length - 1];
  const x = (value) => left + (width - left - right) * (value - xs[0]) / (last - xs[0]);
  const y = (value) => top + (height - top - bottom) * (1 - value / high);
  const path = draw("path", { style: "fill:none;stroke:var(--data);stroke-width:1.6" });
  const unit = 10 ** Math.floor(Math.log10(high));
  const ticks = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => n * unit).filter((n) => n <= high);
  const mark = draw("circle", { r: 6, style: "fill:var(--accent)" });
  const node = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label,
    style: "max-width:28rem" },
    draw("text", { x: 0, y: 12 }, yLabel),
    ...ticks.flatMap((n) => [
      draw("line", { x1: left, x2: width - right, y1: y(n), y2: y(n), style: "stroke:var(--line)" }),
      draw("text", { x: left - 6, y: y(n) + 4, "text-anchor": "end" }, String(+n.toPrecision(2))),
    ]),
    draw("text", { x: left, y: height - 14, "text-anchor": "middle" }, String(xs[0])),
    draw("text", { x: width - right, y: height - 14, "text-anchor": "end" }, String(last)),
    draw("text", { x: (left + width) / 2, y: height - 14, "text-anchor": "middle" }, xLabel),
    path, mark);
  const set = (atX, atY) => {
    path.setAttribute("d", xs.filter((at) => at <= atX).map((at, i) =>
      `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}`).join(""));
    mark.setAttribute("cx", x(atX));
    mark.setAttribute("cy", y(atY));
  };
  return { node, set };
}

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const frames = model.get("frames"), target = model.get("target");
    const rows = model.get("rows"), columns = model.get("columns");
    const unit = model.get("unit") ?? "", path = model.get("path") ?? [];
    const losses = smooth(model.get("losses"), 5);
    const steps = losses.map((_, i) => i + 1);
    const kept = frames.map((frame) => frame.step);
    let now = Math.max(0, kept.indexOf(Number(model.asked.step ?? 0))), touched = "step" in model.asked;

    const written = make("p", { class: "fx-mono fx-written" });
    const weight = (i, j) => frames[now].weights[i][j];
    const map = kit.grid({
      label: model.get("map"), rows, columns,
      tell: (i, j) => `${model.get("act")} ${rows[i]}, it gives ${columns[j]}`
        + ` (place ${j + 1}) ${weight(i, j).toFixed(2)}.`,
      size: model.get("cell"),
    });
    const loss = curve(kit.draw, {
      label: "The loss at each step of the training", xs: steps, ys: losses,
      xLabel: "step", yLabel: "loss (nats per token)",
    });
    const slider = kit.range({
      label: "After", min: 0, max: frames.length - 1, value: now,
      format: (i) => `${kept[i]} steps`, oninput: (i) => show(i),
    });
    const back = kit.button("Earlier", () => show(now - 1));
    const on = kit.button("Later", () => show(now + 1));
    const voice = kit.voice();

    function show(i) {
      now = i;
      const { step, text, weights } = frames[i];
      slider.set(i);
      back.disabled = i === 0;
      on.disabled = i === frames.length - 1;
      map.set(weights);
      const at = Math.max(step, 1);
      loss.set(at, losses[at - 1]);
      const parts = marked(text, target, unit);
      const right = parts.filter(([, yes]) => yes).length;
      written.replaceChildren(
        make("span", { class: "fx-soft" }, `${model.get("source")} → `),
        ...parts.flatMap(([part, yes], n) => [
          n ? unit : "", make("span", { class: yes ? "fx-yes" : "fx-no" }, part)]),
        text ? "" : "(nothing)",
        text === target ? "" : make("span", { class: "fx-soft fx-wanted" }, ` should be ${target}`));
      const of = rows.length - 1;
      const share = path.length
        ? ` ${Math.round(100 * onPath(weights, path))} % of its attention is ${model.get("share")}.`
        : "";
      voice.say(`After ${step} steps it writes ${text ? `“${text}”` : "nothing"}: `
        + `${right} of ${of} ${model.get("things")} in the right place, `
        + `at a loss of ${losses[at - 1].toFixed(2)}.${share}`);
      if (touched) model.keep({ step });
      touched = true;
    }

    el.append(
      make("style", {}, ".fx .fx-written{font-size:1.25rem;overflow-wrap:anywhere;min-height:1.9em}"
        + ".fx .fx-wanted{font-size:.75em}.fx .fx-yes{color:var(--good);font-weight:600}"
        + ".fx .fx-no{color:var(--bad);text-decoration:underline dotted;text-underline-offset:.2em}"),
      kit.guess({ voice, question: model.get("question"), options: moments(frames),
        act: "Now go through the training, step by step.",
        begin() { show(0); return frames[0]; },
        seen(was) {
          const { first } = found(frames, target), key = moment(frames, target);
          if (first === null ? now < frames.length - 1 : kept[now] < first) return null;
          const from = `At step ${was.step} it wrote ${was.text ? `“${was.text}”` : "nothing"}`;
          return [key, first === null ? `${from}, at the end “${frames[now].text}”: it is never right.`
            : `${from}; at step ${first} “${target}” stands there for the first time, and the loss went from `
              + `${losses[0].toFixed(2)} to ${losses[Math.max(first, 1) - 1].toFixed(2)}.`];
        },
        tell() {
          const { first } = found(frames, target);
          show(first === null ? frames.length - 1 : kept.indexOf(first));
        } }).node,
      make("div", { class: "fx-row" }, slider.node, back, on),
      written,
      make("div", { class: "fx-cols", style: "--cols:minmax(0,auto) minmax(14rem,1fr)" },
        make("div", {}, make("p", { class: "fx-soft" }, model.get("map")), map.node),
        make("div", {}, loss.node, voice.node)),
      kit.folded("As a table", kit.table(["step", "loss", "writes"],
        frames.map(({ step, text }) =>
          [step, losses[Math.max(step, 1) - 1].toFixed(2), text || "(nothing)"]))),
    );
    show(now);
  },
};
