// What pytest has computed with torch in float64, and a comparison.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const all = JSON.parse(readFileSync(process.env.GOLDENS, "utf-8"));

export const golden = (name) => all[name];

export function close(found, wanted, most) {
  const [a, b] = [found, wanted].map((list) => [...list].flat(9));
  assert.equal(a.length, b.length);
  a.forEach((value, i) => assert.ok(Math.abs(value - b[i]) <= most,
    `at ${i}: ${value} is not ${b[i]}`));
}
