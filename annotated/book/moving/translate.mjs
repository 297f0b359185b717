// translate: the reader's sentence through chapter 19's model, or a run's,
// which a server computes (`annotated look`).
// needs: engine

export function tidy(text) {
  return text.replace(/([.,?!])/g, " $1 ").trim().replace(/\s+/g, " ");
}

export function unknown(text, words) {
  const known = new Set(words.slice(4));
  return text.split(" ").filter((word) => word && !known.has(word));
}

/** A word that it has never met, and the same in capitals or small letters where it knows that. */
export function strange(word, words) {
  const lower = word.toLowerCase();
  const near = words.slice(4).find((known) => known.toLowerCase() === lower);
  return near ? `“${word}” (but “${near}”)` : `“${word}”`;
}

/** Words that the map has room for. */
export const ROOM = 40;

/** Why a text is not translated, or nothing. */
export function refusal(text) {
  if (!text) return "There is nothing to translate: write a sentence first.";
  const words = text.split(" ").length;
  return words > ROOM ? `These are ${words} words; the figure has room for ${ROOM}.` : "";
}

/** The map of a head, or the "mean" of all. */
export function mapOf(heads, head, width) {
  const chosen = head === "mean" ? heads : [heads[head]];
  return chosen[0].map((row, i) => Array.from({ length: width }, (_, j) =>
    chosen.reduce((sum, one) => sum + (one[i][j] ?? 0), 0) / chosen.length));
}

export const megabytes = (characters) => `${(characters / 1e6).toFixed(1)} MB`;

/** What it says of a text, as a server answers. */
export function answer(engine, net, german, english, { text, prefix = [], silent = [] }) {
  net.silent = new Set(silent);
  const ids = engine.encode(text, german), name = (id) => (id === engine.EOS ? "(end)" : english[id]);
  const { steps, maps } = engine.translate(net, ids, { prefix });
  const [best] = engine.beamSearch(net, ids);
  return { source: text.split(" "), strange: unknown(text, german), maps,
    steps: steps.map(({ id, p, likely }) => ({ id, p, piece: name(id),
      likely: likely.map(([other, chance]) => [other, chance, name(other)]) })),
    said: steps.slice(0, -1).map(({ id }) => english[id]).join(" "),
    beam: engine.decode(best.ids, english) };
}

