import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { PLANS, waste } from "../../annotated/book/moving/batches.mjs";

const sorted = (batches) => batches
  .map((batch) => batch.map((pair) => pair.join()).sort().join(" ")).sort();

test("pairs are put together as the chapter's plans put them together", () => {
  for (const { plan, tokens, pairs, batches } of golden("batches")) {
    assert.deepEqual(sorted(PLANS[plan](pairs, tokens)), sorted(batches), plan);
  }
});

test("the shares that are wasted are those of the chapter's waste", () => {
  for (const { plan, tokens, pairs, waste: wanted } of golden("batches")) {
    const batches = PLANS[plan](pairs, tokens);
    close([0, 1].map((side) => waste(batches, side).map((x) => 100 * x)), wanted, 0.051);
  }
});
