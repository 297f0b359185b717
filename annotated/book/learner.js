// Made from book/figures/learner.mjs. Edit it there.
const learner = (() => {
const BOS = 1;
const EOS = 2;
const FIRST = 4;
const VOCAB = 30;

const USUAL = {
  width: 64, inner: 256, heads: 4, layers: 1, norm: "post", positions: true, mask: true,
  residual: true, factor: true, network: true, warmup: true, rate: 1,
  length: 9, words: 64, steps: 400, seed: 0,
};

function random(seed) {
  return () => {
    seed = seed + 0x6D2B79F5 | 0;
    let t = Math.imul(seed ^ seed >>> 15, 1 | seed);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 4294967296;
  };
}

class Learner {
  constructor(heap, Tape, changes = {}) {
    const { f, start } = heap;
    const set = this.set = { ...USUAL, ...changes }, { width: d, inner, layers, norm } = set;
    Object.assign(this, { f, kernel: heap.kernel, steps: 0, start, end: start, weights: {} });
    this.next = random(2 * set.seed + 1);
    const draw = random(2 * set.seed);
    const normal = () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
    const matrix = (name, rows, cols, value) => {
      const size = rows * cols, x = this.end;
      this.weights[name] = { x, rows, cols };
      for (let i = 0; i < size; i++) f[x + i] = value();
      this.end += size + 7 & ~7;
    };
    const linear = (name, from, to) => {
      const bound = Math.sqrt(6 / (from + to));
      matrix(`${name}.weight`, to, from, () => (2 * draw() - 1) * bound);
      matrix(`${name}.bias`, 1, to, () => 0);
    };
    const ones = (name) => {
      if (norm === "none") return;
      matrix(`${name}.weight`, 1, d, () => 1);
      matrix(`${name}.bias`, 1, d, () => 0);
    };
    f.fill(0, start);
    matrix("embeddings.target", VOCAB, d, () => normal() / Math.sqrt(d));
    for (const side of ["encoder", "decoder"]) {
      for (let n = 0; n < layers; n++) {
        const layer = `${side}.layers.${n}`, blocks = ["attention"];
        if (side === "decoder") blocks.push("cross_attention");
        for (const block of blocks) for (const w of "qkvo") linear(`${layer}.${block}.w_${w}`, d, d);
        if (set.network) {
          linear(`${layer}.feed_forward.inner`, d, inner);
          linear(`${layer}.feed_forward.outer`, inner, d);
        }
        for (let i = 1; i <= blocks.length + 1; i++) ones(`${layer}.norm${i}`);
      }
      if (norm === "pre") ones(`${side}.norm`);
    }
    const size = this.size = this.end - start;
    for (const w of Object.values(this.weights)) w.g = w.x + size;
    this.tape = new Tape(heap, start + 4 * size);
    if (set.positions) {
      this.places = Float32Array.from({ length: 64 * d }, (_, at) => {
        const i = at % d, angle = Math.floor(at / d) / 10000 ** ((i - i % 2) / d);
        return i % 2 ? Math.cos(angle) : Math.sin(angle);
      });
    }
  }

  part(kind, name, x) {
    return this.tape[kind](x, this.weights[`${name}.weight`], this.weights[`${name}.bias`]);
  }

  around(name, x, sublayer) {
    const { norm, residual } = this.set;
    const added = sublayer && sublayer(norm === "pre" ? this.part("norm", name, x) : x);
    const y = !added ? x : residual ? this.tape.sum(x, added) : added;
    return norm === "post" ? this.part("norm", name, y) : y;
  }

  attention(name, x, memory, words, causal) {
    const { heads, width, factor } = this.set, scale = factor ? (width / heads) ** -0.5 : 1;
    const [q, k, v] = [x, memory, memory].map((from, i) => this.part("linear", `${name}.w_${"qkv"[i]}`, from));
    const y = this.maps[name] = this.tape.attend(q, k, v, words, heads, scale, causal);
    return this.part("linear", `${name}.w_o`, y);
  }

  stack(side, ids, words, memory) {
    const { width, layers, network, mask, norm } = this.set, table = this.weights["embeddings.target"];
    let x = this.tape.embed(ids, table, Math.sqrt(width), this.places, ids.length / words);
    for (let n = 0; n < layers; n++) {
      const layer = `${side}.layers.${n}`;
      x = this.around(`${layer}.norm1`, x, (y) =>
        this.attention(`${layer}.attention`, y, y, words, memory && mask));
      if (memory) x = this.around(`${layer}.norm2`, x, (y) =>
        this.attention(`${layer}.cross_attention`, y, memory, words));
      x = this.around(`${layer}.norm${memory ? 3 : 2}`, x, network && ((y) => {
        const inner = this.tape.relu(this.part("linear", `${layer}.feed_forward.inner`, y));
        return this.part("linear", `${layer}.feed_forward.outer`, inner);
      }));
    }
    return norm === "pre" ? this.part("norm", `${side}.norm`, x) : x;
  }

  encode(src, words) {
    this.maps = {};
    return this.stack("encoder", src, words);
  }

  decode(tgt, memory, words) {
    return this.tape.linear(this.stack("decoder", tgt, words, memory), this.weights["embeddings.target"]);
  }

  batch(words, next = this.next) {
    const { length } = this.set, src = [], tgt = [], labels = [];
    for (let w = 0; w < words; w++) {
      const word = Array.from({ length }, () => FIRST + Math.floor(next() * (VOCAB - FIRST)));
      const back = [...word].reverse();
      src.push(...word, EOS);
      tgt.push(BOS, ...back);
      labels.push(...back, EOS);
    }
    return { src, tgt, labels, words };
  }

  rate(step) {
    const { rate, warmup, steps } = this.set;
    const rise = warmup ? step * 100 ** -1.5 : 0.1;
    return rate / 8 * Math.min(step ** -0.5, rise) * Math.min(1, (steps - step + 1) / 100);
  }

  gradients({ src, tgt, labels, words }) {
    this.tape.reset();
    this.f.fill(0, this.end, this.end + this.size);
    const logits = this.decode(tgt, this.encode(src, words), words);
    const loss = this.tape.loss(logits, labels);
    this.tape.backward();
    return { loss, logits };
  }

  step(batch = this.batch(this.set.words)) {
    const { loss } = this.gradients(batch), { f, size } = this, t = ++this.steps;
    const rate = this.rate(t) / (1 - 0.9 ** t), unbias = 1 / Math.sqrt(1 - 0.98 ** t);
    for (let i = this.start, g = i + size, m = g + size, v = m + size; i < this.end; i++, g++, m++, v++) {
      f[m] += 0.1 * (f[g] - f[m]);
      f[v] = 0.98 * f[v] + 0.02 * f[g] * f[g];
      f[i] -= rate * f[m] / (Math.sqrt(f[v]) * unbias + 1e-9);
    }
    return loss;
  }

  greedy(src, words, limit) {
    const { f, tape } = this, written = Array.from({ length: words }, () => [BOS]);
    tape.reset();
    const memory = this.encode(src, words), kept = tape.top;
    for (let t = 1; t <= limit; t++) {
      f.fill(0, kept, tape.top);
      tape.top = kept;
      const { x } = this.decode(written.flat(), memory, words);
      written.forEach((ids, w) => {
        const at = x + (w * t + t - 1) * VOCAB;
        let best = 0;
        for (let j = 1; j < VOCAB; j++) if (f[at + j] > f[at + best]) best = j;
        ids.push(ids[t - 1] === EOS ? EOS : best);
      });
    }
    return written.map((ids) => ids.slice(1));
  }

  exact(words) {
    const n = this.set.length + 1, next = random(2017);
    let exact = 0;
    for (let left = words; left > 0; left -= this.set.words) {
      const some = Math.min(left, this.set.words), { src, labels } = this.batch(some, next);
      this.greedy(src, some, n).forEach((ids, w) => {
        exact += ids.every((id, i) => id === labels[w * n + i]);
      });
    }
    return exact / words;
  }

  read(word) {
    return [...word].map((letter) => FIRST + letter.charCodeAt(0) - 97).concat(EOS);
  }

  spell(word) {
    const ids = this.greedy(this.read(word), 1, word.length + 3)[0].filter((id) => id !== EOS);
    return ids.map((id) => id < FIRST ? "·" : String.fromCharCode(97 + id - FIRST)).join("");
  }

  isRight(word) {
    return this.spell(word) === [...word].reverse().join("");
  }

  write(word) {
    const src = this.read(word), n = src.length, { layers, heads } = this.set, text = this.spell(word);
    this.tape.reset();
    this.decode([BOS, ...src.slice(0, -1).reverse()], this.encode(src, 1), 1);
    const { x, cols } = this.maps[`decoder.layers.${layers - 1}.cross_attention`].weights;
    const maps = Array.from({ length: heads }, (_, head) => src.map((_, i) =>
      Array.from(this.f.subarray(x + (head * n + i) * cols, x + (head * n + i) * cols + n))));
    return { text, maps };
  }
}
return { BOS, EOS, FIRST, VOCAB, USUAL, random, Learner };
})();
