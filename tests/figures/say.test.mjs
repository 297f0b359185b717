import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import * as bytepairs from "../../annotated/book/moving/bytepairs.mjs";
import * as engine from "../../annotated/book/moving/engine.mjs";
import { open, sentences, tidy, translate, unread } from "../../annotated/book/moving/say.mjs";

const forms = new Map(["I", "Tom", "TV", "do", "you", "know", "don't", "where", "live"].map((word) => [word.toLowerCase(), word]));

test("a text is cut into its sentences", () => {
  assert.deepEqual(sentences(" One. Two?  three!"), ["One.", "Two?", "three!"]);
  assert.deepEqual(sentences("Mr. Smith weighs 3.5 tons… \"Does he?\" he"), ["Mr. Smith weighs 3.5 tons...", "\"Does he?\"", "he"]);
  assert.deepEqual(sentences("no mark"), ["no mark"]);
  assert.deepEqual(sentences(" . ?!"), []);
});

test("a sentence is written as the training text would have it", () => {
  assert.equal(tidy("do you know tom", forms), "Do you know Tom?");
  assert.equal(tidy("DO YOU KNOW TOM ?", forms), "Do you know Tom?");
  assert.equal(tidy("i know tv, ", forms), "I know TV.");
  assert.equal(tidy("where you live , tom lives", forms), "Where you live, Tom lives.");
  assert.equal(tidy("I Know!", forms), "I Know!");
  assert.equal(tidy("\"i know.\"", forms), "\"I know.\"");
  for (const asked of ["Where do you live", "What's this", "How old are you", "Is Tom here", "Don't you know"]) {
    assert.equal(tidy(asked, forms), `${asked}?`);
  }
  for (const told of ["Do come in", "What I know", "When I lived here it rained", "Tom"]) {
    assert.equal(tidy(told, forms), `${told}.`);
  }
});

test("words that it has not read are named", () => {
  assert.deepEqual(unread("Do you know Tom's zorse, zorse? DON'T", forms), ["zorse"]);
});

for (const [language, { data, large, sentences: lines }] of Object.entries(golden("say"))) test(`its translations into ${language} are those of the package`, () => {
  const kit = { engine, bytepairs };
  const one = open(kit, new Uint8Array(Buffer.from(large, "base64")), data);
  const apart = [];
  for (const { text, src, said, score } of lines) {
    assert.deepEqual(bytepairs.encode(text, one.ranks, one.order, one.vocab), src);
    assert.equal(tidy(text, one.forms), text);
    const found = translate(kit, one, text, data.search);
    close([found.score], [score], 1e-3); // sums of float32, in another order
    if (found.said !== said) apart.push(`${text}: ${found.said} is not ${said}`);
    assert.equal(found.steps.map(({ piece }) => piece).join("").trim(), found.said);
    assert.deepEqual([found.weights.length, found.weights[0].length], [found.steps.length, src.length]);
  }
  assert.deepEqual(apart, []);
  const { sample } = data, drawn = translate(kit, one, sample.text, data.search);
  assert.equal(drawn.said, sample.said);
  assert.deepEqual([drawn.source, drawn.steps.map(({ piece }) => piece)].map((all) => all.map((piece) => piece.trim())),
    [sample.source, sample.target].map((all) => all.map((piece) => piece.trim())));
  close(drawn.weights, sample.weights, 1e-3);
});

test("after a prefix it goes on with the likeliest piece, and a text that is too long is refused", () => {
  const { data, large } = golden("say").de, kit = { engine, bytepairs };
  const one = open(kit, new Uint8Array(Buffer.from(large, "base64")), data);
  const first = translate(kit, one, "Good morning.", data.search);
  const [other] = first.steps[0].likely.find(([id]) => id !== first.steps[0].id);
  const { steps } = translate(kit, one, "Good morning.", data.search, [other]);
  assert.equal(steps[0].id, other);
  for (const step of steps.slice(1)) assert.equal(step.id, step.likely[0][0]);
  assert.throws(() => translate(kit, one, "Good ".repeat(61), data.search), / pieces; there is room for 60/);
});
