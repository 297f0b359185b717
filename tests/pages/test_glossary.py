"""Appendix A1: each word and symbol leads to where it is built, and back."""

import dataclasses
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

from annotated.model import TransformerConfig
from annotated.search import SearchConfig
from annotated.training import TrainingConfig
from press.chapters import headings
from press.myst import slug

BOOK = Path(__file__).resolve().parents[2] / "book"
TEXT = (BOOK / "A1-notation.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]+)\]\(([\w-]+\.md)(?:#([\w-]+))?\)")
SYMBOLS = r"""
    N d_\text{model} d_{ff} h d_k d_v Q K V W^Q W^K W^V W^O W_1 b_1 W_2 b_2
    x z y PE pos i P_\text{drop} \epsilon_{ls} lrate step\_num
    warmup\_steps \beta_1 \beta_2 \epsilon \alpha n d k r
"""


def tables():
    """The rows of each table, as cells, by the heading above it."""
    found, heading = {}, ""
    for line in TEXT.splitlines():
        if match := re.match(r"#+ (.*)", line):
            heading = match[1]
        elif line.startswith("| "):
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            found.setdefault(heading, []).append(cells)
    return {heading: rows[1:] for heading, rows in found.items()}


TABLES = tables()
ROWS = [(heading, row) for heading, rows in TABLES.items() for row in rows]
STORY = sorted(path.name for path in BOOK.glob("[0-9]*.md"))


def test_there_are_rows_and_each_has_every_column():
    assert len(ROWS) > 100
    for heading, rows in TABLES.items():
        assert len({len(row) for row in rows}) == 1, heading
        assert all(all(row) for row in rows), heading


@pytest.mark.parametrize("heading", TABLES)
def test_each_row_leads_to_a_place_that_exists(heading):
    for row in TABLES[heading]:
        links = LINK.findall(" ".join(row))
        assert len(links) == 1, row
        _, file, anchor = links[0]
        page = (BOOK / file).read_text(encoding="utf-8")
        slugs = {slug(title) for _, title in headings(page)}
        assert not anchor or anchor in slugs, (row[0], anchor)


def test_each_symbol_of_the_package_is_built_where_its_row_leads():
    for _, row in ROWS:
        [(text, file, _)] = LINK.findall(" ".join(row))
        if not text.startswith("`"):
            continue
        found = pkgutil.resolve_name(f"annotated.{text.strip('`')}")
        assert not isinstance(found, ModuleType), text
        name = text.strip("`").rpartition(".")[2]
        page = (BOOK / file).read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", page), (text, file)


def test_every_symbol_of_the_paper_is_there():
    rows = TABLES["The symbols of the paper"]
    cells = [re.findall(r"\$([^$]+)\$", row[0]) for row in rows]
    assert set(SYMBOLS.split()) <= {
        symbol for cell in cells for symbol in cell
    }


def test_every_field_of_the_configuration_is_there_with_its_default():
    rows = {
        row[0].strip("`"): row[1]
        for row in TABLES["The fields of TransformerConfig"]
    }
    fields = dataclasses.fields(TransformerConfig)
    assert set(rows) == {field.name for field in fields}
    for field in fields:
        none = field.default is dataclasses.MISSING
        assert rows[field.name] == ("–" if none else str(field.default))


def test_the_base_model_has_the_numbers_that_are_told():
    told = {row[0]: row[2] for row in TABLES["The symbols of the paper"]}
    base = TransformerConfig.base(src_vocab=9, tgt_vocab=9)
    for symbol, value in {
        "$N$": base.num_encoder_layers,
        r"$d_\text{model}$": base.d_model,
        "$d_{ff}$": base.d_ff,
        "$h$": base.num_heads,
        "$d_k$": base.key_size,
        "$d_v$": base.value_size,
        r"$P_\text{drop}$": base.dropout,
        r"$\epsilon_{ls}$": TrainingConfig().label_smoothing,
        r"$warmup\_steps$": TrainingConfig().warmup,
        r"$\alpha$": SearchConfig().alpha,
    }.items():
        assert told[symbol] == f"{value}", symbol


def test_each_chapter_has_its_words_under_its_title():
    found = re.findall(r"^\(words-(\d\d)\)=\n### (\d\d) (.*)$", TEXT, re.M)
    for file in STORY:
        page = (BOOK / file).read_text(encoding="utf-8")
        title = next(text for level, text in headings(page) if level == 1)
        assert (file[:2], file[:2], title) in found, file
    assert len(found) == len(STORY)


def test_no_word_stands_twice():
    words = [row[0] for heading, row in ROWS if heading[:2].isdigit()]
    assert len(set(words)) == len(words)
