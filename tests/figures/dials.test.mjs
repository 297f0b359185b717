import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { cooling, peak, power, rate } from "../../annotated/book/moving/dials.mjs";

test("the rate and its cool-down are those of annotated.schedule", () => {
  for (const { width, warmup, factor, last, cooldown, steps, rates, best } of golden("dials")) {
    const found = steps.map((s) => rate(s, width, warmup, factor) * cooling(s, last, cooldown));
    close(found, rates, 1e-12);
    const [step, high] = peak(width, warmup, factor, last, cooldown);
    assert.equal(step, best[0]);
    close([high], [best[1]], 1e-12);
  }
});

test("rates as one writes them", () => {
  assert.equal(power(0.000699), "7.0·10⁻⁴");
  assert.equal(power(0), "0");
});
