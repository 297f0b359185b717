import assert from "node:assert/strict";
import test from "node:test";
import { clean, parseState, writeState } from "../../annotated/book/moving/kit.mjs";

test("the state in the address comes back", () => {
  const state = { step: "75", text: "Der Mann & ein Hund ." };
  assert.deepEqual(parseState(writeState("film", state), "film"), state);
});

test("signs that an address escapes come back as they were, and a broken one breaks nothing", () => {
  const state = { text: "50 % + Hund & Katze = ?" };
  const hash = writeState("film", state);
  assert.deepEqual(parseState(hash, "film"), state);
  assert.deepEqual(parseState(`#${encodeURIComponent(hash.slice(1))}`, "film"), state);
  assert.deepEqual(parseState("#film:step=%", "film"), { step: "%" });
  assert.equal(parseState("#50%", "film"), null);
});

test("another figure's state, or a section, is none", () => {
  assert.equal(parseState("#lookup:x=1", "film"), null);
  assert.equal(parseState("#the-map", "film"), null);
});

test("whatever is pasted is composed, seen and single-spaced, with plain quotes", () => {
  assert.equal(clean("Die A\u0308rztin schla\u0308ft"), "Die Ärztin schläft");
  assert.equal(clean("Hu\u200bn\u00add\ufeff \u2066bellt\u2069\u00a0."), "Hund bellt .");
  assert.equal(clean("“Der” ‚Hund’ »bellt«"), "\"Der\" 'Hund' \"bellt\"");
  assert.equal(clean("“Der”", true), "“Der”");
  assert.equal(clean("👩\u200d👧"), "👩\u200d👧"); // a sign that joins is part of a letter
});
