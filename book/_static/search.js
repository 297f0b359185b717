// Shows the sections that rank.js finds in sections.js.
(() => {
  const MOST = 30; // results
  const AROUND = 220; // characters of an excerpt
  const [FILE, PAGE, ANCHOR, TITLE, TEXT, CODE, , HIDDEN] = [0, 1, 2, 3, 4, 5, 6, 7];
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  const place = document.getElementById("search-results");
  const field = document.querySelector("form.bd-search:not(dialog *) input");
  field.value = query;
  field.focus(); // the theme means to, and takes the field of its dialog
  if (!query) return;

  const { find, marks, stem } = ranking(SECTIONS, TAUGHT);
  const { found, all } = find(query);
  const long = (word) => word.length > 2;

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
    const has = (part) => marks(row[part], terms).length > 0;
    let shown = excerpt(row[TEXT], terms);
    if (!has(TEXT) && has(CODE)) shown = [make("code", ...excerpt(row[CODE], terms))];
    else if (!has(TEXT) && has(HIDDEN)) shown = [make("em", "In an answer, or in a solution.")];
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
