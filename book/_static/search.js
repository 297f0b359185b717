// Shows the sections that rank.js finds, as somebody types: on search.html,
// and in the dialog that opens on Ctrl+K, for which book.js loads this. Those
// of sections.js come at once, those of sections-more.js when it has come.
const bookSearch = (() => {
  const AROUND = 220; // characters of an excerpt
  const [FILE, PAGE, ANCHOR, TITLE, TEXT, CODE, , HIDDEN] = [0, 1, 2, 3, 4, 5, 6, 7];
  const { add, find, marks, row, stem } = ranking(TAUGHT, ASKED);
  const long = (word) => word.length > 2;
  const make = (tag, ...inside) => {
    const element = document.createElement(tag);
    element.append(...inside);
    return element;
  };

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
      nodes.push(text.slice(done, at), make("mark", word));
      done = at + word.length;
    }
    return [start ? "… " : "", ...nodes, text.slice(done, end), end < text.length ? " …" : ""];
  };
  const listed = (words, terms) => {
    const found = words.split(" ").filter((word) => marks(word, terms).length);
    return found.flatMap((word, i) => [i ? ", " : "", make("code", make("mark", word))]);
  };
  const item = ({ id, terms }) => {
    const found = row(id);
    terms = new Set(terms);
    const link = make("a", ...(found[ANCHOR] ? [`${found[PAGE]} › `] : []), make("strong", found[TITLE]));
    // the page marks these words, and opens what is folded around them
    const inside = marks([found[TITLE], found[TEXT], found[CODE]].join("\n"), terms);
    const words = new Set(inside.map((one) => one.word.toLowerCase()).filter(long));
    link.href = `${found[FILE]}?highlight=${encodeURIComponent([...words].join(" "))}${found[ANCHOR]}`;
    const has = (part) => marks(found[part], terms).length > 0;
    let shown = excerpt(found[TEXT], terms);
    if (!has(TEXT) && has(CODE)) shown = ["In its code: ", ...listed(found[CODE], terms)];
    else if (!has(TEXT) && has(HIDDEN)) shown = [make("em", "In an answer, or in a solution.")];
    return make("li", link, make("p", ...shown));
  };
  const said = (query, { found, all }, most) => {
    const count = (number) => `${number} section${number === 1 ? "" : "s"}`;
    if (!found.length) return `Nothing has “${query}”.`;
    if (!all) return `No section has all of “${query}”; ${count(found.length)} with something like it.`;
    const part = found.length > all ? ", and others with a part of it" : "";
    return `${count(all)} with “${query}”${part}${found.length > most ? `: the best ${most}` : ""}.`;
  };

  // a few sections at a time, so that no letter waits until all are there
  const boxes = [], FEW = 60;
  let ready = false;
  const addAll = async (rows) => {
    for (let at = 0; at < rows.length; at += FEW) {
      if (at) await new Promise((go) => setTimeout(go));
      add(rows.slice(at, at + FEW));
    }
    ready = true;
    for (const show of boxes) show();
  };
  const later = make("script");
  later.src = new URL("sections-more.js", document.currentScript.src);
  const first = addAll(SECTIONS);
  later.onload = () => first.then(() => addAll(MORE));
  document.head.append(later);

  // what stands in a field is looked for, and shown in a place
  return (field, place, most) => {
    const status = make("p"), list = make("ol");
    status.setAttribute("role", "status");
    place.append(status, list);
    const show = () => {
      if (!ready) return;
      const query = field.value.trim();
      const answer = query ? find(query) : { found: [] };
      list.replaceChildren(...answer.found.slice(0, most).map(item));
      status.textContent = query ? said(query, answer, most) : "";
    };
    let waiting = 0;
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(show, 100);
    });
    boxes.push(show);
    show();
  };
})();

{
  const place = document.getElementById("search-results");
  if (place) {
    const field = document.querySelector("form.bd-search:not(dialog *) input");
    field.value = (new URLSearchParams(location.search).get("q") ?? "").trim();
    field.focus(); // the theme means to, and takes the field of its dialog
    bookSearch(field, place, 30);
  }
}
