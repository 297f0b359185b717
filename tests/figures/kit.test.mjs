import assert from "node:assert/strict";
import test from "node:test";
import { parseState, writeState } from "../../book/figures/kit.mjs";

test("the state in the address comes back", () => {
  const state = { step: "75", text: "Der Mann & ein Hund ." };
  assert.deepEqual(parseState(writeState("film", state), "film"), state);
});

test("another figure's state, or a section, is none", () => {
  assert.equal(parseState("#lookup:x=1", "film"), null);
  assert.equal(parseState("#the-map", "film"), null);
});
