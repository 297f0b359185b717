// batches: pairs of sentences put into batches in four ways, the rectangles
// of a batch, and what padding wastes on both sides.
// A pair is [source, target], in tokens with the EOS of each.
// needs: chart

const sum = (list) => list.reduce((a, b) => a + b, 0);
const by = (key) => (a, b) => key(a) - key(b);

/** Pairs in an order, cut where one side would have more than tokens. */
export function cut(pairs, tokens) {
  const batches = [];
  let filled = [0, 0];
  for (const pair of pairs) {
    filled = filled.map((all, side) => all + pair[side]);
    if (!batches.length || Math.max(...filled) > tokens) {
      batches.push([]);
      filled = pair;
    }
    batches[batches.length - 1].push(pair);
  }
  return batches;
}

const byTarget = (pairs) => [...pairs].sort((a, b) => a[1] - b[1] || a[0] - b[0]);

/** Bands of similar target length, in each by source, up and then down. */
function cells(pairs, tokens) {
  const [src, tgt] = [0, 1].map((side) => sum(pairs.map((pair) => pair[side])));
  const bands = Math.ceil(2 * Math.sqrt(Math.max(src, tgt) / tokens));
  let before = 0;
  const placed = byTarget(pairs).map((pair) => {
    before += pair[1];
    const band = Math.floor(before * bands / (tgt + 1));
    return { pair, band, up: band % 2 ? pair[0] : -pair[0] };
  });
  placed.sort((a, b) => a.band - b.band || a.up - b.up);
  return cut(placed.map(({ pair }) => pair), tokens);
}

/** A bucket for each length of the longer side, 10 % apart. */
function buckets(pairs, tokens) {
  const edges = [8], batches = [];
  for (let edge = 8; edge < 256;) edges.push(edge = Math.max(edge + 1, Math.floor(edge * 1.1)));
  edges.forEach((edge, i) => {
    const here = pairs.filter((pair) => {
      const longer = Math.max(...pair);
      return longer <= edge && longer > (edges[i - 1] ?? 0);
    });
    const size = Math.max(1, Math.floor(tokens / edge));
    for (let at = 0; at < here.length; at += size) batches.push(here.slice(at, at + size));
  });
  return batches;
}

export const PLANS = {
  "at random": cut,
  "by target": (pairs, tokens) => cut(byTarget(pairs), tokens),
  plan_batches: cells,
  buckets,
};

