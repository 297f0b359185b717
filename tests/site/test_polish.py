"""What the theme brings and nobody needs is gone from the finished pages."""

from __future__ import annotations

import re

from press.polish import polish
from tests.site.tabs import Tab

HELD = """() => performance.getEntriesByType("resource")
  .filter((file) => file.renderBlockingStatus === "blocking")
  .map((file) => file.name.split("/").at(-1).split("?")[0])"""


def test_a_page_waits_for_one_file_before_it_is_drawn(small: Tab) -> None:
    (held,) = small.open("02-one.html").evaluate(HELD)
    assert re.fullmatch(r"page-\w+\.css", held)
    assert small.faults == []


def test_the_engine_room_is_folded_in_the_sidebar_of_other_pages() -> None:
    def sidebar(current: str) -> str:
        parts = []
        for caption, names in (
            ("The model", ["00-a", "01-b"]),
            ("The engine room", ["E1-c", "E12-d"]),
        ):
            links = "".join(
                '<li class="toctree-l1 current active"><a href="#">x</a></li>'
                if name == current
                else f'<li class="toctree-l1"><a href="{name}.html">x</a></li>'
                for name in names
            )
            parts.append(
                '<p aria-level="2" class="caption" role="heading">'
                f'<span class="caption-text">{caption}</span></p>\n'
                f'<ul class="nav bd-sidenav">{links}</ul>'
            )
        pages = {f"{current}.html": "\n".join(parts).encode()}
        return polish(pages)[f"{current}.html"].decode()

    story, engine = sidebar("01-b"), sidebar("E12-d")
    assert re.findall(r"<details[^>]*>", story) == [
        '<details class="part">'
    ]
    assert re.findall("<details[^>]*>", engine) == [
        '<details class="part" open>'
    ]
    folded = story[story.index("<details") :]
    assert "The engine room" in folded and "E12-d" in folded
    assert "The model" not in folded


def test_what_the_theme_leaves_to_do_is_done() -> None:
    before = (
        '<div id="pst-primary-sidebar" class="x">Title</div>'
        '<div id="jb-print-docs-body"><div>Contents</div></div>'
        '<div id="searchbox"></div><th class="head"><p></p></th><th></th>'
        '<th>a</th><button type="button" class="note-of word" '
        'popovertarget="n">word</button>, and'
    )
    after = polish({"a.html": before.encode()})["a.html"].decode()
    assert after == (
        '<div id="pst-primary-sidebar" role="navigation" aria-label="Site" '
        'class="x">Title</div>'
        '<div id="searchbox"></div><td class="head"></td><td></td>'
        '<th>a</th><span class="joined"><button type="button" '
        'class="note-of word" popovertarget="n">word</button>,</span> and'
    )
