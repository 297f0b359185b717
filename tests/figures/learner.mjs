// One question of tests/figures/test_learn.py: node learner.mjs IN.json OUT.json. It sets
// the weights, and tells logits, loss and gradients of a batch, or losses of batches.
import { readFileSync, writeFileSync } from "node:fs";
import { heap } from "../../annotated/book/moving/kernel.mjs";
import { Learner, VOCAB } from "../../annotated/book/moving/learner.mjs";
import { PRODUCT } from "../../annotated/book/moving/product.mjs";
import { Tape } from "../../annotated/book/moving/tape.mjs";

const { kernel, set, weights, batch, batches } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const room = heap(kernel === "WebAssembly" ? PRODUCT : "");
if (room.kernel !== kernel) throw new Error(`${room.kernel}, not ${kernel}`);
const learner = new Learner(room, Tape, set), { f } = learner, answer = {};
for (const [name, { x, rows, cols }] of Object.entries(learner.weights)) {
  if (weights[name]?.length !== rows * cols) throw new Error(`${name} is not (${rows}, ${cols})`);
  f.set(weights[name], x);
}
if (batch) {
  const { loss, logits } = learner.gradients(batch);
  const part = (at, { rows, cols }) => Array.from(f.subarray(at, at + rows * cols));
  answer.loss = loss;
  answer.logits = part(logits.x, { rows: logits.rows, cols: VOCAB });
  answer.gradients = Object.fromEntries(Object.entries(learner.weights)
    .map(([name, one]) => [name, part(one.g, one)]));
}
if (batches) answer.losses = batches.map((one) => learner.step(one));
writeFileSync(process.argv[3], JSON.stringify(answer));
