import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { meaning, mix, outwards, point, scores, softmax } from "../../annotated/book/moving/lookup.mjs";

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
  assert.deepEqual(point("1e300,-40"), [2.5, -2.5]); // as far as the plane goes
  for (const text of [undefined, "1", "a,b", "1,2,3"]) assert.equal(point(text), null);
});

test("a label stands where no arrow lies", () => {
  const [q, , up] = outwards([[2, 1], [0, 0], [0, 0.7]]);
  close(q, [2 / Math.sqrt(5), 1 / Math.sqrt(5)], 1e-12);
  close(up, [0, 1], 1e-12);
  for (const arrows of [[[2, 1], [0, 0], [0.7, 0], [0, 0.7]], [[-2, 0.5], [0.1, 0]]]) {
    const [x, y] = outwards(arrows)[1];
    close([Math.hypot(x, y)], [1], 1e-12);
    for (const [a, b] of arrows) assert.ok(Math.hypot(a, b) < 0.4 || a * x + b * y < 0);
  }
  close(outwards([[2.5, 0], [0.7, 0]]).flat(), [1, 0, 0, -1], 1e-12);
  for (const way of outwards([[0, 0], [1, 0], [-1, 0]])) assert.ok(way.every(Number.isFinite));
});
