import { golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { doings, entry, lexicon, others, phrases, read, sentence } from "../../annotated/book/moving/pocket.mjs";

const { tables, sentences, menus, words } = golden("pocket");
const all = read(tables), known = lexicon(all);
const text = (choice) => sentence(all, choice).map(([german]) => german).join(" ");

test("a choice becomes the package's sentence", () => {
  assert.ok(sentences.length >= 300);
  for (const [choice, wanted] of sentences) assert.equal(text(choice), wanted);
});

test("the menus have what the grammar allows", () => {
  for (const [kinds, kase, nouns] of menus) {
    assert.deepEqual([...new Set(phrases(all, kinds, kase).map(([, one]) => one.noun))].sort(), nouns);
  }
  assert.ok(doings(all).some(([english, verb]) => english === "look for" && verb === "suchen"));
  assert.ok(doings(all).some(([english, verb]) => english === "give" && verb === "geben"));
});

test("each word of the language has its English", () => {
  for (const [german, english] of words) {
    assert.ok([...entry(known, german)?.english ?? []].length, german);
    if (english) assert.ok(entry(known, german).english.has(english), `${german}: ${english}`);
  }
});

test("a word is replaced by another of its class", () => {
  const instead = (word) => others(known, word).map(([german]) => german);
  assert.ok(instead("Hund").includes("Lehrer") && !instead("Hund").includes("Katze"));
  assert.ok(!instead("Hund").includes("Jungen")); // den Jungen, but der Junge
  assert.ok(instead("den").includes("diesen") && !instead("den").includes("einen"));
  assert.ok(instead("liest").includes("schreibt") === false && instead("schläft").includes("lacht"));
  assert.deepEqual(instead("heute").sort(), ["gestern", "morgen"]);
  assert.deepEqual(others(known, "Esel"), []);
});
