// pocket: sentences of chapter 19's little German from a choice that is made in English,
// as annotated.pocket makes them, and what each German word means.

const rows = Object.values;
const CASES = ["nominative", "accusative", "dative"], PERSONS = ["ich", "du", "er", "wir"];
const COLUMNS = ["masculine", "feminine", "neuter", "plural"];
const FUSED = { "in dem": "im", "zu dem": "zum", "zu der": "zur" };
const PREPOSITIONS = { in: "in", hinter: "behind", zu: "to" };
const NAMES = ["Anna", "Jonas", "Lena", "Paul"];
/** The tables of annotated.pocket, whose rows have names, with the slots of the verbs read. */
export function read(tables) {
  const all = structuredClone(tables);
  for (const verb of rows(all.verbs)) {
    verb.slots = verb.slots.split(" ").filter(Boolean).map((text) => {
      const [, letter, german, english, kinds] = /^([ADC])\.?(\w*)\/?(\w*):(\w*)$/.exec(text);
      const kase = { A: "accusative", D: "dative", C: "complement" }[letter];
      return { role: german && kinds ? "prepositional" : kase, kase, german, english, kinds };
    });
  }
  return all;
}

export function noun({ nouns }, name, kase, plural) {
  const row = nouns[name];
  if (plural) return row.german_plural + (kase !== "dative" || /[ns]$/.test(row.german_plural) ? "" : "n");
  return row.gender === "weak" && kase !== "nominative" ? row.german_plural : name;
}

export function present({ verbs }, name, person) {
  const { prefix, third } = verbs[name], plural = name.slice(prefix.length), stem = third.slice(0, -1);
  return { ich: plural.replace(/n$/, ""), du: stem + (/[sz]$/.test(stem) ? "t" : "st"), er: third, wir: plural }[person];
}

const column = ({ nouns }, { noun, plural }) => (plural ? "plural" : nouns[noun].gender.replace("weak", "masculine"));
const personOf = ({ pronouns }, { noun, determiner, plural }) =>
  (determiner === "pronoun" ? pronouns[noun].person : plural ? "wir" : "er");

/** A phrase's words, each [German, English]. */
export function phrase(all, one, kase) {
  const { noun: name, determiner, plural } = one;
  if (determiner === "name") return [[name, name]];
  if (determiner === "pronoun") {
    const row = all.pronouns[name];
    return [[row[kase], kase === "nominative" ? row.english : row.english_object]];
  }
  const row = all.nouns[name], parts = [[noun(all, name, kase, plural), plural ? row.english_plural : row.english]];
  if (determiner !== "bare") {
    const { stem, endings, english, english_plural } = all.determiners[determiner];
    parts.unshift([stem + all.endings[`${endings} ${kase}`][column(all, one)], plural ? english_plural : english]);
  }
  return parts;
}

/** The finite verb, and what of the verb comes last. */
function verbs(all, { verb, tense, subject }, final) {
  const row = all.verbs[verb], person = personOf(all, subject), said = [row.english, row.particle].filter(Boolean).join(" ");
  if (tense === "will") return [[[all.finite.will[person], "will"]], [[verb, said]]];
  if (tense === "past") return [[[all.finite[row.auxiliary][person], "have"]], [[row.participle, row.past_participle]]];
  const word = present(all, verb, person);
  if (final) return [[[row.prefix + word, said]], []];
  return [[[word, row.english]], row.prefix ? [[row.prefix, row.particle || `(${row.english})`]] : []];
}

function prepositional(all, preposition, english, one, kase) {
  const words = phrase(all, one, kase), fused = one.determiner === "the" && FUSED[`${preposition} ${words[0][0]}`];
  return fused ? [[fused, `${english} the`], ...words.slice(1)] : [[preposition, english], ...words];
}

function time(all, when) {
  if (when === "evening") return [["am", "in the"], ["Abend", "evening"]];
  if (when === "every day") return [["jeden", "every"], ["Tag", "day"]];
  return [[all.particles[when].german, when]];
}

/** A clause's words; order: the finite verb is first, second or final. */
function clause(all, one, order, front) {
  const { verb, subject, negated, accusative, tense } = one, before = [], known = [], fresh = [], after = [];
  const [finite, rest] = verbs(all, one, order === "final");
  const kein = negated && accusative && ["a", "bare"].includes(accusative.determiner);
  const pronouns = [];
  for (const role of ["dative", "accusative"]) {
    let it = one[role];
    if (!it) continue;
    if (kein && role === "accusative") it = { ...it, determiner: "no" };
    const words = [role, phrase(all, it, role)];
    if (it.determiner === "pronoun") pronouns.unshift(words);
    else (["the", "this", "my", "your", "his", "our", "name"].includes(it.determiner) ? known : fresh).push(words);
  }
  before.push(...pronouns);
  if (one.time) before.push(["time", time(all, one.time)]);
  if (negated && !kein) known.push(["negation", [["nicht", "not"]]]);
  if (one.place) after.push(["place", prepositional(all, one.place[0], PREPOSITIONS[one.place[0]], one.place[1], "dative")]);
  if (one.prepositional) {
    const { german, english, kase } = all.verbs[verb].slots[0];
    after.push(["prepositional", prepositional(all, german, english, one.prepositional, kase)]);
  }
  const parts = [["subject", phrase(all, subject, "nominative")], ...before, ...known, ...fresh, ...after];
  const pick = (keep) => parts.filter(([role]) => (role === front) === keep).flatMap(([, words]) => words);
  return order === "final" ? [...pick(true), ...pick(false), ...rest, ...finite]
    : [...pick(true), ...finite, ...pick(false), ...rest];
}

