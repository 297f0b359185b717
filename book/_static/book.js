// What is marked `:class: dropdown`, solutions and hints, opens on a click.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("div.admonition.dropdown")) {
    const title = box.querySelector(":scope > .admonition-title");
    const folded = document.createElement("details");
    const summary = document.createElement("summary");
    summary.className = "admonition-title";
    if (box.classList.contains("solution")) summary.append("Solution");
    else summary.append(...(title ? title.childNodes : ["More"]));
    title?.remove();
    folded.append(summary, ...box.childNodes);
    box.append(folded);
  }
});
