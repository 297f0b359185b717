// Trainings in a row: node benchmarks/learn.mjs '{"name": {changes}}' SEEDS. One line of
// JSON each, with the processor's seconds. benchmarks/learn.py writes the ledger of them.
import { heap } from "../annotated/book/moving/kernel.mjs";
import { Learner } from "../annotated/book/moving/learner.mjs";
import { PRODUCT } from "../annotated/book/moving/product.mjs";
import { Tape } from "../annotated/book/moving/tape.mjs";

const room = heap(PRODUCT), WORD = "attention";
const seconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};
for (const [name, changes] of Object.entries(JSON.parse(process.argv[2]))) {
  for (let seed = 0; seed < Number(process.argv[3]); seed++) {
    const learner = new Learner(room, Tape, { ...changes, seed }), losses = [];
    let spent = 0, learned = null, after = null, first = null;
    while (learner.steps < learner.set.steps) {
      const start = seconds();
      losses.push(learner.step());
      spent += seconds() - start;
      if (learner.steps % 5) continue;
      if (first === null && learner.isRight(WORD)) first = learner.steps;
      if (learned === null && learner.steps % 20 === 0 && learner.exact(32) >= 0.95) {
        [learned, after] = [learner.steps, spent];
      }
    }
    console.log(JSON.stringify({ name, seed, exact: learner.exact(200),
      loss: losses.slice(-10).reduce((a, b) => a + b) / 10, writes: learner.spell(WORD),
      first, learned_at: learned, learned_after: after && +after.toFixed(1), seconds: +spent.toFixed(1) }));
  }
}
