import { golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { count, travel } from "../../annotated/book/moving/path.mjs";

test("paths are as long as the layers of page 01 say, between all pairs of letters", () => {
  for (const { kind, n, k, steps } of golden("path")) {
    const found = Array.from({ length: n }, (_, from) => Array.from({ length: n }, (_, to) =>
      count({ kind, n, k, from, to })));
    assert.deepEqual(found, steps, `${kind}, ${k}`);
  }
});

test("a path goes up one step at a time, from its letter to its vector", () => {
  const { path } = travel({ kind: "dilated", n: 17, k: 3, from: 2, to: 16 });
  assert.deepEqual(path.map(([, step]) => step), [0, 1, 2, 3, 4]);
  assert.deepEqual([path[0][0], path.at(-1)[0]], [2, 16]);
});
