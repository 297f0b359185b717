"""The one reader of text: corpora.reading, page E7."""

from __future__ import annotations

import ast
import bz2
import gzip
import json
import lzma
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.corpora.reading import (
    Text,
    decoded,
    json_of,
    python_of,
    read_lines,
    text_of,
)
from annotated.engine.errors import DataError
from tests.corpora.texts import packed, put
from tests.helpers import nodes_of


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.text(
            st.characters(exclude_characters="\n\r\0", codec="utf-8"),
            max_size=9,
        ).filter(lambda line: not line.startswith("\ufeff")),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["", ".gz", ".xz", ".bz2", ".GZ"]),
)
def test_what_was_written_is_read(lines: list[str], end: str) -> None:
    content = "".join(line + "\n" for line in lines).encode()
    pack = {
        "": bytes,
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".bz2": bz2.compress,
    }[end.lower()]
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder) / f"lines{end}", pack(content))
        assert read_lines(path) == lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\n", [""]),
        (b"a\n\n\nb\n", ["a", "", "", "b"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"]),
    ],
    ids=["plain", "no last end", "Windows", "blank", "blanks", "signature",
         "other separators"],
)  # fmt: skip
def test_only_a_newline_ends_a_line(
    tmp_path: Path, content: bytes, lines: list[str]
) -> None:
    assert read_lines(put(tmp_path / "x", content)) == lines


PERSONAL = "ä b\r\n\u2028c 😀\n\nd\r\n"  # as some editors write


CODINGS = ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"]


def as_written(coding: str) -> bytes:
    mark = "\ufeff" if coding.startswith("utf-16") else ""
    return (mark + PERSONAL).encode(coding)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_text_is_the_same_however_an_editor_has_written_it(
    tmp_path: Path, coding: str
) -> None:
    data, text = as_written(coding), PERSONAL.replace("\r\n", "\n")
    assert text_of(data) == text
    assert text_of(put(tmp_path / "x", data)) == text
    path = put(tmp_path / "x.gz", gzip.compress(data))
    assert read_lines(path) == text.split("\n")[:-1]
    assert text_of(path) == text
    as_json = json.dumps({"a": [PERSONAL]}, ensure_ascii=False)
    mark = "\ufeff" if coding.startswith("utf-16") else ""
    assert json_of((mark + as_json).encode(coding)) == {"a": [PERSONAL]}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(CODINGS), st.lists(st.integers(0, 60), max_size=9))
def test_it_does_not_matter_in_which_blocks_a_text_arrives(
    coding: str, cuts: list[int]
) -> None:
    data = as_written(coding)
    ends = [0, *sorted(cuts), len(data)]
    blocks = [data[a:b] for a, b in zip(ends, ends[1:]) if a < b]
    texts = list(decoded(blocks, "x"))
    assert "".join(texts) == PERSONAL.replace("\r\n", "\n")
    assert all(text.endswith("\n") for text in texts)


def test_a_line_is_there_when_its_last_byte_is() -> None:
    """Whoever types sees an answer to each line, to an empty one too."""

    def typed() -> Iterator[bytes]:
        for byte in b"\nab\n\n":
            arrived.append(byte)
            yield bytes([byte])

    arrived: list[int] = []
    texts = decoded(typed(), "x")
    assert [(next(texts), len(arrived)) for _ in range(3)] == [
        ("\n", 1),
        ("ab\n", 4),
        ("\n", 5),
    ]


@pytest.mark.parametrize("read", [text_of, python_of, json_of])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"1\n\xe4", "line 2, byte 1: not UTF-8 text; save it"),
        (b"1\n2\0", "line 2, byte 2: a NUL byte; "),
        ("1".encode("utf-16-le"), "line 1, byte 2: a NUL byte; "),
    ],
)
def test_whoever_reads_says_the_same(
    tmp_path: Path, read: Any, content: bytes, complaint: str
) -> None:
    path = put(tmp_path / "notes", content)
    with pytest.raises(DataError, match=re.escape(f"{path}, {complaint}")):
        read(path)
    with pytest.raises(DataError, match=re.escape(f"hers, {complaint}")):
        read(content, "hers")
    with pytest.raises(DataError, match="absent cannot be read: No such"):
        read(tmp_path / "absent")


