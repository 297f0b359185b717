// learner: the book's running example, encoder and decoder, trained: batches of random
// words, the model, Adam, greedy search and the maps of attention. It is the model of
// annotated.book.example, whose names its weights have, in JavaScript.

export const BOS = 1;
export const EOS = 2;
export const FIRST = 4;
export const VOCAB = 30;

/** The running example of the book, as reversal_model and train_reversal have it:
 *  each may be changed, norm to "pre" or "none". */
export const USUAL = {
  width: 64, inner: 256, heads: 4, layers: 1, norm: "post", positions: true, mask: true,
  residual: true, factor: true, network: true, warmup: true, rate: 1,
  length: 9, words: 64, steps: 400, seed: 0,
};

/** Numbers in [0, 1) from a seed (mulberry32). */
export function random(seed) {
  return () => {
    seed = seed + 0x6D2B79F5 | 0;
    let t = Math.imul(seed ^ seed >>> 15, 1 | seed);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 4294967296;
  };
}

/** One training on a heap (kernel), by operations of a Tape. */
export class Learner {
  constructor(heap, Tape, changes = {}) {
    const { f, start } = heap;
    const set = this.set = { ...USUAL, ...changes }, { width: d, inner, layers, norm } = set;
    Object.assign(this, { f, kernel: heap.kernel, steps: 0, start, end: start, weights: {} });
    // draws the words
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
    // the gradients, and Adam's two moments, come next
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

  /** The tape's linear or norm, with the weight and bias of this name. */
  part(kind, name, x) {
    return this.tape[kind](x, this.weights[`${name}.weight`], this.weights[`${name}.bias`]);
  }

  /** A sub-layer with its residual connection, the norm after it or before. */
  around(name, x, sublayer) {
    const { norm, residual } = this.set;
    const added = sublayer && sublayer(norm === "pre" ? this.part("norm", name, x) : x);
    const y = !added ? x : residual ? this.tape.sum(x, added) : added;
    return norm === "post" ? this.part("norm", name, y) : y;
  }

  /** Equation 1 in all heads, between four linear maps. */
  attention(name, x, memory, words, causal) {
    const { heads, width, factor } = this.set, scale = factor ? (width / heads) ** -0.5 : 1;
    const [q, k, v] = [x, memory, memory].map((from, i) => this.part("linear", `${name}.w_${"qkv"[i]}`, from));
    const y = this.maps[name] = this.tape.attend(q, k, v, words, heads, scale, causal);
    return this.part("linear", `${name}.w_o`, y);
  }

  /** A stack: the decoder has a memory to look at. */
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

  /** The memory of words that lie side by side in src. */
  encode(src, words) {
    this.maps = {};
    return this.stack("encoder", src, words);
  }

  /** The logits of each place of tgt. */
  decode(tgt, memory, words) {
    return this.tape.linear(this.stack("decoder", tgt, words, memory), this.weights["embeddings.target"]);
  }

  /** Random words: src with EOS, tgt with BOS first, labels with EOS last. */
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

  /** As in train_reversal. */
  rate(step) {
    const { rate, warmup, steps } = this.set;
    const rise = warmup ? step * 100 ** -1.5 : 0.1;
    return rate / 8 * Math.min(step ** -0.5, rise) * Math.min(1, (steps - step + 1) / 100);
  }

  /** The loss of a batch, its gradients where they belong; with the logits. */
  gradients({ src, tgt, labels, words }) {
    this.tape.reset();
    this.f.fill(0, this.end, this.end + this.size);
    const logits = this.decode(tgt, this.encode(src, words), words);
    const loss = this.tape.loss(logits, labels);
    this.tape.backward();
    return { loss, logits };
  }

  /** A step of Adam (§5.3); returns the loss before it. */
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

  /** Greedy search: the ids written for each word, everything after EOS as EOS. */
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

  /** The share of new words that are written backwards exactly, as many at a time
   *  as in training, so that the heap has room. */
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

  /** The letters of a word as ids, with EOS. */
  read(word) {
    return [...word].map((letter) => FIRST + letter.charCodeAt(0) - 97).concat(EOS);
  }

  /** What is written for a word, a special symbol as a dot. */
  spell(word) {
    const ids = this.greedy(this.read(word), 1, word.length + 3)[0].filter((id) => id !== EOS);
    return ids.map((id) => id < FIRST ? "·" : String.fromCharCode(97 + id - FIRST)).join("");
  }

  isRight(word) {
    return this.spell(word) === [...word].reverse().join("");
  }

  /** What is written, and where each head of the last cross-attention looks while it
   *  is given the right letters: maps[head][to write][read]. */
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
