"""Words of the glossary and works explain themselves in place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docutils import nodes, utils

from press.chapters import read_chapter
from press.notes import Notes, terms

ROOT = Path(__file__).resolve().parents[2]
TERMS = {
    "KV cache": {"html": "<b>KV cache</b>: kept", "link": "A1.html#w"},
    "cache": {"html": "<b>cache</b>: kept", "link": "A1.html#w"},
    "head": {"html": "<b>head</b>: $h$", "link": "A1.html#w"},
}
WORKS = {"post": 'Post: <a href="https://a.b">A call</a>.'}


class Explained(Notes):
    """The transform on a page of its own, without a builder."""

    env: Any = None  # Sphinx's is a property

    def __init__(self, page: nodes.document, name: str) -> None:
        self.document = page
        self.env = SimpleNamespace(
            docname=name,
            annotated_notes={"terms": TERMS, "works": WORKS},
        )


def explained(*parts: str, name: str = "17-x") -> str:
    """A page of paragraphs; one that begins with > is folded away."""
    page = utils.new_document("page")
    for part in parts:
        fold = nodes.admonition(classes=["solution"])
        box = fold if part.startswith(">") else page
        page += [fold] if box is fold else []
        paragraph = nodes.paragraph()
        for text in part.split("@"):
            if text == "post":
                link = nodes.reference(refuri="references.html#post")
                link += nodes.Text("Post, 2018")
                paragraph += link
            else:
                paragraph += nodes.Text(text)
        box += paragraph
    Explained(page, name).run()
    return "\n".join(x.astext() for x in page.findall(nodes.raw))


def test_the_first_use_of_a_word_is_a_button() -> None:
    text = explained(
        "> A KV cache.", "One KV cache.", "The KV cache again."
    )
    assert text.count("<button") == 1
    assert 'popovertarget="note-word-kv-cache">KV cache</button>' in text
    assert 'id="note-word-kv-cache"><b>KV cache</b>: kept. <a' in text
    assert 'href="A1.html#w">Glossary</a></div>' in text


def test_the_longer_name_wins_and_parts_of_words_do_not_count() -> None:
    text = explained("Of caches: KV caches, heads, overhead, head-on.")
    assert [
        row.split(">")[1].split("<")[0]
        for row in text.split("\n")
        if "<button" in row
    ] == ["caches", "KV caches", "heads"]


def test_a_readers_own_head_is_none_of_ours() -> None:
    text = explained("Draw it in your head.", "A head has weights.")
    assert text.count("<button") == 1
    assert text.index("<button") == 0


def test_a_citation_shows_its_work() -> None:
    text = explained("As @post@ says.", "> In a fold @post@.")
    assert text.count("<button") == 1
    assert 'popovertarget="note-work-post">Post, 2018</button>' in text
    assert 'href="https://a.b">A call</a>. <a' in text
    assert 'href="references.html#post">References</a></div>' in text


@pytest.mark.parametrize("name", ["E2-x", "A1-x", "annotated.x", "index"])
def test_pages_outside_the_story_are_left_alone(name: str) -> None:
    assert explained("A KV cache by @post@.", name=name) == ""


def test_a_formula_of_a_meaning_is_set() -> None:
    assert "<math><mi>h</mi></math>" in explained("A head.")


def test_words_come_from_the_glossary_of_the_book() -> None:
    found = terms(read_chapter(ROOT / "book" / "A1-notation.md"))
    assert len(found) > 70
    assert found["KV cache"]["link"] == "A1-notation.html#words-17"
    assert found["BPE"]["html"].startswith("<b>BPE</b>: ")
    assert "step" not in found
