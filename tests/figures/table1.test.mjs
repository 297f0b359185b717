import { golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import { facts, power } from "../../annotated/book/moving/table1.mjs";

test("work, chains and paths are those of page 09's layers", () => {
  for (const { name, at, work, row } of golden("table1").layers) {
    const found = facts(name, at);
    assert.deepEqual([found.work, found.row], [work, row], `${name} ${JSON.stringify(at)}`);
  }
  for (const { name, at, path } of golden("table1").paths) {
    assert.equal(facts(name, at).path, path, `${name} ${at.n}`);
  }
});

test("a stack has the work of its layers, and a recurrent layer connects all by itself", () => {
  const at = { n: 81, d: 4, k: 3, r: 9 };
  assert.equal(facts("restricted", at).all, 20 * facts("restricted", at).work);
  assert.equal(facts("recurrent", at).all, facts("recurrent", at).work);
});

test("numbers as one says them", () => assert.deepEqual([80, 1024, 5.37e8].map(power), ["80", "1,024", "5.4·10⁸"]));