/** The shares of places and of scores on a side that are wasted. */
export function waste(batches, side) {
  const power = (n) => sum(batches.flat().map((pair) => pair[side] ** n));
  const full = (n) => sum(batches.map((batch) =>
    batch.length * Math.max(...batch.map((pair) => pair[side])) ** n));
  return [1, 2].map((n) => 1 - power(n) / full(n));
}

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit;
    const source = model.get("source"), pairs = source.map((n, i) => [n, model.get("target")[i]]);
    const sizes = model.get("sizes"), reach = model.get("reach"), names = Object.keys(PLANS);
    let order = names.includes(model.asked.order) ? model.asked.order : names[0];
    let place = Math.max(0, sizes.indexOf(Number(model.asked.tokens ?? model.get("tokens"))));
    let batches, which = 0, touched = false;

    const choose = kit.choice({ label: "Order", value: order, options: names.map((name) => [name, name]),
      onchange: (to) => { order = to; plan(); } });
    const tokens = kit.range({ label: "tokens per batch", min: 0, max: sizes.length - 1, value: place,
      format: (i) => sizes[i].toLocaleString("en"), oninput: (to) => { place = to; plan(); } });
    const pick = make("div", { class: "fx-row" });
    const plane = make("div"), rows = make("div"), voice = kit.voice();
    const bars = kit.chart.bars(kit, "Wasted on padding");
    const percent = (x) => `${(100 * x).toFixed(1)} %`;

    const act = (to) => { place = to; tokens.set(to); plan(); };
    const facts = () => ({ share: waste(batches, 0)[0], steps: batches.length });

    function plan() {
      touched = Boolean(batches);
      batches = PLANS[order](pairs, sizes[place]).sort(by((batch) =>
        sum(batch.map((pair) => pair[1])) / batch.length));
      which = Math.floor(batches.length / 2);
      pick.replaceChildren(kit.range({ label: "look at batch", min: 1, max: batches.length,
        value: which + 1, oninput: (to) => { which = to - 1; look(); } }).node);
      look();
      const shares = [0, 1].map((side) => waste(batches, side));
      bars.set([0, 1].flatMap((power) => ["source", "target"].map((name, side) =>
        [`${["places", "scores"][power]}, ${name}`, shares[side][power], percent(shares[side][power]),
          ...(power ? ["var(--accent)"] : [])])));
      const how = { "at random": order, "by target": "sorted by target" }[order] ?? `by ${order}`;
      voice.say(`${pairs.length.toLocaleString("en")} pairs ${how}, ${
        sizes[place].toLocaleString("en")} tokens per batch: ${batches.length} steps per epoch, and padding `
        + `is ${percent(shares[0][0])} of the source's places and ${percent(shares[1][0])} of the `
        + "target's.");
      if (touched) model.keep({ order, tokens: sizes[place] });
    }

    /** One batch: its pairs in the plane, and its two rectangles. */
    function look() {
      const [left, top, size] = [34, 22, 230], to = (n) => n / reach * size;
      const dots = (list) => list.filter((pair) => Math.max(...pair) <= reach).map(([s, t]) =>
        `M${(left + to(s)).toFixed(1)} ${(top + size - to(t)).toFixed(1)}h0`).join("");
      const inks = ["--data", "--good", "--soft"];
      const group = (ink) => dots(batches.filter((_, i) => i % 3 === ink && i !== which).flat());
      const style = (ink, width, more) => `fill:none;stroke:var(${ink});stroke-width:${width};`
        + `stroke-linecap:round;${more}`;
      const axis = kit.chart.ticks(reach);
      plane.replaceChildren(draw("svg", { viewBox: `0 0 ${left + size + 10} ${top + size + 36}`,
        role: "img", style: "max-width:21rem", "aria-label":
        `All pairs up to ${reach} tokens by their two lengths; those of batch ${which + 1} stand out` },
      draw("text", { x: 0, y: 12 }, "target tokens"),
      draw("text", { x: left + size / 2, y: top + size + 34, "text-anchor": "middle" }, "source tokens"),
      ...axis.flatMap(([n, text]) => [
        draw("text", { x: left + to(n), y: top + size + 17, "text-anchor": "middle" }, text),
        draw("text", { x: left - 6, y: top + size - to(n) + 4, "text-anchor": "end" }, text)]),
      draw("path", { d: `M${left} ${top}v${size}h${size}`, style: "fill:none;stroke:var(--line)" }),
      ...inks.map((ink, i) => draw("path", { d: group(i), style: style(ink, 2.4, "opacity:.55") })),
      draw("path", { d: dots(batches[which]), style: style("--accent", 5, "") })));

      const batch = batches[which], wide = [0, 1].map((side) => Math.max(...batch.map((p) => p[side])));
      const unit = 300 / Math.max(sum(wide), 60), high = 150 / batch.length;
      let from = 0;
      const boxes = wide.flatMap((n, side) => {
        const box = draw("rect", { x: from, y: 18, width: n * unit, height: 150,
          style: "fill:var(--cell);stroke:var(--soft)" });
        const bar = draw("path", { style: "fill:var(--data)", d: batch.map((pair, i) =>
          `M${from.toFixed(1)} ${(18 + i * high).toFixed(2)}h${(pair[side] * unit).toFixed(1)}v${
            (high * (batch.length > 40 ? 1 : 0.85)).toFixed(2)}H${from.toFixed(1)}z`).join("") });
        const name = draw("text", { x: from, y: 12 }, ["source", "target"][side]);
        from += n * unit + 16;
        return [box, bar, name];
      });
      const real = [0, 1].map((side) => sum(batch.map((pair) => pair[side])));
      const told = `Batch ${which + 1} of ${batches.length}, by length: ${batch.length} `
        + `pair${batch.length > 1 ? "s" : ""}. ${["Source", "Target"].map((name, side) =>
          `${name}: ${real[side].toLocaleString("en")} tokens in `
          + `${(wide[side] * batch.length).toLocaleString("en")} places`).join(". ")}.`;
      rows.replaceChildren(draw("svg", { viewBox: "0 0 320 172", role: "img", style: "max-width:28rem",
        "aria-label": `The two rectangles of batch ${which + 1}` }, ...boxes),
      make("p", { class: "fx-soft" }, told));
    }

    el.append(
      kit.guess({ voice, question: "The batches get smaller, in the same order. Does padding’s share of the "
        + "source’s places grow or shrink?", options: [["it grows", 1], ["it shrinks", -1], ["it stays", 0]],
      act: "Now make the batches half as large, or smaller.",
      begin: () => {
        if (!place) act(sizes.length - 1);
        return { order, size: sizes[place], ...facts() };
      },
      seen: (was) => {
        if (order !== was.order || sizes[place] > was.size / 2) return null;
        const now = facts(), change = now.share - was.share;
        return [Math.abs(change) < 0.0005 ? 0 : Math.sign(change), `From ${was.size.toLocaleString("en")} to `
          + `${sizes[place].toLocaleString("en")} tokens per batch it went from ${percent(was.share)} to `
          + `${percent(now.share)}. Fewer pairs share a batch, and there are ${now.steps} steps instead of ${was.steps}.`];
      },
      tell: () => act(Math.max(0, sizes.findLastIndex((size) => size <= sizes[place] / 2))) }).node,
      choose.node, make("div", { class: "fx-row" }, tokens.node), pick,
      make("div", { class: "fx-cols" }, plane, make("div", {}, rows,
        make("p", { class: "fx-soft" }, "Wasted on padding, over all batches:"), bars.node)), voice.node);
    plan();
  },
};
