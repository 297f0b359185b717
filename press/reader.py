"""What Sphinx sets otherwise for an e-reader, which runs no scripts.

press.epub loads this as an extension, beside press.pages: formulas are
MathML, figures stand still, and nothing asks to be typed or clicked but
what folds.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from press.pages import fold

# what docutils does not know, in words that it does
SAME = [
    (re.compile(r"\\dots(?![a-z])"), r"\\ldots "),
    (re.compile(r"\\Big(?![a-z])"), r"\\Bigl"),
    (re.compile(r"\\(t?frac)(\w)(\w)"), r"\\\1{\2}{\3}"),
]
# what MathML 3, which EPUB has, allows elsewhere only
SIZES = re.compile(r' (?:displaystyle|scriptlevel)="[^"]*"')
# XML has five, of which a formula needs three
ENTITY = re.compile(r"&(?!lt;|gt;|amp;)\w+;")
# the style of a table of pandas, which is no XML
STYLE = re.compile(r"<style scoped>.*?</style>", re.S)
# raw HTML of a page that means nothing without the site or a script
NEEDLESS = re.compile(r'class="(?:guesses|poster|chapter-facts)"')

log = logging.getLogger(__name__)


def mathml(tex: str, block: bool = False) -> str:
    """A formula as MathML; MathError for what docutils does not know."""
    for pattern, other in SAME:
        tex = pattern.sub(other, tex)
    text: str = tex2mathml(tex, as_block=block)
    text = SIZES.sub("", text)
    return ENTITY.sub(lambda match: html.unescape(match[0]), text)


class Quiet(SphinxPostTransform):
    """Figures stand still, and what needs a script is left out."""

    default_priority = 197  # before press.pages folds
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for cell in self.document.findall(nodes.container):
            for key in ("moves", "poster"):
                cell.get("cell_metadata", {}).pop(key, None)
        for raw in list(self.document.findall(nodes.raw)):
            text = STYLE.sub("", raw.astext())
            if NEEDLESS.search(text):
                raw.parent.remove(raw)
            elif text != raw.astext():
                raw.replace_self(nodes.raw("", text, format="html"))


class Alone(SphinxPostTransform):
    """Folds do not close each other: readers do not know `name` yet."""

    default_priority = 203
    formats = ("html",)

    def run(self, **options: Any) -> None:
        for one in self.document.findall(fold):
            one.attributes.pop("group", None)


def _set(self: Any, node: nodes.Element, block: bool) -> None:
    try:
        text = mathml(node.astext(), block)
    except MathError as error:
        log.warning(f"a formula: {error}", location=node)
        text = f"<code>{html.escape(node.astext())}</code>"
    self.body.append(f"<div class='math'>{text}</div>" if block else text)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _set(self, node, False), None),
        (lambda self, node: _set(self, node, True), None),
    )
    app.add_post_transform(Quiet)
    app.add_post_transform(Alone)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
