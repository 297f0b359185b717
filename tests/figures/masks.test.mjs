import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { floor, influence, leaks, mask } from "../../annotated/book/moving/masks.mjs";

test("masks are those of annotated.masks, and their influence what autograd finds", () => {
  for (const one of golden("masks")) {
    const allowed = mask(one.kind, one.real, one.flipped);
    assert.deepEqual(allowed, one.mask);
    assert.deepEqual(influence(allowed, one.how, one.layers), one.influence);
  }
});

test("a cell too many leaks in the second layer", () => {
  const odd = mask("causal", 6, ["15"]);
  assert.deepEqual(leaks(influence(odd, "before", 1)), []);
  assert.deepEqual(leaks(influence(odd, "before", 2)), [1, 4]);
  assert.deepEqual(leaks(influence(odd, "before", 3)), [1, 2, 3, 4]);
});

test("the floor of the loss", () => {
  const least = (kind) => floor(influence(mask(kind), "before", 1), 6, 10);
  close([least("causal"), least("ahead")], [Math.log(10), Math.log(10) / 6], 1e-12);
  close([floor(influence(mask("ahead", 4), "before", 1), 4, 10)], [Math.log(10) / 4], 1e-12);
});
