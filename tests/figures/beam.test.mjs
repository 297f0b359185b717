import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { reweigh, search, sentence } from "../../annotated/book/moving/beam.mjs";

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
