"""Words of the glossary, and works, that explain themselves in place.

At its first use on a story page a word of A1 is a button with a popover
of the browser's own, and so is each citation: the keyboard opens and closes
them, and they need no script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from press.chapters import Chapter
from press.formulas import mathml, plain
from press.references import Work
from press.words import as_html, rows

# words of the glossary that prose needs in their everyday sense, too
EVERYDAY = {
    "base", "big", "job", "key", "memory", "plan", "rank", "score",
    "signature", "stack", "step", "sweep", "value", "variation", "window",
}  # fmt: skip
NOT_OURS = "(?<!your )"  # a reader has a head, too
FOLDED = {"solution", "exercise", "predict"}
CITED = re.compile(r"(?:^|/)references\.html#(.+)$")


# --- what the press knows -------------------------------------------------


def terms(glossary: Chapter) -> dict[str, dict[str, str]]:
    """The words of A1, with what they mean and where they stand."""
    found: dict[str, dict[str, str]] = {}
    text = "\n\n".join(
        c.source for c in glossary.cells if c.kind == "markdown"
    )
    for target, cells in rows(text):
        for word in _forms(cells[0]):
            if word not in EVERYDAY:
                found[word] = {
                    "html": f"<b>{word}</b>: {as_html(cells[-1])}",
                    "link": f"{glossary.name}.html#{target}",
                }
    return found


def _forms(word: str) -> list[str]:
    """`byte pairs (BPE)` is two names for one thing."""
    parts = re.split(r", | \(|\)", word)
    return [] if "[" in word else [p for p in parts if len(p) > 2]


def works(entries: list[Work]) -> dict[str, str]:
    """The references, each as HTML."""
    found = {}
    for work in entries:
        text = html.escape(work.text, quote=False)
        text = re.sub(
            r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((https?://[^)\s]+)\)",
            r'<a href="\2">\1</a>',
            text,
        )
        found[work.key] = text
    return found


# --- on the pages ---------------------------------------------------------


class Notes(SphinxPostTransform):
    """Buttons for words and citations, and their popovers at the end."""

    default_priority = 202  # after Names
    formats = ("html",)

    def run(self, **options: Any) -> None:
        known = getattr(self.env, "annotated_notes", {})
        if not re.match(r"\d\d-", self.env.docname) or not known:
            return
        self.places: dict[str, str] = {}
        self._cite(known.get("works", {}))
        self._explain(known.get("terms", {}))
        if self.places:
            notes = "\n".join(self.places.values())
            self.document += nodes.raw("", notes, format="html")

    def _cite(self, works: dict[str, str]) -> None:
        for link in list(self.document.findall(nodes.reference)):
            found = CITED.search(link.get("refuri", ""))
            if found is None or found[1] not in works:
                continue
            if _is_apart(link.parent):
                continue
            name = f"work-{found[1]}"
            text = (
                f"{works[found[1]]} {_more(link['refuri'], 'References')}"
            )
            link.replace_self(self._button(name, link.astext(), text))

    def _explain(self, terms: dict[str, dict[str, str]]) -> None:
        """The first use of each word, in the order of the page."""
        if not terms:
            return
        wanted = dict(terms)
        words = sorted(terms, key=lambda word: (-len(word), word))
        names = "|".join(map(re.escape, words))
        self.pattern = re.compile(
            rf"(?<![\w-]){NOT_OURS}({names})(s?)(?![\w-])"
        )
        for text in list(self.document.findall(nodes.Text)):
            if not isinstance(text.parent, nodes.paragraph):
                continue
            if _is_apart(text.parent):
                continue
            parts = list(self._parts(str(text), wanted))
            if len(parts) > 1:
                text.parent.replace(text, parts)

    def _parts(
        self, text: str, wanted: dict[str, dict[str, str]]
    ) -> Iterator[nodes.Node]:
        """A text with a button for each word that has not been met."""
        done = 0
        for found in self.pattern.finditer(text):
            row = wanted.pop(found[1], None)
            if row is None:
                continue
            slug = re.sub(r"\W+", "-", found[1].lower())
            shown = f"{row['html']}. {_more(row['link'], 'Glossary')}"
            yield nodes.Text(text[done : found.start()])
            yield self._button(f"word-{slug}", found[0], shown)
            done = found.end()
        yield nodes.Text(text[done:])

    def _button(self, name: str, shown: str, text: str) -> nodes.raw:
        name = f"note-{name}"
        kind = name.split("-")[1]
        text = re.sub(
            r"\$([^$]+)\$",
            lambda tex: plain(mathml(html.unescape(tex[1]))),
            text,
        )
        self.places[name] = (
            f'<div popover class="note" id="{name}">{text}</div>'
        )
        return nodes.raw(
            "",
            f'<button type="button" class="note-of {kind}" '
            f'popovertarget="{name}">{html.escape(shown)}</button>',
            format="html",
        )


def _more(link: str, where: str) -> str:
    return f'<a class="more" href="{html.escape(link)}">{where}</a>'


def _is_apart(node: nodes.Node) -> bool:
    """Whether a text is folded, in an exercise, a heading or a link."""
    while node is not None:
        if isinstance(
            node,
            nodes.reference | nodes.title | nodes.caption | nodes.raw
            | addnodes.desc,
        ):  # fmt: skip
            return True
        if type(node).__name__ in {"fold", "summary"}:
            return True
        own = isinstance(node, nodes.Element) and node.get("classes", [])
        if own and FOLDED & set(own):
            return True
        node = node.parent
    return False
