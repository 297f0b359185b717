// branches: a trained model as Figure 1 draws it, and what it writes when branches
// of its streams are switched off.
// needs: engine, plan

/** Where each branch of a model is added: the norms that the engine names. */
export const BRANCHES = {
  "encoder.attention": "encoder.layers.0.norm1", "encoder.network": "encoder.layers.0.norm2",
  "decoder.attention": "decoder.layers.0.norm1", "decoder.cross": "decoder.layers.0.norm2",
  "decoder.network": "decoder.layers.0.norm3",
};

/** What a model of letters writes, at most three more than it has read, and
 *  how long what each branch adds is, as a share of its stream. */
export function write(engine, net, word, letters, off = []) {
  const lengths = {}, long = (x) => Math.hypot(...x);
  net.off = new Set(off.map((key) => BRANCHES[key]));
  net.watch = (name, x, added) => (lengths[name] ??= []).push(long(added) / long(x));
  const { memory } = net.encode([...[...word].map((x) => 4 + letters.indexOf(x)), engine.EOS]);
  const state = net.start(memory);
  let text = "", last = engine.BOS;
  for (let n = 0; n < word.length + 3; n++) {
    const { logits } = net.step(state, last);
    last = logits.indexOf(Math.max(...logits));
    if (last === engine.EOS) break;
    text += last < 4 ? "·" : letters[last - 4];
  }
  net.off.clear();
  net.watch = null;
  const mean = (list) => list.reduce((a, b) => a + b) / list.length;
  return { text, shares: Object.fromEntries(Object.entries(BRANCHES)
    .map(([key, name]) => [key, mean(lengths[name])])) };
}

/** How many letters stand in the right place. */
export const hits = (text, right) => [...right].filter((x, i) => text[i] === x).length;

export default {
  render({ model, el, kit }) {
    const { make, engine } = kit, { boxes, plan, STYLE } = kit.plan;
    const letters = model.get("letters"), alone = model.get("without");
    const names = Object.fromEntries(boxes({ N: 1, d: 1, h: 1, ff: 1, V: 1 }).filter(({ key }) => BRANCHES[key])
      .map(({ key, side, name }) => [key, `the ${side ? "decoder" : "encoder"}’s ${name}`]));
    const layout = model.get("layout"), off = new Set(), given = model.get("word");
    const bytes = 2 * layout.reduce((sum, [, shape]) => sum + shape.reduce((a, b) => a * b), 0);
    let net = null, word = given;
    const field = make("input", { type: "text", value: word, maxlength: 12, size: 14, "aria-label": "A word",
      oninput: () => {
        const text = field.value.normalize("NFD").toLowerCase().replace(/[^a-z]/g, "");
        if (text) { word = text; show(); }
      } });
    const map = plan(kit, boxes({ N: 1, d: 1, h: 1, ff: 1, V: 1 }).filter(({ key }) => BRANCHES[key]),
      [["the word read", "the letters written"], ["memory → cross-attention", "the next letter"]],
      (key) => { if (!off.delete(key)) off.add(key); show(); });
    map.times("");
    const offer = `Load the model, ${(bytes * 4 / 3e6).toFixed(1)} MB`;
    const load = kit.button(offer, async () => {
      load.disabled = true;
      try {
        net = new engine.Transformer(model.get("config"), layout, engine.halves(await model.load()));
      } catch (error) {
        load.disabled = false;
        return voice.say(`The model could not be loaded: ${error.message}.`);
      }
      load.replaceWith(make("label", {}, "its word: ", field));
      field.focus();
      show();
    });
    const written = make("p", { class: "fx-mono" }), voice = kit.voice();

    function show() {
      const known = net ? write(engine, net, word, letters, [...off]) : null;
      const text = known ? known.text : off.size > 1 ? null : alone[[...off][0] ?? ""];
      const most = known && Math.max(...Object.values(known.shares));
      for (const key of Object.keys(BRANCHES)) {
        map.set(key, off.has(key) ? "off: adds nothing" : known ? `adds ${known.shares[key].toFixed(1)} × its stream`
          : "on", off.has(key) || !known ? 0 : known.shares[key] / most, off.has(key));
      }
      const right = [...word].reverse().join("");
      written.textContent = `${word} → ${text ?? "…"}`;
      const good = hits(text ?? "", right);
      voice.say(text === null ? "Load the model to see two branches off together." : [
        off.size ? `Without ${[...off].map((key) => names[key]).join(" and ")}` : "With all branches",
        ` it writes “${text}”`, text === right ? ", which is right."
          : `: ${good} of ${right.length} letters stand in the right place, and it ${
            text.length > right.length ? "goes on too long." : text.length < right.length ? "ends too soon."
              : "ends where it should."}`,
        word.length === given.length ? "" : ` In training every word had ${given.length} letters.`].join(""));
    }

    const spare = Object.keys(BRANCHES).find((key) => alone[key] === alone[""]);
    const only = (...keys) => {
      off.clear();
      for (const key of keys) if (key) off.add(key);
      show();
    };
    el.append(make("style", {}, STYLE),
      kit.guess({ voice, question: "A branch that is switched off adds nothing, and the stream goes on without it. "
        + "Which one can this model spare?", options: ["encoder.attention", "decoder.attention", "decoder.cross",
        "decoder.network"].map((key) => [names[key], key]),
      act: (key) => (key ? `Now switch off ${names[key]}, and nothing else.` : ""),
      begin() { only(); },
      seen(_, key = spare) {
        if (off.size !== 1 || !off.has(key)) return null;
        const [was, now] = [alone[""], alone[key]], good = (text) => hits(text, [...given].reverse().join(""));
        return [was === now ? key : "other", `With it the model writes “${was}” for “${given}”, and without it `
          + `${was === now ? "the same" : `“${now}”`}: ${good(was)} letters stood in the right place, now `
          + `${good(now)} do${now.length === was.length ? "" : `, and ${now.length} are written instead of ${was.length}`}.`];
      },
      tell: (key) => only(key ?? spare) }).node,
      make("div", { class: "fx-row" }, load), written, map.node, voice.node,
      make("p", { class: "fx-soft" }, "Press a box to switch it off or on."));
    show();
  },
};
