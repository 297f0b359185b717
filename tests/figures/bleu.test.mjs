import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { bleu, matched } from "../../annotated/book/moving/bleu.mjs";

test("counts, penalty and score are sacreBLEU's", () => {
  for (const { hypotheses, references, counts, totals, penalty, score } of golden("bleu")) {
    const found = bleu(hypotheses, references);
    assert.deepEqual(found.counts, counts);
    assert.deepEqual(found.totals, totals);
    close([found.penalty, found.score], [penalty, score], 1e-9);
  }
});

test("of equal words the last are counted", () => {
  assert.deepEqual(matched("the a the", "the b", 1), [false, false, true]);
});

test("one wrong word breaks ten runs", () => {
  const right = "a b c d e f g h i", wrong = "a b c d x f g h i";
  const broken = [1, 2, 3, 4].map((n) => matched(wrong, right, n).filter((yes) => !yes).length);
  assert.deepEqual(broken, [1, 2, 3, 4]);
});

test("nothing said scores nothing", () => assert.equal(bleu([""], ["a b c d"]).score, 0));