/** A sentence's words, each [German, English], of { question, clause, because, front }. */
export function sentence(all, { question, clause: one, because, front }) {
  const words = question ? clause(all, one, "first", "") : clause(all, one, "second", front || "subject");
  if (because && !question) words.push([",", ","], ["weil", "because"], ...clause(all, because, "final", ""));
  words.push(question ? ["?", "?"] : [".", "."]);
  return words;
}

/** The tense that a time asks for. */
export const tenseOf = (when) => ({ yesterday: "past", tomorrow: "will" }[when] ?? "present");

/** The phrases that may stand in a place, as [English, phrase]. */
export function phrases(all, kinds, kase) {
  const said = kase === "nominative" ? "english" : "english_object", found = [];
  if (kinds.includes("p")) {
    for (const name of ["I", "you", "he", "she", "we", "they"]) {
      if (all.pronouns[name][kase]) found.push([all.pronouns[name][said], { noun: name, determiner: "pronoun" }]);
    }
    found.push(...NAMES.map((name) => [name, { noun: name, determiner: "name" }]));
  }
  for (const { german, german_plural, english, english_plural, kind } of rows(all.nouns)) {
    const add = (text, determiner, plural) => found.push([text, { noun: german, determiner, plural }]);
    if (!kinds.includes(kind)) continue;
    add(`the ${english}`, "the");
    if (!german_plural) add(english, "bare");
    else {
      add(`${/^[aeiou]/.test(english) ? "an" : "a"} ${english}`, "a");
      add(`the ${english_plural}`, "the", true);
    }
  }
  return found;
}

/** The verbs that the builder has, as [English, infinitive]. */
export const doings = ({ verbs }) => rows(verbs)
  .filter(({ verb, slots }) => !["sein", "gefallen"].includes(verb) && slots.every(({ role }) => role !== "complement"))
  .map(({ verb, english, particle, slots: [slot, second] }) =>
    [[english, particle, second ? "" : slot?.english].filter(Boolean).join(" "), verb])
  .sort(([a], [b]) => (a < b ? -1 : 1));

/** Every form with what it means and the classes that it belongs to: words of one
 *  class can stand for each other. */
export function lexicon(all) {
  const found = new Map(), add = (word, english, sign) => {
    if (!word) return;
    if (!found.has(word)) found.set(word, { english: new Set(), signs: new Set() });
    found.get(word).english.add(english);
    if (sign) found.get(word).signs.add(sign);
  };
  for (const { german, german_plural, english, english_plural, kind } of rows(all.nouns)) {
    for (const kase of CASES) {
      for (const plural of german_plural ? [false, true] : [false]) {
        add(noun(all, german, kase, plural), plural ? english_plural : english,
          `noun ${kase} ${column(all, { noun: german, plural })} ${{ a: "p", m: "f", n: "t", o: "t" }[kind] ?? kind}`);
      }
    }
  }
  for (const row of rows(all.verbs)) {
    const { verb, prefix, participle, auxiliary, english, particle, past_participle, slots } = row;
    const kind = slots.map(({ role, german, kinds }) => `${role} ${german} ${kinds}`).join();
    const whole = [english, particle].filter(Boolean).join(" ");
    if (verb === "sein") continue;
    add(verb, whole, `infinitive ${kind}`);
    add(participle, past_participle, `participle ${auxiliary} ${kind}`);
    for (const person of PERSONS) {
      add(present(all, verb, person), prefix ? `${english} …` : whole, prefix ? "" : `finite ${person} ${kind}`);
      if (prefix) add(prefix + present(all, verb, person), whole, `final ${person} ${kind}`);
    }
    if (prefix) add(prefix, "…", "");
  }
  for (const row of rows(all.determiners)) {
    for (const kase of CASES) {
      for (const one of COLUMNS) {
        const english = one === "plural" ? row.english_plural : row.english;
        if (english && !(one === "plural" && row.name === "a")) {
          add(row.stem + all.endings[`${row.endings} ${kase}`][one], english, `determiner ${row.adjective} ${kase} ${one}`);
        }
      }
    }
  }
  for (const { german, english } of rows(all.adjectives)) {
    for (const ending of ["", "e", "er", "es", "en", "em"]) {
      add(german.replace(/e$/, "") + (ending || (german.endsWith("e") ? "e" : "")), english, `adjective ${ending}`);
    }
  }
  for (const { english, german, kind } of rows(all.particles)) add(german, english, kind);
  for (const row of rows(all.pronouns)) {
    for (const kase of CASES) {
      add(row[kase], kase === "nominative" ? row.english : row.english_object, `pronoun ${kase} ${row.person}`);
    }
  }
  for (const name of NAMES) add(name, name, "name");
  for (const [name, row] of Object.entries(all.finite)) {
    const english = { hat: "have", ist: "be", war: "was" }[name] ?? row.english;
    for (const person of PERSONS) add(row[person], english, row.english ? `modal ${person}` : "");
  }
  for (const pair of ("in:in|hinter:behind|zu:to|im:in the|zum:to the|zur:to the|am:in the|Abend:evening|Tag:day|nicht:not|"
    + "dass:that|ob:whether|auf:for|an:of|mit:with").split("|")) add(...pair.split(":"));
  return found;
}

/** The form in the lexicon that a word is, which may be large at a beginning. */
export const entry = (lexicon, word) => lexicon.get(word) ?? lexicon.get(word[0].toLowerCase() + word.slice(1));

/** What can stand wherever a word can, as [German, English]. */
export function others(lexicon, word) {
  const it = entry(lexicon, word), signs = [...it?.signs ?? []];
  return !signs.length ? [] : [...lexicon].filter(([, one]) => one !== it && signs.every((sign) => one.signs.has(sign)))
    .map(([german, one]) => [german, [...one.english].join(" / ")]);
}
