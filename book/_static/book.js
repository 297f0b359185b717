// Everything on the pages works without this: it adds comfort only.

// ← and → turn the pages, where nothing else wants the key.
document.addEventListener("keydown", (event) => {
  const side = { ArrowLeft: "a.left-prev", ArrowRight: "a.right-next" }[event.key];
  if (!side || event.defaultPrevented) return;
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const at = document.activeElement;
  const moves = "input, select, textarea, [contenteditable], [role], [tabindex], dialog *";
  if (at && at !== document.body && at.closest(moves)) return;
  document.querySelector(side)?.click();
});

// What scrolls sideways can be reached with the keyboard.
const WIDE =
  ".bd-article :is(pre, .math, mjx-container, .cell_output, figure, .text_html, .pst-scrollable-table-container)";
const reach = () => {
  for (const box of document.querySelectorAll(WIDE)) {
    const scrolls = /auto|scroll/.test(getComputedStyle(box).overflowX);
    if (scrolls && box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
};
window.addEventListener("load", () => {
  reach();
  window.MathJax?.startup?.promise?.then(reach);
});
window.addEventListener("resize", reach);
document.addEventListener("toggle", reach, true);

// What the search has found is in view, even where it is folded: Sphinx has
// marked the words a moment after the page was read.
window.addEventListener("load", () => setTimeout(() => {
  const heading = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const section = heading?.closest("section") ?? document.querySelector(".bd-article");
  const marks = [...(section?.querySelectorAll("span.highlighted") ?? [])];
  const mark = marks.find((one) => one.getClientRects().length) ?? marks[0];
  if (!mark) return;
  let fold = mark.closest("details");
  for (; fold; fold = fold.parentElement.closest("details")) fold.open = true;
  const { top, bottom } = mark.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) mark.scrollIntoView({ block: "center" });
}, 50));

// On paper everything is open.
window.addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll(".bd-article details")) fold.open = true;
});
