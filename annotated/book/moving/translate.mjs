// translate: the reader's sentence through chapter 19's model, or a run's,
// which a server computes (`annotated look`).
// needs: engine, pocket

const large = (word) => word[0].toUpperCase() + word.slice(1);

/** A text as the model knows its words: no quotes, marks apart, and, given the words, letters
 *  large or small as these have them, a mark at the end, and one sentence. */
export function tidy(text, words) {
  text = text.replace(/["']/g, "").replace(/([.,?!])/g, " $1 ").trim().replace(/\s+/g, " ");
  if (!words || !text) return text;
  const known = new Set(words.slice(4)), forms = new Map([...known].sort().map((word) => [word.toLowerCase(), word]));
  const parts = text.split(" "), end = parts.findIndex((part) => /[.?!]/.test(part));
  const one = end < 0 ? [...parts, "."] : parts.slice(0, end + 1);
  if (one[one.length - 1] === "!") one[one.length - 1] = ".";
  return one.map((word, i) => {
    const lower = word.toLowerCase();
    if (!i && known.has(large(lower))) return large(lower);
    return known.has(word) ? word : forms.get(lower) ?? word;
  }).join(" ");
}

export function unknown(text, words) {
  const known = new Set(words.slice(4));
  return text.split(" ").filter((word) => word && !known.has(word));
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

const LOOK = ".fx .tr-menus{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.4rem .8rem;"
  + "align-items:end;margin-bottom:.5rem}.fx .tr-menus select{display:block;width:100%}.fx .tr-words{gap:.3rem;margin:.5rem 0}"
  + ".fx .tr-words>*{text-align:center;padding:.1rem .4rem}.fx .tr-words small{display:block;color:var(--soft)}";

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

    const question = "Den Hund sucht der Junge .", first = served || unknown(question, german).length
      ? samples[0]?.[0] ?? "" : question;
    const input = make("input", { type: "text", value: model.asked.text ?? first,
      lang: served ? null : "de", size: 34, "aria-label": `A ${from} sentence`,
      oninput: () => spell(), onkeydown: (event) => { if (event.key === "Enter" && !event.isComposing) run(input.value); } });
    const pick = make("select", { "aria-label": "A test sentence",
      onchange: () => write(samples[pick.value][0]) },
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
      place.className = `of-${block}`;
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
          kit.button(`${name} ${p.toFixed(3)}`, async () => {
            await run(text, [...before, token]);
            output.children[at]?.focus();
          }))));
    }

    async function run(given, start = []) {
      const plain = tidy(kit.clean(given)), wanted = served ? given.trim() : tidy(plain, german), now = ++turn;
      const refused = !ask ? "The model has not been loaded yet." : served && wanted ? "" : refusal(plain);
      if (refused) return voice.say(refused);
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
      if (!served && plain !== text) {
        parts.unshift(plain.startsWith(text) ? "It takes one sentence at a time, the first." : "Written as it knows it:");
      }
      if (result.strange.length) {
        parts.push(`It has never met ${result.strange.map((word) => `“${word}”`).join(", ")}.`);
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
      if (!served && input.value !== text) {
        input.value = text;
        spell();
      }
      voice.say([...parts, `Its least certain ${part} has ${least.toFixed(2)}.`].join(" "));
      model.keep({ text });
    }

    // --- for those without German ---
    const tables = model.get("grammar"), { pocket } = kit, all = tables && pocket.read(tables);
    const known = all && pocket.lexicon(all);
    const spelt = make("div", { class: "fx-row tr-words", lang: "de", role: "group", "aria-label": "Word by word" });
    const swaps = make("div");

    /** Each German word with its English; pressed, it can be another of its class. */
    function spell() {
      if (!all) return;
      swaps.replaceChildren();
      const words = tidy(kit.clean(input.value)).split(" ").filter(Boolean);
      spelt.replaceChildren(...words.map((word, i) => glossed(pocket.others(known, word).length
        ? kit.button(word, () => swap(words, i)) : make("span", {}, word),
      [...pocket.entry(known, word)?.english ?? ["?"]].slice(0, 3).join(" / "))));
    }

    function glossed(node, english) {
      node.append(make("small", { lang: "en" }, /[\w?]/.test(english) && !".?,".includes(node.textContent) ? english : "\u00a0"));
      return node;
    }

    function swap(words, i) {
      const first = !i && !known.has(words[0]);
      swaps.replaceChildren(make("div", { class: "fx-row tr-words", lang: "de" },
        make("span", { class: "fx-soft", lang: "en" }, `Instead of “${words[i]}”:`),
        ...pocket.others(known, words[i]).map(([german, english]) => {
          const word = first ? large(german) : german;
          return glossed(kit.button(word, () => {
            write(words.map((one, j) => (j === i ? word : one)).join(" "));
            spelt.children[i].focus();
          }), english);
        })));
      swaps.querySelector("button").focus();
    }

    /** A sentence into the field, and through the model where it is there. */
    function write(text) {
      input.value = text;
      spell();
      if (ask) run(text);
    }

    function builder() {
      if (!all) return "";
      const menus = {}, box = make("div", { class: "tr-menus" }), no = ["–", null];
      const nameOf = ({ role, english }) => ({ accusative: "what", dative: "whom" }[role] ?? english);
      const list = (name, options) => {
        const old = menus[name], node = make("select", { "aria-label": name, onchange: () => build(name) },
          ...options.map(([english], i) => make("option", { value: i }, english)));
        const was = options.findIndex(([english]) => english === old?.selectedOptions[0].text);
        node.value = Math.max(0, was);
        node.chosen = () => options[node.value][1];
        menus[name] = node;
        return make("label", {}, name, node);
      };
      const [not, question] = ["not", "question"].map((name) => {
        menus[name] = make("input", { type: "checkbox", onchange: () => build(name) });
        return make("label", {}, menus[name], ` ${name}`);
      });
      const verbs = pocket.doings(all), lists = [list("does", verbs),
        list("where", [no, ...Object.entries({ in: "in", hinter: "behind" }).flatMap(([german, english]) =>
          pocket.phrases(all, "lh", "dative").map(([what, one]) => [`${english} ${what}`, [german, one]]))]),
        list("when", [no, ...["today", "yesterday", "tomorrow", "evening", "every day"].map((one) =>
          [one.replace(/^e.*g/, "in the evening"), one])]),
        list("because", [no, ...verbs.filter(([, verb]) => !all.verbs[verb].slots.length).map(([english, verb]) =>
          [`Lena ${english}`, { verb, tense: "present", subject: { noun: "Lena", determiner: "name" } }])])];
      menus.does.value = verbs.findIndex(([, verb]) => verb === "suchen");

      function build(changed) {
        const verb = menus.does.chosen(), { subject, slots } = all.verbs[verb], [does, ...rest] = lists;
        if (!changed || changed === "does") {
          box.replaceChildren(list("who", pocket.phrases(all, subject, "nominative")), does,
            ...slots.map((slot) => list(nameOf(slot), pocket.phrases(all, slot.kinds, slot.kase))), ...rest, not, question);
        }
        if (!changed) return;
        const time = menus.when.chosen(), clause = { verb, time, tense: pocket.tenseOf(time), subject: menus.who.chosen(),
          negated: menus.not.checked, place: menus.where.chosen() };
        for (const slot of slots) clause[slot.role] = menus[nameOf(slot)].chosen();
        const [first, ...others] = pocket.sentence(all, { question: menus.question.checked, clause,
          because: menus.because.chosen() }).map(([german]) => german);
        write([large(first), ...others].join(" "));
        menus[changed].focus();
      }
      build();
      menus.what.value = 1;
      const any = (menu) => { menu.selectedIndex = Math.random() * menu.length; };
      menus.another = kit.button("Another sentence", () => {
        any(menus.does);
        build();
        for (const menu of box.querySelectorAll("select")) if (menu !== menus.does && menu !== menus.because) any(menu);
        build("another");
      });
      return make("div", {}, make("p", {}, "Build one in English; the German writes itself:"), box, menus.another,
        make("style", {}, LOOK), make("p"));
    }

    const row = (name, node, more = "") =>
      make("div", { class: "fx-row" }, make("label", { class: "fx-soft" }, name, node), more);
    if (served) {
      el.append(row("Sentence ", input, go), samples.length ? row("or one of its test set ", pick) : "",
        output, others, controls, title, place, voice.node);
      return run(input.value);
    }
    el.append(
      kit.guess({ voice, question: `“${question}” begins with the dog. Will the English, too?`,
        options: [["yes", true], ["no", false]],
        act: () => (ask ? "Now have it translated." : "Now load the model and have it translated."),
        begin() { [text, prefix] = ["", []]; input.value = question; spell(); },
        seen() {
          if (text !== tidy(question, german) || prefix.length || silent.size) return null;
          return [/^the dog/i.test(result.said), `“${text}” became “${result.said}”, the first word with `
            + `${result.steps[0].p.toFixed(2)}. “Der” says who acts; English puts that first.`];
        },
        tell: () => (ask ? run(question) : load.click()) }).node,
      builder(),
      row("German ", input, load), spelt, swaps, row("or one that it was not trained on ", pick),
      output, others, controls, title, place, voice.node);
    title.textContent = "The mean of the last layer's heads: rows look at columns; "
      + "frames are the gold alignment";
    show([...samples[0][1].split(" "), "end"], [...samples[0][0].split(" "), "end"], model.get("seen"),
      samples[0][2].map(([i, j]) => [j, i]), "To write");
    voice.say(`“${samples[0][0]}” should become “${samples[0][1]}”. Load the model to translate `
      + (model.asked.text ? `“${tidy(model.asked.text)}”.` : first === question ? `“${question}”`
        : "it, or a sentence of your own."));
    spell();
  },
};
