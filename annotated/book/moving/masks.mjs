// masks: a mask that one edits, cell by cell, and what it lets through.

const n = 6;

export const KINDS = {
  none: () => true,
  causal: (i, j) => j <= i,
  ahead: (i, j) => j <= i + 1,
  window: (i, j) => Math.abs(i - j) <= 1,
  both: (i, j) => j <= i && i - j <= 1,
};

/** May query i attend to key j? The keys from `real` on are padding. */
export function mask(kind, real = n, flipped = []) {
  return Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) =>
    (KINDS[kind](i, j) && j < real) !== flipped.includes(`${i}${j}`)));
}

/** Which outputs depend on which inputs after some layers with residuals. A
 *  zero after the softmax and a finite number before it hide nothing: the
 *  whole row has a say, in the denominator or by itself. */
export function influence(allowed, how, layers) {
  const one = allowed.map((row, i) => row.map((yes, j) => i === j
    || (how === "before" ? yes : how === "after" ? row.some(Boolean) : true)));
  let all = one;
  for (let layer = 1; layer < layers; layer++) {
    all = all.map((row) => row.map((_, j) => row.some((yes, via) => yes && one[via][j])));
  }
  return all;
}

/** The positions that have the token which they must predict. */
export function leaks(all, real = n) {
  const found = [];
  for (let i = 0; i + 1 < real; i++) if (all[i][i + 1]) found.push(i);
  return found;
}

/** The least loss on random tokens, of so many words, that is not ruled out. */
export const floor = (all, real, words) => Math.log(words) * (1 - leaks(all, real).length / real);

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const asked = model.asked;
    let kind = Object.hasOwn(KINDS, asked.kind) ? asked.kind : "causal";
    let how = ["before", "finite", "after"].includes(asked.how) ? asked.how : "before";
    let real = asked.real ?? n, layers = asked.layers ?? 1;
    let flipped = (asked.cells ?? "").split(".").filter(Boolean), touched = false;
    const words = model.get("words"), trained = model.get("trained");
    const names = Array.from({ length: n }, (_, i) => String(i + 1));
    const change = (act) => (value) => { act(value); touched = true; show(); };

    const now = () => mask(kind, real, flipped);
    const left = kit.grid({ label: "The mask: queries are rows, keys are columns", rows: names,
      columns: names, text: (value) => (value ? "" : "×"),
      tell: (i, j) => `Query ${i + 1} ${now()[i][j] ? "may" : "may not"} attend to key ${j + 1}. `
        + "Click or press Enter to change it.",
      onpress: (i, j) => change(() => {
        const name = `${i}${j}`;
        flipped = flipped.includes(name) ? flipped.filter((one) => one !== name) : [...flipped, name];
      })() });
    const right = kit.grid({ label: "Influence: outputs are rows, inputs are columns", rows: names,
      columns: names, text: () => "",
      tell: (i, j) => `Output ${i + 1} ${influence(now(), how, layers)[i][j] ? "depends"
        : "does not depend"} on input ${j + 1}.` });
    const kinds = kit.choice({ label: "Start from", value: kind, options: [["none", "no mask"],
      ["causal", "causal"], ["ahead", "off by one"], ["window", "window of 3"],
      ["both", "causal, window"]],
    onchange: change((to) => { kind = to; flipped = []; }) });
    const hows = kit.choice({ label: "Forbidden scores", value: how, options: [
      ["before", "−∞ before the softmax"], ["finite", "−10 before it"], ["after", "0 after it"]],
    onchange: change((to) => { how = to; }) });
    const stack = kit.range({ label: "layers", min: 1, max: 6, value: layers,
      oninput: change((to) => { layers = to; }) });
    const tokens = kit.range({ label: "real tokens", min: 2, max: n, value: real,
      oninput: change((to) => { real = to; }) });
    [real, layers] = [+tokens.input.value, +stack.input.value];
    const voice = kit.voice();

    function set(...to) {
      [kind, how, flipped, layers] = to;
      [real, touched] = [n, true];
      kinds.set(kind);
      hows.set(how);
      stack.set(layers);
      tokens.set(real);
      show();
    }

    function show() {
      const all = influence(now(), how, layers), found = leaks(all, real);
      left.set(now().map((row) => row.map((yes) => 0.6 * yes)));
      right.set(all.map((row) => row.map((yes) => 0.6 * yes)), found.map((i) => [i, i + 1]));
      const least = floor(all, real, words), guess = Math.log(words).toFixed(2);
      const parts = [`With ${layers} layer${layers > 1 ? "s" : ""}, `];
      parts.push(found.length
        ? `${found.length} of ${real} positions depend${found.length > 1 ? "" : "s"} on the token that `
          + `${found.length > 1 ? "they" : "it"} must predict (framed): on random digits the loss may `
          + `fall below guessing, ${guess}, down to ${least.toFixed(2)}.`
        : `no position depends on the token that it must predict: on random digits no loss below `
          + `guessing, ${guess}, can be reached.`);
      // a forbidden score still has a say, but a faint one; what the mask allows has not
      if (found.length && !leaks(influence(now(), "before", layers), real).length) {
        parts.push(` The leak is faint${layers > 1 ? "." : `; the layer trained above came to ${trained[how].toFixed(2)}.`}`);
      }
      voice.say(parts.join(""));
      if (touched) model.keep({ kind, how, real, layers, cells: flipped.join(".") });
    }

    el.append(
      kit.guess({ voice, question: "A causal mask, and one cell too many: query 2 may see key 6. In one layer "
        + "no position sees the token that it must predict. And in two?", options: [["still none", "none"],
        ["two", "two"], ["all", "all"]],
      act: "The cell is open. Now take two layers.",
      begin() { set("causal", "before", ["15"], 1); return leaks(influence(now(), how, 1)); },
      seen(was) {
        if (kind !== "causal" || how !== "before" || real !== n || layers !== 2 || flipped.join() !== "15") return null;
        const found = leaks(influence(now(), how, 2));
        return [{ 0: "none", 2: "two", [n - 1]: "all" }[found.length], `With one layer ${was.length} of ${n} `
          + `positions depended on what they must predict, with two ${found.length} do: position 2 looks at 6, which `
          + "has seen token 3, and position 5 looks at 2, which has seen token 6. A third layer lets others hear of it."];
      },
      tell() { set("causal", "before", ["15"], 2); } }).node,
      kinds.node, hows.node, make("div", { class: "fx-row" }, stack.node, tokens.node),
      make("div", { class: "fx-cols" },
        make("div", {}, make("p", { class: "fx-soft" }, "The mask: press a cell"), left.node),
        make("div", {}, make("p", { class: "fx-soft" }, "Who depends on whom, in the end"), right.node)),
      voice.node);
    show();
  },
};
