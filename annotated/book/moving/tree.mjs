// tree: the tokens of a linearised tree, which one edits; the tree that the
// repair makes of them, and what it scores.
// needs: chart

export const split = (text) => text.split(/\s+/).filter(Boolean);

/** The tree over words that any sequence of tokens gives, as in tree_over. */
export function treeOver(words, tokens) {
  const open = [{ label: "TOP", children: [] }];
  let next = 0;
  const close = () => {
    const part = open.pop();
    if (part.children.length) open[open.length - 1].children.push(part);
    return part.label;
  };
  for (const token of tokens) {
    const label = token.slice(1);
    if (token[0] === "(") {
      open.push({ label: label || "X", children: [] });
    } else if (token[0] === ")") {
      if (open.slice(1).some((part) => part.label === label)) while (close() !== label);
    } else if (next < words.length) {
      open[open.length - 1].children.push({ label: token, word: words[next++] });
    }
  }
  while (open.length > 1) close();
  open[0].children.push(...words.slice(next).map((word) => ({ label: "XX", word })));
  return open[0];
}

/** A tree as brackets and tags. */
export const linearise = (tree) => (!tree.children ? [tree.label]
  : [`(${tree.label}`, ...tree.children.flatMap(linearise), `)${tree.label}`]);

const SKIPPED = [",", ":", "``", "''", ".", "-NONE-"];
const leaves = (tree) => (tree.children ? tree.children.flatMap(leaves) : [tree]);

/** The words that count: no punctuation, no traces. */
export const spoken = (tree) => leaves(tree).filter((one) => !SKIPPED.includes(one.label))
  .map((one) => one.word);

/** The constituents that count, in the order in which they are closed:
 *  { part, label, from, to }, with the rules of COLLINS.prm. */
export function brackets(tree) {
  const found = [];
  let words = 0;
  const visit = (part) => {
    if (!part.children) {
      words += !SKIPPED.includes(part.label);
      return;
    }
    const from = words;
    part.children.forEach(visit);
    const bare = part.label.split("-")[0].split("=")[0], label = bare === "PRT" ? "ADVP" : bare;
    if (words > from && label !== "TOP") found.push({ part, label, from, to: words });
  };
  visit(tree);
  return found;
}

const name = ({ label, from, to }) => `${label} ${from}–${to}`;

/** The brackets of gold and guess in pairs, what is left of each, and the
 *  scores in percent; null where the words that count differ. */
export function compare(gold, guess) {
  if (spoken(gold).join(" ") !== spoken(guess).join(" ")) return null;
  const missed = brackets(gold), found = brackets(guess), right = [], wrong = [];
  const [all, said] = [missed.length, found.length];
  for (const one of found) {
    const at = missed.findIndex((other) => name(other) === name(one));
    (at < 0 ? wrong : right).push(one);
    if (at >= 0) missed.splice(at, 1);
  }
  const percent = (of) => 100 * right.length / Math.max(1, of);
  return { right, wrong, missed, gold: all, guessed: said, precision: percent(said), recall: percent(all),
    f1: percent((all + said) / 2) };
}

