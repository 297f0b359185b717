// ring: an all-reduce among devices in a ring, round by round, and how long it takes.
// needs: chart

/** The chunk that a device sends in a round, the first being round 0. */
export const sends = (n, device, round) => (((device - round) % n) + n) % n;

/** How many gradients are in each chunk of each device after so many rounds. */
export function counts(n, rounds) {
  const state = Array.from({ length: n }, () => Array(n).fill(1));
  for (let round = 0; round < rounds; round++) {
    const sent = state.map((row, device) => row[sends(n, device, round)]);
    sent.forEach((count, device) => {
      const next = (device + 1) % n, chunk = sends(n, device, round);
      state[next][chunk] = round < n - 1 ? count + state[next][chunk] : count;
    });
  }
  return state;
}

/** GB that each device sends, and seconds of an exchange over links of GB/s. */
export const sent = (n, size, rounds = 2 * (n - 1)) => rounds / n * size;
export const seconds = (n, size, link, rounds) => sent(n, size, rounds) / link;

/** How many times as fast as one device n of them are, if nothing overlaps. */
export const gain = (n, size, link, alone) => alone / (alone / n + seconds(n, size, link));

const digits = (x, most) => (x < 10 ** most - 0.5 ? x.toPrecision(most) : String(Math.round(x)));

/** Seconds as one says them. */
export const say = (s) => (s === 0 ? "0 ms" : s < 9.995e-4 ? `${digits(1e6 * s, 2)} µs` : s < 0.9995
  ? `${digits(1e3 * s, 2)} ms` : `${digits(s, 3)} s`);

const LINKS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 450];
const SIZES = [0.02, 0.05, 0.1, 0.26, 0.5, 0.85, 2, 5, 14, 28];
const MOST = 8, NAMES = "abcdefgh";

