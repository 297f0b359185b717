import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { counts, gain, say, seconds, sends, sent } from "../../annotated/book/moving/ring.mjs";

test("the chunks grow as in the ring of page 21", () => {
  for (const { n, rounds } of golden("ring").rings) {
    rounds.forEach((wanted, round) => assert.deepEqual(counts(n, round), wanted));
    assert.equal(rounds.length, 2 * n - 1);
  }
});

test("devices are as much faster as the page computes", () => {
  for (const { n, link, size, alone, times } of golden("ring").scaling) {
    close([gain(n, size, link, alone)], [times], 1e-12);
  }
});

test("what a device sends is less than two gradients", () => {
  close([sent(8, 260), sent(4, 1), seconds(8, 0.26, 2)], [455, 1.5, 0.2275], 1e-9);
  assert.equal(sends(4, 0, 1), 3);
});

test("seconds as one says them", () => {
  assert.deepEqual([2e-5, 1e-4, 9.996e-4, 0.0031, 0.195, 0.9996, 1.755, 3920].map(say),
    ["20 µs", "100 µs", "1.0 ms", "3.1 ms", "195 ms", "1.00 s", "1.75 s", "3920 s"]);
});
