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
  ".bd-article :is(pre, .math, .cell_output, figure, .strip, .poster, .text_html, .pst-scrollable-table-container)";
const reach = () => {
  for (const box of document.querySelectorAll(WIDE)) {
    const scrolls = /auto|scroll/.test(getComputedStyle(box).overflowX);
    const wide = scrolls && box.scrollWidth > box.clientWidth + 1;
    if (wide) box.tabIndex = 0;
    if (wide && !box.hasAttribute("data-wide") && box.querySelector("img, svg:not(.fx svg)")) {
      box.addEventListener("scroll", () => more(box), { passive: true });
    }
    box.toggleAttribute("data-wide", Boolean(wide && box.querySelector("img, svg:not(.fx svg)")));
    more(box);
  }
};
// a still that is wider than its box fades where there is more of it
const more = (box) => {
  const left = box.scrollWidth - box.clientWidth - box.scrollLeft;
  box.classList.toggle("more", box.hasAttribute("data-wide") && left > 2);
};
window.addEventListener("load", reach);
window.addEventListener("resize", reach);
document.addEventListener("toggle", reach, true);

// A figure reads the address once: a state of it that is put there later begins the
// page anew. Who goes back to where they have been finds the figure as they left it.
history.replaceState("been", "");
window.addEventListener("hashchange", () => {
  const [, name] = /^#(\w+)(?::|%3A)/i.exec(location.hash) ?? [];
  if (history.state !== "been" && name && document.querySelector(`.moves-${name}`)) location.reload();
  history.replaceState("been", "");
});

// The theme keeps the sidebar where it was on the page before. This page's own
// name is in view, also where its part has just been unfolded.
window.addEventListener("load", () => {
  const bar = document.querySelector(".bd-sidebar-primary");
  const here = bar?.querySelector("nav .current > a");
  if (!here?.getClientRects().length) return;
  const { top, bottom } = here.getBoundingClientRect();
  const frame = bar.getBoundingClientRect();
  if (top < frame.top || bottom > Math.min(frame.bottom, innerHeight)) {
    bar.scrollTop += top - frame.top - bar.clientHeight / 3;
  }
});

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

