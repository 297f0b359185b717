// Finds sections. sections.js has them, minisearch.js ranks them, and
// Sphinx's language_data.js says which words are alike.
(() => {
  const MOST = 30; // results
  const AROUND = 220; // characters of an excerpt
  const [FILE, PAGE, ANCHOR, TITLE, TEXT, CODE] = [0, 1, 2, 3, 4, 5];
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  const place = document.getElementById("search-results");
  const field = document.querySelector("form.bd-search:not(dialog *) input");
  field.value = query;
  field.focus(); // the theme means to, and takes the field of its dialog
  if (!query) return;

  const stemmer = new Stemmer();
  const stems = new Map();
  const stem = (word) => {
    word = word.toLowerCase();
    if (!stems.has(word)) stems.set(word, stopwords.has(word) ? "" : stemmer.stemWord(word));
    return stems.get(word);
  };
  // "warm-up" is found as two words and as "warmup"
  const WORD = /[\p{L}\p{N}]+(?:-[\p{L}\p{N}]+)*/gu;
  const parts = (word) => (word.includes("-") ? [...word.split("-"), word.replaceAll("-", "")] : [word]);
  const split = (text) => (text.match(WORD) ?? []).flatMap(parts);

  const index = new MiniSearch({
    fields: ["page", "title", "text", "code"],
    tokenize: split,
    processTerm: stem,
    searchOptions: {
      tokenize: (text) => text.match(/[\p{L}\p{N}]+/gu) ?? [],
      boost: { title: 4, page: 0.5 },
    },
  });
  index.addAll(
    SECTIONS.map((row, id) => ({ id, page: row[PAGE], title: row[TITLE], text: row[TEXT], code: row[CODE] })),
  );

  const long = (word) => word.length > 2;
  const phrase = query.toLowerCase();
  const has = (id, part) => SECTIONS[id][part].toLowerCase().includes(phrase);
  const search = (options) => {
    const found = index.search(query, { prefix: long, ...options });
    // words that stand together come before words that are apart
    for (const one of found) one.score *= has(one.id, TITLE) ? 3 : has(one.id, TEXT) ? 2 : 1;
    return found.sort((a, b) => b.score - a.score);
  };
  // all the words in the prose, then with the code; else some, or misspelt
  let found = search({ combineWith: "AND", fields: ["page", "title", "text"] });
  const before = new Set(found.map((one) => one.id));
  found.push(...search({ combineWith: "AND" }).filter((one) => !before.has(one.id)));
  const all = found.length > 0;
  if (!all) found = search({ fuzzy: (word) => (word.length > 3 ? 0.25 : false) });

  // where the words of a result are in a text
  const marks = (text, terms) =>
    [...text.matchAll(WORD)]
      .filter(([word]) => parts(word).some((part) => terms.has(stem(part))))
      .map((match) => ({ at: match.index, word: match[0] }));
  // the stretch with the most different words, and of these the first
  const excerpt = (text, terms) => {
    const all = marks(text, terms);
    let start = 0, most = 0;
    for (const { at } of all) {
      const near = all.filter((one) => one.at >= at && one.at < at + AROUND - 40);
      const count = new Set(near.map((one) => stem(one.word))).size;
      if (count > most) [most, start] = [count, at];
    }
    start = start > 40 ? text.indexOf(" ", start - 40) + 1 : 0;
    let end = start + AROUND;
    end = end < text.length ? text.lastIndexOf(" ", end) : text.length;
    const nodes = [];
    let done = start;
    for (const { at, word } of all.filter((one) => one.at >= start && one.at + one.word.length <= end)) {
      const mark = document.createElement("mark");
      mark.textContent = word;
      nodes.push(text.slice(done, at), mark);
      done = at + word.length;
    }
    return [start ? "… " : "", ...nodes, text.slice(done, end), end < text.length ? " …" : ""];
  };

  const make = (tag, ...inside) => {
    const element = document.createElement(tag);
    element.append(...inside);
    return element;
  };
  const item = ({ id, terms }) => {
    const row = SECTIONS[id];
    terms = new Set(terms);
    const link = make("a", ...(row[ANCHOR] ? [`${row[PAGE]} › `] : []), make("strong", row[TITLE]));
    // the page marks these words, and opens what is folded around them
    const inside = marks([row[TITLE], row[TEXT], row[CODE]].join("\n"), terms);
    const words = new Set(inside.map((one) => one.word.toLowerCase()).filter(long));
    link.href = `${row[FILE]}?highlight=${encodeURIComponent([...words].join(" "))}${row[ANCHOR]}`;
    const inCode = !marks(row[TEXT], terms).length && marks(row[CODE], terms).length;
    const shown = inCode ? [make("code", ...excerpt(row[CODE], terms))] : excerpt(row[TEXT], terms);
    return make("li", link, make("p", ...shown));
  };
  const status = make("p");
  status.setAttribute("role", "status");
  const list = make("ol", ...found.slice(0, MOST).map(item));
  place.append(status, list);
  const count = `${found.length} section${found.length === 1 ? "" : "s"}`;
  if (!found.length) status.textContent = `Nothing has “${query}”.`;
  else if (!all) status.textContent = `No section has all of “${query}”; ${count} with something like it.`;
  else status.textContent = `${count} with “${query}”${found.length > MOST ? `: the best ${MOST}` : ""}.`;
})();
