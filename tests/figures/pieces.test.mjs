import { golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { encode } from "../../annotated/book/moving/bytepairs.mjs";
import { nextMerge } from "../../annotated/book/moving/pieces.mjs";

test("the next merge in a text is the one that a search one by one finds", () => {
  const { merges, order, texts } = golden("pieces");
  const ranks = new Map(merges.map(([a, b], i) => [`${a},${b}`, 260 + i]));
  const most = 260 + merges.length;
  for (const { text, at } of texts) {
    const count = (n) => encode(text, ranks, order, n).length;
    const found = [];
    for (let vocab = 260; vocab !== null;) {
      vocab = nextMerge(count, vocab, most);
      if (vocab !== null) found.push(vocab);
    }
    assert.deepEqual(found, at);
  }
});