(() => {
  // On paper everything is open, choices that close each other too.
  const exclusive = new Map();
  const open = (folds) => {
    for (const fold of folds) {
      if (fold.name) exclusive.set(fold, fold.name);
      fold.removeAttribute("name");
      fold.open = true;
    }
  };
  const close = (folds) => {
    for (const fold of folds) {
      fold.open = false;
      if (exclusive.has(fold)) fold.setAttribute("name", exclusive.get(fold));
    }
  };
  // Code that is folded stays so; solutions stand at the end.
  const CODE = ".cell details.code";
  let undo = [];
  window.addEventListener("beforeprint", () => {
    const closed = [...document.querySelectorAll(".bd-article details:not([open])")];
    const folds = closed.filter((fold) => !fold.matches(CODE));
    open(folds);
    undo = [() => close(folds)];
    const solutions = document.querySelectorAll(".bd-article .solution");
    if (!solutions.length) return;
    const end = document.createElement("section");
    end.className = "printed-solutions";
    end.append(make("h2", "Solutions"));
    for (const solution of solutions) {
      const place = document.createComment("");
      solution.replaceWith(place);
      end.append(solution);
      undo.push(() => place.replaceWith(solution));
    }
    document.querySelector(".bd-article").append(end);
    undo.push(() => end.remove());
  });
  window.addEventListener("afterprint", () => {
    for (const step of undo) step();
    undo = [];
  });

  // --- predictions and progress: kept in this browser, and nowhere else ---

  const KEPT = "attention-annotated";
  const kept = () => {
    try {
      return JSON.parse(localStorage.getItem(KEPT)) ?? {};
    } catch {
      return {}; // none, or none that can be read
    }
  };
  const keep = (page, facts) => {
    const all = kept();
    all[page] = { ...all[page], ...facts };
    try {
      localStorage.setItem(KEPT, JSON.stringify(all));
    } catch {} // a browser that keeps nothing
  };
  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = className ?? "";
    return element;
  };
  const fileOf = (address) => new URL(address, location.href).pathname.split("/").pop() || "index.html";
  const PAGE = fileOf(location.href);
  const facts = document.querySelector(".bd-article .chapter-facts");

  // "1,050,624", "53 %", "-0.2", "0,125", "1.8e19", "10^3", "1/3": in per cent where that is asked for
  const numberOf = (text, percent, small) => {
    text = text.trim().replace(/\s/g, "").replaceAll("\u2212", "-").replace(/^(-?0),/, "$1.")
      .replace(/,(?=\d{3}(\D|$))/g, "").replace(",", ".");
    const signed = text.endsWith("%"), bare = text.replace("%", "");
    const power = bare.match(/^10\^(-?\d+)$/), parts = bare.match(/^(-?[\d.]+)\/([\d.]+)$/);
    const x = power ? 10 ** Number(power[1]) : parts ? parts[1] / parts[2] : bare ? Number(bare) : NaN;
    if (percent) return parts && !signed ? 100 * x : x;
    return signed && small ? x / 100 : x;
  };
  const judge = (form, said) => {
    const field = form.querySelector("input");
    const { low, high, shown } = field.dataset;
    const asked = form.querySelector("label span").textContent;
    const x = numberOf(said, /per cent|%/.test(asked), Math.abs(Number(high)) <= 2);
    const right = x >= Number(low) && x <= Number(high);
    let verdict = right ? `Right: you said ${said.trim()}, it is ${shown}.` : x < Number(low) ? "Too low." : "Too high.";
    if (Number.isNaN(x)) verdict = "Write a number.";
    form.classList.toggle("right", right);
    form.classList.toggle("wrong", !right && !Number.isNaN(x));
    form.querySelector(".verdict").textContent = verdict;
    return Number.isNaN(x) ? null : right;
  };
  const forms = [...document.querySelectorAll(".bd-article form.guess")];
  for (const box of document.querySelectorAll(".bd-article .guesses")) box.hidden = false;
  for (const form of forms) {
    const field = form.querySelector("input");
    const what = form.querySelector("label span").textContent;
    const before = kept()[PAGE]?.guesses?.[what];
    if (before) {
      field.value = before.said;
      judge(form, before.said);
    }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const right = judge(form, field.value);
      if (right === null) return;
      const guesses = { ...kept()[PAGE]?.guesses, [what]: { said: field.value, right } };
      keep(PAGE, { guesses });
    });
  }

  // where the page was saved by a browser, what stood there when it was
  for (const old of document.querySelectorAll(".tally")) old.remove();

  // of the choices of a question the first that was opened counts
  const boxes = [...document.querySelectorAll(".bd-article .choices")];
  const titleOf = (box) => box.closest(".admonition").querySelector(".admonition-title").textContent.trim();
  const firstOf = (box) => kept()[PAGE]?.guesses?.[titleOf(box)];
  const tallies = new Map(); // of a section with several: its questions, and what is said of them
  for (const box of boxes) {
    const section = box.closest("section");
    const known = tallies.get(section) ?? { own: [], line: make("p", "", "tally") };
    known.own.push(box);
    tallies.set(section, known);
    box.addEventListener("click", (event) => {
      const choice = event.target.closest("summary")?.parentElement;
      if (!choice || choice.open || firstOf(box) || kept()[PAGE]?.opened) return;
      const said = choice.querySelector("summary").textContent.replace("Choice: ", "").trim();
      const one = { said, right: choice.classList.contains("right") };
      keep(PAGE, { guesses: { ...kept()[PAGE]?.guesses, [titleOf(box)]: one } });
      tell(known);
    });
  }
  const tell = ({ own, line }) => {
    if (!line.firstChild) return; // a question alone in its section
    const answers = own.map(firstOf).filter(Boolean);
    const right = answers.filter((one) => one.right).length;
    line.firstChild.textContent = answers.length
      ? `${answers.length} of ${own.length} answered, ${right} right at the first choice. `
      : "";
    line.lastChild.hidden = !answers.length;
  };
  for (const known of tallies.values()) {
    const { own, line } = known;
    if (own.length < 2) continue;
    const again = make("button", "Once more", "book-quiet");
    again.type = "button";
    again.addEventListener("click", () => {
      const guesses = { ...kept()[PAGE]?.guesses };
      for (const box of own) {
        delete guesses[titleOf(box)];
        for (const choice of box.children) choice.open = false;
      }
      keep(PAGE, { guesses });
      tell(known);
      own[0].querySelector("summary").focus();
    });
    const words = make("span", "");
    words.setAttribute("role", "status");
    line.append(words, again);
    own.at(-1).closest(".admonition").after(line);
    tell(known);
  }

  if (facts) {
    keep(PAGE, { at: Date.now(), asked: forms.length + boxes.length });
    // a page is read when its foot has been in view
    const foot = document.querySelector(".prev-next-area");
    if (foot && "IntersectionObserver" in window) {
      new IntersectionObserver(([entry]) => entry.isIntersecting && keep(PAGE, { read: true })).observe(foot);
    }
    // for a second reading
    const answers = [...document.querySelectorAll(".bd-article :is(details.answer, .choices > details)")];
    const button = facts.querySelector(".control > button"); // there from the start: nothing moves
    if (button) {
      const show = (all) => {
        button.setAttribute("aria-pressed", String(all));
        (all ? open : close)(answers);
      };
      show(Boolean(kept()[PAGE]?.opened));
      button.addEventListener("click", () => {
        const all = button.getAttribute("aria-pressed") !== "true";
        show(all);
        keep(PAGE, { opened: all });
      });
    }
  }

  // the paper's own words, from a copy that the reader has put beside the pages
  const restated = document.querySelectorAll(".bd-article .admonition.paper");
  window.paperWords = (words) => {
    for (const card of restated) {
      const title = card.querySelector(".admonition-title");
      const own = words[title.textContent.trim().replace(/\s+/g, " ")];
      if (!own) continue;
      const ours = [...card.children].filter((part) => part !== title);
      const theirs = make("div", "", "paper-words");
      theirs.innerHTML = own;
      const button = make("button", "", "book-quiet");
      button.type = "button";
      const show = (paper) => {
        theirs.hidden = !paper;
        for (const part of ours) part.hidden = paper;
        button.textContent = paper ? "our words" : "the paper's words";
      };
      button.addEventListener("click", () => show(theirs.hidden));
      show(false);
      card.append(theirs, button);
    }
  };
  if (restated.length) {
    const script = make("script", "");
    script.src = new URL("paper.js", document.currentScript.src);
    document.head.append(script);
  }

  const OURS = ".read-mark, .read-mark + .visually-hidden, .progress-facts, .progress-link, .progress-line";
  const progress = () => {
    for (const old of document.querySelectorAll(OURS)) old.remove();
    const seen = kept();
    for (const link of document.querySelectorAll(".bd-sidebar-primary nav a.internal")) {
      if (!seen[fileOf(link.href)]?.read) continue;
      const mark = make("span", "✓", "read-mark");
      mark.setAttribute("aria-hidden", "true");
      link.append(mark, make("span", " (read)", "visually-hidden"));
    }
    const cards = [...document.querySelectorAll(".bd-article ul.cards a")];
    for (const card of cards) {
      const { read, guesses = {}, asked = 0 } = seen[fileOf(card.href)] ?? {};
      const right = Object.values(guesses).filter((one) => one.right).length;
      const parts = [read ? "read" : "", right ? `${right} of ${asked} predicted` : ""].filter(Boolean);
      if (parts.length) card.querySelector("small").append(make("span", ` · ${parts.join(" · ")}`, "progress-facts"));
    }
    // the page that was open last, or the first after it that has not been read
    const order = cards.map((card) => fileOf(card.href));
    const last = order.filter((name) => seen[name]?.at).sort((a, b) => seen[b].at - seen[a].at)[0];
    const start = document.querySelector(".hero-words .button");
    start?.classList.add("first");
    if (last && start) {
      const next = order.slice(order.indexOf(last)).find((name) => !seen[name]?.read);
      const card = cards[order.indexOf(next)];
      const line = make("p", "", "progress-line");
      if (card) {
        const link = make("a", `Continue with ${card.querySelector("b").textContent}`, "button first progress-link");
        link.href = card.getAttribute("href");
        start.classList.remove("first");
        start.before(link);
      }
      const count = order.filter((name) => seen[name]?.read).length;
      const forget = make("button", "Forget this", "book-quiet");
      forget.type = "button";
      forget.addEventListener("click", () => {
        localStorage.removeItem(KEPT);
        location.reload();
      });
      line.append(`You have read ${count} of ${order.length} chapters, as far as this browser knows. `, forget);
      start.closest("p").after(line);
    }
  };
  progress();
  // Back may show the page as it was left, and another has been read since
  window.addEventListener("pageshow", ({ persisted }) => persisted && progress());
})();

