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

/** Parts of the training as choices; the first time that it is right lies in
 *  one of them. */
export function moments(frames, target) {
  const steps = frames[frames.length - 1].step;
  const { first, stays } = found(frames, target);
  const a = Math.round(steps / 4), b = Math.round(steps / 2);
  let where = "it is never right in these frames.";
  if (first !== null) {
    where = `it is right for the first time at step ${first}`;
    if (stays === null) where += ", but not at the end.";
    else if (stays === first) where += ", and stays so.";
    else where += `, then loses it again, and is right for good from step ${stays} on.`;
  }
  return [
    [`before step ${a}`, first !== null && first < a, where],
    [`between ${a} and ${b}`, first !== null && first >= a && first <= b, where],
    [`after step ${b}`, first === null || first > b, where],
  ];
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
    let now = Math.max(0, kept.indexOf(Number(model.asked.step ?? 0)));

    const written = make("p", { class: "fx-mono fx-written" });
    const weight = (i, j) => frames[now].weights[i][j];
    const map = kit.grid({
      label: model.get("map"), rows, columns,
      tell: (i, j) => `${model.get("act")} ${rows[i]}, it gives ${columns[j]}`
        + ` (place ${j + 1}) ${weight(i, j).toFixed(2)}.`,
      size: model.get("cell"),
    });
    const loss = kit.curve({
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
        text ? "" : make("span", { class: "fx-soft" }, "(nothing)"));
      const of = rows.length - 1;
      const share = path.length
        ? ` ${Math.round(100 * onPath(weights, path))} % of its attention is ${model.get("share")}.`
        : "";
      voice.say(`After ${step} steps it writes ${text ? `“${text}”` : "nothing"}: `
        + `${right} of ${of} ${model.get("things")} in the right place, `
        + `at a loss of ${losses[at - 1].toFixed(2)}.${share}`);
      if (i || model.asked.step) model.keep({ step });
    }

    el.append(
      make("style", {}, ".fx .fx-written{font-size:1.25rem;overflow-wrap:anywhere;min-height:1.9em}"
        + ".fx .fx-yes{color:var(--good);font-weight:600}"
        + ".fx .fx-no{color:var(--bad);text-decoration:underline dotted;text-underline-offset:.2em}"),
      kit.guess({ question: model.get("question"), options: moments(frames, target) }),
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
