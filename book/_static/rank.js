// Which sections answer a query, the best first; more may be added. It draws
// nothing: search.js does. index.js finds words, Sphinx's language_data.js
// says which are alike, asked.js and the glossary what else a section is
// called, and questions.tsv, in the rows, what readers would ask who look for
// it. A query is a question: no word of it has to be there, but a section
// that lacks the rare ones loses most of its score.
const ranking = (taught = [], filed = {}) => {
  const [FILE, PAGE, ANCHOR, TITLE, TEXT, CODE, NAMES, HIDDEN, QUESTIONS] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  // the story goes before the engine room and the reference
  const ROOMS = [
    [/^\d\d-/, 1.6],
    [/^A1-/, 0.5],
    [/^A4-/, 0.6],
    [/^A\d/, 0.85],
    [/^E\d/, 0.7],
    [/^(annotated\.|api-|index|references)/, 0.4],
  ];
  // they speak of everything
  const ASIDE = /^(Check|Exercises|What to read next|Words, by chapter)$/;
  const NUMBER = /^(?:[AE]?\d+ (?:· )?|\([A-E]\) )/; // before a title
  // what readers say, and what the book says
  const ALIKE = [
    ["gpu", "gpus", "device", "devices"],
    ["multi", "multiple", "many", "several"],
    ["hallucination", "mistake"],
    ["mistake", "error", "bug", "wrong"],
    ["tie", "tied", "tying"],
    ["count", "number"],
    ["architecture", "figure", "model"],
    ["visualization", "visualize", "map"],
    ["flop", "flops", "operations"],
    ["data", "dataset", "corpus", "text"],
    ["normalization", "norm"],
    ["decode", "decoding", "search"],
    ["finetune", "finetuning", "fine-tune", "fine-tuning"],
    ["warm-up", "warmup"],
    ["option", "options", "command", "flag"],
    ["average", "averaging", "mean"],
    ["parse", "parsing", "parser"],
    ["rotary", "rope"],
    ["sqrt", "root"],
    ["big", "large", "size"],
    ["fast", "speed", "slow"],
    ["derivative", "gradient"],
    ["complexity", "cost", "work"],
    ["prune", "remove", "take", "knock"],
    ["laptop", "computer", "machine"],
    ["save", "write", "store"],
    ["order", "position"],
    ["solution", "answer", "exercise"],
    ["student", "class", "teach"],
    ["fall", "decrease", "down", "drop", "converge"],
    ["find", "found", "detect", "recognize", "available"],
    ["begin", "start", "first"],
    ["own", "custom"],
    ["picture", "figure", "plot", "image"],
    ["delete", "remove"],
    ["load", "import", "open"],
    ["resume", "continue", "restart"],
    ["kill", "crash", "interrupt"],
    ["duplicate", "twice"],
    ["plot", "draw"],
    ["exercise", "assignment"],
    ["grade", "mark"],
    ["calculate", "compute", "count"],
    ["untrained", "fresh", "random"],
    ["same", "alike", "equal", "identical"],
    ["different", "differ", "change"],
  ];

  // words of a question that say nothing of what it asks for
  const ASKING = new Set(("what how why which when where do does can my your i me you work works need needed use used"
    + " using much should would could explain explanation tell list called call just mean means really exactly happen"
    + " happens go goes going good allowed between versus vs get got please like refer refers understand scratch put want know give come comes").split(" "));
  const TOLD = new Set(["own", "before", "after", "down"]); // they do
  const dropped = (word) => (stopwords.has(word) || ASKING.has(word)) && !TOLD.has(word);

  const stemmer = new Stemmer();
  const stems = new Map();
  const BRITISH = /is(?=(?:e|es|ed|er|ers|ing|ation|ations)$)/; // "optimiser" as "optimizer"
  const stem = (word) => {
    let found = stems.get(word);
    if (found === undefined) {
      const plain = word.toLowerCase().replace(BRITISH, "iz");
      found = dropped(plain) ? "" : stemmer.stemWord(plain);
      stems.set(word, found);
    }
    return found;
  };
  // "warm-up" is found as two words and as "warmup", "√" as "sqrt", "β" as
  // "beta", "10,000" as "10000"; of "d_k" no letter is found, but all of it
  const WORD = /[\p{L}\p{N}]+(?:[-_^][\p{L}\p{N}]+)*/gu;
  const PART = /[\p{L}\p{N}]+/gu;
  const SIGNS = { "√": " sqrt ", α: "alpha", β: "beta", γ: "gamma", ε: "epsilon", λ: "lambda", μ: "mu", σ: "sigma" };
  const SIGN = new RegExp(`[${Object.keys(SIGNS).join("")}]`, "g");
  const THOUSANDS = /(?<=\d),(?=\d{3}(?!\d))/g;
  const typedOut = (text) => text.replace(SIGN, (sign) => SIGNS[sign]).replace(THOUSANDS, "");
  const parts = (word, once = false) => {
    const all = word.split(/[-_^]/), whole = all.join("");
    if (all.length === 1) return all;
    if (!/[_^]/.test(word)) return once ? all : [...all, whole];
    return all.some((part) => part.length === 1) ? [...all.filter((part) => part.length > 2), whole] : all;
  };
  const inText = (text) => typedOut(text).match(WORD) ?? [];
  const split = (text) => inText(text).flatMap((word) => parts(word));
  const meant = (text) => inText(text).flatMap((word) => parts(word, true)).map(stem).filter(Boolean);
  const single = (word) => word.replace(BRITISH, "iz").replace(/(?<=[^su])s$/, ""); // "tokens" is not "tokenizers"
  const letters = (text) => (text.toLowerCase().match(PART) ?? []).filter((word) => stem(word)).map(single);
  const plain = (text) => ` ${meant(text).join(" ")} `;

  const others = new Map(); // a word and those that mean the same
  for (const group of ALIKE.map((words) => [...new Set(words.flatMap((word) => parts(word)).map(stem).filter(Boolean))])) {
    for (const word of group) others.set(word, [...new Set([...(others.get(word) ?? []), ...group])]);
  }

  // what else a section is called: by readers, by the glossary, by initials
  const called = new Map();
  const call = (place, name) => {
    if (!called.has(place)) called.set(place, []);
    called.get(place).push(name);
  };
  for (const [place, names] of Object.entries(filed)) {
    for (const name of names.split(", ")) call(place.replace(/(#|$)/, ".html$1"), name);
  }
  for (const [word, file, anchor] of taught) {
    call(file + anchor, word);
    const initials = (word.match(PART) ?? []).map((part) => part[0]).join("");
    if (initials.length > 2) call(file + anchor, initials);
  }

  const FIELDS = { page: 1, title: 4, called: 4, text: 1, code: 0.5, hidden: 0.3, questions: 4 };
  const index = wordIndex(FIELDS, split, stem);
  const sections = [], aside = [], weights = [], titles = [], spelt = [], texts = [], names = [], calls = [], asks = [];
  const add = (rows) => {
    for (const row of rows) {
      sections.push(row);
      const room = ROOMS.find(([pattern]) => pattern.test(row[FILE]))?.[1] ?? 1;
      const found = called.get(row[FILE] + row[ANCHOR]) ?? [];
      const title = row[TITLE].replace(NUMBER, "");
      const page = [row[PAGE], ...(called.get(row[FILE]) ?? [])].join("; "); // a section has its page's names, too
      const [text, code, hidden, questions] = [TEXT, CODE, HIDDEN, QUESTIONS].map((field) => row[field] ?? "");
      index.add({ page, title, called: found.join("; "), text, code, hidden, questions });
      aside.push(ASIDE.test(row[TITLE]));
      weights.push(room);
      titles.push(plain(title));
      spelt.push(new Set(letters(title)));
      texts.push(plain(row[TEXT]));
      names.push(new Set(row[NAMES].split(" ")));
      calls.push(found.map(named));
      asks.push(questions.split("; ").map((one) => new Set(meant(one))));
    }
    known.clear();
  };

  // in how many sections a word is
  const known = new Map();
  const spread = (word) => {
    if (!known.has(word)) known.set(word, index.spread(word));
    return known.get(word);
  };
  const rarity = (word) => Math.log(1 + sections.length / (1 + spread(word)));

  // a word that is nowhere: two words in one, or a slip of the hand
  const distance = (a, b, most) => {
    let before = [], row = [...Array(b.length + 1).keys()];
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
        if (a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
      if (Math.min(...before) > most && Math.min(...row) > most) return Infinity;
    }
    return row[b.length];
  };
  const PASTED = 12; // so many words nobody types, and each is compared with all there are
  const repaired = (word, all) => {
    if (spread(word) || others.has(word) || word.length < 4 || all > PASTED) return [word];
    for (let at = word.length - 4; at > 3; at--) {
      const halves = [word.slice(0, at), word.slice(at)].map(stem);
      if (halves.every((half) => half && spread(half) > 2)) return halves;
    }
    const near = new Map(), most = Math.round(word.length / 4);
    for (const term of index.like(word, most)) {
      const slips = distance(word, term, most); // letters that change places are one
      // hands slip in the middle of a word, and rarely towards a rare one
      if (slips <= most) near.set(term, slips + (term[0] === word[0] ? 0 : 0.6) - 0.1 * Math.log(1 + spread(term)));
    }
    const [best] = [...near].sort((a, b) => a[1] - b[1]);
    return best ? [best[0]] : [word];
  };
  // "decoder-only" is more than "decoder", although "only" says little, and
  // "no mask" is not "mask"
  const NOT = new Set(["no", "not", "without", "cannot"]);
  const named = (name) => {
    const all = (name.toLowerCase().match(PART) ?? []).map(single), words = meant(name);
    const needed = words.length > 1 ? all.filter((word) => NOT.has(word)) : all.length > 1 ? all : [];
    return { words, spelt: letters(name), needed, all };
  };
  const camel = (query) => query.replace(/(\p{Ll})(\p{Lu})/gu, "$1 $2");

  // the score of each section for a word, for its beginning, or for one like it
  const scores = (word, last) => {
    const found = new Map();
    const ask = (given, share, terms) => {
      for (const [id, score] of given) {
        const one = found.get(id) ?? { score: 0, terms: new Set() };
        one.score = Math.max(one.score, share * score);
        for (const term of terms) one.terms.add(term);
        found.set(id, one);
      }
    };
    ask(index.having(word), 1, [word]);
    for (const like of others.get(word) ?? []) if (like !== word) ask(index.having(like), 0.4, [like]);
    if (word.length > 2 && (last || !spread(word))) {
      const begun = index.beginning(word);
      ask(begun.scores, 0.8, begun.terms);
    }
    return found;
  };

  // how near a query is to what a reader would ask of a section: the cosine
  // of the nearest question, rare words counting more
  const nearest = (words, asked, questions) => {
    const long = (words) => [...words].reduce((sum, word) => sum + rarity(word) ** 2, 0);
    const shared = (word) => (words.includes(word) ? 1 : asked.has(word) ? 0.5 : 0) * rarity(word) ** 2;
    const whole = long(words);
    const near = questions.map((one) => [...one].reduce((sum, word) => sum + shared(word), 0) / Math.sqrt(whole * long(one) || 1));
    return Math.max(0, ...near);
  };

  const pairs = (words) => (words.length < 2 ? words : words.slice(1).map((word, i) => `${words[i]} ${word}`));
  const share = (text, all) => all.filter((each) => text.includes(` ${each} `)).length / all.length;

  // words that say little, as "its": what is called that
  const little = (raw) => {
    const called = ({ words, all }) => !words.length && all.length && all.every((word) => raw.includes(word));
    const found = [...sections.keys()].filter((id) => calls[id].some(called)).map((id) => ({ id, terms: [] }));
    return { found, all: found.length };
  };

  // who compares wants to read of both
  const COMPARES = /\b(vs|versus|compared|or|difference)\b/i;
  // who asks what a word means is sent to the glossary
  const DEFINES = /\b(meaning|definition)( of)?\b|\b(mean|means|stands? for|refers? to)\W*$/gi;
  const GLOSSARY = /^A1-/;

  const find = (query) => {
    const defines = query.search(DEFINES) >= 0;
    const both = COMPARES.test(query);
    const typed = query.replace(/\(\)$/, "").replace(DEFINES, " ");
    let given = meant(typed).filter((word, i, all) => all.indexOf(word) === i);
    if (given.some((word) => !spread(word))) given = meant(camel(typed));
    const mended = given.map((word) => repaired(word, given.length));
    const words = [...new Set(mended.flat())];
    const raw = (typed.toLowerCase().match(PART) ?? []).map(single);
    if (!words.length) return little(raw);
    const slipped = mended.some((now, i) => now.join("") !== given[i]); // not as it was typed
    const total = words.reduce((sum, word) => sum + rarity(word), 0);
    const asked = new Set(words.flatMap((word) => others.get(word) ?? [word]));
    const together = pairs(words);
    const phrase = ` ${words.join(" ")} `;
    // what was mended counts as if it had been typed
    const literal = new Set(letters(typed)), meantTo = new Set(mended.filter((now, i) => now.join("") !== given[i]).flat());
    const typedAs = (word) => literal.has(word) || meantTo.has(stem(word));

    const results = new Map();
    words.forEach((word, i) => {
      for (const [id, { score, terms }] of scores(word, i === words.length - 1)) {
        const one = results.get(id) ?? { id, score: 0, terms: [], has: 0, count: 0 };
        one.score += score;
        one.terms.push(...terms);
        one.has += rarity(word) / total;
        one.count += 1;
        results.set(id, one);
      }
    });
    let all = 0;
    for (const each of results.values()) {
      const { id } = each;
      each.score *= each.has ** 3 * (defines && GLOSSARY.test(sections[id][FILE]) ? 12 : weights[id]);
      if (aside[id]) each.score *= meant(sections[id][TITLE]).some((word) => asked.has(word)) ? 5 : 0.4;
      each.score *= 1 + 0.3 * [...spelt[id]].filter(typedAs).length / (literal.size || 1);
      if (each.count === words.length && !slipped) all += 1;
      // words that stand together come before words that are apart
      each.score *= Math.max(1 + 2 * share(titles[id], together), each.count > 1 || words.length < 2 ? 1 + share(texts[id], together) : 1);
      // the title says that and nothing else, perhaps even in these letters
      if (titles[id] === phrase) each.score *= [...spelt[id]].every(typedAs) ? 4 : 1.5;
      // it is called that, or by a part of it
      let name = 0;
      for (const call of calls[id]) {
        if (!call.words.length || !call.needed.every((word) => raw.includes(word))) continue;
        const sum = (words) => words.reduce((sum, word) => sum + rarity(word), 0);
        const shared = sum(call.words.filter((word) => asked.has(word)));
        const said = Math.min(1, shared / total) * (shared / sum(call.words)) ** 3;
        if (both && said < 0.8) continue;
        // "decode" is not quite "decoder"
        name = Math.max(name, said * (call.spelt.every(typedAs) ? 1 : 0.7));
      }
      each.score *= 1 + 8 * Math.min(1, weights[id]) * name ** 2;
      each.score *= 1 + 4 * nearest(words, asked, asks[id]) ** 3;
      // it is defined there; if in several places, first in the story
      if (names[id].has(typed) && !aside[id]) each.score *= 20 * weights[id] ** 2;
    }
    const found = [...results.values()].sort((a, b) => b.score - a.score);
    return { found, all };
  };

  // where words of a result are in a text
  const marks = (text, terms) =>
    [...text.matchAll(WORD)]
      .filter(([word]) => parts(word).some((part) => terms.has(stem(part))))
      .map((match) => ({ at: match.index, word: match[0] }));

  return { add, find, marks, row: (id) => sections[id], stem };
};
