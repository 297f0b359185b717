// tape: the operations of a Transformer on matrices that lie in one heap. Each leaves
// behind how to go back through it; backward() goes back through all of them.

/** Operations on matrices of one heap (kernel), from start on, and how to go back
 *  through them. A matrix is { x, g, rows, cols }: where its numbers start, and where
 *  their gradients do. */
export class Tape {
  constructor({ f, add }, start) {
    Object.assign(this, { f, add, one: start, top: start + 8, mark: start + 8, back: [] });
    // what a bias is multiplied by
    f[start] = 1;
  }

  matrix(rows, cols) {
    const size = rows * cols + 15 & ~7, x = this.top;
    this.top += 2 * size;
    if (this.top > this.f.length) throw new Error("the heap is full");
    return { x, g: x + size, rows, cols };
  }

  /** Forget everything, and leave zeros. */
  reset() {
    this.f.fill(0, this.mark, this.top);
    this.top = this.mark;
    this.back.length = 0;
  }

  backward() {
    for (let i = this.back.length; i--;) this.back[i]();
  }

  /** x Wᵀ + b. The way back is kept before the product runs: a closure that is made
   *  after a hot loop throws V8 out of its optimised code, at every call. */
  linear(x, w, b) {
    const { add, one } = this, n = x.rows, m = w.rows, k = w.cols, y = this.matrix(n, m);
    this.back.push(() => {
      add(x.g, k, y.g, m, 1, w.x, k, 1, n, k, m);
      add(w.g, k, y.g, 1, m, x.x, k, 1, m, k, n);
      if (b) add(b.g, m, one, 0, 0, y.g, m, 1, 1, m, n);
    });
    if (b) add(y.x, m, one, 0, 0, b.x, m, 1, n, m, 1);
    add(y.x, m, x.x, k, 1, w.x, 1, k, n, m, k);
    return y;
  }

  /** Rows of a table, times scale, plus a row for the place in the word. */
  embed(ids, table, scale, places, length) {
    const { f } = this, d = table.cols, y = this.matrix(ids.length, d);
    ids.forEach((id, i) => {
      const from = table.x + id * d, place = i % length * d;
      for (let j = 0; j < d; j++) f[y.x + i * d + j] = f[from + j] * scale + (places ? places[place + j] : 0);
    });
    this.back.push(() => ids.forEach((id, i) => {
      for (let j = 0; j < d; j++) f[table.g + id * d + j] += f[y.g + i * d + j] * scale;
    }));
    return y;
  }

  /** Equation 1 for each word and head; the weights are in y.weights. */
  attend(q, k, v, words, heads, scale, causal) {
    const { f, add } = this, n = q.rows / words, m = k.rows / words, D = q.cols, d = D / heads;
    const wide = m + 7 & ~7, y = this.matrix(q.rows, D);
    const p = y.weights = this.matrix(words * heads * n, wide);
    const each = (act) => {
      for (let word = 0, s = 0; word < words; word++) {
        for (let head = 0; head < heads; head++, s += n * wide) {
          act(word * n * D + head * d, word * m * D + head * d, s);
        }
      }
    };
    this.back.push(() => {
      each((a, b, s) => {
        add(p.g + s, wide, y.g + a, D, 1, v.x + b, 1, D, n, m, d);
        add(v.g + b, D, p.x + s, 1, wide, y.g + a, D, 1, m, d, n);
      });
      const gap = p.g - p.x;
      for (let r = 0, at = p.x; r < p.rows; r++, at += wide) {
        let sum = 0;
        for (let j = at; j < at + m; j++) sum += f[j] * f[j + gap];
        for (let j = at; j < at + m; j++) f[j + gap] = scale * f[j] * (f[j + gap] - sum);
      }
      each((a, b, s) => {
        add(q.g + a, D, p.g + s, wide, 1, k.x + b, D, 1, n, d, m);
        add(k.g + b, D, p.g + s, 1, wide, q.x + a, D, 1, m, d, n);
      });
    });
    each((a, b, s) => add(p.x + s, wide, q.x + a, D, 1, k.x + b, 1, D, n, m, d));
    for (let r = 0, at = p.x; r < p.rows; r++, at += wide) {
      const end = at + (causal ? r % n + 1 : m);
      let most = -Infinity, total = 0;
      for (let j = at; j < end; j++) most = Math.max(most, f[j]);
      for (let j = at; j < end; j++) total += f[j] = Math.exp(scale * (f[j] - most));
      for (let j = at; j < at + m; j++) f[j] = j < end ? f[j] / total : 0;
    }
    each((a, b, s) => add(y.x + a, D, p.x + s, wide, 1, v.x + b, D, 1, n, d, m));
    return y;
  }

