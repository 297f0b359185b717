// engine: the book's Transformer in plain JavaScript, a sentence at a time:
// forward pass with a cache, greedy and beam search.

export const PAD = 0;
export const BOS = 1;
export const EOS = 2;
export const UNK = 3;

/** Numbers of half precision, little-endian, as Float32Array. */
export function halves(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const numbers = new Float32Array(bytes.byteLength / 2), powers = Float64Array.from({ length: 31 }, (_, i) => 2 ** (i - 15));
  for (let i = 0; i < numbers.length; i++) {
    const half = view.getUint16(2 * i, true);
    const sign = half & 0x8000 ? -1 : 1, power = half >> 10 & 31, part = half & 1023;
    if (power === 31) numbers[i] = part ? NaN : sign * Infinity;
    else if (power) numbers[i] = sign * (1 + part / 1024) * powers[power];
    else numbers[i] = sign * part * 2 ** -24;
  }
  return numbers;
}

/** Words at spaces; what the vocabulary lacks is unknown. */
export function encode(text, words) {
  const ids = new Map(words.map((word, i) => [word, i]));
  return text.split(/\s+/).filter(Boolean).map((word) => Math.max(ids.get(word) ?? UNK, UNK));
}

export function decode(ids, words) {
  return ids.filter((id) => id > UNK).map((id) => words[id]).join(" ");
}

