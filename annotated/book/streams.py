"""Exported from the book; edit the chapter, then run `make export`."""

from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from annotated.book.colors import colors

__all__ = ["Streams"]


# E1-plots.md: Boxes along a stream
_Color = tuple[float, float, float]


class Streams:
    """Draws residual streams, and the boxes beside them, on axes."""

    # of the encoder, of the decoder, and of three kinds of boxes
    colors: list[_Color] = [
        to_rgb(colors()[name])
        for name in ("encoder", "decoder", "good", "fourth", "soft")
    ]

    def __init__(self, ax: Axes):
        self.ax = ax

    @staticmethod
    def tint(color: _Color, share: float) -> list[float]:
        """The colour, mixed with white."""
        return [1 - (1 - channel) * share for channel in color]

    def label(
        self, x: float, y: float, text: str, side: str = "center"
    ) -> None:
        """A small text, such as a shape, with (x, y) at its side."""
        self.ax.text(
            x, y, text, ha=side, va="center", zorder=4, fontsize=9,
            family="monospace", color=colors()["ink"],
        )  # fmt: skip

    def box(
        self, x: float, y: float, text: str, color: _Color,
        shape: str = "", width: float = 2.3, height: float = 0.86,
    ) -> None:  # fmt: skip
        """A box around (x, y): what it does and, below, a shape."""
        self._rounded(
            x - width / 2, y - height / 2, (width, height), 0.15, zorder=3,
            lw=1.4, facecolor=self.tint(color, 0.2), edgecolor=color,
        )  # fmt: skip
        y_text = y + 0.17 if shape else y
        self.ax.text(x, y_text, text, ha="center", va="center", zorder=4)
        self.label(x, y - 0.22, shape)

    def _rounded(
        self, left: float, low: float, size: tuple[float, float],
        radius: float, **style: Any,
    ) -> None:  # fmt: skip
        """A box with round corners; size is its width and height."""
        shape = f"round,pad=0,rounding_size={radius}"
        self.ax.add_patch(
            FancyBboxPatch((left, low), *size, boxstyle=shape, **style)
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        color: _Color,
        path: str = "straight",
    ) -> None:
        """An arrow: straight, "across" and then up, or "up" and across."""
        angle = {"across": "angleA=0,angleB=90", "up": "angleA=90,angleB=0"}
        bend = f"angle,{angle[path]},rad=5" if path in angle else "arc3"
        self.ax.annotate(
            "", end, start, zorder=2,
            arrowprops={
                "arrowstyle": "-|>", "color": color, "lw": 1.5,
                "shrinkA": 0, "shrinkB": 0, "connectionstyle": bend,
            },
        )  # fmt: skip

    def _plus(self, x: float, y: float, color: _Color) -> None:
        """A sum, as a plus in a circle."""
        plot = partial(self.ax.plot, x, y, mew=1.6)
        plot("o", ms=14, mfc=colors()["ground"], mec=color, zorder=4)
        plot("+", ms=8, color=color, zorder=5)

    def branch(
        self, x: float, y: float, side: int, color: _Color,
        text: str, fill: _Color, shape: str,
    ) -> None:  # fmt: skip
        """Leave the stream at x to one side (-1 or 1), compute what the
        text says, be added, be normed.
        """
        beside, grey = x + side * 2.2, self.colors[-1]
        start, back = (x, y - 0.75), (x + side * 0.22, y + 0.8)
        self.arrow(start, (beside, y - 0.43), color, "across")
        self.box(beside, y, text, fill, shape)
        self.arrow((beside, y + 0.43), back, color, "up")
        self._plus(x, y + 0.8, color)
        self.box(x, y + 1.4, "LayerNorm", grey, width=1.9, height=0.46)

    def stream(
        self, x: float, side: int, color: _Color,
        length: str, tokens: str, top: float,
    ) -> None:  # fmt: skip
        """The stream of one stack, from its tokens up to the top."""
        *_, pink, grey = self.colors
        pale = self.tint(color, 0.5)
        self.ax.plot([x, x], [2.1, top], color=pale, lw=5, zorder=1)
        self.box(x, 0.3, tokens, grey, width=2.9, height=0.56)
        self.arrow((x, 0.58), (x, 1.48), color)
        self.box(x, 1.8, "row of E, · √d", pink, width=2.4, height=0.6)
        self._plus(x, 2.7, color)
        beside = x + side * 2.2
        self.box(beside, 2.7, "position", grey, width=1.6, height=0.5)
        self.arrow((x + side * 1.4, 2.7), (x + side * 0.22, 2.7), color)
        inner = "left" if side < 0 else "right"
        self.label(x - side * 0.25, 1.02, f"(b, {length})", inner)
        self.label(x - side * 0.25, 3.22, f"(b, {length}, d)", inner)

    def frame(
        self, left: float, right: float, top: float,
        color: _Color, name: str, side: str,
    ) -> None:  # fmt: skip
        """A dashed frame around what is repeated, named at its side."""
        self._rounded(
            left, 3.55, (right - left, top - 3.55), 0.3, zorder=0, lw=1.2,
            ls=(0, (4, 3)), facecolor=self.tint(color, 0.07),
            edgecolor=color,
        )  # fmt: skip
        at = left + 0.2 if side == "left" else right - 0.2
        self.ax.text(
            at, 3.88, name, color=color, ha=side, va="center",
            weight="bold",
        )  # fmt: skip

    def legend(self, x: float, y: float) -> None:
        """What the letters in the shapes stand for, from (x, y) down."""
        lines = (
            "b  sentences", "s  source tokens", "t  target tokens",
            "d  512 numbers per token", "h  8 heads", "N  6 layers",
            "E  V rows of d",
        )  # fmt: skip
        for i, line in enumerate(lines):
            self.label(x, y - 0.52 * i, line, "left")
