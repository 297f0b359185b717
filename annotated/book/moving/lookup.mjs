// lookup: one query, three keys, three values. The arrows can be moved; the
// weights, the output and equation 1 follow.
// needs: chart

/** q·kᵀ/√d_k for each key, times the sharpness (1 is the paper's). */
export function scores(q, keys, sharpness = 1) {
  return keys.map((key) =>
    sharpness * key.reduce((sum, x, i) => sum + x * q[i], 0) / Math.sqrt(q.length));
}

/** The softmax, without overflow. */
export function softmax(xs) {
  const most = Math.max(...xs);
  const exps = xs.map((x) => Math.exp(x - most));
  const total = exps.reduce((a, b) => a + b, 0);
  return exps.map((x) => x / total);
}

/** The weighted mean of the values. */
export function mix(weights, values) {
  return values[0].map((_, i) => weights.reduce((sum, w, j) => sum + w * values[j][i], 0));
}

/** What the weights mean, in words. */
export function meaning(weights) {
  const most = Math.max(...weights), least = Math.min(...weights);
  const best = weights.indexOf(most) + 1;
  if (most - least < 0.05) return "nearly the plain mean of the values";
  if (most > 0.95) return `nearly value ${best} itself, as from a dictionary`;
  const first = weights.filter((w) => w > most - 0.005).length;
  return first > 1 ? "drawn to two values alike" : `drawn to value ${best}`;
}

const REACH = 2.5; // components go from -2.5 to 2.5
const inside = (x) => Math.max(-REACH, Math.min(REACH, x));

/** "1,0.5" as [1, 0.5], on the plane; null unless that is two numbers. */
export function point(text) {
  const parts = (text ?? "").split(",").map(Number);
  return parts.length === 2 && parts.every(Number.isFinite) ? parts.map(inside) : null;
}

/** Which way each arrow's label stands from its tip: on, in the arrow's own
 * direction; beside it, if a longer arrow goes on there; and a key near the
 * origin has it where the other arrows are not. */
export function outwards(arrows) {
  return arrows.map(([x, y], i) => {
    let far = Math.hypot(x, y);
    if (far < 0.4) {
      const others = arrows.filter((_, j) => j !== i && Math.hypot(...arrows[j]) >= 0.4);
      [x, y] = [0, 1].map((c) => -others.reduce((sum, a) => sum + a[c] / Math.hypot(...a), 0));
      far = Math.hypot(x, y);
    } else if (arrows.some(([a, b]) => Math.hypot(a, b) > far
      && a * x + b * y > 0.95 * far * Math.hypot(a, b))) {
      [x, y] = [y, -x];
    }
    return far < 0.01 ? [-Math.SQRT1_2, -Math.SQRT1_2] : [x / far, y / far];
  });
}

