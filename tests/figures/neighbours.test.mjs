import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { answers, key, left, share } from "../../annotated/book/moving/neighbours.mjs";

test("what a layer says is compared with the letters around", () => {
  const { offsets, words, states, wanted } = golden("neighbours");
  states.forEach(({ off, said, sure, right }, s) => {
    words.forEach((word, w) => {
      const runs = { 2: { states: { [key(new Set(off))]: { said: said[w], sure: sure[w] } } } };
      const found = [2, 3, 4].map((at) => answers({ word, offsets, runs }, 2, new Set(off), at));
      assert.deepEqual(found.map((four) => four.filter((one) => one.says === one.truth).length), wanted[s].of_word[w]);
      close(found.map((four) => four.map((one) => one.sure)), sure[w], 0);
    });
    close([share(right)], [wanted[s].share], 1e-6);
  });
});

test("heads that are off have one name, in whatever order", () => assert.equal(key(new Set([3, 0])), "03"));

test("the share of the misses that is left", () => close([left([0.5, 0.7], [0.9, 0.9])], [0.25], 1e-12));
