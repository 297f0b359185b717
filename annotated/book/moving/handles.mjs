// handles: dots of a drawing that can be dragged.

/** set([{ place: [x, y], color, move([x, y]) }]) draws the dots on top of the svg,
 *  in its units; touch says what a finger still does there (touch-action). */
export function on({ draw }, svg, touch) {
  let handles = [];
  svg.style.touchAction = touch; // on the svg: on a dot a browser scrolls all the same
  const under = (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button) return; // the menu that opens would swallow the release
    const [x, y] = under(event), far = ([a, b]) => Math.hypot(a - x, b - y);
    const near = handles.reduce((best, { place }, i) => (far(place) < far(handles[best].place) ? i : best), 0);
    if (far(handles[near].place) > 24) return; // a finger's width
    svg.setPointerCapture(event.pointerId);
    svg.onpointermove = (to) => handles[near].move(under(to));
    event.preventDefault();
  });
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, () => { svg.onpointermove = null; });
  }
  return (list) => {
    handles = list;
    svg.append(...handles.map(({ place: [cx, cy], color }) => draw("circle", { cx, cy, r: 8,
      style: `fill:${color};stroke:var(--ground);stroke-width:2;cursor:grab` })));
  };
}
