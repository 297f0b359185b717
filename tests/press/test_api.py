"""The reference: an entry for each public name, and links to it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from press.api import ROOMS, Reference, marked, naming_tests, part_name
from press.chapters import read_book
from press.export import export
from press.paper import address, paper_map
from press.project import read_project
from press.rules import offences

from .conftest import Book, exported

ROOT = Path(__file__).resolve().parents[2]


def reference(root: Path) -> Reference:
    paper = json.loads(paper_map(root) or "[]")
    return Reference(root, read_book(root), read_project(root), paper)


@pytest.fixture(scope="module")
def ours() -> Reference:
    return reference(ROOT)


@pytest.fixture(scope="module")
def pages(ours: Reference) -> dict[str, str]:
    return ours.pages()


def public() -> dict[str, list[str]]:
    """What the modules of the package say is public."""
    found = {}
    for path in sorted((ROOT / "annotated").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            target = getattr(node, "targets", [None])[0]
            if isinstance(target, ast.Name) and target.id == "__all__":
                parts = path.relative_to(ROOT).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                if name != "annotated":  # its version alone
                    found[name] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    return found


def test_every_public_name_has_an_entry(pages: dict[str, str]) -> None:
    names = public()
    assert len(names) > 60
    for module, wanted in names.items():
        text = pages[f"{module}.md"]
        given = re.findall(r"^::::::\{py:\w+\} (\w+)", text, re.M)
        assert sorted(given) == sorted(wanted), module
        for name in wanted:
            assert f"<{module}.{name}>" in pages["api-names.md"]


def test_a_name_that_several_have_is_once_in_the_index(
    pages: dict[str, str],
) -> None:
    lines = pages["api-names.md"].splitlines()
    named = [re.match(r"- (?:\{py:obj\})?`(\w+)", line) for line in lines]
    names = [found[1] for found in named if found]
    assert len(names) > 300 and len(names) == len(set(names))
    [act] = [line for line in lines if line.startswith("- `act` *of* ")]
    assert "{py:obj}`Train <annotated.commands.train.Train.act>`" in act


def test_story_and_engine_are_apart(pages: dict[str, str]) -> None:
    assert "annotated.attention.md" in pages["api-story.md"]
    assert "annotated.engine" not in pages["api-story.md"]
    assert "annotated.engine.packing.md" in pages["api-engine.md"]
    assert "annotated.attention.md" not in pages["api-engine.md"]


def test_modules_stand_in_their_rooms(pages: dict[str, str]) -> None:
    text = pages["api-engine.md"]
    rooms = re.split(r"^## `annotated\.?(\w*)`\n", text, flags=re.M)[1:]
    seen = dict(zip(rooms[::2], rooms[1::2], strict=True))
    assert list(seen) == [room for room in ROOMS if room in seen]
    folders = {
        path.parent.name for path in (ROOT / "annotated").glob("*/*.py")
    }
    assert folders == {*seen} - {""} and len(folders) > 4
    for room, said in seen.items():
        assert said.strip().startswith(ROOMS[room])
        modules = re.findall(r"^### \[`annotated\.([\w.]+)`\]", said, re.M)
        assert modules
        for name in modules:
            assert name.split(".")[0] == room or not ("." in name or room)


def test_an_entry_says_where_it_comes_from(pages: dict[str, str]) -> None:
    text = pages["annotated.attention.md"].partition(
        "{py:class} MultiHeadAttention(d_model: int, num_heads: int"
    )[2]
    text = text.partition("\n::::::\n")[0]
    heading = "(04-multi-head.ipynb#one-layer-h-heads)"
    assert f"**Built in** [4 · One layer, h heads]{heading}" in text
    assert "[§3.2.2 paragraph 1](https://arxiv.org/html/" in text
    assert "/tests/story/test_multi_head.py)" in text
    lines = re.search(r"attention\.py#L(\d+)-L(\d+)\)", text)
    assert lines is not None
    source = (ROOT / "annotated/attention.py").read_text().splitlines()
    first, last = int(lines[1]), int(lines[2])
    assert source[first - 1].startswith("class MultiHeadAttention(")
    assert source[last - 1].startswith("    ")
    assert not any(line[:1].strip() for line in source[first : last - 1])
    # and its methods
    assert "{py:method} MultiHeadAttention.forward(x: Tensor" in text
    assert "`(batch, q_len, d_model)`" in text


def test_a_signature_has_the_fields_that_are_inherited(
    pages: dict[str, str],
) -> None:
    text = pages["annotated.model.md"]
    line = re.search(r"\{py:class\} (TransformerConfig.*)", text)
    assert line is not None
    assert "d_model: int = 512" in line[1]
    assert "src_vocab: int" in line[1]


def test_our_own_types_are_whole_so_that_they_become_links(
    pages: dict[str, str],
) -> None:
    assert (
        "config: annotated.model.TransformerConfig"
        in (pages["annotated.model.md"])
    )
    assert "-> Tensor" in pages["annotated.attention.md"]


def test_the_same_pages_again(pages: dict[str, str]) -> None:
    assert reference(ROOT).pages() == pages


def test_code_leads_to_an_entry_only_where_it_can_mean_no_other(
    ours: Reference,
) -> None:
    links = ours.links()
    whole = "annotated.attention.MultiHeadAttention"
    assert links["MultiHeadAttention"] == links[whole] == whole
    assert links["MultiHeadAttention.split"] == f"{whole}.split"
    assert "Trainer" not in links  # the story has one, and the engine
    assert links["annotated.training.Trainer"]
    assert links["engine.packing"] == "annotated.engine.packing"


@pytest.mark.parametrize(
    ("doc", "shown"),
    [
        ("q is (…, q_len, d_k)", "`q` is `(…, q_len, d_k)`"),
        ("(batch, length) -> the mask", "`(batch, length)` → the mask"),
        ("mask broadcasts", "`mask` broadcasts"),
        ("a row of the mask", "a row of the mask"),
        ("as in the paper (not ours)", "as in the paper (not ours)"),
        ('"word" or None', '`"word"` or `None`'),
        ("2*3 < 7 [x]", r"2\*3 \< 7 \[x\]"),
        ("- no list", r"\- no list"),
    ],
)
def test_a_docstring_is_set(doc: str, shown: str) -> None:
    assert marked(doc, {"q", "mask"}) == shown


def test_parts_of_the_paper_lead_to_their_place() -> None:
    assert part_name("3.2.1 p4") == "§3.2.1 paragraph 4"
    assert address("3.2.1 p4").endswith("#S3.SS2.SSS1")
    assert address("table 3 row A h=1").endswith("#S6.T3")
    assert address("eq 2").endswith("#S3.E2")


def test_a_test_names_what_it_uses(book: Book) -> None:
    book.write(
        "tests/test_x.py",
        "from annotated import one\nfrom annotated.one import f, g\n\n\n"
        "def test_f():\n    assert f() == one.h()\n",
    )
    found = naming_tests(book.root)
    assert found == {
        "annotated.one.f": [("tests/test_x.py", "test_f")],
        "annotated.one": [("tests/test_x.py", "test_f")],
        "annotated.one.h": [("tests/test_x.py", "test_f")],
    }


def test_a_comment_tells_of_a_constant_and_a_field(book: Book) -> None:
    cell = """
        import dataclasses


        # how many
        # at most
        MOST = 3


        @dataclasses.dataclass
        class Size:
            \"\"\"A size.\"\"\"

            width: int  # in dots
            height: int = 1
        """
    book.chapter("02-one", exported(cell), module="one")
    export(book.root)
    text = reference(book.root).pages()["annotated.one.md"]
    assert "{py:data} MOST" in text
    assert "\nhow many at most\n" in text
    assert "{py:class} Size(width: int, height: int = 1)" in text
    assert "- `width`: in dots\n" in text
    assert "- `height`" not in text


def test_a_name_without_a_docstring_is_told(book: Book) -> None:
    cell = "def f() -> None: ...\n\n\ndef _g() -> None: ..."
    book.chapter("02-one", exported(cell), module="one")
    [[line]] = offences(book.root).values()
    assert line.endswith(": f has no docstring")


def test_code_on_a_page_leads_to_its_entry(built: Book) -> None:
    text = built.read("site/03-two.html")
    link = re.search(r'<a class="api[^>]*href="([^"]+)"><code.*?</a>', text)
    assert link is not None
    assert link[1] == "annotated.one.html#annotated.one.ONE"
    assert 'id="annotated.one.ONE"' in built.read("site/annotated.one.html")
    # once in a paragraph, and in no column of other people's names
    assert text.count('<a class="api') == 2
    column = re.findall(r"<tr[^>]*><td>(.*?)</td>\s*<td>(.*?)</td>", text)
    assert [("api" in a, "api" in b) for a, b in column if "ONE" in a + b] == [
        (False, False), (False, True),
    ]  # fmt: skip
    assert 'href="02-one.html#section"' in built.read(
        "site/annotated.one.html"
    )
