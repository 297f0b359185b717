import assert from "node:assert/strict";
import test from "node:test";
import { heap, plain } from "../../annotated/book/moving/kernel.mjs";
import learn, * as figure from "../../annotated/book/moving/learn.mjs";
import { Learner, random, USUAL } from "../../annotated/book/moving/learner.mjs";
import { PRODUCT } from "../../annotated/book/moving/product.mjs";
import { serve } from "../../annotated/book/moving/serve.mjs";
import { Tape } from "../../annotated/book/moving/tape.mjs";

const TINY = { width: 8, inner: 16, heads: 2, length: 3, words: 8, steps: 40 };
const room = (kernel = "WebAssembly") => heap(kernel === "WebAssembly" ? PRODUCT : "", 8);

/** C += A·B in double precision. */
function product(f, c, ci, a, ai, ak, b, bk, bj, m, n, k) {
  for (let i = 0; i < m; i++) {
    for (let j = 0; j < n; j++) {
      let sum = f[c + i * ci + j];
      for (let l = 0; l < k; l++) sum += f[a + i * ai + l * ak] * f[b + l * bk + j * bj];
      f[c + i * ci + j] = sum;
    }
  }
}

test("both kernels are the product, for every size, transposition and bias", () => {
  const draw = random(7), wasm = room();
  assert.equal(wasm.kernel, "WebAssembly");
  for (const m of [1, 3, 4, 9]) {
    for (const n of [1, 7, 8, 17]) {
      for (const [k, way] of [[1, 2], [5, 0], [5, 1], [8, 3]]) {
        const a = wasm.start, b = a + 200, c = b + 200, size = c + m * n + 16;
        const strides = [a, way & 1 ? 1 : k, way & 1 ? m : 1, b, way & 2 ? 1 : n, way & 2 ? k : 1];
        if (k === 1) strides[1] = strides[2] = 0; // a bias: one number, again and again
        wasm.f.fill(0, a, size + 16);
        for (let i = a; i < c + m * n; i++) wasm.f[i] = draw() - 0.5;
        const wanted = Float64Array.from(wasm.f.subarray(0, size));
        product(wanted, c, n, ...strides, m, n, k);
        const other = wasm.f.slice(0, size);
        plain(other)(c, n, ...strides, m, n, k);
        wasm.add(c, n, ...strides, m, n, k);
        for (let i = a; i < size; i++) {
          for (const f of [wasm.f, other]) {
            assert.ok(Math.abs(f[i] - wanted[i]) < 1e-5, `${m} ${n} ${k} ${way} at ${i - c}`);
          }
        }
      }
    }
  }
});

test("where WebAssembly is refused, the product is plain", () => {
  for (const base64 of ["", "AAAA", undefined]) assert.equal(heap(base64, 8).kernel, "JavaScript");
});

test("a heap that is too small is an error", () => {
  assert.throws(() => new Learner(heap(PRODUCT, 2), Tape).step(), /the heap is full/);
});

const losses = (changes, kernel) => {
  const learner = new Learner(room(kernel), Tape, { ...TINY, ...changes });
  return Array.from({ length: 12 }, () => learner.step());
};

test("the same seed is the same training, to the last bit", () => {
  assert.deepEqual(losses({ seed: 3 }), losses({ seed: 3 }));
  assert.notDeepEqual(losses({ seed: 3 }), losses({ seed: 4 }));
});

test("the kernels train alike", () => {
  const [a, b] = ["WebAssembly", "JavaScript"].map((kernel) => losses({}, kernel));
  a.forEach((loss, i) => assert.ok(Math.abs(loss - b[i]) < 1e-4));
});

test("looking at the model leaves its training as it is", () => {
  const learner = new Learner(room(), Tape, TINY), seen = [];
  for (let i = 0; i < 12; i++) {
    seen.push(learner.step());
    learner.write("abcde");
    learner.exact(20);
  }
  assert.deepEqual(seen, losses({}));
});

test("it learns, and says where it looks", () => {
  const learner = new Learner(room(), Tape, { ...TINY, width: 32, inner: 64, length: 2, words: 32, steps: 400 });
  while (learner.steps < 400) learner.step();
  assert.equal(learner.spell("ab"), "ba");
  assert.ok(learner.isRight("xy") && learner.exact(100) > 0.95);
  const { text, maps } = learner.write("ab");
  assert.equal(text, "ba");
  assert.equal(maps.length, 2);
  for (const row of maps.flat()) {
    assert.equal(row.length, 3);
    assert.ok(Math.abs(row.reduce((a, b) => a + b) - 1) < 1e-5);
  }
  assert.ok(maps.some((map) => map[0][1] > 0.5) && maps.some((map) => map[1][0] > 0.5));
});

test("the rate is train_reversal's", () => {
  const { rate, set } = new Learner(room(), Tape, { ...TINY, steps: 400 }), of = (more, step) =>
    rate.call({ set: { ...set, ...more } }, step);
  assert.equal(of({}, 50), 50 * 100 ** -1.5 / 8);
  assert.equal(of({}, 200), 200 ** -0.5 / 8);
  assert.ok(Math.abs(of({ rate: 10 }, 400) - 10 / 8 / 20 / 100) < 1e-12);
  assert.equal(of({ warmup: 0 }, 1), of({}, 100)); // the peak at once
});

/** What serve tells of a training, as the page hears it. */
function served(messages, changes = {}, until = (data) => data.done) {
  return new Promise((done) => {
    const told = [], port = { slice: 0, postMessage: (data) => {
      told.push(data);
      if (until(data)) {
        port.onmessage({ data: { pause: true } });
        done({ told, port });
      }
    } };
    serve(port, (more) => new Learner(room(), Tape, { ...TINY, ...changes, ...more }));
    for (const data of messages) port.onmessage({ data });
  });
}

