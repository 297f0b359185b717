import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { kept, reach, scores, uneven, weights } from "../../annotated/book/moving/switches.mjs";

test("maps are those of the page's layers, turned or added, grouped, in a window", () => {
  const { layer, cases } = golden("switches");
  for (const one of cases) {
    const map = scores(layer, one);
    close(map, one.scores, 1e-5);
    close(weights(map, one.window), one.weights, 1e-5);
    const n = layer.x.length;
    assert.equal(kept(one, n, layer.wq.length / layer.heads), one.kept);
  }
});

test("layers reach as far back as their masks, one after the other", () => {
  for (const [layers, window, back] of golden("switches").reaches) assert.equal(reach(layers, window), back);
});

test("turned, one word has one score for each distance; with sinusoids it does not", () => {
  const { layer } = golden("switches"), same = { ...layer, x: layer.x.map(() => layer.x[0]) };
  const at = { start: 7, groups: 2, head: 5 };
  close([uneven(scores(same, { ...at, rotary: true }), 12)], [0], 1e-12);
  assert.ok(uneven(scores(same, { ...at, rotary: false }), 12) > 0.01);
});
