import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { allowed, bill, dollars, forward, hours, known, operations, parameters, power, state, time, two }
  from "../../annotated/book/moving/cost.mjs";

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
  for (const asked of ["", " ", "-1", "1e9", "x"]) assert.equal(allowed("rent", asked, 2), 2);
  assert.deepEqual([allowed("rent", "0", 2), allowed("overhead", "0.9", 1.58)], [0, 1.58]);
});

test("hours, energy and money are the bill of annotated.costs", () => {
  for (const { shares, width, run, bill: wanted } of golden("cost").bills) {
    const found = known(shares, run.d);
    assert.equal(found.width, width);
    const made = bill({ ...run, share: found.share });
    assert.deepEqual(Object.keys(made), Object.keys(wanted));
    close(Object.keys(wanted).map((key) => made[key] / wanted[key]), [1, 1, 1, 1], 1e-12);
  }
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
  assert.equal(power(4e-12), "4.0·10⁻¹²");
  assert.deepEqual([0.001, 0.5, 12, 84, 30000].map(time),
    ["3.6 seconds", "30 minutes", "12 hours", "3.5 days", "3.4 years"]);
  assert.deepEqual([0, 0.0416, 0.25, 2.48, 26.8, 1479].map(two), ["0.0", "0.042", "0.25", "2.5", "27", "1,479"]);
  assert.deepEqual([0, 0.004, 0.375, 9.02, 140.2, 13_500].map(dollars),
    ["$0.00", "less than a cent", "$0.38", "$9.02", "$140", "$13,500"]);
});
