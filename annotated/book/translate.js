// Made from book/figures/translate.mjs. Edit it there. After: kit, engine
const translate = (() => {
// translate: the reader's own German through the model of chapter 19.
// needs: engine

/** Punctuation is a word of its own here. */
function tidy(text) {
  return text.replace(/([.,?!])/g, " $1 ").trim().replace(/\s+/g, " ");
}

/** The words that the model does not know. */
function unknown(text, words) {
  const known = new Set(words.slice(4));
  return text.split(" ").filter((word) => word && !known.has(word));
}

/** One map of a block: a head, or the mean of all where head is "mean". */
function mapOf(heads, head, width) {
  const chosen = head === "mean" ? heads : [heads[head]];
  return chosen[0].map((row, i) => Array.from({ length: width }, (_, j) =>
    chosen.reduce((sum, one) => sum + (one[i][j] ?? 0), 0) / chosen.length));
}

/** "2.2 MB" */
const megabytes = (characters) => `${(characters / 1e6).toFixed(1)} MB`;

const figure = {
  render({ model, el, kit }) {
    const { make, engine } = kit;
    const german = model.get("german"), english = model.get("english");
    const samples = model.get("samples"), config = model.get("config");
    const layout = model.get("layout");
    const bytes = 2 * layout.reduce((sum, [, shape]) => sum + shape.reduce((a, b) => a * b), 0);
    const [words, links] = [samples[0][0].split(" "), samples[0][2]];
    let net = null, result = null, text = "", prefix = [], block = "cross";
    let layer = config.num_decoder_layers - 1, head = "mean", chosen = null;

    const input = make("input", { type: "text", value: model.asked.text ?? samples[0][0],
      lang: "de", size: 34, "aria-label": "A German sentence",
      onkeydown: (event) => { if (event.key === "Enter") run(input.value); } });
    const pick = make("select", { "aria-label": "A sentence that it has not been trained on",
      onchange: () => { input.value = samples[pick.value][0]; run(input.value); } },
    ...samples.map(([source], i) => make("option", { value: i }, source)));
    const offer = `Load the model, ${megabytes(bytes * 4 / 3)}`;
    const load = kit.button(offer, async () => {
      load.disabled = true;
      load.textContent = "Loading …";
      try {
        net = new engine.Transformer(config, layout, engine.halves(await model.load()));
      } catch (error) {
        voice.say(`The model could not be loaded: ${error.message}.`);
        load.disabled = false;
        load.textContent = offer;
        return;
      }
      load.replaceWith(kit.button("Translate", () => run(input.value)));
      controls.hidden = false;
      run(input.value);
      input.focus();
    });
    const output = make("div", { class: "fx-row", lang: "en", role: "group",
      "aria-label": "The translation, word by word" });
    const others = make("div"), place = make("div"), voice = kit.voice();
    const title = make("p", { class: "fx-soft" });
    const layers = make("div"), heads = make("div");
    const silence = kit.button("Silence this head", () => {
      const name = `${block}.${layer}.${head}`;
      net.silent.has(name) ? net.silent.delete(name) : net.silent.add(name);
      run(text, prefix);
    });
    const kinds = kit.choice({ label: "Who looks", value: block, options: [
      ["cross", "English at German"], ["encoder", "German at German"],
      ["decoder", "English at English"]], onchange: (kind) => { block = kind; draw(); } });
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
      silence.setAttribute("aria-pressed", String(net.silent.has(`${block}.${layer}.${head}`)));
    }

    function show(rows, columns, weights, frames, act) {
      const map = kit.grid({ label: title.textContent, rows, columns, size: "1.7rem",
        tell: (i, j) => `${act} “${rows[i]}”, it gives “${columns[j]}” ${weights[i][j].toFixed(2)}.` });
      map.set(weights, frames);
      place.replaceChildren(map.node);
    }

    function draw() {
      pickers();
      const source = [...text.split(" "), "end"];
      const written = result.ids.map((id) => english[id]);
      const rows = { cross: [...written, "end"], encoder: source, decoder: ["start", ...written] }[block];
      const columns = block === "cross" ? source : rows;
      const weights = mapOf(result.maps[`${block}.${layer}`], head, columns.length);
      const gold = samples.find(([german, target]) => german === text && target === written.join(" "));
      title.textContent = `${head === "mean" ? "The mean of the heads" : `Head ${head + 1}`} of layer `
        + `${layer + 1}: rows look at columns`
        + (gold && block === "cross" ? "; frames are the gold alignment" : "");
      show(rows, columns, weights, gold && block === "cross" ? gold[2].map(([i, j]) => [j, i]) : [],
        { cross: "To write", encoder: "At", decoder: "Having read" }[block]);
    }

    function alternatives(at) {
      chosen = at;
      const { id, likely } = result.steps[at];
      const name = (token) => (token === engine.EOS ? "(end)" : english[token]);
      others.replaceChildren(make("div", { class: "fx-row" },
        make("span", { class: "fx-soft" }, `Instead of “${name(id)}”:`),
        ...likely.filter(([token]) => token !== id).map(([token, p]) =>
          kit.button(`${name(token)} ${p.toFixed(3)}`, () =>
            run(text, [...result.ids.slice(0, at), token])))));
    }

    function run(given, start = []) {
      if (!net) return;
      text = tidy(given);
      if (!text) return;
      prefix = start;
      result = engine.translate(net, engine.encode(text, german), { prefix });
      const written = result.ids.map((id) => english[id]).join(" ");
      output.replaceChildren(...result.steps.map(({ id, p }, i) =>
        kit.button(`${id === engine.EOS ? "(end)" : english[id]} ${p.toFixed(2)}`, () => alternatives(i),
          { title: "its alternatives" })));
      others.replaceChildren(make("p", { class: "fx-soft" },
        "Each word with its probability. Choose one to see what else it might have written."));
      draw();
      const strange = unknown(text, german);
      const target = samples.find(([german]) => german === text)?.[1];
      const least = result.steps.reduce((a, b) => (b.p < a.p ? b : a));
      const parts = [`“${text}” becomes “${written}”.`];
      if (strange.length) parts.push(`It has never met ${strange.map((word) => `“${word}”`).join(", ")}.`);
      if (prefix.length) parts.push("You chose its first words; it went on from them.");
      else if (target && !net.silent.size) {
        parts.push(target === written ? "That is right." : `It should be “${target}”.`);
      }
      if (net.silent.size) {
        parts.push(`Silent: ${[...net.silent].map((name) => {
          const [kind, n, h] = name.split(".");
          return `${kind} ${+n + 1}.${+h + 1}`;
        }).join(", ")}.`);
      } else if (!prefix.length) {
        const [best] = engine.beamSearch(net, engine.encode(text, german));
        const found = engine.decode(best.ids, english);
        parts.push(found === written ? "A beam of 4 finds the same."
          : `A beam of 4 finds “${found}”.`);
      }
      parts.push(`Its least certain word has ${least.p.toFixed(2)}.`);
      voice.say(parts.join(" "));
      model.keep({ text });
    }

    el.append(
      kit.guess({ question: "“Den Hund sucht der Junge .” begins with the dog. Will the English, too?",
        options: [
          ["yes", false, "in English the first one acts, and “den” says that the dog does not."],
          ["no", true, "“der” marks who acts, and English puts that first. Try both orders."]] }),
      make("div", { class: "fx-row" }, make("label", { class: "fx-soft" }, "German ", input), load),
      make("div", { class: "fx-row" }, make("label", { class: "fx-soft" },
        "or one that it was not trained on ", pick)),
      output, others, controls, title, place, voice.node,
      kit.folded("The words that it knows", make("p", { class: "fx-soft", lang: "de" },
        german.slice(4).sort((a, b) => a.localeCompare(b, "de")).join(" "))));
    title.textContent = "The mean of the last layer's heads: rows look at columns; "
      + "frames are the gold alignment";
    show([...samples[0][1].split(" "), "end"], [...words, "end"], model.get("seen"),
      links.map(([i, j]) => [j, i]), "To write");
    voice.say(`“${samples[0][0]}” should become “${samples[0][1]}”. Load the model to translate it, `
      + "or a sentence of your own.");
  },
};
return { tidy, unknown, mapOf, megabytes, figure };
})();
kit.host("translate", translate.figure, { engine });
