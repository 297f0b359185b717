"""What a reader takes along: the foot of a page, its text, the list of all."""

from __future__ import annotations

import re

from press.beside import markdown
from tests.press.conftest import Book

REPOSITORY = "https://github.com/someone/some-book"


def items(book: Book, name: str) -> list[str]:
    """What the foot of a page lists."""
    text = book.read(f"site/{name}.html")
    assert text.count('class="page-tools"') == 1
    foot = text[text.index('<footer class="page-foot">') :]
    return re.findall(r"<li>(.*?)</li>", foot.partition("</ul>")[0])


def test_the_foot_of_a_page_says_what_else_there_is(built: Book) -> None:
    took, makes, words, *links = items(built, "02-one")
    assert re.fullmatch(r"\d+ s to run", took)
    assert "makes" in makes and "annotated/one.py" in makes
    assert 'href="A1-notation.html#words-02"' in words
    assert 'id="words-02"' in built.read("site/A1-notation.html")
    assert re.findall('href="([^"]*)"', " ".join(links)) == [
        "02-one.md",
        f"{REPOSITORY}/edit/main/book/02-one.md",
        f"{REPOSITORY}/issues/new?template=wrong.yml&amp;title=02-one%3A+",
    ]
    other = " ".join(items(built, "03-two"))  # not in the glossary
    assert "words and symbols" not in other and "03-two.md" in other
    assert "page-foot" not in built.read("site/search.html")


def test_each_page_is_there_as_markdown(built: Book) -> None:
    text = built.read("site/02-one.md")
    assert text.startswith("# 2 · One\n\n")
    assert "```python\nONE = 1\n```" in text
    assert "**Figure 2.1.** A line that *rises*. A rising line" in text
    assert "> **Paper §3**\n>\n> It says $a$." in text
    assert "](03-two.md)" in text and "](references.md#" in text
    assert "\n42\n```" in built.read("site/03-two.md")
    for needless in ("<p ", "<div", ":::", "{raw}", ".ipynb", ":class:"):
        assert needless not in text, needless


def test_a_box_in_a_box_is_a_quotation_in_a_quotation() -> None:
    source = """Before.

::::{admonition} Exercise 1
:class: exercise
:name: ex-one
Why?

:::{admonition} A hint
:class: hint dropdown
```python
:name: 1
:::
```
:::
::::

After."""
    cell = {"cell_type": "markdown", "source": source}
    assert markdown([cell]).split() == ["Before.", ">", "**Exercise", "1**", ">", ">", "Why?", ">", ">", ">", ">", "**A", "hint**", ">", ">", ">", ">", "```python", ">", ">", ":name:", "1", ">", ">", ":::", ">", ">", "```", ">", "After."]  # fmt: skip


def test_a_list_of_the_pages_leads_to_their_texts(built: Book) -> None:
    lines = built.read("site/llms.txt").splitlines()
    assert lines[0] == "# Attention, Annotated"
    links = [line for line in lines if line.startswith("- ")]
    found = [re.match(r"- \[(.+)\]\(([\w.-]+)\)", link) for link in links]
    assert [link and link[1] for link in found] == [
        "Preface", "2 · One", "3 · Two", "A1 · Glossary"
    ]  # fmt: skip
    for link in found:
        assert link and (built.root / "site" / link[2]).is_file()
    # Sphinx makes no pages of them
    assert not (built.root / "site" / "beside").exists()
