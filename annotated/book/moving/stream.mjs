// stream: Figure 1 with its shapes; the parameters of each block, and the rows of
// Table 3 that fit, as one turns its sizes.
// needs: plan

const millions = (n) => `${(n / 1e6).toFixed(1)} million`;

export default {
  render({ model, el, kit }) {
    const { make } = kit, { boxes, count, fits, plan, STYLE } = kit.plan;
    const rows = model.get("rows"), asked = model.asked;
    const scales = { N: [1, 2, 3, 4, 5, 6, 7, 8], d: [64, 128, 256, 512, 1024], h: [1, 2, 4, 8, 16, 32],
      ff: [256, 512, 1024, 2048, 4096] };
    const names = { N: "layers N", d: "width d_model", h: "heads h", ff: "inner width d_ff" };
    const row = Object.hasOwn(rows, asked.row) ? asked.row : "base", bounds = [30000, 48000];
    let at = { ...rows[row], V: model.get("V") }, chosen = "source", touched = false;
    for (const key of ["N", "d", "h", "ff"]) {
      if (scales[key].includes(Number(asked[key]))) at[key] = Number(asked[key]);
    }
    // heads of another width than d / h are those of a row
    if (asked.dk && Object.values(rows).some(({ dk }) => dk === Number(asked.dk))) at.dk = Number(asked.dk);
    if (asked.V >= bounds[0] && asked.V <= bounds[1]) at.V = 250 * Math.round(asked.V / 250);
    const change = (more) => { at = { ...at, ...more }; touched = true; show(); };
    const sliders = Object.entries(scales).map(([key, list]) => [key, kit.range({ label: names[key], min: 0,
      max: list.length - 1, value: list.indexOf(at[key]), format: (i) => list[i].toLocaleString("en"),
      oninput: (i) => change({ [key]: list[i], ...(key === "d" || key === "h" ? { dk: undefined } : {}) }) })]);
    const vocab = kit.range({ label: "vocabulary V", min: bounds[0], max: bounds[1], step: 250, value: at.V,
      format: (n) => n.toLocaleString("en"), oninput: (V) => change({ V }) });
    const map = plan(kit, boxes(at), [["source tokens (b, s)", "target so far (b, t)"],
      ["memory → keys and values of cross-attention", "softmax: the next token"]],
    (key) => { chosen = key; touched = true; show(); });
    const facts = make("p"), list = make("div"), voice = kit.voice();

    const fitting = (V) => Object.values(rows).filter(({ stated, ...shape }) => fits({ ...shape, V }, stated)).length;
    const all = Object.keys(rows).length;
    const most = Math.max(...Array.from({ length: (bounds[1] - bounds[0]) / 250 + 1 }, (_, i) => fitting(bounds[0] + 250 * i)));

    function show() {
      const parts = boxes(at), whole = count(at);
      for (const { key, of, each, out } of parts) {
        map.set(key, `${out}${each ? ` · ${millions(of * each)}` : ""}`, of * each / whole, key === chosen);
      }
      map.times(`× ${at.N}`);
      const { name, side, of, each, inside, code, out } = parts.find(({ key }) => key === chosen);
      facts.replaceChildren(make("strong", {}, `${name} (${side ? "decoder" : "encoder"}): `),
        `${inside}; gives ${out}. `, each ? `${each.toLocaleString("en")} parameters${of > 1 ? ` in each of ${of} layers` : ""}, `
          + `${(100 * of * each / whole).toFixed(0)} % of the model. ` : "Nothing of its own to learn. ",
        make("code", {}, code));
      const found = Object.entries(rows).map(([name, { stated, ...shape }]) => {
        const of = { ...shape, V: at.V }, fit = fits(of, stated);
        const mine = ["N", "d", "h", "ff"].every((key) => at[key] === shape[key]) && at.dk === shape.dk;
        return { name, stated, shape, fit, mine, now: count(of) / 1e6 };
      });
      const focus = el.contains(document.activeElement) ? document.activeElement.dataset.row : null;
      list.replaceChildren(kit.table(["row", "paper", "here", ""], []));
      list.querySelector("tbody").append(...found.map(({ name, stated, shape, fit, mine, now }) => make("tr", {},
        make("td", {}, kit.button(name, () => change({ dk: undefined, ...shape }),
          { "data-row": name, "aria-pressed": String(mine) })),
        make("td", {}, stated), make("td", {}, now.toFixed(1)),
        make("td", {}, fit ? "✓ fits" : now < stated ? "too few" : "too many"))));
      if (focus) list.querySelector(`[data-row="${focus}"]`).focus();
      vocab.set(at.V);
      sliders.forEach(([key, slider]) => slider.set(Math.max(0, scales[key].indexOf(at[key]))));
      const fit = found.filter((one) => one.fit), mine = found.find((one) => one.mine);
      voice.say(`This shape has ${millions(whole)} parameters`
        + (mine ? `; it is the row “${mine.name}” of Table 3, which says ${mine.stated}` : ", and is no row of Table 3")
        + `. With V = ${at.V.toLocaleString("en")}, ${fit.length} of the ${found.length} counts fit`
        + (fit.length && fit.length < found.length - 1 ? `: ${fit.map((one) => one.name).join(", ")}.`
          : fit.length === found.length - 1 ? `, all but ${found.find((one) => !one.fit).name}.` : "."));
      const { N, d, h, ff, dk, V } = at;
      if (touched) model.keep(mine ? { row: mine.name, V } : { N, d, h, ff, ...(dk && { dk }), V });
    }

    el.append(make("style", {}, STYLE),
      kit.guess({ voice, question: `Of the paper’s ${all} counts, how many can one and the same vocabulary give?`,
        options: [[`${Math.ceil(all / 3)} or so`, "few"], [`${all - 1}`, "but one"], [`all ${all}`, "all"]],
        act: "Now move V, and look for the one that fits most.",
        begin() { change({ V: model.get("V") }); return { V: at.V, fit: fitting(at.V) }; },
        seen(was) {
          if (fitting(at.V) < most) return null;
          return [most === all ? "all" : most === all - 1 ? "but one" : "few", `V = ${was.V.toLocaleString("en")} fits `
            + `${was.fit} of the ${all} counts, V = ${at.V.toLocaleString("en")} fits ${most}, and no other V fits more.`];
        },
        tell() {
          for (let V = bounds[0]; V <= bounds[1]; V += 250) if (fitting(V) === most) { vocab.set(V); return change({ V }); }
        } }).node,
      vocab.node, make("div", { class: "fx-cols", style: "--cols:minmax(0,18.5rem) minmax(0,1fr)" },
        make("div", {}, make("p", { class: "fx-soft" }, "The rows of Table 3 that state a count, in millions; "
          + "press one to take its shape"), list),
        make("div", {}, ...sliders.map(([, slider]) => slider.node), map.node, facts)), voice.node);
    show();
  },
};