const SIDE = 220;
const EDGE = 18; // for the labels of tips at the edge
const BOX = `${-EDGE} ${-EDGE} ${SIDE + 2 * EDGE} ${SIDE + 2 * EDGE}`;
const SMALL = "max-width:16.5rem;margin:auto"; // the whole figure fits a screen

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const values = model.get("values");
    const at = { q: [...model.get("query")] };
    model.get("keys").forEach((key, i) => { at[`k${i + 1}`] = [...key]; });
    const names = Object.keys(at);
    for (const name of names) at[name] = point(model.asked[name]) ?? at[name];
    let sharpness = model.asked.sharp ?? 1, held = "q", touched = false;

    // the plane of the query and the keys
    const to = (x, y) => [SIDE / 2 + x * SIDE / 2 / REACH, SIDE / 2 - y * SIDE / 2 / REACH];
    const arrows = {}, tips = {}, texts = {};
    for (const name of names) {
      const color = name === "q" ? "var(--query)" : "var(--key)";
      arrows[name] = draw("line", { x1: SIDE / 2, y1: SIDE / 2,
        style: `stroke:${color};stroke-width:${name === "q" ? 3 : 2}` });
      tips[name] = draw("circle", { r: name === "q" ? 8 : 6, style: `fill:${color};cursor:grab` });
      texts[name] = draw("text", { "text-anchor": "middle",
        style: `fill:${color};font-weight:600` }, name);
    }
    const axis = (more) => draw("line", { ...more, style: "stroke:var(--line)" });
    // on the svg itself: on a part of it a browser scrolls all the same
    const plane = draw("svg", { viewBox: BOX, "aria-hidden": "true",
      style: `${SMALL};touch-action:none` },
      axis({ x1: 0, x2: SIDE, y1: SIDE / 2, y2: SIDE / 2 }),
      axis({ y1: 0, y2: SIDE, x1: SIDE / 2, x2: SIDE / 2 }),
      ...Object.values(arrows), ...Object.values(tips), ...Object.values(texts));
    const under = (event) => {
      const box = plane.getBoundingClientRect(), scale = (SIDE + 2 * EDGE) / box.width;
      return [((event.clientX - box.left) * scale - EDGE - SIDE / 2) / (SIDE / 2) * REACH,
        (SIDE / 2 - (event.clientY - box.top) * scale + EDGE) / (SIDE / 2) * REACH];
    };
    const drag = (event) => {
      const [x, y] = under(event);
      at[held] = [x, y].map((c) => inside(Math.round(c * 20) / 20));
      change();
    };
    // the nearest tip within a finger's width
    plane.addEventListener("pointerdown", (event) => {
      if (event.button) return; // the menu that opens would swallow the release
      const [x, y] = under(event), far = (name) => Math.hypot(at[name][0] - x, at[name][1] - y);
      const near = names.reduce((best, name) => (far(name) < far(best) ? name : best));
      if (far(near) > 0.5) return;
      held = near;
      which.set(near);
      plane.setPointerCapture(event.pointerId);
      plane.onpointermove = drag;
      event.preventDefault();
    });
    for (const end of ["pointerup", "pointercancel"]) {
      plane.addEventListener(end, () => { plane.onpointermove = null; });
    }

    // the triangle of the values
    const high = Math.max(...values.flat());
    const spot = ([x, y]) => [20 + x / high * (SIDE - 40), SIDE - 20 - y / high * (SIDE - 40)];
    const pulls = values.map(() => draw("line", { style: "stroke:var(--value);opacity:.55" }));
    const out = draw("circle", { r: 8, style: "fill:var(--ink)" });
    const triangle = draw("svg", { viewBox: BOX, style: SMALL,
      "aria-hidden": "true" },
      draw("polygon", { points: values.map((v) => spot(v).join()).join(" "),
        style: "fill:none;stroke:var(--soft);stroke-dasharray:4 4" }),
      ...pulls,
      ...values.flatMap((v, i) => {
        const [x, y] = spot(v);
        return [draw("circle", { cx: x, cy: y, r: 5, style: "fill:var(--value)" }),
          draw("text", { x: x + (x > SIDE / 2 ? -10 : 10), y: y + (y > SIDE / 2 ? 18 : -6),
            "text-anchor": x > SIDE / 2 ? "end" : "start", style: "fill:var(--value)" }, `v${i + 1} (${v.join(", ")})`)];
      }), out);

    const which = kit.choice({ label: "Move", value: held, options: names.map((n) =>
      [n, n === "q" ? "the query" : `key ${n.slice(1)}`]),
    onchange: (name) => { held = name; show(); } });
    const component = (i) => kit.range({ label: i ? "up" : "right", min: -REACH, max: REACH,
      step: 0.01, value: 0, format: (x) => x.toFixed(2),
      oninput: (x) => { at[held][i] = x; change(); } });
    const [right, up] = [component(0), component(1)];
    const sharp = kit.range({ label: "sharpness", min: 0, max: 10, step: 0.1, value: sharpness,
      format: (x) => (x === 1 ? "1 (paper)" : x.toFixed(1)),
      oninput: (x) => { sharpness = x; change(); } });
    sharpness = +sharp.input.value;
    const bars = kit.chart.bars(kit, "Weights");
    const sums = make("div"), voice = kit.voice();

    const facts = () => {
      const weights = softmax(scores(at.q, names.slice(1).map((name) => at[name]), sharpness));
      return { weights, output: `(${mix(weights, values).map((x) => x.toFixed(1)).join(", ")})` };
    };

    function change() {
      touched = true;
      show();
    }

    function show() {
      const keys = names.slice(1).map((name) => at[name]);
      const found = scores(at.q, keys, sharpness), weights = softmax(found);
      const output = mix(weights, values);
      const ways = outwards(names.map((name) => at[name]));
      for (const [i, name] of names.entries()) {
        const [x, y] = to(...at[name]);
        for (const [key, value] of [["x2", x], ["y2", y]]) arrows[name].setAttribute(key, value);
        for (const [key, value] of [["cx", x], ["cy", y]]) tips[name].setAttribute(key, value);
        texts[name].setAttribute("x", x + 17 * ways[i][0]);
        texts[name].setAttribute("y", y + 5 - 16 * ways[i][1]);
      }
      const [ox, oy] = spot(output);
      out.setAttribute("cx", ox);
      out.setAttribute("cy", oy);
      pulls.forEach((line, i) => {
        const [x, y] = spot(values[i]);
        for (const [key, value] of Object.entries({ x1: ox, y1: oy, x2: x, y2: y,
          "stroke-width": 14 * weights[i] })) line.setAttribute(key, value);
      });
      right.set(at[held][0]);
      up.set(at[held][1]);
      bars.set(weights.map((w, i) => [`key ${i + 1}`, w, w.toFixed(2)]));
      const raw = scores(at.q, keys, Math.sqrt(2));
      sums.replaceChildren(kit.table(
        ["", "q · k", sharpness === 1 ? "÷ √2" : `÷ √2, × ${sharpness}`, "softmax", "value"],
        weights.map((w, i) => [`key ${i + 1}`, raw[i].toFixed(2), found[i].toFixed(2),
          w.toFixed(2), `(${values[i].join(", ")})`])));
      const [a, b] = output.map((x) => x.toFixed(1));
      voice.say(`The weights are ${weights.map((w) => w.toFixed(2)).join(", ")}, so the output is `
        + `(${a}, ${b}): ${meaning(weights)}.`);
      if (touched) {
        const state = { sharp: sharpness };
        for (const name of names) state[name] = at[name].map((x) => +x.toFixed(3)).join();
        model.keep(state);
      }
    }

    el.append(
      kit.guess({ voice, question: "You make the query twice as long, in the same direction. "
        + "Where does the output go?", options: [["to the mean", "mean"],
        ["to the best key’s value", "best"], ["nowhere", "still"]],
      act: "Now make the query twice as long: drag its tip, or use the two sliders.",
      begin() {
        const long = Math.max(...model.get("query").map(Math.abs)), part = Math.min(1, REACH / 2 / long);
        at.q = model.get("query").map((x) => Math.round(100 * x * part) / 100);
        model.get("keys").forEach((key, i) => { at[`k${i + 1}`] = [...key]; });
        [held, sharpness] = ["q", 1];
        which.set(held);
        sharp.set(1);
        change();
        return { at: structuredClone(at), ...facts() };
      },
      seen(was) {
        const [a, b] = [was.at.q, at.q], [x, y] = [Math.hypot(...a), Math.hypot(...b)];
        const along = (a[0] * b[0] + a[1] * b[1]) / x / y;
        if (sharpness !== 1 || !(along > 0.995) || Math.abs(y / x - 2) > 0.1
          || names.some((name) => name !== "q" && at[name].join() !== was.at[name].join())) return null;
        const now = facts(), [most, before] = [now, was].map((one) => Math.max(...one.weights));
        return [Math.abs(most - before) < 0.005 ? "still" : most > before ? "best" : "mean",
          `The largest weight went from ${before.toFixed(2)} to ${most.toFixed(2)}, and the output from `
          + `${was.output} to ${now.output}. All scores double, so the softmax tells them further apart.`];
      },
      tell() {
        at.q = at.q.map((x) => 2 * x);
        change();
      } }).node,
      make("div", { class: "fx-cols" },
        make("div", {}, make("p", { class: "fx-soft" }, "The query and the keys: drag a tip"), plane),
        make("div", {}, make("p", { class: "fx-soft" }, "The values, and the output among them"),
          triangle)),
      which.node,
      make("div", { class: "fx-row" }, right.node, up.node),
      make("div", { class: "fx-row" }, sharp.node),
      make("div", { class: "fx-cols" }, make("div", {}, bars.node), sums),
      voice.node);
    show();
  },
};
