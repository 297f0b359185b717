"""A hidden figure shows its axes, and nothing that was drawn in them."""

from __future__ import annotations

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

from press.letters import look
from press.posters import EMPTY, image, poster


def drawn() -> str:
    fig = Figure()
    left, right = fig.subplots(1, 2)
    left.plot([1, 2, 3], [3, 1, 2], "o-", color="#123456", label="ours")
    left.axhline(2, color="#abcdef", gid="reference")
    left.set(xlabel="steps", ylabel="loss", title="training")
    left.annotate(
        "here it fails",
        (2, 1.5),
        (2.5, 2.5),
        arrowprops={"arrowstyle": "-", "color": "#0a0b0c"},
    )
    left.legend()
    right.bar([1, 2], [3, 4], color="#654321")
    right.scatter([1, 2], [1, 2], color="#fedcba")
    right.imshow([[1, 2], [3, 4]])
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        fig.savefig(file, format="svg")
    return file.getvalue()


def test_axes_labels_titles_and_legend_stay() -> None:
    shown = poster(drawn())
    for text in ("steps", "loss", "training", "ours"):
        assert f">{text}<" in shown
    assert shown.count('id="matplotlib.axis_') == 4
    assert "#abcdef" in shown  # a line of reference


def test_what_is_drawn_goes() -> None:
    whole = drawn()
    shown = re.sub("<defs>.*?</defs>", "", poster(whole), flags=re.S)
    axes, legend = shown.split('id="legend_1"')
    assert "#123456" in legend and "#123456" not in axes
    for trace in (
        "here it fails",
        "#0a0b0c",
        "#654321",
        "#fedcba",
        "<image",
    ):
        assert trace in whole and trace not in shown


def test_a_poster_is_an_image_that_says_so() -> None:
    shown = image(drawn(), "a/b.svg")
    assert f'alt="{EMPTY}" src="a/b.svg" width="' in shown
    assert 'height="' in shown


def test_on_a_phone_its_letters_are_as_large_as_the_figures() -> None:
    broad = (
        '<svg width="560pt" height="9pt" viewBox="0 0 560 9">'
        "<text style=\"font: 7.5px 'DejaVu Sans'\">a</text></svg>"
    )
    assert look(broad) == "broad wide"
    assert '<img class="broad wide" ' in image(broad, "a/b.svg")


def test_the_field_to_draw_in_has_a_frame() -> None:
    assert "dasharray: 2.5" not in drawn()
    assert poster(drawn()).count("stroke-dasharray: 2.5") == 2


def test_axes_that_are_off_show_nothing() -> None:
    fig = Figure()
    ax = fig.subplots()
    ax.plot([1, 2], color="#123456")
    ax.axis("off")
    file = io.StringIO()
    fig.savefig(file, format="svg")
    assert "#123456" in file.getvalue()
    assert "#123456" not in poster(file.getvalue())
