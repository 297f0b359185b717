import { golden, close } from "./golden.mjs";
import assert from "node:assert/strict";
import test from "node:test";
import film, { found, marked, moment, onPath, smooth } from "../../annotated/book/moving/film.mjs";

const frames = ["", "cab", "cba", "cbb", "cba"].map((text, i) => ({ step: 10 * i, text }));

test("the curve is the mean of the last steps", () => {
  const { losses, means } = golden("film");
  close(smooth(losses, 5), means, 1e-12);
});

test("the share on the path is that of the package's map", () => {
  const { weights, path, share } = golden("film");
  close([onPath(weights, path)], [share], 1e-6);
});

test("right for the first time, and for good", () => {
  assert.deepEqual(found(frames, "cba"), { first: 20, stays: 40 });
  assert.deepEqual(found(frames.slice(0, 2), "cba"), { first: null, stays: null });
});

test("the first time that it is right lies in one part of the training", () => {
  assert.equal(moment(frames, "cba"), 10); // of 40 steps: from 10 to 20
  assert.equal(moment(frames, "cab"), 10);
  assert.equal(moment(frames, ""), 0);
  assert.equal(moment(frames, "never"), "never");
  assert.equal(moment([...frames, { step: 50, text: "late" }], "late"), 26);
});

test("each letter, and each word, is marked where it stands", () => {
  assert.deepEqual(marked("cbb", "cba"), [["c", true], ["b", true], ["b", false]]);
  assert.deepEqual(marked("a dog", "a cat", " "), [["a", true], ["dog", false]]);
  assert.deepEqual(marked("", "cba"), []);
});

test("it has the form of a widget", () => assert.equal(typeof film.render, "function"));
