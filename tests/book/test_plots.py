"""Page E1: the figures."""

import copy
import io
import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import FancyBboxPatch
from torch import nn

from annotated.attention import MultiHeadAttention
from annotated.book.plots import (
    plot_attention,
    plot_heads,
    plot_mask,
    use_book_style,
)
from annotated.book.streams import Streams
from annotated.book.tree_plots import plot_tree
from annotated.corpora.treebanks import read_tree
from annotated.engine.hooks import attention_blocks
from annotated.parsing import brackets
from tests.helpers import environment


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        use_book_style()
        yield
        plt.close("all")


def svg(figure):
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def test_a_heat_map_names_its_rows_and_columns():
    ax = plot_attention(torch.eye(2), ["dog", "bites"], title="a head")
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["dog", "bites"]
    assert ax.get_title() == "a head"
    assert ax.texts[0].get_text() == "1.00"


def test_heads_are_drawn_one_beside_the_other():
    figure = plot_heads(torch.rand(5, 2, 3), ["a", "b"], ["x", "y", "z"])
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [f"head {i}" for i in range(1, 6)]


def test_a_drawn_mask_crosses_out_what_is_forbidden():
    ax = plot_mask(torch.ones(2, 2).tril().bool(), ["a", "b"])
    assert [text.get_text() for text in ax.texts] == ["", "×", "", ""]


def test_the_same_figure_is_the_same_bytes_and_text_is_text():
    first, second = (
        svg(plot_attention(torch.eye(2), ["dog", "bites"]).figure)
        for _ in range(2)
    )
    assert first == second
    assert ">bites</text>" in first


def test_edges_of_patches_can_be_seen():
    edge = plt.Rectangle((0, 0), 1, 1).get_edgecolor()
    assert max(edge[:3]) < 0.5


def test_a_branch_to_the_left_mirrors_one_to_the_right():
    """Which is added to the stream, at 0, above its box."""
    drawn = []
    for side in (-1, 1):
        ax = plt.figure().add_subplot(xlim=(-4, 4), ylim=(-2, 3))
        blue, _, green, *_ = Streams.colors
        Streams(ax).branch(
            0.0, 0.0, side, blue, "feed-forward", green, "(b, s)"
        )
        places = [(t.get_text(), *t.get_position()) for t in ax.texts]
        sums = [tuple(line.get_xydata()[0]) for line in ax.lines]
        boxes = [
            patch.get_x() + patch.get_width() / 2
            for patch in ax.patches
            if isinstance(patch, FancyBboxPatch)
        ]
        drawn.append((places, sums, boxes))
    (texts, sums, boxes), (right, others, mirrored) = drawn
    assert ("feed-forward", -2.2, 0.17) in texts
    assert ("LayerNorm", 0.0, 1.4) in texts
    assert {t for t, *_ in right} >= {"feed-forward", "(b, s)", "LayerNorm"}
    assert texts == [(t, -x, y) for t, x, y in right]
    assert sums == others == [(0.0, 0.8)] * 2
    assert len(boxes) == 2
    assert boxes == pytest.approx([-x for x in mirrored])


# all that draw, called by somebody who has set no style: not even the names
# of the book's colours are known then
WITHOUT_STYLE = """
import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from annotated.book import plots, streams, tree_plots
from annotated.pocket.trees import leaf, node
eye, names = torch.eye(3), list("abc")
figures = [
    plots.plot_grid(eye, names, names).figure,
    plots.plot_attention(eye).figure,
    plots.plot_mask(eye.bool(), names).figure,
    plots.plot_heads(torch.stack([eye, eye]), names),
    plots.plot_links(eye, names).figure,
]
figure, ax = plt.subplots()
drawn = streams.Streams(ax)
drawn.stream(0.0, 1, drawn.colors[0], "s", "tokens", 6.0)
drawn.branch(0.0, 5.0, 1, drawn.colors[0], "attend", drawn.colors[2], "b")
drawn.frame(-1.0, 1.0, 6.0, drawn.colors[0], "encoder", "left")
drawn.legend(0.0, 0.0)
figures.append(figure)
figure, ax = plt.subplots()
tree_plots.plot_tree(node("S", leaf("NN", "dogs"), leaf("V", "bite")), ax)
figures.append(figure)
for figure in figures:
    figure.savefig("figure.svg")
known = matplotlib.colors.get_named_colors_mapping()
assert "soft" not in known and "weights" not in matplotlib.colormaps
"""


def test_whoever_sets_no_style_gets_the_books_colours_too(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_STYLE],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "#" in (tmp_path / "figure.svg").read_text("utf-8")


def test_attention_that_stands_elsewhere_has_its_own_name():
    """However many parts the name has: two blocks are never one."""
    part = nn.ModuleDict({"own": MultiHeadAttention(8, 2)})
    two = nn.ModuleList([part, copy.deepcopy(part)])
    model = nn.ModuleDict({"a": nn.ModuleDict({"b": two})})
    assert [*attention_blocks(model)] == ["a.b.0.own", "a.b.1.own"]


def test_a_drawing_has_every_word_and_label_and_marks_what_is_wrong() -> (
    None
):
    tree = read_tree("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
    figure, axes = plt.subplots()
    plot_tree(tree, axes, {("VP", 2, 3)})
    texts = [text.get_text() for text in axes.texts]
    for word in ("The", "dog", "barks", "S", "NP", "VP", "DT"):
        assert word in texts
    bold = [
        t.get_text() for t in axes.texts if t.get_fontweight() == "bold"
    ]
    assert bold == ["VP"]
    assert ("VP", 2, 3) in brackets(tree)
    plt.close(figure)
