import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { floor, loss, lowest, slope, target } from "../../annotated/book/moving/smooth.mjs";

test("loss, target and gradient are the package's", () => {
  for (const one of golden("smooth")) {
    const { p, epsilon, vocab } = one;
    close([loss(p, epsilon, vocab), slope(p, epsilon, vocab)], [one.loss, one.slope], 1e-5);
    close([floor(epsilon, vocab), ...Object.values(target(epsilon, vocab))], [one.floor, ...one.target], 1e-5);
  }
});

test("no other probability has a lower loss than the target's", () => {
  for (const p of [0.5, 0.85, 0.89, 0.91, 0.99]) assert.ok(loss(p, 0.1, 1000) > floor(0.1, 1000));
  assert.deepEqual([0, 0.1, 0.4].map((epsilon) => lowest(epsilon, 1000)), ["one", "nine", "half"]);
});
