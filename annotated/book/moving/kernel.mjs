// kernel: C += A·B on one heap of float32. Of each matrix is given where it starts and
// the strides of its rows and columns, counted in numbers: any transposition is a
// stride. In WebAssembly (product.wat) or, where that is refused, in plain JavaScript.

/** Plain JavaScript: four columns of B side by side, tiles of two by four. */
export function plain(f) {
  const pack = new Float64Array(4 * 2048);
  return (c, ci, a, ai, ak, b, bk, bj, m, n, k) => {
    for (let j = 0; j < n; j += 4) {
      const wide = Math.min(4, n - j);
      for (let l = 0, to = 0; l < k; l++, to += 4) {
        for (let i = 0; i < 4; i++) pack[to + i] = i < wide ? f[b + l * bk + (j + i) * bj] : 0;
      }
      for (let i = 0; i < m; i += 2) {
        const two = i + 1 < m, gap = two ? ai : 0;
        let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
        for (let l = 0, p = a + i * ai, q = 0; l < k; l++, p += ak, q += 4) {
          const u = f[p], v = f[p + gap];
          const b0 = pack[q], b1 = pack[q + 1], b2 = pack[q + 2], b3 = pack[q + 3];
          s0 += u * b0; s1 += u * b1; s2 += u * b2; s3 += u * b3;
          t0 += v * b0; t1 += v * b1; t2 += v * b2; t3 += v * b3;
        }
        const y = c + i * ci + j, z = y + ci;
        f[y] += s0; f[y + 1] += s1; f[y + 2] += s2; f[y + 3] += s3;
        if (two) { f[z] += t0; f[z + 1] += t1; f[z + 2] += t2; f[z + 3] += t3; }
      }
    }
  };
}

/** Memory with a product on it: f, add, and start, where it is free. base64 is the
 *  product's; without it, or where it does not run, the product is plain. */
export function heap(base64, megabytes = 64) {
  // before it 2,048 rows of eight numbers, for $pack
  const start = 16384;
  try {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const memory = new WebAssembly.Memory({ initial: 16 * megabytes });
    const { add } = new WebAssembly.Instance(new WebAssembly.Module(bytes), { o: { m: memory } }).exports;
    return { f: new Float32Array(memory.buffer), start, kernel: "WebAssembly",
      add: (c, ci, a, ai, ak, b, bk, bj, m, n, k) =>
        add(4 * c, 4 * ci, 4 * a, 4 * ai, 4 * ak, 4 * b, 4 * bk, 4 * bj, m, n, k, 0) };
  } catch {
    const f = new Float32Array(megabytes * 262144);
    return { f, start, kernel: "JavaScript", add: plain(f) };
  }
}
