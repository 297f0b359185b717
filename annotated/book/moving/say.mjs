// say: a sentence of the reader's, translated by a run that travels in the page, one for
// each language, and written piece by piece with arcs to what each piece looked at.
// needs: engine, bytepairs

const WORD = /[\p{L}\p{N}]+(?:'[\p{L}\p{N}]+)*/gu, ENDS = /[.?!]["')]*$/;
const WHO = "(?:i|you|he|she|it|we|they|this|that|these|those|there|the|a|an|my|your|his|her|our|their|tom|mary)";
const BE = "(?:is|are|was|were|am|do|does|did|can|could|will|would|shall|should|may|must|has|have|had)(?:n't)?";
const ASKS = new RegExp(`^(?:(?:who|whom|whose|what|where|when|why|which|how)(?:'s|'re| ${BE})|how|${BE} ${WHO}) `, "i");

/** Pieces that the arcs have room for, and sentences at a time. */
export const ROOM = 60;
export const AT_A_TIME = 3;

/** The sentences of a text. The point of "Mr." or of 3.5 ends none. */
export function sentences(text) {
  const found = [];
  for (const part of text.replace(/…/g, "...").match(/\S.*?(?:[.?!]+["')]*(?=\s|$)|$)/g) ?? []) {
    const before = found[found.length - 1];
    if (/(?:^|\s)(?:mr|mrs|ms|dr|st)\.$/i.test(before ?? "")) found.push(`${found.pop()} ${part}`);
    else if (/[\p{L}\p{N}]/u.test(part)) found.push(part);
  }
  return found;
}

/** A sentence as its training text would have it: names large, as `forms` has them by
 *  their small letters, the first letter large, a mark at the end. */
export function tidy(text, forms) {
  const words = text.match(WORD) ?? [], loud = words.length > 1 && text === text.toUpperCase();
  const plain = text.trim().replace(/\s+/g, " ").replace(/ +(?=[.,?!;:])/g, "").replace(/[,;:]+$/, "")
    .replace(WORD, (word) => {
      const small = word.toLowerCase();
      return loud || word === small ? forms.get(small) ?? small : word;
    })
    .replace(/^(["'(]*)(\p{Ll})/u, (_, marks, letter) => marks + letter.toUpperCase());
  return ENDS.test(plain) ? plain : plain + (ASKS.test(`${plain} `) ? "?" : ".");
}

/** Words that never stood in the training text; "Tom's" did where "Tom" did. */
export function unread(text, forms) {
  const known = (word) => forms.has(word) || word.endsWith("'s") && forms.has(word.slice(0, -2));
  return [...new Set(text.match(WORD) ?? [])].filter((word) => !known(word.toLowerCase()));
}

/** A translator out of what was loaded: numbers in half precision, then merges and words. */
export function open({ engine, bytepairs }, bytes, { config, layout, order }) {
  const size = 2 * layout.reduce((sum, [, shape]) => sum + shape.reduce((a, b) => a * b, 1), 0);
  const { merges, words } = JSON.parse(new TextDecoder().decode(bytes.subarray(size)));
  return { order, vocab: 260 + merges.length, spelt: bytepairs.spellings(merges, order),
    net: new engine.Transformer(config, layout, engine.halves(bytes.subarray(0, size))),
    ranks: new Map(merges.map(([a, b], i) => [`${a},${b}`, 260 + i])),
    forms: new Map(words.trim().split("\n").map((word) => [word.toLowerCase(), word])) };
}

/** What it makes of a sentence: the best of a beam, as `annotated translate` finds it, or,
 *  after a prefix of ids, the likeliest piece each time. */
export function translate({ engine, bytepairs }, { net, ranks, order, vocab, spelt, forms }, text, search, prefix) {
  const src = bytepairs.encode(text, ranks, order, vocab);
  if (src.length > ROOM) throw new Error(`“${text}” has ${src.length} pieces; there is room for ${ROOM}.`);
  const { extra } = search, best = prefix ? { ids: prefix } : engine.beamSearch(net, src, search)[0];
  const { steps, maps } = engine.translate(net, src, { prefix: prefix ?? [...best.ids, engine.EOS], extra });
  const heads = maps[`cross.${net.config.num_decoder_layers - 1}`];
  const spell = (all) => new TextDecoder().decode(Uint8Array.from(all.flatMap((id) => spelt[id])));
  const piece = (id) => (id === engine.EOS ? "(end)" : spell([id]));
  const written = steps.filter(({ id }) => id !== engine.EOS);
  return { text, score: best.score, source: src.map(piece), unread: unread(text, forms),
    said: spell(written.map(({ id }) => id)).replace(/^ /, ""),
    steps: written.map(({ id, p, likely }) => ({ id, p, piece: piece(id),
      likely: likely.map(([other, chance]) => [other, chance, piece(other)]) })),
    weights: written.map((_, i) => src.map((_, j) => heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length)) };
}

// --- the figure ---

const BEAT = 420, FAINT = 0.08; // milliseconds for a piece; weights that are not drawn
const percent = (p) => `${(100 * p).toFixed(0)}\u00a0%`;
const LOOK = ".fx .say-ask{display:flex;flex-wrap:wrap;gap:.5rem;align-items:flex-end;margin-bottom:.6rem}.fx .say-ask label{flex:1 1 16rem}"
  + ".fx .say-ask input{width:100%}.fx .say-board{position:relative;margin-top:1.1rem}"
  + ".fx .say-board+.say-board{margin-top:2.2rem}"
  + ".fx .say-line{display:flex;flex-wrap:wrap;gap:.25rem .45rem;justify-content:center;position:relative}"
  + ".fx .say-line+.say-line{margin-top:5.5rem}.fx .say-word{display:inline-flex}"
  + ".fx .say-line button{border:0;background:color-mix(in srgb,var(--decoder) calc(var(--w,0)*35%),var(--ground));"
  + "padding:.1rem .2rem;min-height:1.7rem;min-width:1.5rem;border-radius:5px;font-size:1.06rem}"
  + ".fx .say-word button+button{border-left:1px dotted var(--soft);border-radius:0 5px 5px 0}"
  + ".fx .say-line button:hover{background:var(--cell)}"
  + ".fx .say-line button[aria-pressed=true]{background:var(--decoder);color:var(--ground)}"
  + ".fx .say-unread button{text-decoration:underline wavy var(--bad)}.fx .say-waits{visibility:hidden}"
  + ".fx svg.say-arcs{position:absolute;inset:0;height:100%;pointer-events:none}"
  + ".fx .say-arcs path{fill:none;stroke:var(--decoder);stroke-linecap:round}.fx .say-others{min-height:2.6rem;margin-top:.6rem}";

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit, voice = kit.voice(), into = model.get("into"), languages = Object.keys(into);
    const named = new Intl.DisplayNames("en", { type: "language" }), translators = {}, coming = {};
    const calm = globalThis.matchMedia("(prefers-reduced-motion: reduce)").matches;
    let language = Object.hasOwn(into, model.asked.into) ? model.asked.into : languages[0], own = false, boards = [], turn = 0;
    const size = () => `${(into[language].size * 4 / 3e6).toFixed(1)} MB`;
    const translated = (which, text, prefix) => ({ which, ...translate(kit, translators[which], text, into[which].search, prefix) });
    const input = make("input", { type: "text", lang: "en", maxlength: 400, autocomplete: "off", "aria-label": "An English sentence",
      onkeydown: (event) => { if (event.key === "Enter" && !event.isComposing) say(); } });
    input.value = model.asked.text ?? into[language].sample.text;
    const go = kit.button("Translate", () => say());
    const room = make("div"), others = make("div", { class: "say-others" });
    const hint = make("p", { class: "fx-soft" }, "Press a piece to see what it looked at, and what else might have stood there.");
    const choose = kit.choice({ label: "into", value: language, options: languages.map((one) => [one, named.of(one)]),
      onchange: (one) => {
        language = one;
        if (own) say();
        else begin();
      } });

    /** A language's model, loaded once. */
    function loaded(which) {
      coming[which] ??= model.load(which).then((bytes) => {
        translators[which] = open(kit, bytes, into[which]);
      }).catch((error) => {
        delete coming[which];
        throw new Error(`The model could not be loaded: ${error.message}.`);
      });
      return coming[which];
    }

    /** Two lines of pieces, the written one above, and arcs between them. */
    function board(result) {
      const it = { result, picked: null }, arcs = draw("svg", { class: "say-arcs", "aria-hidden": "true" });
      const line = (pieces, side, more) => {
        const nodes = pieces.map((piece, i) => kit.button(piece.trim() || "␣", () => pick(it, side, i)));
        const words = [];
        pieces.forEach((piece, i) => {
          if (!i || piece.startsWith(" ")) words.push(make("span", { class: "say-word" }));
          words[words.length - 1].append(nodes[i]);
        });
        return [nodes, make("div", { class: "say-line", role: "group", ...more }, ...words), words];
      };
      const [above, upper] = line(result.steps.map(({ piece }) => piece), "above", { lang: result.which, "aria-label": "The translation, piece by piece" });
      const [below, lower, words] = line(result.source, "below", { lang: "en", "aria-label": "What it reads, piece by piece" });
      const strange = (word) => (word.textContent.match(WORD) ?? []).some((part) => result.unread?.includes(part));
      for (const word of words.filter(strange)) word.classList.add("say-unread");
      it.node = make("div", { class: "say-board" }, arcs, upper, lower);
      /** Arcs of the pairs for which lit(i, j) is not 0, as strong as it says. */
      it.paint = (lit) => {
        const from = it.node.getBoundingClientRect(), paths = [], glow = [above, below].map((nodes) => nodes.map(() => 0));
        const where = (node, edge) => {
          const box = node.getBoundingClientRect();
          return [box.left + box.width / 2 - from.left, box[edge] - from.top];
        };
        result.weights.forEach((row, i) => row.forEach((w, j) => {
          const strength = lit(i, j);
          if (w < FAINT || !strength) return;
          const [x, y] = where(above[i], "bottom"), [u, v] = where(below[j], "top"), bend = 0.55 * (v - y);
          paths.push(draw("path", { d: `M${x} ${y}C${x} ${y + bend} ${u} ${v - bend} ${u} ${v}`,
            style: `stroke-width:${1 + 4 * w};stroke-opacity:${w * strength}` }));
          if (strength < 1) return;
          if (it.picked?.[0] === "below") glow[0][i] = w;
          else glow[1][j] = w;
        }));
        arcs.replaceChildren(...paths);
        [above, below].forEach((nodes, s) => nodes.forEach((node, i) => node.style.setProperty("--w", glow[s][i])));
        [above, below].forEach((nodes, s) => nodes.forEach((node, i) =>
          node.setAttribute("aria-pressed", String(it.picked?.[0] === ["above", "below"][s] && it.picked[1] === i))));
      };
      it.rest = () => it.paint(it.picked === null ? () => 0.35
        : (i, j) => +((it.picked[0] === "above" ? i : j) === it.picked[1]));
      /** The first so many pieces are written. */
      it.reveal = (count) => above.forEach((node, i) => node.classList.toggle("say-waits", i >= count));
      it.write = async () => {
        const now = turn;
        for (let i = 0; i < above.length && !calm; i++) {
          it.reveal(i + 1);
          it.paint((k) => +(k === i));
          await new Promise((done) => setTimeout(done, BEAT));
          if (now !== turn) return;
        }
        it.reveal(Infinity);
        it.rest();
      };
      return it;
    }

    /** Arcs of one piece alone; pressed again, of all. */
    function pick(it, side, i) {
      turn++; // nothing waits any longer
      for (const each of boards) each.reveal(Infinity);
      const again = it.picked?.[0] === side && it.picked[1] === i, { result } = it;
      for (const each of boards) each.picked = each === it && !again ? [side, i] : null;
      for (const each of boards) each.rest();
      others.replaceChildren(...again ? [hint] : []);
      if (again) return;
      const name = (from, k) => `“${(from === "above" ? result.steps[k].piece : result.source[k]).trim()}”`;
      const found = side === "above" ? result.weights[i].map((w, j) => [w, name("below", j)])
        : result.weights.map((row, k) => [row[i], name("above", k)]);
      const seen = found.filter(([w]) => w >= FAINT).sort(([a], [b]) => b - a).slice(0, 3).map(([w, to]) => `${to} (${percent(w)})`);
      voice.say(side === "above" ? `To write ${name(side, i)} it looked at ${seen.join(", then ") || "no single piece much"}.`
        : `${name(side, i)} was looked at to write ${seen.join(", then ") || "no single piece"}.`);
      if (side === "below") return;
      const { p, likely, id } = result.steps[i];
      if (!likely) return others.append(kit.button(`What else might it have said? (loads ${size()})`, () => {
        input.value = result.text;
        say();
      }));
      const before = result.steps.slice(0, i).map((step) => step.id);
      others.append(make("div", { class: "fx-row" }, make("span", { class: "fx-soft" }, `Instead of ${name(side, i)}, ${percent(p)}:`),
        ...likely.filter(([other]) => other !== id).map(([other, chance, piece]) =>
          kit.button(`${piece.trim() || "␣"} ${percent(chance)}`, () => {
            const changed = translated(result.which, result.text, [...before, other]);
            show(boards.map((each) => (each === it ? changed : each.result)),
              ["You chose its first words; it went on from them."], [changed]);
          }))));
    }

    /** Boards for these results; those of the fresh ones are written. */
    async function show(results, more = [], fresh = results) {
      const now = ++turn;
      boards = results.map(board);
      room.replaceChildren(...boards.map(({ node }) => node));
      others.replaceChildren(hint);
      const strange = [...new Set(results.flatMap(({ unread: words }) => words ?? []))].map((word) => `“${word}”`);
      const parts = results.map(({ text, said }) => `“${text}” becomes “${said}”${ENDS.test(said) ? "" : "."}`);
      if (strange.length) parts.push(`${strange.join(", ")} never stood in its training text: it spells what it has not read from pieces.`);
      voice.say([...more, ...parts].join(" "));
      const [waiting, still] = [true, false].map((is) => boards.filter(({ result }) => fresh.includes(result) === is));
      for (const each of still) each.rest();
      for (const each of waiting) each.reveal(0);
      for (const each of waiting) if (now === turn) await each.write();
    }

    async function say() {
      const typed = () => sentences(kit.clean(input.value)), which = language;
      if (typed().length && !translators[which]) {
        if (coming[which]) return; // whoever pressed first is answered, with what stands there then
        go.textContent = `Loading ${size()} …`;
        try {
          await loaded(which);
        } catch (error) {
          return voice.say(error.message);
        } finally {
          go.textContent = "Translate";
        }
        if (which !== language) return; // another was chosen meanwhile
      }
      const found = typed(), more = [];
      if (!found.length) return voice.say("There is nothing to translate: write a sentence first.");
      own = true;
      const { forms } = translators[which];
      const plain = found.slice(0, AT_A_TIME).map((part) => tidy(part, forms));
      if (plain.some((text, i) => text !== found[i])) more.push("Written as it knows it:");
      const left = found.slice(AT_A_TIME).join(" ");
      if (left) more.unshift(`It takes ${AT_A_TIME} sentences at a time; “${left}” was left out.`);
      try {
        show(plain.map((text) => translated(which, text)), more);
      } catch (error) {
        return voice.say(error.message);
      }
      model.keep({ text: found.join(" "), into: language });
    }

    /** What the language's run made of its sample, before anything is loaded. */
    function begin(fresh = true) {
      const { sample } = into[language], result = { which: language, ...sample, steps: sample.target.map((piece) => ({ piece })) };
      show([result], [`Write a sentence, and press Translate: the model, ${size()}, is loaded once.`], fresh ? [result] : []);
    }

    el.append(make("style", {}, LOOK),
      make("div", { class: "say-ask" }, make("label", {}, make("span", { class: "fx-soft" }, "English"), input), go),
      make("div", { class: "fx-row" }, make("span", { class: "fx-soft" }, "or"),
        ...model.get("samples").map((text) => kit.button(text, () => { input.value = text; say(); }, { lang: "en" }))),
      ...languages.length > 1 ? [choose.node] : [], room, others, voice.node);
    begin(false);
    new ResizeObserver(() => {
      for (const each of boards) if (!each.node.querySelector(".say-waits")) each.rest();
    }).observe(el);
    // the first time it comes into view it is written; whoever has been quicker is not disturbed
    const begun = turn, seen = new IntersectionObserver(([{ isIntersecting }]) => {
      if (!isIntersecting) return;
      seen.disconnect();
      if (turn === begun) boards[0].write();
    }, { threshold: 0.9 });
    seen.observe(room);
  },
};
