import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { boxes, count, fits } from "../../annotated/book/moving/plan.mjs";
import stream from "../../annotated/book/moving/stream.mjs";

test("the parameters are those of the package's models", () => {
  for (const { shape, whole } of golden("stream").shapes) assert.equal(count(shape), whole);
});

test("each block has what the block of the package has", () => {
  const { base, blocks } = golden("stream");
  const found = Object.fromEntries(boxes(base).map(({ key, each }) => [key, each]));
  assert.deepEqual(found, blocks);
});

test("the shapes that are said are those that come out", () => {
  const { base, outs, sizes } = golden("stream");
  for (const { key, out, inside } of boxes(base)) {
    const plain = (text) => text.replace(/(\d),(\d)/g, "$1$2")
      .replace(/\b[bst]\b/g, (name) => String(sizes[name]));
    assert.equal(plain(out), outs[key].out, key);
    for (const shape of outs[key].inside ?? []) assert.ok(plain(inside).includes(shape), `${key}: ${shape}`);
  }
});

test("a row fits where the paper's number is rounded from it", () => {
  const { rows, vocabularies } = golden("stream");
  for (const { V, fit } of vocabularies) {
    const found = Object.keys(rows).filter((name) => fits({ ...rows[name].shape, V }, rows[name].stated));
    assert.deepEqual(found, fit, String(V));
  }
  close([vocabularies.find(({ V }) => V === 41000).fit.length], [10], 0);
});

test("it has the form of a widget", () => assert.equal(typeof stream.render, "function"));
