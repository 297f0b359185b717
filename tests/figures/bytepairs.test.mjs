import { golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { encode, shown, spellings } from "../../annotated/book/moving/bytepairs.mjs";

test("ids and spellings are those of annotated.tokens", () => {
  const { merges, order, cases, bytes } = golden("bytepairs");
  const ranks = new Map(merges.map(([a, b], i) => [`${a},${b}`, 260 + i]));
  for (const { vocab, text, ids } of cases) {
    assert.deepEqual(encode(text, ranks, order, vocab), ids, `${vocab} ${text}`);
  }
  assert.deepEqual(spellings(merges, order), bytes);
});

test("a token as one shows it", () => assert.equal(shown([32, 116, 104, 101]), "␣the"));
