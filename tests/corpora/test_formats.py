"""Page E7: files that have both sides."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from annotated.cli import dispatch
from annotated.corpora.pairs import TextPair, _form_of, _read_both
from annotated.corpora.prepare import Preparation, Prepared
from annotated.corpora.reading import Text
from annotated.engine.errors import DataError, RunError, UsageError
from tests.corpora.texts import put

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US"/><body>
<tu><tuv xml:lang="en-US"><seg>A <bpt i="1">&lt;b></bpt>red<ept i="1"/>
   dog &amp;
   &#32;
   a cat.</seg></tuv>
 <tuv xml:lang="fr"><seg>Un chien.</seg></tuv>
 <tuv xml:lang="de_DE"><prop>x</prop><seg>Ein Hund<ph>{1}</ph>.</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>Only English.</seg></tuv></tu>
<tu><tuv lang="EN-US"><seg>Two.</seg></tuv><tuv lang="de"><seg/></tuv></tu>
</body></tmx>"""
XLIFF1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en" target-language="de"><body><group>
<trans-unit id="1"><source>Open <g id="1">the <x id="2"/>file</g></source>
 <target>Die <g id="1">Datei</g> öffnen</target>
 <alt-trans><source>no</source><target>nein</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Close</source></trans-unit>
<trans-unit id="3"><source>Save</source>
 <target state="needs-translation">Save</target></trans-unit>
</group></body></file></xliff>"""
XLIFF2 = """<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0">
<file id="f"><unit id="1"><segment><source>One <pc id="1">dog</pc></source>
<target>Ein Hund</target></segment>
<segment state="initial"><source>Two</source><target>Two</target></segment>
</unit></file></xliff>"""
PO = r"""
msgid ""
msgstr "Content-Type: text/plain; charset=ISO-8859-1\n"

#: main.c:1
msgid "Open "
"file"
msgstr "Datei \xf6ffnen"

#, fuzzy
msgid "Close"
msgstr "Schluss"

