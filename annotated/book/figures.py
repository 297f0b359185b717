"""Exported from the book; edit the chapter, then run `make export`."""

import base64
import io
import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import nn

from annotated.book.results import rounded
from annotated.book.scripts import script

__all__ = ["as_svg", "MovingFigure", "figure", "half_weights"]


# E1-plots.md: Figures that move
def as_svg(still: Figure) -> str:
    """A drawing as text, and no longer waiting to be shown by itself."""
    file = io.StringIO()
    facts = {"Date": None}
    still.savefig(file, format="svg", bbox_inches="tight", metadata=facts)
    plt.close(still)
    return file.getvalue()


class MovingFigure:
    """A still, the data of a figure that moves, and its script.

    Notebooks show text/html; the pages take the still and the data.
    """

    def __init__(
        self,
        name: str,
        still: str,
        data: dict[str, Any],
        large: dict[str, bytes],
    ):
        self.name, self.still, self.large = name, still, large
        self.data = rounded(data, digits=4)

    def __repr__(self) -> str:
        return f"<figure {self.name}: {', '.join(self.data)}>"

    def html(self) -> str:
        """Everything in one <figure>, in which `</` ends no script."""
        data = json.dumps(
            self.data, ensure_ascii=False, separators=(",", ":")
        )
        drawing = self.still[self.still.index("<svg") :]
        hidden = "".join(
            '<script type="text/plain" class="moves-large" '
            f'data-name="{name}">'
            f"{base64.b64encode(large).decode()}</script>\n"
            for name, large in self.large.items()
        )
        return (
            f'<figure class="moves moves-{self.name}">\n{drawing}\n'
            '<script type="application/json" class="moves-data">'
            f"{data.replace('<', chr(92) + 'u003c')}</script>\n"
            f"{hidden}"
            f"<script>\n{script(self.name)}</script>\n"
            "</figure>"
        )

    def _repr_mimebundle_(self, **formats: Any) -> dict[str, str]:
        return {"image/svg+xml": self.still, "text/html": self.html()}


def figure(
    name: str,
    still: Figure,
    large: bytes | dict[str, bytes] = b"",
    **data: Any,
) -> MovingFigure:
    """The figure that annotated/book/moving/NAME.mjs draws from data.

    still is shown where there is no JavaScript; large is what is loaded
    only when the reader asks for it, or some of that by name. ValueError
    for an unknown name.
    """
    script(name)  # there is one
    if isinstance(large, bytes):
        large = {"model": large} if large else {}
    return MovingFigure(name, as_svg(still), data, large)


def half_weights(
    model: nn.Module,
) -> tuple[list[tuple[str, list[int]]], bytes]:
    """The name and shape of each parameter, and all of them in half
    precision, little-endian, in this order.
    """
    named = list(model.named_parameters())
    layout = [(name, list(one.shape)) for name, one in named]
    halves = [one.detach().cpu().half().numpy() for _, one in named]
    return layout, b"".join(x.astype("<f2").tobytes() for x in halves)
