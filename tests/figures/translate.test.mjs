import { close } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { mapOf, megabytes, refusal, ROOM, strange, tidy, unknown } from "../../annotated/book/moving/translate.mjs";

test("punctuation is set apart, once", () => {
  assert.equal(tidy("  Der Hund, der bellt. "), "Der Hund , der bellt .");
  assert.equal(tidy("Der Hund ."), "Der Hund .");
});

test("unknown words are named; the names of specials are unknown", () => {
  const words = ["<pad>", "<s>", "</s>", "<unk>", "Der", "Hund"];
  assert.deepEqual(unknown("Der Esel </s>", words), ["Esel", "</s>"]);
});

test("a word that it knows with another letter first is named beside it", () => {
  const words = ["<pad>", "<s>", "</s>", "<unk>", "Der", "Hund"];
  assert.equal(strange("hund", words), "“hund” (but “Hund”)");
  assert.equal(strange("Esel", words), "“Esel”");
  assert.equal(strange("</S>", words), "“</S>”");
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