/** The row of the table of positions (§3.5). */
export function sinusoid(position, size) {
  return Float32Array.from({ length: size }, (_, i) => {
    const angle = position / 10000 ** ((i - i % 2) / size);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

function softmax(scores) {
  const most = Math.max(...scores);
  let total = 0;
  for (let i = 0; i < scores.length; i++) total += scores[i] = Math.exp(scores[i] - most);
  return scores.map((x) => x / total);
}

/** found plus a matrix times x, four sums at a time. */
function times(w, x, found) {
  const size = x.length, whole = size - size % 4;
  for (let i = 0, at = 0; i < found.length; i++) {
    let a = 0, b = 0, c = 0, d = 0, j = 0;
    while (j < whole) {
      a += w[at++] * x[j++];
      b += w[at++] * x[j++];
      c += w[at++] * x[j++];
      d += w[at++] * x[j++];
    }
    while (j < size) a += w[at++] * x[j++];
    found[i] += a + b + c + d;
  }
  return found;
}

/** Log-probabilities of what may follow: PAD and BOS may not. */
export function logProbabilities(logits) {
  const most = Math.max(...logits);
  let total = 0;
  for (const x of logits) total += Math.exp(x - most);
  const level = most + Math.log(total);
  const found = Float64Array.from(logits, (x) => x - level);
  found[PAD] = found[BOS] = -Infinity;
  return found;
}

/** The n largest as [index, value]. */
export function largest(values, n) {
  const best = [];
  values.forEach((value, i) => {
    if (best.length === n && value <= best[n - 1][1]) return;
    let place = best.length;
    while (place && best[place - 1][1] < value) place--;
    best.splice(place, 0, [i, value]);
    best.length = Math.min(best.length, n);
  });
  return best;
}

/** config as in Python; layout [[name, shape], …] of numbers.
 *  silent holds heads, "cross.1.0", whose outputs are zero, off the norms,
 *  "decoder.layers.0.norm2", whose branch adds nothing; watch sees branches. */
export class Transformer {
  constructor(config, layout, numbers) {
    this.config = config;
    this.pre = config.norm === "pre";
    this.rotary = config.positions === "rotary";
    this.silent = new Set();
    this.off = new Set();
    this.weights = {};
    let start = 0;
    for (const [name, shape] of layout) {
      const size = shape.reduce((a, b) => a * b, 1);
      this.weights[name] = numbers.subarray(start, start += size);
    }
    if (start !== numbers.length) throw new Error(`${numbers.length} numbers, not ${start}`);
    const table = (name) => this.weights[`embeddings.${name}`];
    this.target = table("target");
    this.source = table("source") ?? this.target;
    this.output = table("output") ?? this.target;
  }

  linear(name, x) {
    return times(this.weights[`${name}.weight`], x, new Float32Array(this.weights[`${name}.bias`]));
  }

  norm(name, x) {
    const weight = this.weights[`${name}.weight`], bias = this.weights[`${name}.bias`];
    let mean = 0, variance = 0;
    for (const y of x) mean += y / x.length;
    for (const y of x) variance += (y - mean) ** 2 / x.length;
    const scale = 1 / Math.sqrt(variance + 1e-5);
    return x.map((y, i) => (y - mean) * scale * weight[i] + bias[i]);
  }

  /** x plus a sub-layer, the norm after it or before. */
  residual(name, x, sublayer) {
    const added = sublayer(this.pre ? this.norm(name, x) : x);
    this.watch?.(name, x, added);
    const sum = this.off.has(name) ? x : x.map((y, i) => y + added[i]);
    return this.pre ? sum : this.norm(name, sum);
  }

  feedForward(name, x) {
    return this.linear(`${name}.outer`, this.linear(`${name}.inner`, x).map((y) => Math.max(0, y)));
  }

  /** Each pair of a query or key turned by the angles of its place, if it has one (chapter 26). */
  turn(x, place) {
    if (!this.rotary || place == null) return x;
    const d = x.length / this.config.num_heads, angles = sinusoid(place, d);
    return x.map((y, i) => y * angles[i % d | 1] + (i % 2 ? x[i - 1] : -x[i + 1]) * angles[i % d & -2]);
  }

  /** Keeps keys and values. */
  extend(name, kept, x, place) {
    kept.k.push(this.turn(this.linear(`${name}.w_k`, x), place));
    kept.v.push(this.linear(`${name}.w_v`, x));
  }

  /** What x finds in what is kept; its weights go into rows, by head. */
  attend(name, x, kept, rows, block, place) {
    const q = this.turn(this.linear(`${name}.w_q`, x), place), heads = this.config.num_heads;
    const d = q.length / heads, wide = kept.v[0].length / heads;
    const found = new Float32Array(wide * heads);
    for (let head = 0; head < heads; head++) {
      const weights = softmax(Float32Array.from(kept.k, (k) => {
        let sum = 0;
        for (let i = head * d; i < (head + 1) * d; i++) sum += q[i] * k[i];
        return sum / Math.sqrt(d);
      }));
      rows.push(weights);
      if (!this.silent.has(`${block}.${head}`)) kept.v.forEach((v, j) => {
        for (let i = head * wide; i < (head + 1) * wide; i++) found[i] += weights[j] * v[i];
      });
    }
    return this.linear(`${name}.w_o`, found);
  }

  embed(table, id, position) {
    const size = this.config.d_model, places = sinusoid(position, size);
    return places.map((place, i) => table[id * size + i] * Math.sqrt(size) + (this.rotary ? 0 : place));
  }

  /** ids with EOS -> { memory, maps }, maps["encoder.0"][head][query][key]. */
  encode(ids) {
    const { num_heads: heads, num_encoder_layers: layers } = this.config;
    let xs = ids.map((id, i) => this.embed(this.source, id, i));
    const maps = {};
    for (let n = 0; n < layers; n++) {
      const layer = `encoder.layers.${n}`, kept = { k: [], v: [] };
      xs.forEach((x, i) => this.extend(`${layer}.attention`, kept, this.pre ? this.norm(`${layer}.norm1`, x) : x, i));
      const map = maps[`encoder.${n}`] = Array.from({ length: heads }, () => []);
      xs = xs.map((x, i) => {
        const rows = [];
        x = this.residual(`${layer}.norm1`, x, (y) =>
          this.attend(`${layer}.attention`, y, kept, rows, `encoder.${n}`, i));
        rows.forEach((row, head) => map[head].push(row));
        return this.residual(`${layer}.norm2`, x, (y) => this.feedForward(`${layer}.feed_forward`, y));
      });
    }
    if (this.pre) xs = xs.map((x) => this.norm("encoder.norm", x));
    return { memory: xs, maps };
  }

  /** A decoder that has read nothing. */
  start(memory) {
    const layers = Array.from({ length: this.config.num_decoder_layers }, (_, n) => {
      const source = { k: [], v: [] };
      for (const x of memory) this.extend(`decoder.layers.${n}.cross_attention`, source, x);
      return { own: { k: [], v: [] }, source };
    });
    return { length: 0, layers };
  }

  /** The same decoder twice, what is kept shared. */
  fork({ length, layers }) {
    return { length, layers: layers.map(({ own, source }) =>
      ({ own: { k: [...own.k], v: [...own.v] }, source })) };
  }

  /** One more token -> { logits, rows }, rows["cross.0"][head][key]. */
  step(state, id) {
    const rows = {}, place = state.length++;
    let x = this.embed(this.target, id, place);
    state.layers.forEach(({ own, source }, n) => {
      const layer = `decoder.layers.${n}`;
      x = this.residual(`${layer}.norm1`, x, (y) => {
        this.extend(`${layer}.attention`, own, y, place);
        return this.attend(`${layer}.attention`, y, own, rows[`decoder.${n}`] = [], `decoder.${n}`, place);
      });
      x = this.residual(`${layer}.norm2`, x, (y) =>
        this.attend(`${layer}.cross_attention`, y, source, rows[`cross.${n}`] = [], `cross.${n}`));
      x = this.residual(`${layer}.norm3`, x, (y) => this.feedForward(`${layer}.feed_forward`, y));
    });
    if (this.pre) x = this.norm("decoder.norm", x);
    const logits = times(this.output, x, new Float32Array(this.output.length / x.length));
    return { logits, rows };
  }
}

/** Greedy search after a given prefix: the tokens written, the most probable
 *  at each step, and all maps, by block and head. */
export function translate(model, src, { prefix = [], extra = 50, most = 5 } = {}) {
  const { memory, maps } = model.encode([...src, EOS]);
  const state = model.start(memory), limit = src.length + extra;
  const ids = [], steps = [];
  let last = BOS;
  for (let length = 1; length <= limit && last !== EOS; length++) {
    const { logits, rows } = model.step(state, last);
    for (const [block, heads] of Object.entries(rows)) {
      maps[block] ??= heads.map(() => []);
      heads.forEach((row, head) => maps[block][head].push(row));
    }
    const found = logProbabilities(logits);
    const likely = largest(found, most).map(([id, p]) => [id, Math.exp(p)]);
    last = prefix[length - 1] ?? (length < limit ? likely[0][0] : EOS);
    steps.push({ id: last, p: Math.exp(found[last]), likely });
    if (last !== EOS) ids.push(last);
  }
  return { ids, steps, maps };
}

export const penalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/** Beam search as in chapter 16: [{ ids, logP, score }], the best first. */
export function beamSearch(model, src, { beam = 4, alpha = 0.6, extra = 50, nbest = 1 } = {}) {
  const { memory } = model.encode([...src, EOS]);
  const limit = src.length + extra;
  let alive = [{ ids: [], logP: 0, state: model.start(memory), last: BOS }], ended = [];
  for (let length = 1; length <= limit && alive.length; length++) {
    const grown = alive.flatMap((one) => {
      const found = logProbabilities(model.step(one.state, one.last).logits);
      const next = length < limit ? largest(found, 2 * beam) : [[EOS, found[EOS]]];
      return next.filter(([, p]) => p > -Infinity)
        .map(([id, p]) => ({ ...one, last: id, logP: one.logP + p }));
    }).sort((a, b) => b.logP - a.logP).slice(0, 2 * beam);
    const ends = grown.filter((one) => one.last === EOS)
      .map(({ ids, logP }) => ({ ids, logP, score: logP / penalty(length, alpha) }));
    ended = [...ended, ...ends].sort((a, b) => b.score - a.score).slice(0, nbest);
    alive = grown.filter((one) => one.last !== EOS).slice(0, beam).map((one) =>
      ({ ...one, ids: [...one.ids, one.last], state: model.fork(one.state) }));
    const hope = (alive[0]?.logP ?? -Infinity) / penalty(limit, alpha);
    if (ended.length === nbest && ended[nbest - 1].score >= hope) break;
  }
  return ended;
}
