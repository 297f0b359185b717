import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { compare, linearise, spoken, treeOver } from "../../annotated/book/moving/tree.mjs";

test("any tokens give the tree that tree_over gives", () => {
  for (const { words, tokens, tree, spoken: said } of golden("tree")) {
    assert.deepEqual(linearise(treeOver(words, tokens)), tree);
    assert.deepEqual(spoken(treeOver(words, tokens)), said);
  }
});

test("brackets count as compare_trees counts them", () => {
  for (const { words, truth, tokens, counted, numbers, shares } of golden("tree")) {
    const score = compare(treeOver(words, truth), treeOver(words, tokens));
    assert.equal(score !== null, counted);
    if (!counted) continue;
    assert.deepEqual([score.right.length, score.gold, score.guessed], numbers);
    close([score.precision, score.recall, score.f1], shares, 1e-9);
  }
});