test("every loss is told once, and the end with the words that are right", async () => {
  const { told } = await served([{ go: {}, run: 5, word: "abc", pause: false }]);
  const all = told.flatMap((data) => data.losses), end = told[told.length - 1];
  assert.equal(all.length, 40);
  assert.ok(told.every(({ run, word, kernel }) => run === 5 && word === "abc" && kernel === "WebAssembly"));
  assert.ok(end.done && end.step === 40 && end.maps.length === 2 && end.seconds > 0);
  assert.deepEqual(all.slice(0, 12), losses({}));
});

test("another word is answered at once, and counted from there", async () => {
  const { told, port } = await served([{ go: {}, run: 1, word: "abc", pause: false }]);
  const end = told[told.length - 1];
  port.onmessage({ data: { word: "xyz", pause: false } });
  await new Promise((done) => setTimeout(done, 20));
  const last = told[told.length - 1];
  assert.notEqual(last, end);
  assert.deepEqual([last.word, last.step, last.first, last.losses], ["xyz", 40, null, []]);
});

test("a pause holds it until it goes on", async () => {
  const { told, port } = await served([{ go: {}, run: 1, word: "abc", pause: false }],
    { steps: 4000 }, ({ step }) => step > 0);
  await new Promise((done) => setTimeout(done, 30));
  const { step } = told[told.length - 1];
  await new Promise((done) => setTimeout(done, 60));
  assert.equal(told[told.length - 1].step, step);
  assert.ok(step < 4000);
  port.onmessage({ data: { pause: false } });
  await new Promise((done) => setTimeout(done, 300));
  port.onmessage({ data: { pause: true } });
  assert.ok(told[told.length - 1].step > step);
});

test("what an address asks for, and what it says", () => {
  const { settings, state, named } = figure;
  assert.deepEqual(settings({}), figure.USUAL);
  const set = settings({ mask: "0", seed: "12", heads: "1", rate: "0.1", norm: "pre", word: "x" });
  assert.deepEqual(state(set), { mask: 0, norm: "pre", heads: 1, rate: 0.1, seed: 12 });
  assert.deepEqual(settings(state(set)), set);
  assert.equal(named(set), "no mask, norm before, 1 head, rate × 0.1");
  assert.equal(named(settings({ seed: "7" })), "unchanged");
  const wrong = { mask: "2", seed: "-1", heads: "3", rate: "1e9", norm: "toString", size: "" };
  assert.deepEqual(settings(wrong), figure.USUAL);
});

test("the figure's defaults are the engine's", () => {
  const { size, ...ours } = figure.USUAL;
  for (const [name, value] of Object.entries(ours)) assert.equal(Number(value) || value, Number(USUAL[name]) || USUAL[name], name);
});

test("each experiment is found from its settings, and each end has one answer", () => {
  figure.EXPERIMENTS.forEach(([, changes, question, options], i) => {
    assert.equal(figure.experiment({ ...figure.USUAL, ...changes, seed: 3 }), i);
    assert.match(question, /\?$/);
    for (const loss of [0.001, 1.3, 2.8, 9, NaN]) {
      for (const exact of [0, 0.5, 1]) {
        for (const first of [null, 120, 250, 390]) {
          assert.ok(options.some(([, holds]) => holds({ loss, exact, first })));
        }
      }
    }
  });
  assert.equal(figure.experiment({ ...figure.USUAL, heads: 2 }), -1);
});

const run = (more) => ({ set: figure.USUAL, name: "unchanged", word: "abc", text: "cba", first: 120, since: 0,
  exact: 1, losses: Array(400).fill(0.0012), seconds: 12.3, done: true, ...more });

test("the sentence at the end is made from this training alone", () => {
  assert.equal(figure.ending(run()), "“abc” becomes “cba”, which is right; it was first "
    + "right at step 120. Of 200 new words 100\u00a0% are right to the last letter. The loss is 0.0012; 400 steps took "
    + "12 s.");
  const bad = figure.ending(run({ text: "", exact: 0, first: null, since: 30 }));
  assert.match(bad, /^“abc”, given at step 30, becomes nothing, which is wrong; it was never right when/);
});

test("a prediction is judged by this training, with its numbers", () => {
  const losses = [3.4, ...Array(399).fill(0.0012)];
  assert.deepEqual(figure.outcome(run({ losses })), ["from 100 to 200", "It was “from 100 to 200”: the loss went from 3.40 to "
    + "0.0012, new words right from none to 100\u00a0%, and “abc” was first right at step 120."]);
  assert.equal(figure.outcome(run({ first: null }))[0], "later, or never");
});

test("the sentence names the same training with other seeds", () => {
  const set = { ...figure.USUAL, seed: 1 }, others = [run({ exact: 0.69 }), run({ name: "no mask" }), run({ done: false })];
  assert.match(figure.ending(run({ set }), others), /The same with seed 0: 69\u00a0%\.$/);
});

test("letters are what is left of any text", () => {
  assert.equal(figure.letters(" Émile\u200b’s 9 WORDS and more"), "emileswordsa");
  assert.equal(figure.letters("123"), "");
});

test("without a Worker the page itself trains", async () => {
  const modules = { product: { PRODUCT }, kernel: { heap }, tape: { Tape }, learner: { Learner }, serve: { serve } };
  const heard = await new Promise((done) => {
    const work = figure.workplace(modules, ({ data }) => data.done && done({ data, work }));
    work.post({ go: { ...TINY, steps: 3 }, run: 1, word: "abc", pause: false });
  });
  assert.equal(heard.work.where, "on this page"); // node has no such Worker
  assert.equal(heard.data.step, 3);
});

test("it has the form of a widget", () => assert.equal(typeof learn.render, "function"));