msgid "Save\nas"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#~ msgid "Gone"
#~ msgstr "Fort"
"""


def pairs(path: Path, *fields: str, strict: bool = True) -> Any:
    where: Any = fields or ("en", "de")
    return list(_read_both(Text(path), _form_of(path), where, strict))


def test_a_memory_gives_the_two_languages_asked_for(tmp_path: Path) -> None:
    file = put(tmp_path / "m.tmx", TMX.encode())
    assert pairs(file) == [
        ("A red dog & a cat.", "Ein Hund."), ("Two.", ""),
    ]  # fmt: skip
    assert pairs(file, "fr", "en_us") == [
        ("Un chien.", "A red dog & a cat.")
    ]
    packed = put(tmp_path / "m.tmx.gz", gzip.compress(TMX.encode()))
    assert pairs(packed) == pairs(file)
    wide = TMX.replace("UTF-8", "UTF-16").encode("utf-16")
    assert pairs(put(tmp_path / "wide.TMX", wide)) == pairs(file)


def test_a_language_that_is_asked_for_is_not_its_neighbour(
    tmp_path: Path,
) -> None:
    file = put(tmp_path / "m.tmx", TMX.encode())
    with pytest.raises(
        DataError,
        match=r"m.tmx has nothing in both en and d; it has en-US \(2\), "
        r"fr \(1\), de_DE \(1\).*: give --source and --target",
    ):
        pairs(file, "en", "d")


def test_a_large_memory_is_not_kept(tmp_path: Path) -> None:
    import tracemalloc

    unit = (
        "<tu><tuv xml:lang='en'><seg>{0}</seg></tuv>"
        "<tuv xml:lang='de'><seg>{0}</seg></tuv></tu>\n"
    )
    body = "".join(unit.format(i) for i in range(8000))
    file = put(
        tmp_path / "m.tmx", f"<tmx><body>{body}</body></tmx>".encode()
    )
    rows = _read_both(Text(file), "tmx", ("en", "de"))
    assert next(rows) == ("0", "0")
    tracemalloc.start()
    assert sum(1 for _ in rows) == 7999
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000  # some 20 million where the units are kept


def test_both_kinds_of_xliff(tmp_path: Path) -> None:
    one = put(tmp_path / "a.xlf", XLIFF1.encode())
    assert pairs(one) == [
        ("Open the file", "Die Datei öffnen"), ("Close", ""), ("Save", ""),
    ]  # fmt: skip
    two = put(tmp_path / "b.xliff", XLIFF2.encode())
    assert pairs(two) == [("One dog", "Ein Hund"), ("Two", "")]


@pytest.mark.parametrize("asked", [("de", "en"), ("de_AT", "en-GB")])
def test_an_xliff_that_goes_the_other_way_is_turned(
    asked: tuple[str, str], tmp_path: Path
) -> None:
    one = put(tmp_path / "a.xlf", XLIFF1.encode())
    wide = XLIFF2.replace("<xliff", "<xliff srcLang='en-US' trgLang='de'")
    two = put(tmp_path / "b.xlf", wide.encode())
    for file, first in (
        (one, ("Die Datei öffnen", "Open the file")),
        (two, ("Ein Hund", "One dog")),
    ):
        assert pairs(file, *asked)[0] == first
        assert pairs(file, *asked[::-1])[0] == first[::-1]
        # other languages than its own are for the user to know
        for other in (("it", "en"), ("de", "fr"), ("1", "2"), ("en", "en")):
            assert pairs(file, *other)[0] == first[::-1]
        part = TextPair.of_files(file, None, languages=asked)
        assert next(part.pairs()) == first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tmx", TMX[:300], r"a.tmx, line \d: not XML \(.*\): export"),
        ("a.tmx", "", "a.tmx, line 1: not XML"),
        ("a.tmx", "<tmx/>", "it has no text"),
        ("a.xlf", "<html/>", r"no units with a <source>: not XLIFF"),
        (
            "a.xlf",
            '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
            "without entities of its own",
        ),
        ("a.xlf", "<?xml version='1.0' encoding='no'?><x/>", "a.xlf"),
    ],
)
def test_what_is_no_xml_is_one_line(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        pairs(put(tmp_path / name, content.encode()))


def test_xml_that_is_deep_is_read(tmp_path: Path) -> None:
    deep = "<g>" * 20_000 + "dog" + "</g>" * 20_000
    unit = f"<trans-unit><source>{deep}</source></trans-unit>"
    file = put(tmp_path / "a.xlf", f"<xliff>{unit}</xliff>".encode())
    assert pairs(file) == [("dog", "")]


def test_messages_of_a_program(tmp_path: Path) -> None:
    pytest.importorskip("polib")
    text = PO.replace(r"\xf6", "ö").encode("latin-1")
    assert pairs(put(tmp_path / "de.po", text)) == [
        ("Open file", "Datei öffnen"), ("Close", ""), ("Save as", ""),
        ("%d file", "%d Datei"), ("%d files", "%d Dateien"),
    ]  # fmt: skip
    for content, message in (
        (b'msgid "a\nmsgstr', "de.po is no PO file"),
        (b"", "de.po has no messages"),
        (text.replace(b"ISO-8859-1", b"UTF-8"), "is no PO file .*utf-8"),
    ):
        with pytest.raises(DataError, match=message):
            pairs(put(tmp_path / "de.po", content))


def test_messages_that_are_the_source_are_turned(tmp_path: Path) -> None:
    polib = pytest.importorskip("polib")
    named = PO.replace(r'"Content', r'"Language: de_DE\n"' + '\n"Content')
    text = put(
        tmp_path / "a.po", named.replace(r"\xf6", "ö").encode("latin-1")
    )
    compiled = tmp_path / "a.mo"
    polib.pofile(str(text), encoding="latin-1").save_as_mofile(
        str(compiled)
    )
    for file in (text, compiled):
        assert ("Datei öffnen", "Open file") in pairs(file, "de", "en")
        assert ("Open file", "Datei öffnen") in pairs(file, "en", "de-AT")
        assert ("Open file", "Datei öffnen") in pairs(file)


def test_compiled_messages_are_those_of_their_source(
    tmp_path: Path,
) -> None:
    polib = pytest.importorskip("polib")
    text = put(
        tmp_path / "de.po", PO.replace(r"\xf6", "ö").encode("latin-1")
    )
    compiled = tmp_path / "de.mo"
    polib.pofile(str(text), encoding="latin-1").save_as_mofile(
        str(compiled)
    )
    # what is not translated, or fuzzy, is not compiled
    assert sorted(pairs(compiled)) == sorted(
        pair for pair in pairs(text) if pair[1]
    )
    whole = compiled.read_bytes()
    for content, told in (
        (b"no catalogue", "de.mo is no MO file .*magic"),
        (whole[:40], "de.mo is no MO file"),
        (b"", "de.mo is no MO file"),
    ):
        with pytest.raises(DataError, match=told):
            pairs(put(compiled, content))


def test_objects_in_lines(tmp_path: Path) -> None:
    rows = (
        '{"en": "A dog.", "de": "Ein\\n Hund."}\n\n'
        '{"translation": {"en": "x", "de": "y"}, "id": 1}\n'
    )
    file = put(tmp_path / "a.jsonl", rows.encode())
    assert pairs(file) == [("A dog.", "Ein Hund."), ("x", "y")]
    flat = put(tmp_path / "b.jsonl", b'{"text.en": "x", "text.de": "y"}\n')
    assert pairs(flat, "text.en", "text.de") == [("x", "y")]
    with pytest.raises(
        DataError,
        match=r"a.jsonl, line 1: translation.en is no text; it has en, de: "
        "give --columns",
    ):
        pairs(file, "translation.en", "translation.de")
    for content, message in (
        (b'{"en": "x", "de": 3}', "line 1: de is no text"),
        (b'{"en": "x"\n', "line 1: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'{"en": "x", "de": "y"}\n[1]\n', "line 2: en is no text"),
    ):
        with pytest.raises(DataError, match=message):
            pairs(put(tmp_path / "a.jsonl", content))


def test_tables_with_commas_semicolons_and_tabs(tmp_path: Path) -> None:
    text = 'id,en,de\n1,"A dog, ""red"".","Ein\nHund."\n2,x,y\n'
    file = put(tmp_path / "a.csv", text.encode("utf-8-sig"))
    expected = [('A dog, "red".', "Ein Hund."), ("x", "y")]
    assert pairs(file) == expected
    assert pairs(file, "2", "3")[1:] == expected
    semi = put(tmp_path / "b.csv", b"x;y;1\nu;v, w;2\n")
    assert pairs(semi, "2", "1") == [("y", "x"), ("v, w", "u")]
    tabs = put(tmp_path / "c.txt", b"de\ten\ny\tx\n")
    assert pairs(tabs) == [("x", "y")]


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        (
            "a.csv",
            "en,fr\nx,y\n",
            ("en", "de"),
            "no column de; it has en, fr",
        ),
        (
            "a.csv",
            "x,y\n",
            ("0", "1"),
            "no column 0; it has columns from 1",
        ),
        (
            "a.csv",
            "en,de\nx\n",
            ("en", "de"),
            "line 2: 1 columns, but 2 are",
        ),
        ("a.csv", 'x,"y\n', ("1", "2"), "not CSV"),
        ("a.csv", 'en,de\n"x\n\n.",y\nq\n', ("en", "de"), "line 5: 1 col"),
        (
            "a.tsv",
            "x y\n",
            ("1", "2"),
            "line 1: 1 columns, but 2 are needed",
        ),
    ],
)
def test_a_table_without_the_column_is_one_line(
    name: str, content: str, fields: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        pairs(put(tmp_path / name, content.encode()), *fields)


# --- from the command line


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    units = "".join(
        f"<tu><tuv xml:lang='en'><seg>dog {i}</seg></tuv>"
        f"<tuv xml:lang='de-AT'><seg>Hund {i}</seg></tuv></tu>"
        for i in range(300)
    )
    text = f"<tmx><body>{units}{units[:100]}</body></tmx>"
    text = text.replace(units[:100] + "</body>", "</body>")
    return put(tmp_path / "memory.tmx", text.encode())


def prepared(*args: str | Path) -> Any:
    dispatch(["data", "prepare", "pair", *map(str, args)])


def test_a_memory_is_prepared(memory: Path, tmp_path: Path) -> None:
    languages = "--source", "en", "--target", "de"
    both = ["--valid", memory, memory]
    out = tmp_path / "out"
    prepared("--src", memory, *languages, *both, "--out", out)
    cards = Prepared.open(out).manifest["splits"]
    assert cards["valid"]["pairs"] == 300
    assert cards["train"]["read"] == 300
    (out / "valid.de").read_text().startswith("Hund 0\n")
    prepared("--src", memory, *languages, *both, "--out", out)  # the same


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "may have many languages: give source and target$"),
        (["--columns", "1", "2"], "has no columns: leave columns out"),
    ],
)
def test_what_a_memory_needs_is_said(
    args: list[str], message: str, memory: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        prepared("--src", memory, *args, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_columns_go_with_one_table(tmp_path: Path) -> None:
    file = put(tmp_path / "a.jsonl", b'{"a": "x", "b": "y"}\n')
    with pytest.raises(ValueError, match="target, or columns, two keys"):
        Preparation.of_files(file)
    part = Preparation.of_files(file, columns=("a", "b")).parts["train"][0]
    assert list(part.pairs()) == [("x", "y")]
    with pytest.raises(ValueError, match="has no columns"):
        Preparation.of_files(file, tmp_path / "b", columns=("a", "b"))
    with pytest.raises(UsageError, match="--columns goes with pair"):
        dispatch(["data", "prepare", "multi30k", "--columns", "1", "2"])


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("blank", ["", "  ", "\r"])
def test_a_blank_line_is_no_row(
    name: str, blank: str, tmp_path: Path
) -> None:
    row = {"a.tsv": "x\ty", "a.csv": "x,y", "a.jsonl": '{"1":"x","2":"y"}'}
    text = f"{row[name]}\n{blank}\n{row[name]}\n{blank}\n"
    file = put(tmp_path / name, text.encode())
    assert pairs(file, "1", "2") == [("x", "y")] * 2


def test_a_row_of_blank_cells_ends_a_document(tmp_path: Path) -> None:
    file = put(tmp_path / "a.tsv", b"x\ty\n\t\nu\tv\n")
    assert pairs(file, "1", "2") == [("x", "y"), ("", ""), ("u", "v")]


@pytest.mark.parametrize("end", ["tsv", "TAB", "csv"])
def test_a_table_that_is_given_twice_is_one(
    end: str, tmp_path: Path
) -> None:
    """Each side was read as the whole line, and so as its own target."""
    file = put(tmp_path / f"v.{end}", b"x,1\ty\nu,2\tv\n")
    part = TextPair.of_files(file, file)
    wanted = [("x", "1\ty"), ("u", "2\tv")]
    assert list(part.pairs()) == (
        wanted if end == "csv" else [("x,1", "y"), ("u,2", "v")]
    )


def test_columns_are_those_of_src_and_of_tables_given_twice(
    tmp_path: Path,
) -> None:
    table = put(tmp_path / "a.csv", b"id,en,de\n1,a,b\n")
    lines = put(tmp_path / "v.en", b"c\n"), put(tmp_path / "v.de", b"d\n")
    names = {"columns": ("de", "en"), "source": "de", "target": "en"}
    memory = put(tmp_path / "m.tmx", TMX.encode())
    for valid, wanted in (
        (lines, ("c", "d")),
        ((table, table), ("b", "a")),
        ((memory, memory), ("Ein Hund.", "A red dog & a cat.")),
    ):
        made = Preparation.of_files(table, valid=valid, **names)
        [part] = made.parts["valid"]
        assert next(part.pairs()) == wanted
        assert next(made.parts["train"][0].pairs()) == ("b", "a")


def test_a_packed_test_set_of_wmt_is_no_plain_text(tmp_path: Path) -> None:
    """Whatever the other side is."""
    packed = gzip.compress(b'<seg id="1">A &amp; b</seg>\n')
    src = put(tmp_path / "g.de.sgm.gz", packed)
    tgt = put(tmp_path / "g.en", b"c\n")
    part = TextPair.of_files(src, tgt)
    assert list(part.pairs()) == [("A & b", "c")]
    back = TextPair.of_files(tgt, src)
    assert list(back.pairs()) == [("c", "A & b")]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("polib", "defusedxml", "defusedxml.ElementTree"):
        monkeypatch.setitem(sys.modules, name, None)
    yield


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("name", ["a.po", "a.tmx", "a.xlf"])
def test_a_missing_library_is_named_with_its_extra(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(
        RunError,
        match=r"pip install defusedxml polib \(the extra \[text\]\)",
    ):
        pairs(put(tmp_path / name, b""))