  /** a + b: the gradient goes to both. */
  sum(a, b) {
    const { f } = this, y = this.matrix(a.rows, a.cols), size = a.rows * a.cols;
    this.back.push(() => {
      for (let i = 0, from = y.g, p = a.g, q = b.g; i < size; i++) {
        const g = f[from + i];
        f[p + i] += g;
        f[q + i] += g;
      }
    });
    for (let i = 0, to = y.x, p = a.x, q = b.x; i < size; i++) f[to + i] = f[p + i] + f[q + i];
    return y;
  }

  /** Zero for what is negative, in place. */
  relu(y) {
    const { f } = this, size = y.rows * y.cols;
    this.back.push(() => {
      for (let i = y.x, g = y.g; i < y.x + size; i++, g++) if (f[i] === 0) f[g] = 0;
    });
    for (let i = y.x; i < y.x + size; i++) f[i] = Math.max(f[i], 0);
    return y;
  }

  /** Layer norm of each row, with its scale and shift. */
  norm(x, w, b) {
    const { f } = this, { rows, cols: d } = x, y = this.matrix(rows, d), z = this.matrix(rows, d);
    const scales = new Float64Array(rows);
    this.back.push(() => {
      for (let i = 0, from = y.g, at = z.x, to = z.g; i < rows; i++, from += d, at += d, to += d) {
        let mean = 0, along = 0;
        for (let j = 0, p = w.x, q = w.g, r = b.g; j < d; j++) {
          const g = f[from + j], value = f[at + j], h = g * f[p + j];
          f[q + j] += g * value;
          f[r + j] += g;
          f[to + j] = h;
          mean += h / d;
          along += h * value / d;
        }
        for (let j = 0, p = x.g + i * d; j < d; j++) {
          f[p + j] += scales[i] * (f[to + j] - mean - along * f[at + j]);
        }
      }
    });
    for (let i = 0, from = x.x, at = z.x, to = y.x; i < rows; i++, from += d, at += d, to += d) {
      let mean = 0, variance = 0;
      for (let j = 0; j < d; j++) mean += f[from + j];
      mean /= d;
      for (let j = 0; j < d; j++) variance += (f[from + j] - mean) * (f[from + j] - mean);
      const scale = scales[i] = 1 / Math.sqrt(variance / d + 1e-5);
      for (let j = 0, p = w.x, q = b.x; j < d; j++) {
        const value = f[at + j] = (f[from + j] - mean) * scale;
        f[to + j] = value * f[p + j] + f[q + j];
      }
    }
    return y;
  }

  /** Cross-entropy in nats per token; its gradient is where the logits' is. */
  loss(logits, labels) {
    const { f } = this, { rows, cols } = logits;
    let loss = 0;
    for (let i = 0; i < rows; i++) {
      const at = logits.x + i * cols, to = logits.g + i * cols;
      let most = -Infinity, total = 0;
      for (let j = 0; j < cols; j++) most = Math.max(most, f[at + j]);
      for (let j = 0; j < cols; j++) total += f[to + j] = Math.exp(f[at + j] - most);
      for (let j = 0; j < cols; j++) f[to + j] /= total * rows;
      f[to + labels[i]] -= 1 / rows;
      loss += (most + Math.log(total) - f[at + labels[i]]) / rows;
    }
    return loss;
  }
}
