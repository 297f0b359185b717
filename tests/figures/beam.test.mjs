import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { changed, restored, reweigh, search, sentence } from "../../annotated/book/moving/beam.mjs";

test("what ends, and in which order, is what the package's search finds", () => {
  for (const { chances, k, alpha, ended } of golden("beam")) {
    const found = search(chances, k, alpha).ended;
    assert.deepEqual(found.map((one) => sentence(one.words)), ended.map(([words]) => words));
    close(found.map((one) => one.logP), ended.map(([, logP]) => logP), 1e-6);
    close(found.map((one) => one.score), ended.map(([, , score]) => score), 1e-6);
  }
});

test("probabilities stay probabilities", () => {
  close(Object.values(reweigh({ a: 0.5, b: 0.3, c: 0.2 }, "a", 0.9)), [0.9, 0.06, 0.04], 1e-12);
  close(Object.values(reweigh({ a: 1, b: 0 }, "a", 0.6)), [0.6, 0.4], 1e-12);
});

test("greedy drops what a beam of 2 keeps", () => {
  const { chances } = golden("beam")[0];
  assert.equal(sentence(search(chances, 1, 0).ended[0].words), "it is loud");
  assert.equal(sentence(search(chances, 2, 0).ended[0].words), "the dog barks");
});

test("a link carries the chances that were changed, and refuses what is no distribution", () => {
  const { chances: original } = golden("beam")[0];
  assert.deepEqual(changed(original, original), {});
  assert.deepEqual(restored({}, original), original);
  const chances = { ...original, "<s>": reweigh(original["<s>"], "it", 0.05) };
  const kept = changed(chances, original);
  assert.deepEqual(Object.keys(kept), ["after <s>"]);
  const again = restored(kept, original);
  close(Object.values(again["<s>"]), Object.values(chances["<s>"]), 1e-6);
  assert.equal(again["<s>"].it, 0.05);
  assert.deepEqual({ ...again, "<s>": 0 }, { ...original, "<s>": 0 });
  for (const broken of ["", "1", "0.5 0.4", "1.5 -0.5", "x 1", "0.5 0.5 0 0 0 0", "Infinity 0"]) {
    assert.deepEqual(restored({ "after <s>": broken }, original), original, broken);
  }
});