export default {
  render({ model, el, kit }) {
    const { make } = kit;
    const words = model.get("words"), answers = model.get("answers"); // [name, tokens]
    const truth = split(model.get("truth")), gold = treeOver(words, truth);
    const less = truth.filter((_, i) => i !== truth.indexOf("NNS") + 1).join(" ");
    let tokens = split(model.asked.tokens ?? answers[0][1]), chosen = -1, touched = false;

    const field = make("input", { type: "text", "aria-label": "The tokens of the answer",
      spellcheck: "false", style: "width:100%", oninput: () => {
        tokens = split(kit.clean(field.value));
        chosen = -1;
        act();
      } });
    const chips = make("div", { class: "fx-row fx-mono", role: "group", "aria-label": "Choose a token",
      style: "gap:.3rem;margin:.6rem 0;font-size:.85em" });
    const earlier = kit.button("Earlier", () => move(-1)), later = kit.button("Later", () => move(1));
    const out = kit.button("Take out", () => {
      tokens.splice(chosen, 1);
      chosen = Math.min(chosen, tokens.length - 1);
      write();
      // the button keeps the focus, unless there is nothing left
      if (chosen < 0) field.focus();
    });
    const boxes = make("div", { class: "fx-scroll", tabindex: 0, role: "group",
      "aria-label": "The tree of the answer" });
    const list = make("div"), whole = make("p", { class: "fx-soft" }), voice = kit.voice();
    const bars = kit.chart.bars(kit, "Scores");

    function move(by) {
      const [token] = tokens.splice(chosen, 1);
      chosen += by;
      tokens.splice(chosen, 0, token);
      write();
    }

    function write() {
      field.value = tokens.join(" ");
      act();
    }

    function begin(text) {
      tokens = split(text);
      chosen = -1;
      write();
    }

    function act() {
      touched = true;
      show();
    }

    /** Show which token is chosen; its button keeps the focus. */
    function mark() {
      [...chips.children].forEach((chip, i) => chip.setAttribute("aria-pressed", String(i === chosen)));
      earlier.disabled = chosen < 1;
      later.disabled = chosen < 0 || chosen === tokens.length - 1;
      out.disabled = chosen < 0;
    }

    function box(part, wrong) {
      if (!part.children) {
        return make("span", { style: "text-align:center" },
          make("small", { class: "fx-soft", style: "display:block" }, part.label), part.word);
      }
      const bad = wrong.includes(part);
      return make("div", { style: "display:inline-block;border-radius:5px;"
        + (part.label === "TOP" ? "" : `padding:.1rem .25rem .25rem;border:2px ${bad ? "dashed var(--bad)" : "solid var(--data)"}`) },
      make("strong", { style: `font-size:.85em${bad ? ";color:var(--bad)" : ""}` }, part.label),
      make("div", { style: "display:flex;gap:.25rem;align-items:end" },
        ...part.children.map((child) => box(child, wrong))));
    }

    function rows({ right, wrong, missed }) {
      const said = spoken(gold), row = (one, truth, answer) =>
        [name(one), said.slice(one.from, one.to).join(" "), truth, answer];
      return [...right.map((one) => [one, "yes", "yes"]), ...missed.map((one) => [one, "yes", "no"]),
        ...wrong.map((one) => [one, "no", "yes"])]
        .sort(([a], [b]) => a.from - b.from || b.to - a.to).map((one) => row(...one));
    }

    function show() {
      chips.replaceChildren(...tokens.map((token, i) => kit.button(token, () => {
        chosen = i;
        mark();
      })));
      mark();
      const guess = treeOver(words, tokens), score = compare(gold, guess);
      boxes.replaceChildren(box(guess, (score?.wrong ?? []).map((one) => one.part)));
      const again = linearise(guess).slice(1, -1).join(" "), same = again === tokens.join(" ");
      whole.textContent = same ? "" : `As a tree: ${again}`;
      list.replaceChildren(...(score ? [kit.table(["bracket", "words", "truth", "answer"], rows(score))] : []));
      const shown = ["precision", "recall", "f1"].map((key) => [key === "f1" ? "F1" : key,
        (score?.[key] ?? 0) / 100, score ? `${score[key].toFixed(1)} %` : "–"]);
      bars.set(shown);
      voice.say((same ? "" : "This is no tree over the words, and is repaired. ")
        + (score ? `${score.right.length} of ${score.guessed} brackets of the answer are right, and `
          + `${score.right.length} of the truth's ${score.gold} are found: precision ${shown[0][2]}, recall `
          + `${shown[1][2]}, F1 ${shown[2][2]}.`
          : "A tag of punctuation stands for a word, so the words that count differ: evalb leaves the "
          + "sentence out."));
      if (touched) model.keep({ tokens: tokens.join(" ") });
    }

    field.value = tokens.join(" ");
    el.append(
      kit.guess({ voice, question: "You take the “)NP” after “NNS” out of the truth. What is its F1?", options: [
        ["0, it is no tree", 0], ["still 100", 100], ["in between", 50]],
      act: "Here is the truth. Now take that bracket out.",
      begin() { begin(truth.join(" ")); return compare(gold, treeOver(words, tokens)); },
      seen(was) {
        if (tokens.join(" ") !== less) return null;
        const now = compare(gold, treeOver(words, tokens));
        return [now.f1 === 0 ? 0 : now.f1 === 100 ? 100 : 50, `It went from ${was.right.length} of ${was.gold} brackets, `
          + `F1 ${was.f1.toFixed(1)}, to ${now.right.length}, F1 ${now.f1.toFixed(1)}. The repair closes the NP where the `
          + "VP ends."];
      },
      tell() { begin(less); } }).node,
      make("p", {}, make("span", { class: "fx-soft" }, "Sentence: "), words.join(" ")),
      make("div", { class: "fx-row" }, make("span", { class: "fx-soft" }, "Begin with"),
        ...answers.map(([text, start]) => kit.button(text, () => begin(start)))),
      make("div", { style: "margin-top:.6rem" }, field), chips,
      make("div", { class: "fx-row" }, make("span", { class: "fx-soft" }, "Move the chosen token"), earlier,
        later, out),
      make("div", { class: "fx-cols" }, make("div", {}, boxes, whole, bars.node), list), voice.node);
    show();
  },
};
