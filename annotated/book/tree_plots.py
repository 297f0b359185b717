"""Exported from the book; edit the chapter, then run `make export`."""

import itertools
from collections.abc import Collection
from typing import Any

from matplotlib.axes import Axes

from annotated.book.colors import colors
from annotated.engine.parsing import levels
from annotated.parsing import SKIPPED, bare
from annotated.pocket.trees import Tree

__all__ = ["plot_tree"]


# E18-treebanks.md: A tree on paper
def plot_tree(
    tree: Tree,
    ax: Axes,
    marked: Collection[tuple[str, int, int]] = (),
) -> None:
    """Draw a tree over its words, highlighting the constituents whose
    brackets (see parsing.brackets) are in marked.
    """
    columns, floor = itertools.count(), -levels(tree)
    paint = colors()
    look: dict[str, Any] = {"ha": "center", "va": "center", "size": 8}
    box = {"facecolor": paint["ground"], "edgecolor": "none", "pad": 1.2}

    def draw(part: Tree, start: int, y: int) -> tuple[float, int]:
        if not part.children:
            x: float = next(columns)
            ax.plot([x, x], [y, floor], ":", color=paint["soft"], lw=0.8)
            ax.text(x, y, part.label, bbox=box, **look | {"size": 7.5})
            word = look | {"va": "top", "rotation": 90}
            ax.text(x, floor - 0.1, part.word, **word)
            return x, start + (part.label not in SKIPPED)
        below: list[float] = []
        end = start
        for child in part.children:
            at, end = draw(child, end, y - 1)
            below.append(at)
        x = (below[0] + below[-1]) / 2
        wrong = (bare(part.label), start, end) in marked
        color = paint["accent" if wrong else "data"]
        for at in below:
            line = [x, at], [y, y - 1]
            ax.plot(*line, color=color, lw=1 + wrong, zorder=1)
        weight = "bold" if wrong else "normal"
        ax.text(
            x, y, part.label, bbox=box, color=color, weight=weight, **look
        )
        return x, end

    draw(tree, 0, 0)
    ax.set(xlim=(-0.6, next(columns) - 0.4), ylim=(floor - 2.2, 0.4))
    ax.axis("off")