@pytest.mark.parametrize("content", [b"", b"[1,", b"[" * 100_000, b"{'a'}"])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="notes is not JSON: "):
        json_of(put(tmp_path / "notes", content))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty", b"", "x/empty is empty"),
        ("empty.gz", gzip.compress(b""), "is empty"),
        ("nul", b"a\nb\0c\n", "line 2, byte 2: a NUL byte; "),
        ("utf16", "ab\nc\n".encode("utf-16-le"), "line 1, byte 2: a NUL"),
        ("wide", "ab\ncd".encode("utf-16")[:-1], "wide is cut off"),
        ("latin", "ja\nM\xe4dchen\n".encode("latin-1"), "line 2, byte 2"),
        ("half", "ja\nnein ä".encode()[:-1], "line 2, byte 6: not UTF-8"),
        ("surrogate", b"\xed\xa0\x80\n", "line 1, byte 1: not UTF-8"),
        ("plain.gz", b"no gzip\n", "plain.gz is damaged"),
        ("cut.gz", gzip.compress(b"abc\n" * 99)[:-9], "cut.gz is damaged"),
        ("cut.xz", lzma.compress(b"abc\n" * 99)[:-9], "cut.xz is damaged"),
        ("plain.xz", b"no xz\n", "plain.xz is damaged"),
    ],
)
def test_what_is_broken_is_refused_with_its_place(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        read_lines(put(tmp_path / "x" / name, content))


def test_flipped_bits_in_a_gzip_file_are_noticed(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(300) + b"\n", mtime=0)
    for place in range(12, len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x55
        path = put(tmp_path / "x.gz", bytes(flipped))
        with pytest.raises(DataError, match="damaged"):
            read_lines(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent cannot be read: No such"):
        read_lines(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_lines(tmp_path)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tgz"])
def test_a_member_of_an_archive_is_read_where_it_lies(
    tmp_path: Path, suffix: str
) -> None:
    members = {"a/other.de": b"x\n", "a/train.de": b"Hund\nKatze\n"}
    members["b/zipped.de.gz"] = gzip.compress(b"Maus\n")
    path = packed(tmp_path, suffix, members)
    assert list(Text(path, "train.de").lines()) == ["Hund", "Katze"]
    assert list(Text(path, "b/zipped.de.gz").lines()) == ["Maus"]
    with pytest.raises(DataError, match="has no member rain.de"):
        list(Text(path, "rain.de").lines())
    keep = 2570 if suffix == ".tar" else path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="damaged|cannot be read"):
        list(Text(path, "b/zipped.de.gz").lines())


def test_a_corpus_is_read_as_a_stream(tmp_path: Path) -> None:
    path = put(tmp_path / "x", b"1\n2\n\xff\n")
    lines = Text(path).lines()
    assert [next(lines), next(lines)] == ["1", "2"]  # before the bad one
    with pytest.raises(DataError, match="line 3"):
        next(lines)


OPENS = {  # what opens text, or takes it from bytes
    *("open", "fdopen", "read_text", "read_bytes", "read1", "open_code"),
    *("fromfile", "loadtxt", "genfromtxt", "from_file", "urlopen", "input"),
    *("getline", "getlines", "getsource", "TextIOWrapper", "DictReader"),
    *("reader", "decode"),
}


OTHERS = {
    "Run",
    "super()",
    "Prepared",
    "self",
    "likewise",  # a command like this one
    "cls",
    "webbrowser",
    "os",
    "base64",
}


READER = "annotated/corpora/reading"


NOT_A_PERSONS = {
    "is part of the package, which the press has written": """
        book/scripts.script commands/doctor._requirements book/paper._counted book/results.ledger
        book/colors.colors
        school/milestones._run_of_the_book
        school/exercises.exercises school/exercises.unsealed
        corpora/registry.registry school/terminal._questions
        pocket/words.read_table""",
    "is of a run folder or a corpus, which we have written": """
        book/report.report checkpoints.load_checkpoint
        engine/checkpoints.restore
        commands/adapt._do commands/score.act commands/back._translate
        corpora/sentencepieces.load_tokenizer corpora/prepare.open
        engine/runs._read engine/runs.read_metrics engine/runs.results_of
        corpora/segmentation.__init__ corpora/marks.text
        book/portable.portable
        corpora/tokenizers.read_tokenizer""",
    "is another file that we have written": """
        book/paper.card_script book/sweep.kept school/course._remembered
        engine/files.keep_first engine/files._holder
        engine/machine._value engine/machine.cached""",
    "is of the system": """
        cli.main engine/machine._read engine/machine.processor
        school/examiner._limit_memory""",
    "comes from a process of ours, or from our page in the browser": """
        book/look.answered engine/distributed._fresh_part
        school/examiner._read_all school/examiner._apart
        school/examiner.mark school/examiner._serve
        school/examiner._examined_anew school/examiner._answer_anew""",
    "is bytes, which are hashed, kept or only looked at": """
        corpora/fetch.file_hash corpora/fetch._download corpora/fetch.open_url
        engine/checkpoints._checksum engine/parts._sha256
        exchange/marian._check_files commands/back._whole_lines
        school/classroom.mend school/classroom._keep_beside
        school/classroom._is_json
        exchange/marian._tokenizers""",
    "comes from a server, whose errors are caught": "book/paper._fetched",
    "is a published model's, refused in one line": "exchange/marian._json",
    "is tokens, which become text": """
        corpora/tokenizers.valid_line evaluation._split_hyphens
        corpora/segmentation._words tokens.decode""",
    "is read by Python itself": """
        school/checks._crash school/checks._raised_by_hand
        school/course.source_of""",
    "is one key, or one letter, and any byte will do": """
        school/terminal._keyboard school/terminal._ask""",
    "is a constant of a notebook's code, which was read": "school/answers._folded",
    "goes through the reader": """
        commands/translate.arriving corpora/pairs._csv
        corpora/pairs._jsonl""",
    "says its encoding itself, and is refused in one line": """
        corpora/pairs._units corpora/pairs._po corpora/pairs._mo
        exchange/marian._listed""",
    "only sets or asks what kind it is": """
        cli._make_streams_legible school/examiner._serve_once
        school/terminal.work""",
    "is a header of HTTP, which is Latin-1": "commands/serve._said",
    "is a teacher's file, which the press has written": """""",
}


def opens_text(node: ast.AST) -> bool:
    """Whether a part of a program does, or may."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in ("sys.stdin", "sys.__stdin__")
    if not isinstance(node, ast.Call):
        return False
    name, given = ast.unparse(node.func), node.args
    owner, _, last = name.rpartition(".")
    if name in ("json.load", "json.loads", "tomllib.load", "tomllib.loads"):
        return not ast.unparse(given[0]).startswith("json.dumps(")
    modes = [
        str(x.value) for x in given if isinstance(x, ast.Constant)
    ]  # of open, where it is given
    if last in ("open", "fdopen"):
        wrote = any(
            mode[:1] in "wa" and len(mode) < 3 for mode in modes if mode
        )
        return (
            owner not in OTHERS - {"os"} and name != "os.open" and not wrote
        )
    if last == "decode":  # of bytes; a model's or a tokenizer's takes ids
        own = owner.startswith("base64.") or ".encode(" in owner
        return not own and len(modes) == len(given)
    return last in OPENS


@pytest.mark.parametrize(
    ("code", "does"),
    [
        *((f"{x}(path)", True) for x in ("open", "io.open", "gzip.open")),
        *(
            (f"{x}()", True)
            for x in ("path.open", "path.read_text", "input")
        ),
        ("data.decode()", True),
        ("data.decode('latin-1', errors='replace')", True),
        ("json.loads(path.read_text())", True),
        ("sys.stdin.buffer", True),
        ("tokenize.open(path)", True),
        ("path.open('wb')", False),
        ("tokenizer.decode(ids)", False),
        ("text_of(path)", False),
    ],
)
def test_a_place_that_opens_text_is_found(code: str, does: bool) -> None:
    assert any(map(opens_text, ast.walk(ast.parse(code)))) == does


def test_whatever_opens_text_is_the_one_reader_or_has_a_reason() -> None:
    found = {
        f"{module.removeprefix('annotated/')}.{home}"
        for module, home, node in nodes_of("annotated")
        if module != READER and opens_text(node)
    }
    known = {p for places in NOT_A_PERSONS.values() for p in places.split()}
    assert found == known


@pytest.mark.parametrize("coding", ["rot13", "hex"])
def test_a_coding_line_with_what_encodes_no_text_is_refused(
    coding: str,
) -> None:
    """Such a codec is known, but makes no text of bytes."""
    with pytest.raises(
        DataError, match=f"^mine is not {coding} as it says"
    ):
        python_of(f"# coding: {coding}\nx = 1\n".encode(), "mine")
