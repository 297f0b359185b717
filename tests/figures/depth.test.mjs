import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { facts, factor, key, say } from "../../annotated/book/moving/depth.mjs";

test("what is said of a stack is what PyTorch says", () => {
  for (const one of golden("depth")) {
    const found = facts(one.stack, 4);
    close([found.size, found.ratio, factor(one.stack, 4)], [one.size, one.ratio, one.factor], 1e-5);
    assert.equal(found.alike, 0.3);
  }
});

test("a stack of one layer multiplies nothing", () => {
  assert.equal(factor({ size: [7] }, 1), 1);
  assert.deepEqual([key({ norm: "pre", sums: true }), key({ norm: "pre", sums: false })], ["pre", "pre-bare"]);
});

test("numbers as one says them", () => {
  assert.deepEqual([50_460, 127.2, 99.7, 5.01, 0.536, 4.08e-7, 1.4e10].map(say),
    ["50,000", "130", "100", "5.0", "0.54", "4.1·10⁻⁷", "1.4·10¹⁰"]);
});
