"""Exported from the book; edit the chapter, then run `make export`."""

import sys
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import (
    LinearSegmentedColormap,
    get_named_colors_mapping,
)
from matplotlib.figure import Figure
from torch import Tensor

from annotated.book.colors import colors

__all__ = [
    "use_book_style", "plot_grid", "plot_attention", "plot_mask",
    "plot_heads", "plot_links",
]  # fmt: skip


# E1-plots.md: The look
_SERIES = ("data", "accent", "good", "fourth", "fifth", "sixth")
_MIXED = {
    "weights": ("cell", "data"),
    "amounts": ("ground", "ink"),
    "signed": ("data", "ground", "accent"),
}


def _mixed(name: str) -> LinearSegmentedColormap:
    """A map of the book's colours, also where no style is set."""
    steps = [colors()[end] for end in _MIXED[name]]
    return LinearSegmentedColormap.from_list(name, steps)


def use_book_style() -> None:
    """Set the look of all figures. Matplotlib then knows the book's
    colours by their names ("query", "soft") and three maps of colours:
    "weights", "amounts" and, for numbers around zero, "signed".
    """
    color = colors()
    for name, value in color.items():
        get_named_colors_mapping()[name] = value
    for name in _MIXED:
        if name not in mpl.colormaps:
            mpl.colormaps.register(_mixed(name))
    look = {
        "figure.facecolor": color["ground"],
        "axes.facecolor": color["ground"],
        "axes.edgecolor": color["line"],
        "axes.labelcolor": color["ink"],
        "text.color": color["ink"],
        "xtick.color": color["ink"],
        "ytick.color": color["ink"],
        "patch.edgecolor": color["ink"],  # seaborn's white would vanish
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": "medium",
        "figure.figsize": (6.4, 3.4),
        "figure.constrained_layout.use": True,
        "grid.color": color["line"],
        "image.cmap": "weights",
        "legend.frameon": False,
        "svg.fonttype": "none",  # text can be searched, selected
        "svg.hashsalt": "annotated",  # the same bytes every time
    }
    series = [color[name] for name in _SERIES]
    sns.set_theme("paper", "whitegrid", series, font_scale=1.1, rc=look)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        from matplotlib_inline import backend_inline

        backend_inline.set_matplotlib_formats("svg")


# E1-plots.md: Matrices
def plot_grid(
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    ax: Axes | None = None,
    texts: Sequence[Sequence[str]] = (),
    title: str | None = None,
    vmin: float = 0.0,
    vmax: float = 1.0,
) -> Axes:
    """Draw a matrix as labelled cells, the darker the larger, with NaN
    left blank and, if given, a text in each cell.
    """
    numbers = values.detach().float().cpu().numpy()
    if ax is None:
        cell = 0.5 if texts else 0.34  # inches
        size = (1.2 + cell * len(columns), 0.9 + cell * len(rows))
        ax = plt.subplots(figsize=size)[1]
    paint, cells = colors(), _mixed("weights")
    look: Any = {"edgecolors": paint["ground"], "linewidth": 1}
    ax.pcolormesh(numbers, cmap=cells, vmin=vmin, vmax=vmax, **look)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.set_aspect("equal")
    ax.invert_yaxis()
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    if max(map(len, columns), default=0) > 2:
        slant = {"rotation": 60, "ha": "left", "rotation_mode": "anchor"}
        plt.setp(ax.get_xticklabels(), **slant)
    middle: Any = {"ha": "center", "va": "center", "fontsize": "small"}
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            dark = numbers[i, j] > vmin + 0.7 * (vmax - vmin)
            color = paint["ground" if dark else "ink"]
            if text.startswith("-"):
                text = "\N{MINUS SIGN}" + text[1:]
            ax.text(j + 0.5, i + 0.5, text, color=color, **middle)
    if title is not None:
        ax.set_title(title)
    return ax


# E1-plots.md: Attention, heads, masks
def plot_attention(
    weights: Tensor,
    q_tokens: Sequence[str] = (),
    k_tokens: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    annotate: bool | None = None,
) -> Axes:
    """Draw weights (q_len, k_len) as a heat map, one row per query.

    k_tokens defaults to q_tokens, and q_tokens to numbers. annotate says
    whether to write the weights into the cells; by default, they are
    written if there are at most 6 keys.
    """
    k_len = weights.size(1)
    rows = q_tokens or [str(i) for i in range(weights.size(0))]
    columns = k_tokens or (rows if len(rows) == k_len else range(k_len))
    texts = [[f"{w:.2f}" for w in row] for row in weights.tolist()]
    written = k_len <= 6 if annotate is None else annotate
    names = [str(column) for column in columns]
    return plot_grid(
        weights, rows, names, ax, texts if written else (), title
    )


def plot_mask(
    mask: Tensor,
    q_tokens: Sequence[str],
    k_tokens: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw a mask (q_len, k_len): dark = may attend, × = may not."""
    crosses = [["" if may else "×" for may in row] for row in mask.tolist()]
    columns = k_tokens or q_tokens
    ax = plot_grid(mask, q_tokens, columns, ax, crosses, title, vmax=1.6)
    ax.tick_params(labelsize="small")
    return ax


def plot_heads(
    weights: Tensor,
    q_tokens: Sequence[str],
    k_tokens: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 4,
) -> Figure:
    """Draw weights (heads, q_len, k_len), one heat map per head.

    titles default to "head 1", "head 2", …
    """
    heads, q_len, k_len = weights.shape
    columns = min(columns, heads)
    rows = -(-heads // columns)
    size = (0.7 + columns * 0.2 * k_len, 0.6 + rows * (0.3 + 0.2 * q_len))
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    titles = titles or [f"head {i + 1}" for i in range(heads)]
    for i, (ax, head) in enumerate(zip(axes.flat, weights, strict=False)):
        plot_attention(head, q_tokens, k_tokens, ax, titles[i], False)
        if i % columns:
            ax.set_yticks([])
        if i >= columns:
            ax.set_xticks([])
    for ax in axes.flat[heads:]:
        ax.remove()
    return figure


def plot_links(
    weights: Tensor,
    q_tokens: Sequence[str],
    k_tokens: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    least: float = 0.05,
) -> Axes:
    """Draw two columns of words and a line for each weight ≥ least.

    weights is (heads, q_len, k_len), or (q_len, k_len) for one head. The
    queries are on the left; six heads have colours of their own.
    """
    weights = weights.reshape(-1, *weights.shape[-2:]).detach().cpu()
    keys = q_tokens if k_tokens is None else k_tokens
    if ax is None:
        tall = 0.6 + 0.27 * max(len(q_tokens), len(keys))
        ax = plt.subplots(figsize=(3.6, tall))[1]
    heads = len(weights)
    for head, map_ in enumerate(weights):
        aside = 0.12 * (head - (heads - 1) / 2)  # keep heads apart
        for i, j in (map_ >= least).nonzero().tolist():
            weight = float(map_[i, j])
            ax.plot(
                [0, 1],
                [i + aside, j + aside],
                color=f"C{head}",
                linewidth=0.3 + 2.7 * weight,
                alpha=min(1.0, 0.25 + weight),
                solid_capstyle="butt",
            )
    for y, word in enumerate(q_tokens):
        ax.text(-0.04, y, word, ha="right", va="center")
    for y, word in enumerate(keys):
        ax.text(1.04, y, word, ha="left", va="center")
    ax.set_xlim(-0.6, 1.6)
    ax.set_ylim(max(len(q_tokens), len(keys)) - 0.4, -0.6)
    ax.set_axis_off()
    if title is not None:
        ax.set_title(title)
    return ax
