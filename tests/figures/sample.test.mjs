import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { context, cut, draw, judge } from "../../annotated/book/moving/sample.mjs";

test("what may be drawn is what the exercise's solution leaves, and so are the words", () => {
  const { follows, known, cases } = golden("sample");
  for (const { begin, seed, how, left, words, ...judged } of cases) {
    const rows = cut(follows[context(begin)], how).filter((row) => row.after);
    assert.deepEqual(rows.map((row) => row.letter), left.map(([letter]) => letter));
    close(rows.map((row) => row.after), left.map(([, p]) => p), 1e-12);
    const drawn = draw(follows, begin, how, seed, words.length);
    assert.deepEqual(drawn, words);
    assert.deepEqual(judge(drawn, new Set(known)), judged);
  }
});

test("a share that the sum just misses by rounding takes in no further letter", () => {
  const rows = cut({ a: 7, b: 2, c: 1 }, { T: 1, k: 27, p: 0.9 });
  assert.deepEqual(rows.map((row) => row.after > 0), [true, true, false]);
});

test("at any temperature the shares are numbers", () => {
  for (const T of [0.1, 5]) {
    const rows = cut({ a: 1e9, b: 1 }, { T, k: 27, p: 1 });
    close([rows.reduce((sum, row) => sum + row.after, 0)], [1], 1e-12);
  }
});