export default {
  render({ model, el, kit }) {
    const { make, draw } = kit, alone = model.get("alone"), asked = model.asked;
    const of = (list, x, otherwise) => (list.includes(Number(x)) ? Number(x) : otherwise);
    const DEVICES = [2, 3, 4, 5, 6, 7, 8];
    const at = { n: of(DEVICES, asked.n, 4), link: of(LINKS, asked.link, 2), size: of(SIZES, asked.size, 0.26),
      kind: Object.hasOwn(alone, asked.kind) ? asked.kind : Object.keys(alone)[0] };
    let round = Math.min(2 * at.n - 2, Math.max(0, Math.round(Number(asked.round ?? 0)) || 0)), touched = false;
    let map = null, last = [];

    const gb = (x) => (x < 1 ? `${Math.round(1000 * x)} MB` : `${x.toPrecision(3)} GB`);
    const act = (to) => {
      if (to.n && to.n !== at.n) round = 0;
      Object.assign(at, to);
      touched = true;
      set();
    };
    const n = kit.range({ label: "devices", min: 2, max: MOST, value: at.n, oninput: (x) => act({ n: x }) });
    const link = kit.range({ label: "each link", min: 0, max: LINKS.length - 1, value: LINKS.indexOf(at.link),
      format: (i) => `${LINKS[i]} GB/s`, oninput: (i) => act({ link: LINKS[i] }) });
    const size = kit.range({ label: "gradient", min: 0, max: SIZES.length - 1, value: SIZES.indexOf(at.size),
      format: (i) => gb(SIZES[i]), oninput: (i) => act({ size: SIZES[i] }) });
    const kind = kit.choice({ label: "Each device a", value: at.kind, options: Object.keys(alone).map((x) => [x, x]),
      onchange: (x) => act({ kind: x }) });
    const go = (to) => { round = to; touched = true; show(); };
    const next = kit.button("Next round", () => go(round + 1));
    const end = kit.button("To the end", () => go(2 * at.n - 2));
    const again = kit.button("Start over", () => go(0));
    const wheel = draw("svg", { viewBox: "0 0 380 300", role: "img", style: "max-width:28rem" });
    const place = make("div"), bars = kit.chart.bars(kit, "How long it takes"), voice = kit.voice();

    function set() {
      n.set(at.n);
      link.set(LINKS.indexOf(at.link));
      size.set(SIZES.indexOf(at.size));
      kind.set(at.kind);
      map = null;
      show();
    }

    /** Each device as a strip of chunks; an arrow has the chunk that it has just carried. */
    function turn(state) {
      const cell = Math.min(18, 76 / at.n), wide = cell * at.n;
      const spot = (i) => {
        const angle = 2 * Math.PI * i / at.n - Math.PI / 2;
        return [190 + 140 * Math.cos(angle), 152 + 112 * Math.sin(angle)];
      };
      const devices = state.map((row, i) => {
        const [x, y] = spot(i), got = round ? sends(at.n, (i + at.n - 1) % at.n, round - 1) : -1;
        const box = (j, style) => draw("rect", { x: x - wide / 2 + j * cell, y: y - 11, width: cell, height: 22, style });
        return draw("g", {}, ...row.map((count, j) => box(j, "stroke:var(--ground);fill:color-mix(in srgb,"
          + `var(--data) ${Math.round(90 * count / at.n)}%,var(--cell))`)),
        got < 0 ? "" : box(got, "fill:none;stroke:var(--accent);stroke-width:2.5"),
        draw("text", { x, y: y + 26, "text-anchor": "middle", style: "fill:var(--soft)" }, `rank ${i}`));
      });
      const arrows = state.map((_, i) => {
        const [[x0, y0], [x1, y1]] = [spot(i), spot((i + 1) % at.n)], part = (t) => [x0 + t * (x1 - x0), y0 + t * (y1 - y0)];
        const [[ax, ay], [bx, by], [mx, my]] = [part(0.34), part(0.66), part(0.5)], long = Math.hypot(x1 - x0, y1 - y0);
        const [ux, uy] = [(x1 - x0) / long, (y1 - y0) / long], side = at.n === 2 ? 12 : 0; // two arrows on one line
        const shift = `translate(${-uy * side},${ux * side})`;
        return draw("g", { transform: shift },
          draw("path", { d: `M${ax} ${ay}L${bx} ${by}M${bx - 6 * ux - 4 * uy} ${by - 6 * uy + 4 * ux}L${bx} ${by}`
            + `L${bx - 6 * ux + 4 * uy} ${by - 6 * uy - 4 * ux}`,
          style: `fill:none;stroke-width:1.5;stroke:var(${round ? "--accent" : "--soft"})` }),
          round ? draw("text", { x: mx + uy * 11, y: my - ux * 11 + 4, "text-anchor": "middle" },
            NAMES[sends(at.n, i, round - 1)]) : "");
      });
      wheel.replaceChildren(...arrows, ...devices);
      wheel.setAttribute("aria-label", `${at.n} devices in a ring, each with ${at.n} chunks; the table has their contents`);
    }

    const facts = () => ({ n: at.n, time: seconds(at.n, at.size, at.link), each: sent(at.n, at.size) });
    function show() {
      const rounds = 2 * at.n - 2, state = counts(at.n, round);
      map ??= kit.grid({ label: "Gradients in each chunk, by device", size: at.n > 6 ? "1.6rem" : "",
        rows: state.map((_, i) => `rank ${i}`), columns: [...NAMES.slice(0, at.n)],
        tell: (i, j) => `${last[i][j]} ${last[i][j] === 1 ? "gradient" : "gradients"} in chunk ${NAMES[j]} of rank ${i}${
          last[i][j] === at.n ? ", which is complete" : ""}.`,
        text: (part) => String(Math.round(part * at.n)) });
      last = state;
      map.set(state.map((row) => row.map((count) => count / at.n)),
        round ? state.map((_, i) => [(i + 1) % at.n, sends(at.n, i, round - 1)]) : []);
      if (place.firstChild !== map.node) place.replaceChildren(map.node);
      turn(state);
      next.disabled = end.disabled = round === rounds;
      again.disabled = round === 0;
      const { time, each } = facts(), computing = alone[at.kind] / at.n, one = 2 * (at.n - 1) * at.size / at.link;
      const most = Math.max(one, computing, time);
      bars.set([["the ring", time / most, say(time)], ["all by way of rank 0", one / most, say(one), "var(--soft)"],
        ["computing", computing / most, say(computing), "var(--accent)"]]);
      const whole = state.flat().filter((count) => count === at.n).length;
      voice.say(`After ${round} of ${rounds} rounds ${whole} of ${at.n * at.n} chunks are complete; each device has sent ${
        gb(sent(at.n, at.size, round))} of ${gb(each)}, in ${say(seconds(at.n, at.size, at.link, round))} of ${say(time)}. `
        + `If nothing overlaps, ${at.n} ${at.kind}s are ${gain(at.n, at.size, at.link, alone[at.kind]).toFixed(1)} times as `
        + "fast as one.");
      if (touched) model.keep({ ...at, round });
    }

    const first = { n: 4, link: 2, size: 0.26 }, second = 8;
    el.append(
      kit.guess({ voice, question: `Four devices exchange the gradients of the base model, ${gb(first.size)}, in `
        + `${say(seconds(4, first.size, first.link))}, over links of ${first.link} GB/s. How long do eight take?`,
      options: [["half as long", "half"], ["about as long", "same"], ["twice as long", "twice"]],
      act: "Now make the ring one of eight, and let it run to the end.",
      begin() { round = 0; act(first); return facts(); },
      seen(was) {
        if (at.n !== second || round < 2 * at.n - 2 || at.link !== first.link || at.size !== first.size) return null;
        const now = facts(), times = now.time / was.time;
        return [times < 0.75 ? "half" : times < 1.5 ? "same" : "twice", `From ${say(was.time)} in ${2 * was.n - 2} rounds `
          + `it went to ${say(now.time)} in ${2 * now.n - 2}: there are more rounds, but a round carries an eighth of the `
          + `gradient instead of a quarter. Each device sent ${gb(was.each)}, now ${gb(now.each)}; it is never two gradients.`];
      },
      tell() { act({ ...first, n: second }); go(2 * second - 2); } }).node,
      make("div", { class: "fx-row" }, next, end, again),
      make("div", { class: "fx-cols" }, wheel, place),
      make("div", { class: "fx-cols" }, make("div", {}, n.node, link.node, size.node, kind.node),
        make("div", {}, make("p", { class: "fx-soft" }, "Time of an exchange, and of computing a step:"), bars.node)),
      voice.node);
    show();
  },
};
