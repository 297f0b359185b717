"""Exported from the book; edit the chapter, then run `make export`."""

from typing import Any

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

__all__ = [
    "BLUE", "ORANGE", "GREEN", "PINK", "GREY", "LEGEND", "tint", "label",
    "box", "arrow", "branch", "stream", "frame",
]  # fmt: skip


# E1-plots.md: Boxes along a stream
_Color = tuple[float, float, float]

_PALETTE: list[_Color] = sns.color_palette("colorblind")
BLUE, ORANGE, GREEN, PINK = (_PALETTE[i] for i in (0, 1, 2, 4))
GREY = (0.45, 0.45, 0.45)
LEGEND = (
    "b  sentences", "s  source tokens", "t  target tokens",
    "d  512 numbers per token", "h  8 heads", "N  6 layers",
    "E  V rows of d",
)  # fmt: skip


def tint(color: _Color, share: float) -> list[float]:
    """The colour, mixed with white."""
    return [1 - (1 - channel) * share for channel in color]


def _rounded(
    ax: Axes, left: float, low: float, size: tuple[float, float],
    radius: float, **style: Any,
) -> None:  # fmt: skip
    """A box with round corners; size is its width and height."""
    shape = f"round,pad=0,rounding_size={radius}"
    ax.add_patch(
        FancyBboxPatch((left, low), *size, boxstyle=shape, **style)
    )


def label(
    ax: Axes, x: float, y: float, text: str, side: str = "center"
) -> None:
    """A small text, such as a shape, with (x, y) at its side."""
    ax.text(
        x, y, text, ha=side, va="center", zorder=4, fontsize=9,
        family="monospace", color="#333333",
    )  # fmt: skip


def box(
    ax: Axes, x: float, y: float, text: str, color: _Color,
    shape: str = "", width: float = 2.3, height: float = 0.86,
) -> None:  # fmt: skip
    """A box around (x, y): what it does and, below, a shape."""
    _rounded(
        ax, x - width / 2, y - height / 2, (width, height), 0.15, zorder=3,
        lw=1.4, facecolor=tint(color, 0.2), edgecolor=color,
    )  # fmt: skip
    y_text = y + 0.17 if shape else y
    ax.text(x, y_text, text, ha="center", va="center", zorder=4)
    label(ax, x, y - 0.22, shape)


def arrow(
    ax: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    color: _Color,
    way: str = "straight",
) -> None:
    """An arrow: straight, "across" and then up, or "up" and across."""
    angle = {"across": "angleA=0,angleB=90", "up": "angleA=90,angleB=0"}
    bend = f"angle,{angle[way]},rad=5" if way in angle else "arc3"
    ax.annotate(
        "", end, start, zorder=2,
        arrowprops={
            "arrowstyle": "-|>", "color": color, "lw": 1.5,
            "shrinkA": 0, "shrinkB": 0, "connectionstyle": bend,
        },
    )  # fmt: skip


def _plus(ax: Axes, x: float, y: float, color: _Color) -> None:
    """A sum, as a plus in a circle."""
    ax.plot(x, y, "o", ms=14, mfc="white", mec=color, mew=1.6, zorder=4)
    ax.plot(x, y, "+", ms=8, color=color, mew=1.6, zorder=5)


def branch(
    ax: Axes, x: float, y: float, side: int, color: _Color,
    text: str, fill: _Color, shape: str,
) -> None:  # fmt: skip
    """Leave the stream at x to one side (-1 or 1), compute what the text
    says, be added, be normed.
    """
    beside = x + side * 2.2
    arrow(ax, (x, y - 0.75), (beside, y - 0.43), color, "across")
    box(ax, beside, y, text, fill, shape)
    arrow(ax, (beside, y + 0.43), (x + side * 0.22, y + 0.8), color, "up")
    _plus(ax, x, y + 0.8, color)
    box(ax, x, y + 1.4, "LayerNorm", GREY, width=1.9, height=0.46)


def stream(
    ax: Axes, x: float, side: int, color: _Color,
    length: str, tokens: str, top: float,
) -> None:  # fmt: skip
    """The stream of one stack, from its tokens up to the top."""
    ax.plot([x, x], [2.1, top], color=tint(color, 0.5), lw=5, zorder=1)
    box(ax, x, 0.3, tokens, GREY, width=2.9, height=0.56)
    arrow(ax, (x, 0.58), (x, 1.48), color)
    box(ax, x, 1.8, "row of E, · √d", PINK, width=2.4, height=0.6)
    _plus(ax, x, 2.7, color)
    box(ax, x + side * 2.2, 2.7, "position", GREY, width=1.6, height=0.5)
    arrow(ax, (x + side * 1.4, 2.7), (x + side * 0.22, 2.7), color)
    inner = "left" if side < 0 else "right"
    label(ax, x - side * 0.25, 1.02, f"(b, {length})", inner)
    label(ax, x - side * 0.25, 3.22, f"(b, {length}, d)", inner)


def frame(
    ax: Axes, left: float, right: float, top: float,
    color: _Color, name: str, side: str,
) -> None:  # fmt: skip
    """A dashed frame around what is repeated, named at its side."""
    _rounded(
        ax, left, 3.55, (right - left, top - 3.55), 0.3, zorder=0, lw=1.2,
        ls=(0, (4, 3)), facecolor=tint(color, 0.07), edgecolor=color,
    )  # fmt: skip
    at = left + 0.2 if side == "left" else right - 0.2
    ax.text(
        at, 3.88, name, color=color, ha=side, va="center", weight="bold"
    )
