import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { FAULTS, SHOWS, verdict } from "../../annotated/book/moving/loops.mjs";

test("each panel has one fault, and each wrong pair its sentence", () => {
  assert.deepEqual(FAULTS.map((one) => one.panel).sort(), Object.keys(SHOWS).sort());
  const said = FAULTS.flatMap((fault) => Object.keys(SHOWS).map((panel) => verdict(fault, panel)));
  assert.equal(said.filter((text) => text.startsWith("Right: ")).length, 6);
  assert.equal(new Set(said).size, 36);
  assert.ok(said.every((text) => text.endsWith(".") && !text.includes("undefined")));
});

test("the panels are those of the page", () => {
  const page = readFileSync("book/14-training.md", "utf-8");
  const told = { A: "is the rate", B: "is the mean of means", C: "is the missing shift",
    D: "validates with dropout", E: "has shuffled targets", F: "is the missing mask" };
  const names = { A: "rate too high", B: "mean of the sentences' means", C: "no shift",
    D: "validation with dropout", E: "shuffled targets", F: "no causal mask" };
  for (const { name, panel } of FAULTS) {
    assert.equal(name, names[panel]);
    assert.ok(page.includes(`**${panel}** ${told[panel]}`), panel);
  }
});