export default {
  render({ model, el, kit }) {
    const { make, engine } = kit;
    const served = model.get("served");
    const [from, to, part] = served ? ["source", "target", "piece"] : ["German", "English", "word"];
    const german = model.get("german"), english = model.get("english");
    const samples = model.get("samples"), config = model.get("config");
    const layout = model.get("layout") ?? [], silent = new Set();
    const bytes = 2 * layout.reduce((sum, [, shape]) => sum + shape.reduce((a, b) => a * b), 0);
    let ask = served && globalThis.askTheModel, turn = 0, result, text = "", prefix = [], block = "cross";
    let layer = config.num_decoder_layers - 1, head = "mean";

    const input = make("input", { type: "text", value: model.asked.text ?? samples[0]?.[0] ?? "",
      lang: served ? null : "de", size: 34, "aria-label": `A ${from} sentence`,
      onkeydown: (event) => { if (event.key === "Enter") run(input.value); } });
    const pick = make("select", { "aria-label": "A test sentence",
      onchange: () => { input.value = samples[pick.value][0]; run(input.value); } },
    ...samples.map(([source], i) => make("option", { value: i }, source)));
    const offer = `Load the model, ${megabytes(bytes * 4 / 3)}`;
    const load = kit.button(offer, async () => {
      load.disabled = true;
      load.textContent = "Loading …";
      try {
        const net = new engine.Transformer(config, layout, engine.halves(await model.load()));
        ask = (question) => answer(engine, net, german, english, question);
      } catch (error) {
        voice.say(`The model could not be loaded: ${error.message}.`);
        load.disabled = false;
        load.textContent = offer;
        return;
      }
      load.replaceWith(go);
      run(input.value);
      input.focus();
    });
    const go = kit.button("Translate", () => run(input.value));
    const output = make("div", { class: "fx-row", lang: "en", role: "group",
      "aria-label": "The translation, word by word" });
    const others = make("div"), place = make("div"), voice = kit.voice();
    const title = make("p", { class: "fx-soft" });
    const layers = make("div"), heads = make("div");
    const silence = kit.button("Silence this head", () => {
      const name = `${block}.${layer}.${head}`;
      silent.has(name) ? silent.delete(name) : silent.add(name);
      run(text, prefix);
    });
    const kinds = kit.choice({ label: "Who looks", value: block, options: [
      ["cross", `${to} at ${from}`], ["encoder", `${from} at ${from}`], ["decoder", `${to} at ${to}`]],
    onchange: (kind) => { block = kind; draw(); } });
    const controls = make("div", { hidden: true }, kinds.node,
      make("div", { class: "fx-row" }, layers, heads, silence));

    function pickers() {
      const count = block === "encoder" ? config.num_encoder_layers : config.num_decoder_layers;
      layer = Math.min(layer, count - 1);
      const numbers = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
      layers.replaceChildren(kit.choice({ label: "layer", value: layer, options: numbers(count),
        onchange: (to) => { layer = to; draw(); } }).node);
      heads.replaceChildren(kit.choice({ label: "head", value: head,
        options: [["mean", "mean"], ...numbers(config.num_heads)],
        onchange: (to) => { head = to; draw(); } }).node);
      silence.hidden = head === "mean";
      silence.setAttribute("aria-pressed", String(silent.has(`${block}.${layer}.${head}`)));
    }

    function show(rows, columns, weights, frames, act) {
      const map = kit.grid({ label: title.textContent, rows, columns, size: "1.7rem",
        tell: (i, j) => `${act} “${rows[i]}”, it gives “${columns[j]}” ${weights[i][j].toFixed(2)}.` });
      map.set(weights, frames);
      place.replaceChildren(map.node);
    }

    function draw() {
      pickers();
      const source = [...result.source, "end"];
      const written = result.steps.slice(0, -1).map(({ piece }) => piece);
      const rows = { cross: [...written, "end"], encoder: source, decoder: ["start", ...written] }[block];
      const columns = block === "cross" ? source : rows;
      const weights = mapOf(result.maps[`${block}.${layer}`], head, columns.length);
      const gold = samples.find(([given, target, links]) =>
        links.length && given === text && target === result.said);
      title.textContent = `${head === "mean" ? "The mean of the heads" : `Head ${head + 1}`} of layer `
        + `${layer + 1}: rows look at columns`
        + (gold && block === "cross" ? "; frames are the gold alignment" : "");
      show(rows, columns, weights, gold && block === "cross" ? gold[2].map(([i, j]) => [j, i]) : [],
        { cross: "To write", encoder: "At", decoder: "Having read" }[block]);
    }

    function alternatives(at) {
      const { steps } = result, { id, piece, likely } = steps[at];
      const before = steps.slice(0, at).map((step) => step.id);
      others.replaceChildren(make("div", { class: "fx-row" },
        make("span", { class: "fx-soft" }, `Instead of “${piece}”:`),
        ...likely.filter(([token]) => token !== id).map(([token, p, name]) =>
          kit.button(`${name} ${p.toFixed(3)}`, () => run(text, [...before, token])))));
    }

    async function run(given, start = []) {
      const wanted = served ? given.trim() : tidy(given), now = ++turn;
      if (!ask) return;
      const refused = served ? "" : refusal(wanted);
      if (refused) return voice.say(refused);
      if (!wanted) return;
      try {
        const found = await ask({ text: wanted, prefix: start, silent: [...silent] });
        if (now !== turn) return;
        [text, prefix, result] = [wanted, start, found];
      } catch (error) {
        return voice.say(`The model does not answer: ${error.message}`);
      }
      controls.hidden = false;
      output.replaceChildren(...result.steps.map(({ piece, p }, i) =>
        kit.button(`${piece} ${p.toFixed(2)}`, () => alternatives(i))));
      others.replaceChildren(make("p", { class: "fx-soft" },
        `Each ${part} with its probability. Choose one to see its alternatives.`));
      draw();
      const target = samples.find(([source]) => source === text)?.[1];
      const least = Math.min(...result.steps.map(({ p }) => p));
      const parts = [`“${text}” becomes “${result.said}”.`];
      if (result.strange.length) {
        parts.push(`It has never met ${result.strange.map((word) => strange(word, german)).join(", ")}.`);
      }
      if (prefix.length) parts.push("You chose its first words; it went on from them.");
      else if (target && !silent.size) {
        parts.push(target === result.said ? "That is right."
          : `It should be “${target}”.`);
      }
      if (silent.size) {
        parts.push(`Silent: ${[...silent].map((name) => {
          const [kind, n, h] = name.split(".");
          return `${kind} ${+n + 1}.${+h + 1}`;
        }).join(", ")}.`);
      } else if (!prefix.length) {
        parts.push(`A beam of 4 finds ${result.beam === result.said ? "the same" : `“${result.beam}”`}.`);
      }
      voice.say([...parts, `Its least certain ${part} has ${least.toFixed(2)}.`].join(" "));
      model.keep({ text });
    }

    const row = (name, node, more = "") =>
      make("div", { class: "fx-row" }, make("label", { class: "fx-soft" }, name, node), more);
    if (served) {
      el.append(row("Sentence ", input, go), samples.length ? row("or one of its test set ", pick) : "",
        output, others, controls, title, place, voice.node);
      return run(input.value);
    }
    el.append(
      kit.guess({ question: "“Den Hund sucht der Junge .” begins with the dog. Will the English, too?",
        options: [
          ["yes", false, "in English the first one acts, and “den” says that the dog does not."],
          ["no", true, "“der” marks who acts, and English puts that first. Try both orders."]] }),
      row("German ", input, load), row("or one that it was not trained on ", pick),
      output, others, controls, title, place, voice.node,
      kit.folded("The words that it knows", make("p", { class: "fx-soft", lang: "de" },
        german.slice(4).sort((a, b) => a.localeCompare(b, "de")).join(" "))));
    title.textContent = "The mean of the last layer's heads: rows look at columns; "
      + "frames are the gold alignment";
    show([...samples[0][1].split(" "), "end"], [...samples[0][0].split(" "), "end"], model.get("seen"),
      samples[0][2].map(([i, j]) => [j, i]), "To write");
    voice.say(`“${samples[0][0]}” should become “${samples[0][1]}”. Load the model to translate `
      + (model.asked.text ? `“${tidy(model.asked.text)}”.` : "it, or a sentence of your own."));
  },
};
