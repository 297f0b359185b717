import { close } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { mapOf, megabytes, refusal, ROOM, tidy, unknown } from "../../annotated/book/moving/translate.mjs";

test("punctuation is set apart, once", () => {
  assert.equal(tidy("  Der Hund, der bellt. "), "Der Hund , der bellt .");
  assert.equal(tidy("Der Hund ."), "Der Hund .");
});

test("a sentence is written as the model knows it", () => {
  const words = ["<pad>", "<s>", "</s>", "<unk>", "Der", "der", "Hund", "schläft", ".", "?", "sie", "Sie"];
  assert.equal(tidy("der hund schläft", words), "Der Hund schläft .");
  assert.equal(tidy("DER HUND SCHLÄFT!", words), "Der Hund schläft .");
  assert.equal(tidy("Schläft Der Hund? Der Hund.", words), "schläft der Hund ?".replace("der", "Der"));
  assert.equal(tidy("sie schläft", words), "Sie schläft .");
  assert.equal(tidy("\"Der 'Hund' schläft.\"", words), "Der Hund schläft .");
  assert.equal(tidy("Esel", words), "Esel .");
  assert.equal(tidy("", words), "");
});

test("unknown words are named; the names of specials are unknown", () => {
  const words = ["<pad>", "<s>", "</s>", "<unk>", "Der", "Hund"];
  assert.deepEqual(unknown("Der Esel </s>", words), ["Esel", "</s>"]);
});

test("an empty line and one too long are refused with a reason", () => {
  assert.match(refusal(""), /nothing to translate/);
  assert.match(refusal(Array(ROOM + 1).fill("Hund").join(" ")), /41 words.*room for 40/);
  assert.equal(refusal(Array(ROOM).fill("Hund").join(" ")), "");
});

test("the mean of heads, and what a causal row does not have", () => {
  const heads = [[[1], [0.5, 0.5]], [[1], [0.1, 0.9]]];
  close(mapOf(heads, "mean", 2), [[1, 0], [0.3, 0.7]], 1e-12);
  close(mapOf(heads, 1, 2), [[1, 0], [0.1, 0.9]], 0);
});

test("the size of what is loaded", () => assert.equal(megabytes(2_196_000), "2.2 MB"));
