import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { allowed, forward, hours, operations, parameters, power, state, time } from "../../annotated/book/moving/cost.mjs";

test("sizes and operations are those of annotated.costs", () => {
  for (const { run, count, one, all, bytes } of golden("cost").runs) {
    assert.equal(parameters(run), count);
    assert.equal(state(run), bytes);
    close([forward(run) / one, operations(run) / all], [1, 1], 1e-12);
  }
});

test("an address asks for numbers within reason only", () => {
  assert.equal(allowed("vocab", "36500", 37000), 36500);
  for (const asked of [undefined, "", "abc", "-3", "0", "Infinity", "1e300", "1e-300"]) {
    assert.equal(allowed("d", asked, 512), 512);
  }
  assert.equal(allowed("share", "500", 30), 30);
  assert.equal(allowed("share", "100", 30), 100);
});

test("the paper's machine takes the paper's hours", () => {
  for (const { run, paper } of golden("cost").papers) close([hours(run) / paper], [1], 1e-12);
});

test("twice the width takes 3.4 times the operations", () => {
  const base = { d: 512, layers: 6, vocab: 37000 };
  close([forward({ ...base, d: 1024 }) / forward(base)], [3.4], 0.05);
});

test("numbers as one says them", () => {
  assert.equal(power(3.3e18), "3.3·10¹⁸");
  assert.deepEqual([0.001, 0.5, 12, 84, 30000].map(time),
    ["3.6 seconds", "30 minutes", "12 hours", "3.5 days", "3.4 years"]);
});
