import { close, golden } from "./golden.mjs";
import test from "node:test";
import { entropy, jacobian, weigh } from "../../annotated/book/moving/scale.mjs";

test("weights, entropy and Jacobian are torch's", () => {
  for (const { products, width, factor, weights, nats, norm } of golden("scale")) {
    const p = weigh(products, width, factor);
    close(p, weights, 1e-12);
    close([entropy(p), jacobian(p)], [nats, norm], 1e-10);
  }
});

test("nothing overflows", () => close(weigh([1e4, 0], 1, false), [1, 0], 0));
