// Which sections answer a query, the best first; more may be added. It draws
// nothing: search.js does. minisearch.js finds words, Sphinx's language_data.js says which are
// alike; a section of the story goes before one of the engine room or of the
// reference that has the words as often.
const ranking = (taught = []) => {
  const [FILE, PAGE, ANCHOR, TITLE, TEXT, CODE, NAMES, HIDDEN] = [0, 1, 2, 3, 4, 5, 6, 7];
  const ROOMS = [
    [/^\d\d-/, 1.6],
    [/^A1-/, 0.5],
    [/^A\d/, 0.8],
    [/^E\d/, 0.5],
    [/^(annotated\.|api-|index|references)/, 0.4],
  ];
  // they speak of everything
  const ASIDE = /^(Check|Exercises|What to read next|Words, by chapter)$/;
  // what readers say, and what the book says
  const ALIKE = [
    ["gpu", "gpus", "device", "devices"],
    ["multi", "multiple", "many", "several"],
    ["hallucination", "mistake"],
    ["tie", "tied", "tying"],
    ["count", "number"],
    ["architecture", "figure", "model"],
    ["visualization", "visualize", "map"],
    ["flop", "flops", "operations"],
    ["data", "dataset", "corpus"],
    ["normalization", "norm"],
    ["decode", "decoding", "search"],
    ["finetune", "finetuning", "fine-tune", "fine-tuning"],
    ["warm-up", "warmup"],
    ["option", "options", "command", "flag"],
    ["average", "averaging", "mean"],
    ["parse", "parsing", "parser"],
    ["rotary", "rope"],
  ];

  // words of a question that say nothing of what it asks for
  const ASKING = new Set("what how why which when where do does can my own your i me you work works".split(" "));
  const dropped = (word) => stopwords.has(word) || ASKING.has(word);

  // what readers ask in words of their own, and where the answer is
  const ANSWERS = [
    ["02-attention.html", "", "what is attention", "attention mechanism", "attention"],
    ["20-multi30k.html", "#text-of-your-own", "train on my own data", "own data", "own dataset", "custom data"],
    ["00-preface.html", "#what-machine-you-need", "install", "installation", "setup", "requirements"],
    ["16-search.html", "#how-good-is-a-beam", "softmax temperature", "temperature", "sampling", "top-k", "top-p"],
    ["08-transformer.html", "#figure-1-as-a-class", "encoder decoder", "encoder-decoder"],
    ["A6-serving.html", "#in-transformers", "export to huggingface", "export to hugging face", "hugging face transformers"],
    ["14-training.html", "#six-broken-loops", "loss not decreasing", "loss does not decrease", "loss does not fall",
      "loss stuck", "model does not learn", "debug training"],
    ["A5-command-line.html", "", "command line options", "command line"],
    ["A5-command-line.html", "#out-of-memory", "out of memory", "cuda out of memory", "oom"],
    ["27-real-weights.html", "#going-on-fine-tuning", "lora", "adapters", "peft", "finetuning"],
  ];

  const stemmer = new Stemmer();
  const stems = new Map();
  const BRITISH = /is(?=(?:e|es|ed|er|ers|ing|ation|ations)$)/; // "optimiser" as "optimizer"
  const stem = (word) => {
    word = word.toLowerCase().replace(BRITISH, "iz");
    if (!stems.has(word)) stems.set(word, dropped(word) ? "" : stemmer.stemWord(word));
    return stems.get(word);
  };
  // "warm-up" is found as two words and as "warmup", "√" as "sqrt"
  const WORD = /[\p{L}\p{N}]+(?:-[\p{L}\p{N}]+)*/gu;
  const parts = (word) => (word.includes("-") ? [...word.split("-"), word.replaceAll("-", "")] : [word]);
  const split = (text) => (text.replaceAll("√", " sqrt ").match(WORD) ?? []).flatMap(parts);
  const plain = (text) => ` ${split(text).map(stem).filter(Boolean).join(" ")} `;

  const others = new Map();
  for (const group of ALIKE.map((words) => [...new Set(words.flatMap(parts).map(stem).filter(Boolean))])) {
    for (const word of group) others.set(word, group);
  }

  const index = new MiniSearch({
    fields: ["page", "title", "text", "code", "hidden"],
    tokenize: split,
    processTerm: stem,
    searchOptions: { boost: { title: 4, code: 0.5, hidden: 0.3 } },
  });
  const fields = (row, id) =>
    ({ id, page: row[PAGE], title: row[TITLE], text: row[TEXT], code: row[CODE], hidden: row[HIDDEN] });
  const sections = [], aside = [], weights = [], titles = [], texts = [], names = [];
  const add = (rows) => {
    index.addAll(rows.map((row, i) => fields(row, sections.length + i)));
    for (const row of rows) {
      const apart = ASIDE.test(row[TITLE]);
      const room = ROOMS.find(([pattern]) => pattern.test(row[FILE]))?.[1] ?? 1;
      sections.push(row);
      aside.push(apart);
      weights.push(room * (apart ? 0.4 : 1));
      titles.push(plain(row[TITLE]));
      texts.push(plain(row[TEXT]));
      names.push(new Set(row[NAMES].split(" ")));
    }
  };

  // the words of a query, each with those that mean the same
  const meant = (query) =>
    [...new Set((query.replaceAll("√", " sqrt ").match(/[\p{L}\p{N}]+/gu) ?? []).map(stem).filter(Boolean))];
  const long = (word) => word.length > 2;
  const one = (word, options) => ({
    combineWith: "OR",
    queries: [
      { queries: [word], prefix: long, ...options },
      ...(others.get(word) ?? []).filter((x) => x !== word)
        .map((like) => ({ queries: [like], boostTerm: () => 0.4, ...options })),
    ],
  });

  // a word of the glossary, alike or in part, and the section that builds it
  const key = (text) =>
    (text.match(/[\p{L}\p{N}]+/gu) ?? []).map(stem).filter(Boolean)
      .map((word) => (others.get(word) ?? [word])[0]).join(" ");
  const lessons = new Map();
  const asked = ANSWERS.flatMap(([file, anchor, ...queries]) => queries.map((query) => [query, file, anchor]));
  for (const [word, file, anchor] of [...asked, ...taught]) {
    for (const name of [word, word.replaceAll("-", "")]) {
      if (!lessons.has(key(name))) lessons.set(key(name), { file, anchor });
    }
  }
  const lessonOf = (query) => {
    const asked = key(query);
    if (lessons.has(asked) || asked.length < 4) return lessons.get(asked);
    return lessons.get([...lessons.keys()].find((name) => name.startsWith(`${asked} `)));
  };

  const find = (query) => {
    const words = meant(query);
    const lesson = lessonOf(query);
    const phrase = plain(words.join(" "));
    const name = query.replace(/\(\)$/, "");
    const search = (combineWith, options = {}) => {
      const found = index.search(
        { combineWith, queries: words.map((word) => one(word, options)) },
        { processTerm: (word) => word },
      );
      for (const each of found) {
        const { id } = each;
        each.score *= weights[id];
        // words that stand together come before words that are apart
        each.score *= titles[id].includes(phrase) ? 3 : texts[id].includes(phrase) ? 2 : 1;
        if (titles[id] === phrase) each.score *= 1.5;
        const asked = query.trim().toLowerCase();
        if (weights[id] > 0.5 && sections[id][TITLE].toLowerCase() === asked) each.score *= 4;
        // the glossary leads there
        if (lesson?.file === sections[id][FILE]) {
          each.score *= lesson.anchor === sections[id][ANCHOR] ? 12 : 1.5;
        }
        // it is defined there; if in several places, first in the story
        if (names[id].has(name) && !aside[id]) each.score *= 10 * weights[id] ** 2;
      }
      return found.sort((a, b) => b.score - a.score);
    };
    // all the words, in the prose or in the code; else some, or misspelt
    let found = search("AND");
    const all = found.length > 0;
    if (!all) found = search("OR", { fuzzy: (word) => (word.length > 3 ? 0.25 : false) });
    // it is built there, in other words
    const built = sections.findIndex((row) => lesson && row[FILE] === lesson.file && row[ANCHOR] === lesson.anchor);
    const there = found.findIndex(({ id }) => id === built);
    if (built >= 0 && (there < 0 || !all)) {
      const [first] = there < 0 ? [{ id: built, terms: words }] : found.splice(there, 1);
      found.unshift(first);
    }
    return { found, all };
  };

  // where words of a result are in a text
  const marks = (text, terms) =>
    [...text.matchAll(WORD)]
      .filter(([word]) => parts(word).some((part) => terms.has(stem(part))))
      .map((match) => ({ at: match.index, word: match[0] }));

  return { add, find, marks, row: (id) => sections[id], stem };
};
