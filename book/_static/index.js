// Which rows have a word, and how much it says of each: BM25+ over several
// fields, of which each has its weight. Words are found as they are written,
// by their beginnings, and, for slips of the hand, by those that lie near.
const wordIndex = (weights, split, stem) => {
  const FIELDS = Object.keys(weights);
  const FREQUENT = 1.2, LONG = 0.7, THERE = 0.5; // of BM25+, as usual
  const BEGINNING = 0.375; // of the score of a whole word
  const places = new Map(); // of each word: row and field in one, how often, …
  const lengths = FIELDS.map(() => []); // in different words
  const sums = FIELDS.map(() => 0);
  let rows = 0;

  const add = (texts) => {
    FIELDS.forEach((name, field) => {
      const words = split(texts[name]);
      const place = rows * FIELDS.length + field;
      for (const word of words) {
        const term = stem(word);
        if (!term) continue;
        const here = places.get(term);
        if (!here) places.set(term, [place, 1]);
        else if (here.at(-2) === place) here[here.length - 1] += 1;
        else here.push(place, 1);
      }
      lengths[field].push(new Set(words).size);
      sums[field] += lengths[field].at(-1);
    });
    rows += 1;
  };

  // adds to the score of each row that has this very word
  const count = (term, share, scores) => {
    const here = places.get(term) ?? [];
    const having = FIELDS.map(() => 0);
    for (let at = 0; at < here.length; at += 2) having[here[at] % FIELDS.length] += 1;
    const rare = having.map((some) => Math.log(1 + (rows - some + 0.5) / (some + 0.5)));
    for (let at = 0; at < here.length; at += 2) {
      const field = here[at] % FIELDS.length, row = (here[at] - field) / FIELDS.length, often = here[at + 1];
      const long = 1 - LONG + (LONG * lengths[field][row] * rows) / sums[field];
      const much = THERE + (often * (FREQUENT + 1)) / (often + FREQUENT * long);
      scores.set(row, (scores.get(row) ?? 0) + share * weights[FIELDS[field]] * rare[field] * much);
    }
  };

  const having = (term) => {
    const scores = new Map();
    count(term, 1, scores);
    return scores;
  };
  // for a word that may not be at its end yet: scores, and the words meant
  const beginning = (start) => {
    const scores = new Map(), terms = [];
    for (const term of places.keys()) {
      if (!term.startsWith(start)) continue;
      const more = term.length - start.length;
      count(term, more ? (BEGINNING * term.length) / (term.length + 0.3 * more) : 1, scores);
      terms.push(term);
    }
    return { scores, terms };
  };
  // in how many rows a word is
  const spread = (term) => {
    const found = new Set();
    for (let at = 0, here = places.get(term) ?? []; at < here.length; at += 2) {
      found.add(Math.floor(here[at] / FIELDS.length));
    }
    return found.size;
  };
  const like = (term, most) => [...places.keys()].filter((other) => Math.abs(other.length - term.length) <= most);
  return { add, having, beginning, spread, like };
};
