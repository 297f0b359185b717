"""What Sphinx sets otherwise for an e-reader, which runs no scripts.

press.epub loads this as an extension, beside press.pages: figures stand
still, and nothing asks to be typed or clicked but what folds.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from press.pages import fold

# the style of a table of pandas, which is no XML
STYLE = re.compile(r"<style scoped>.*?</style>", re.S)
# raw HTML of a page that means nothing without the site or a script
NEEDLESS = re.compile(r'class="(?:guesses|poster|chapter-facts)"')


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


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(Quiet)
    app.add_post_transform(Alone)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
