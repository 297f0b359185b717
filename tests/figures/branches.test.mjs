import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import * as engine from "../../annotated/book/moving/engine.mjs";
import branches, { write } from "../../annotated/book/moving/branches.mjs";

const { config, layout, bytes, letters, cases } = golden("branches") ?? { bytes: "", cases: [] };
const net = () => new engine.Transformer(config, layout,
  engine.halves(new Uint8Array(Buffer.from(bytes, "base64"))));

test("it writes what the package's model writes without these branches", () => {
  const model = net(), texts = new Set();
  for (const { word, off, text } of cases) {
    assert.equal(write(engine, model, word, letters, off).text, text, `${word} without ${off}`);
    texts.add(text);
  }
  assert.ok(texts.size > 5);
});

test("what a branch adds is as long as in the package", () => {
  const model = net();
  for (const { word, off, shares } of cases) {
    if (!shares) continue;
    const found = write(engine, model, word, letters, off).shares;
    close(Object.keys(shares).map((key) => found[key]), Object.values(shares), 1e-4);
  }
});

test("nothing is off afterwards", () => {
  const model = net(), [first] = cases;
  write(engine, model, first.word, letters, ["decoder.cross"]);
  assert.equal(model.off.size, 0);
  assert.equal(write(engine, model, first.word, letters).text, first.text);
});

test("it has the form of a widget", () => assert.equal(typeof branches.render, "function"));