(() => {
  // The two long ledgers, of deviations and of the paper's parts, can be
  // searched and sorted. A third press on a heading puts a table back.
  if (!/\/A[34]-[\w-]+\.html$/.test(location.pathname)) return;
  const make = (name, text, more = {}) =>
    Object.assign(document.createElement(name), { textContent: text, ...more });
  const tables = [...document.querySelectorAll(".bd-article table")].filter((table) =>
    table.tHead && table.querySelectorAll("tbody tr").length > 5);
  if (!tables.length) return;
  // a unit is a row, or a body of rows where a table has several
  const all = tables.map((table) => {
    const bodies = [...table.tBodies];
    const units = bodies.length > 1 ? bodies : [...bodies[0].rows];
    return { table, units, parent: units[0].parentNode };
  });
  const heading = (unit) => unit.matches(".section");
  const rowsOf = (unit) => (unit.matches("tr") ? 1 : unit.rows.length);

  const field = make("input", "", { type: "search", placeholder: "a word, such as dropout" });
  const count = make("output", "");
  count.setAttribute("aria-live", "polite");
  const label = make("label", "Show the rows with ");
  label.append(field);
  const line = make("p", "", { className: "table-search" });
  line.append(label, " ", count);
  const find = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, whole = 0;
    for (const { table, units } of all) {
      let left = 0, section = null, filled = false;
      for (const unit of units) {
        if (heading(unit)) {
          if (section) section.hidden = !filled;
          [section, filled] = [unit, false];
          continue;
        }
        const text = unit.textContent.toLowerCase();
        unit.hidden = !words.every((word) => text.includes(word));
        whole += rowsOf(unit);
        if (unit.hidden) continue;
        [left, filled] = [left + rowsOf(unit), true];
      }
      if (section) section.hidden = !filled;
      (table.closest(".pst-scrollable-table-container") ?? table).classList.toggle("nothing-found", !left);
      shown += left;
    }
    count.textContent = words.length ? `${shown} of ${whole} rows` : `${whole} rows`;
  };
  field.addEventListener("input", find);
  (tables[0].closest(".pst-scrollable-table-container, .cell") ?? tables[0]).before(line);
  find();

  const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  // what has a sign is a number and comes before words: -0.7, -0.1, +1.3
  const signed = (text) => parseFloat(/^[+-][\d.]+/.exec(text.replace("−", "-"))?.[0]);
  const compare = (a, b) => {
    const [x, y] = [signed(a), signed(b)];
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || order.compare(a, b);
    return x - y;
  };
  for (const { table, units, parent } of all) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", head.textContent.trim(), { type: "button", className: "table-sort" });
      if (!button.textContent) return;
      const text = (unit) => {
        const row = unit.matches("tr") ? unit : unit.rows[0];
        return row.cells[column]?.textContent.trim() ?? "";
      };
      button.addEventListener("click", () => {
        const was = head.getAttribute("aria-sort");
        const now = { ascending: "descending", descending: null }[was] ?? "ascending";
        const to = was === "descending" ? null : now;
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        const sorted = to ? [...units].filter((unit) => !heading(unit))
          .sort((a, b) => compare(text(a), text(b)) * (to === "ascending" ? 1 : -1)) : units;
        if (to) head.setAttribute("aria-sort", to);
        // the headings of sections mean nothing in another order
        for (const unit of units) if (heading(unit)) unit.remove();
        parent.append(...sorted);
        find();
      });
      head.replaceChildren(button);
    });
  }
})();

{
  // The dialog of the search shows what is found as one types. What looks for
  // it is loaded when the dialog opens for the first time.
  const SCRIPTS = ["language_data.js", "sections.js", "asked.js", "index.js", "rank.js", "search.js"];
  const dialog = document.querySelector("dialog#pst-search-dialog");
  const field = dialog?.querySelector("input[type=search]");
  const here = document.currentScript.src;
  const search = () => {
    const place = document.createElement("div");
    place.className = "found";
    dialog.append(place);
    bookSearch(field, place, 8);
  };
  field?.addEventListener("focus", () => {
    if (document.getElementById("search-results")) return search(); // they are there
    const scripts = SCRIPTS.map((name) => {
      const script = document.createElement("script");
      script.src = new URL(name, here);
      script.async = false; // one after the other
      return script;
    });
    scripts.at(-1).onload = search;
    document.head.append(...scripts);
  }, { once: true });
}
