// plan: Figure 1 as two stacks of buttons, with the shapes and the sizes of its parts.

/** The boxes of Figure 1 with what each learns, its norm included; side 0 is
 *  the encoder. One matrix is read at both ends and before the softmax. */
export function boxes({ N, d, h, ff, V, dk = d / h, dv = d / h }) {
  const attention = h * (2 * (d + 1) * dk + (d + 1) * dv + dv * d) + d + 2 * d;
  const network = 2 * d * ff + ff + d + 2 * d;
  const box = (key, side, name, of, each, out, inside, code) =>
    ({ key, side, name, of, each, out, inside, code });
  const attend = (key, side, name, q, k, code) => box(key, side, name, N, attention, `(b, ${q}, ${d})`,
    `queries (b, ${h}, ${q}, ${dk}), keys (b, ${h}, ${k}, ${dk}), weights (b, ${h}, ${q}, ${k})`, code);
  const feed = (key, side, q, n) => box(key, side, "feed-forward", N, network, `(b, ${q}, ${d})`,
    `inside (b, ${q}, ${ff})`, `x = norm${n}(x + feed_forward(x))`);
  return [
    box("source", 0, "embedding + position", 1, V * d, `(b, s, ${d})`,
      `the matrix E (${V.toLocaleString("en")}, ${d})`, "x = E[src] * √d_model + positions"),
    attend("encoder.attention", 0, "self-attention", "s", "s", "x = norm1(x + attention(x, mask))"),
    feed("encoder.network", 0, "s", 2),
    box("target", 1, "embedding + position", 1, 0, `(b, t, ${d})`, "the same matrix E, counted once",
      "x = E[tgt] * √d_model + positions"),
    attend("decoder.attention", 1, "self-attention", "t", "t", "x = norm1(x + attention(x, causal))"),
    attend("decoder.cross", 1, "cross-attention", "t", "s", "x = norm2(x + cross_attention(x, memory))"),
    feed("decoder.network", 1, "t", 3),
    box("output", 1, "· every row of E", 1, 0, `(b, t, ${V.toLocaleString("en")})`,
      "the same matrix E, counted once", "logits = x @ E.T"),
  ];
}

export const count = (shape) => boxes(shape).reduce((sum, { of, each }) => sum + of * each, 0);

/** Is a count in millions what the paper's number was rounded from? */
export const fits = (shape, stated) => Math.abs(count(shape) / 1e6 - stated) <= 0.5;

export const STYLE = ".fx .st{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:.8rem}"
  + ".fx .st>div,.fx .st-n{display:flex;flex-direction:column-reverse;gap:.35rem}"
  + ".fx .st>div{justify-content:flex-start}"
  + ".fx .st-n{border:2px dashed var(--data);border-radius:6px;padding:.4rem}"
  + ".fx .st button{width:100%;text-align:left;line-height:1.25;padding:.3rem .5rem}"
  + ".fx .st button span{display:block;font-size:.85em;overflow-wrap:anywhere}"
  + ".fx .st button i{display:block;height:.35rem;margin-top:.2rem;border-radius:2px;min-width:1px;"
  + "background:var(--data);width:calc(var(--w)*100%)}"
  + ".fx .st p{color:var(--data);text-align:center;font-size:.85em;margin:0}"
  + ".fx table.fx-plain button{padding:0 .5rem;min-height:1.7rem}";

/** The two stacks as buttons, the first at the bottom; set(key, text, part,
 *  pressed) says what stands in one. */
export function plan({ make, button }, list, ends, press) {
  const all = {}, columns = [[], []], layers = [[], []];
  for (const { key, side, name } of list) {
    const text = make("span"), bar = make("i");
    all[key] = { text, bar, node: button(name, () => press(key)) };
    all[key].node.append(text, bar);
    (/\./.test(key) ? layers : columns)[side].push(all[key].node);
  }
  const times = [0, 1].map(() => make("p", { class: "fx-soft" }));
  const sides = columns.map(([first, ...rest], side) => make("div",
    { class: side ? "of-decoder" : "of-encoder", role: "group", "aria-label": side ? "Decoder" : "Encoder" }, make("p", {}, ends[0][side]), first ?? "",
    make("div", { class: "st-n" }, ...layers[side], times[side]), ...rest, make("p", {}, ends[1][side])));
  return { node: make("div", { class: "st" }, ...sides),
    times: (text) => times.forEach((one, i) => { one.textContent = `${i ? "decoder" : "encoder"} layer ${text}`; }),
    set(key, text, part, pressed) {
      all[key].text.textContent = text;
      all[key].bar.style.setProperty("--w", part);
      all[key].node.setAttribute("aria-pressed", pressed);
    } };
}
