import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { meaning, mix, point, scores, softmax } from "../../annotated/book/moving/lookup.mjs";

test("weights and outputs are those of annotated.attention", () => {
  for (const { q, k, v, sharpness, weights, output } of golden("lookup")) {
    q.forEach((query, i) => {
      const found = softmax(scores(query, k, sharpness));
      close(found, weights[i], 1e-12);
      close(mix(found, v), output[i], 1e-9);
    });
  }
});

test("large scores do not overflow", () => close(softmax([1e4, 0]), [1, 0], 0));

test("what weights mean", () => {
  assert.match(meaning([0.34, 0.33, 0.33]), /plain mean/);
  assert.match(meaning([0.01, 0.98, 0.01]), /value 2 itself/);
  assert.match(meaning([0.2, 0.4, 0.4]), /two values/);
  assert.equal(meaning([0.25, 0.5, 0.25]), "drawn to value 2");
});

test("a point from an address", () => {
  assert.deepEqual(point("1,-0.5"), [1, -0.5]);
  for (const text of [undefined, "1", "a,b", "1,2,3"]) assert.equal(point(text), null);
});
