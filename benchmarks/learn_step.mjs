// Milliseconds of the processor for a step: node benchmarks/learn_step.mjs KERNEL STEPS
import { heap } from "../annotated/book/moving/kernel.mjs";
import { Learner } from "../annotated/book/moving/learner.mjs";
import { PRODUCT } from "../annotated/book/moving/product.mjs";
import { Tape } from "../annotated/book/moving/tape.mjs";

const [kernel, steps] = process.argv.slice(2);
const learner = new Learner(heap(kernel === "WebAssembly" ? PRODUCT : ""), Tape);
if (learner.kernel !== kernel) throw new Error(`no ${kernel} here`);
for (let i = 0; i < 20; i++) learner.step(); // until the code is compiled
const start = process.cpuUsage();
for (let i = 0; i < steps; i++) learner.step();
const { user, system } = process.cpuUsage(start);
console.log((user + system) / 1000 / steps);
