import { golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { bytes, parents } from "../../annotated/book/moving/cache.mjs";

test("rows move as KVCache.reorder moves them, and weigh what it holds", () => {
  for (const { steps, rows, held, size } of golden("cache")) {
    for (let now = 1; now < steps.length; now++) {
      assert.deepEqual(parents(steps[now - 1], steps[now]), rows[now - 1]);
    }
    held.forEach((all, i) => assert.equal(bytes(steps[0].length, i + 1, size), all));
  }
});
