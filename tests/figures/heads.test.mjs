import { close, golden } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import heads, { dearest, looks, sharpness } from "../../annotated/book/moving/heads.mjs";

test("what is said of a map is what torch says of it", () => {
  const { maps } = golden("heads");
  for (const { map, sharp, at } of maps) {
    close([sharpness(map)], [sharp], 1e-12);
    assert.deepEqual(looks(map), at);
  }
});

test("the dearest head is the one whose loss is largest", () => {
  const list = [0.1, 0.4, -0.2, 0.3].map((lost, head) => ({ lost, head }));
  assert.equal(dearest(list).head, 1);
});

test("it has the form of a widget", () => assert.equal(typeof heads.render, "function"));
