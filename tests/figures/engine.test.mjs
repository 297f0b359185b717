import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import * as engine from "../../annotated/book/moving/engine.mjs";

const models = (golden("engine") ?? []).map((one) => {
  const bytes = new Uint8Array(Buffer.from(one.bytes, "base64"));
  const model = new engine.Transformer(one.config, one.layout, engine.halves(bytes));
  return { ...one, model };
});

test("halves are read as they were written", () => {
  const bytes = new Uint8Array(new Uint16Array([0x3c00, 0xc000, 0x0001, 0xfc00, 0x3555]).buffer);
  assert.deepEqual([...engine.halves(bytes)], [1, -2, 2 ** -24, -Infinity, 0.333251953125]);
});

test("logits and maps are those of the model", () => {
  for (const { model, src, tgt, logits, maps, most } of models) {
    const { memory, maps: found } = model.encode([...src, engine.EOS]);
    const state = model.start(memory);
    [engine.BOS, ...tgt].forEach((id, i) => {
      const step = model.step(state, id);
      close(step.logits, logits[i], most);
      for (const [block, heads] of Object.entries(step.rows)) {
        heads.forEach((row, head) => {
          close(row, maps[block][head][i].slice(0, row.length), most);
          close([row.reduce((a, b) => a + b)], [1], 1e-5);
        });
      }
    });
    for (const [block, heads] of Object.entries(found)) close(heads.map((h) => h.map((r) => [...r])), maps[block], most);
  }
});

test("greedy and beam search write the same tokens", () => {
  for (const { model, sentences } of models) {
    for (const { src, greedy, beam, score } of sentences) {
      assert.deepEqual(engine.translate(model, src, { extra: 8 }).ids, greedy);
      if (!beam) continue;
      const [best] = engine.beamSearch(model, src, { extra: 8 });
      assert.deepEqual(best.ids, beam);
      close([best.score], [score], 1e-3);
    }
  }
});

test("a silent head changes what knocking it out changes", () => {
  for (const { model, src, tgt, silent, muted, most } of models) {
    if (!silent) continue;
    model.silent.add(silent);
    const state = model.start(model.encode([...src, engine.EOS]).memory);
    [engine.BOS, ...tgt].forEach((id, i) => close(model.step(state, id).logits, muted[i], most));
    model.silent.clear();
  }
});

test("a branch that is off adds nothing to its stream", () => {
  for (const { model, src, tgt, off, without, most } of models) {
    if (!off) continue;
    model.off.add(off);
    const state = model.start(model.encode([...src, engine.EOS]).memory);
    [engine.BOS, ...tgt].forEach((id, i) => close(model.step(state, id).logits, without[i], most));
    model.off.clear();
  }
});

test("a prefix is kept, and the search goes on from it", () => {
  const { model, src } = models[0];
  const { ids, steps } = engine.translate(model, src, { prefix: [5, 7], extra: 4 });
  assert.deepEqual(ids.slice(0, 2), [5, 7]);
  assert.equal(steps[0].likely.length, 5);
});

test("words are read as the tokenizer reads them", () => {
  const { words, text, encoded } = golden("engine")[0];
  assert.deepEqual(engine.encode(text, words), encoded);
  assert.equal(engine.decode([4, 2, 5], words), `${words[4]} ${words[5]}`);
});
