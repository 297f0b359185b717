"""annotated.engine.tree_plots.

Exported from the book; edit the chapter, then run `make export`.

- E18-treebanks.md: Treebanks
"""

import itertools
from collections.abc import Collection
from typing import Any

from matplotlib.axes import Axes

from annotated.parsing import SKIPPED, bare
from annotated.pocket.trees import Tree

__all__ = ["plot_tree"]


# E18-treebanks.md: A tree on paper
def plot_tree(
    tree: Tree,
    ax: Axes,
    marked: Collection[tuple[str, int, int]] = (),
) -> None:
    """Draw a tree over its words. Constituents whose bracket, as
    parsing.brackets has it, is among marked stand out.
    """
    columns = itertools.count()
    look: dict[str, Any] = {"ha": "center", "va": "center", "size": 8}
    box = {"facecolor": "#fcfcfa", "edgecolor": "none", "pad": 1.2}

    def draw(part: Tree, start: int) -> tuple[float, float, int]:
        if not part.children:
            x: float = next(columns)
            ax.text(x, 0.3, part.word, rotation=90, **look | {"va": "top"})
            ax.text(x, 1, part.label, size=6, ha="center", va="center")
            return x, 1, start + (part.label not in SKIPPED)
        below: list[tuple[float, float]] = []
        end = start
        for child in part.children:
            x, y, end = draw(child, end)
            below.append((x, y))
        x = (below[0][0] + below[-1][0]) / 2
        top = 1 + max(y for _, y in below)
        wrong = (bare(part.label), start, end) in marked
        color = "#c2570c" if wrong else "#4a6c8c"
        for at in below:
            ax.plot(*zip((x, top), at), color=color, lw=1 + wrong, zorder=1)
        weight = "bold" if wrong else "normal"
        ax.text(
            x, top, part.label, color=color, weight=weight, bbox=box, **look
        )
        return x, top, end

    _, top, _ = draw(tree, 0)
    ax.set(xlim=(-0.6, next(columns) - 0.4), ylim=(-2.2, top + 0.6))
    ax.axis("off")
