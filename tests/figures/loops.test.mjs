import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { closest, FAULTS, SHOWS, verdict } from "../../annotated/book/moving/loops.mjs";

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

test("a panel is as far from the healthy line as its line, or as its dots", () => {
  const panels = [{ name: "A", line: [3, 1.5, 1], dots: [[300, 0.5]] }, { name: "B", line: [3, 1, 0.5], dots: [[150, 1.2]] },
    { name: "C", line: [3, 1, 0.5], dots: [[300, 0.6], [300, 0.5]] }];
  const found = closest(panels, [3, 1, 0.5], 300);
  assert.deepEqual(found.map(([name]) => name), ["C", "B", "A"]);
  [0.05, 0.2, 1 / 3].forEach((far, i) => assert.ok(Math.abs(found[i][1] - far) < 1e-12));
});
