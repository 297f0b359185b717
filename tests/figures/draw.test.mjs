import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { apart, contradicted, lottery, pick } from "../../annotated/book/moving/draw.mjs";

test("differences of means, and the draws against them, are the package's", () => {
  for (const { values, pair, apart: whole, share } of golden("draw")) {
    close([apart(values, pair), lottery(values, pair)], [whole, share], 1e-12);
  }
});

test("a draw takes one run of each row, and the same ones again", () => {
  const rows = ["a", "b", "c", "d"];
  const count = new Map();
  for (let number = 1; number <= 900; number += 1) {
    const drawn = pick(number, rows, 3);
    assert.deepEqual(drawn, pick(number, rows, 3));
    const key = rows.slice(0, 2).map((row) => drawn[row]).join(" ");
    count.set(key, (count.get(key) ?? 0) + 1);
  }
  assert.equal(count.size, 9); // of two rows every pair
  for (const [key, times] of count) assert.ok(times > 60 && times < 140, `${key}: ${times}`);
});

test("a draw takes the same runs under each measure", () => {
  const pairs = [["a", "b"], ["b", "c"]];
  const loss = { a: [2, 0, 2], b: [1, 1, 1], c: [0, 0, 0] };
  const bleu = { a: [5, 5, 5], b: [4, 4, 4], c: [0, 9, 0] };
  const found = Array.from({ length: 60 }, (_, i) => {
    const picked = pick(i + 1, ["a", "b", "c"], 3);
    assert.deepEqual(contradicted(loss, pairs, i + 1), picked.a === 1 ? [pairs[0]] : []);
    assert.deepEqual(contradicted(bleu, pairs, i + 1), picked.c === 1 ? [pairs[1]] : []);
    return [picked.a, picked.c];
  });
  assert.ok(found.some(([a]) => a === 1) && found.some(([, c]) => c === 1));
});
