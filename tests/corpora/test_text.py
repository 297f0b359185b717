"""Files from elsewhere: corpora.reading, cleaning, synthetic, page E7."""

from __future__ import annotations

import ast
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.corpora import fetch as fetch_module
from annotated.corpora import reading
from annotated.corpora.cleaning import (
    Cleaning,
    Division,
    count_words,
    detokenized,
    divide,
    remarks,
)
from annotated.corpora.data import load_pairs
from annotated.corpora.reading import (
    Part,
    Text,
    decoded,
    json_of,
    parts_of,
    python_of,
    read_lines,
    read_pair,
    splits_of,
    text_of,
)
from annotated.corpora.registry import registry
from annotated.corpora.synthetic import SYNTHETIC, synthetic_pairs
from annotated.engine.errors import DataError
from tests.helpers import nodes_of


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; nothing can be downloaded."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ANNOTATED_DATA", str(folder))
    return folder


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- the registry ---------------------------------------------------------


def test_every_data_set_says_where_it_is_from() -> None:
    for name, entry in registry().items():
        for key in (
            "title",
            "about",
            "url",
            "homepage",
            "licence",
            "citation",
        ):
            assert entry[key], f"{name} does not say its {key}"
        assert entry["url"].startswith("http")
        assert {entry["source"], entry["target"]} <= set(entry["languages"])


def test_every_hash_is_one() -> None:
    for entry in registry().values():
        for known in entry.get("sha256", {}).values():
            size = 16 if known.startswith("md5:") else 32
            assert len(bytes.fromhex(known.removeprefix("md5:"))) == size


def test_multi30k_has_a_hash_for_every_file() -> None:
    entry = registry()["multi30k"]
    for split in entry["splits"].values():
        for language in entry["languages"]:
            assert (
                split["file"].format(language=language) in entry["sha256"]
            )


@pytest.mark.parametrize("name", registry())
def test_every_data_set_can_be_trained_validated_and_tested(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        reading, "fetch", lambda *what: asked.append(what) or Path("x")
    )
    entry = registry()[name]
    assert {"train", "valid", "test"} <= set(splits_of(entry))
    Cleaning(**entry.get("clean", {}))
    for split in splits_of(entry):
        for part in parts_of(name, split, entry["source"], entry["target"]):
            assert "{" not in f"{part.src} {part.tgt}"
    for _, file, url in asked:
        assert file and "{" not in file + url


def test_no_name_is_used_twice() -> None:
    assert not registry().keys() & SYNTHETIC.keys()


# --- reading --------------------------------------------------------------


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
    st.sampled_from(["", ".gz", ".xz", ".bz2"]),
)
def test_what_was_written_is_read(lines: list[str], end: str) -> None:
    content = "".join(line + "\n" for line in lines).encode()
    pack = {
        "": bytes,
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".bz2": bz2.compress,
    }[end]
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


def test_lines_without_a_partner_are_refused(tmp_path: Path) -> None:
    src = put(tmp_path / "a.en", b"1\n2\n3\n")
    tgt = put(tmp_path / "a.de", b"1\n2\n")
    with pytest.raises(DataError, match=r"a.en has 3 lines .*a.de has 2"):
        read_pair(src, tgt)


# --- archives and other forms ---


def packed(folder: Path, suffix: str, members: dict[str, bytes]) -> Path:
    """An archive with these members, and one more."""
    path = folder / f"archive{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz" if suffix == ".tgz" else "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


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


def test_a_test_set_of_wmt_is_read_as_it_is(tmp_path: Path) -> None:
    sgm = b"""<srcset setid="x" srclang="any"><doc sysid="ref">
<hl><seg id="1">AT&T &amp; more</seg></hl>
<p><seg id="2"> a
b </seg></p></doc></srcset>"""
    file = Text(put(tmp_path / "x.sgm", sgm))
    pairs = list(Part(file, file, "segments").pairs())
    assert pairs == [("AT&T & more",) * 2, ("a b", "a b")]


def test_of_a_talk_only_what_was_said_is_kept(tmp_path: Path) -> None:
    talk = b"<url>http</url>\n<title>A talk</title>\n Hello \n<reviewer></reviewer>\n"
    file = Text(put(tmp_path / "x.en", talk))
    pairs = list(Part(file, file, "talks").pairs())
    assert [s for s, _ in pairs] == ["A talk", "Hello"]


def test_columns_are_taken_in_their_order(tmp_path: Path) -> None:
    file = Text(put(tmp_path / "x.txt", b"dog\tHund\tCC-BY\ncat\tKatze\n"))
    part = Part(file, file, "tsv", columns=(1, 0))
    assert list(part.pairs()) == [("Hund", "dog"), ("Katze", "cat")]
    short = Part(file, file, "tsv", columns=(0, 2))
    with pytest.raises(DataError, match="x.txt, line 2: 2 columns, but 3"):
        list(short.pairs())


def test_a_corpus_is_read_as_a_stream(tmp_path: Path) -> None:
    path = put(tmp_path / "x", b"1\n2\n\xff\n")
    lines = Text(path).lines()
    assert [next(lines), next(lines)] == ["1", "2"]  # before the bad one
    with pytest.raises(DataError, match="line 3"):
        next(lines)


# --- cleaning and dividing ---


def test_words_and_punctuation_are_counted() -> None:
    assert count_words("Ja, das ist's!") == 7
    assert count_words(" \t") == 0


@pytest.mark.parametrize(
    ("rules", "pair", "why"),
    [
        ({}, ("a b", "c"), None),
        ({}, ("a", " \t"), "a blank side"),
        ({}, ("a", "b\0"), "a NUL byte"),
        ({}, ("a", "\udcff"), "not UTF-8 text"),
        ({}, ("ä", "日本"), None),
        ({"max_words": 2}, ("a b", "c, d"), "more than 2 words"),
        ({"max_words": 2}, ("a" * 99, "b"), None),
        ({"min_words": 2}, ("a b", "c"), "fewer than 2 words"),
        ({"ratio": 1.5}, ("a b c", "d e"), None),
        ({"ratio": 1.5}, ("a b c d", "e f"), "lengths differ by more than 1.5 times"),
    ],
)  # fmt: skip
def test_a_pair_is_left_out_for_a_reason(
    rules: dict[str, Any], pair: tuple[str, str], why: str | None
) -> None:
    assert Cleaning(**rules).objection(*pair) == why
    assert Cleaning(**rules).objection(*pair[::-1]) == why


@pytest.mark.parametrize(
    "rules", [{"ratio": 0.5}, {"min_words": 5, "max_words": 4}]
)
def test_rules_that_no_pair_can_meet_are_refused(
    rules: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=next(iter(rules))):
        Cleaning(**rules)


def test_lines_are_written_as_the_rules_say() -> None:
    rules = Cleaning(lower=True, unescape=True)
    assert rules.line("Don&apos;t &lt;STOP&gt;") == "don't <stop>"


@pytest.mark.parametrize(
    ("tokens", "written"),
    [
        ("We shouldn 't go , he said .", "We shouldn't go, he said."),
        ("She did n't ( at all ) .", "She didn't (at all)."),
        ('Peter \'s " plan " : wait ...', 'Peter\'s "plan": wait...'),
        ('He said " yes " . " No " , I said .', None),
        ("¿ Vamos ? ¡ Sí , vamos !", "¿Vamos? ¡Sí, vamos!"),
        ("L' arte dell' Unione e' qui .", "L'arte dell'Unione e'qui."),
        ("qu' il s' en aille « vite »", "qu'il s'en aille «vite»"),
        ("a well @-@ known [ 5 % ]", "a well-known [5%]"),
    ],
)
def test_punctuation_goes_back_to_its_word(
    tokens: str, written: str | None
) -> None:
    written = written or 'He said "yes". "No", I said.'
    assert Cleaning(detokenize=True).line(tokens) == written
    assert detokenized(written) == written


def test_text_as_people_write_it_is_left_alone() -> None:
    for line in (
        'The dogs\' bones, "they" said, and "we" (all) know: it\'s 5.5%.',
        "Rock 'n' roll - the 1990's best; \"so what?\"",
        "Children's toys (and one dog's) cost 3,000 - or 4.5% more.",
    ):
        assert detokenized(line) == line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Don't panic, she said. It's late.", []),
        ("Ça va ? Non ! C'est « bien », merci.", []),  # French spaces
        ("Don &apos;t panic , she said .", ["escaped", "tokenised"]),
        ("&quot;Salt &amp; pepper.&quot;", ["escaped"]),
        ("Salt , pepper , 1.5 litres .", ["tokenised"]),
        ("R&D; AT&T.", []),
    ],
)
def test_text_that_went_through_tools_is_recognised(
    line: str, said: list[str]
) -> None:
    found = remarks([line] * 100)
    assert [r.split(" is ")[1].split()[0].strip("(") for r in found] == said


def test_a_few_such_lines_are_nothing_to_remark() -> None:
    lines = ["Salt, pepper."] * 995 + ["Salt &amp; pepper ."] * 5
    assert remarks(lines) == []


def test_every_23rd_clean_pair_is_for_validation() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(1, 101)] + [("", "x")] * 9
    pairs[3] = ("", "blank")
    dropped: Counter[str] = Counter()
    rows = list(
        divide(
            "train",
            pairs,
            Cleaning(),
            Division("line", 23, valid=0),
            dropped,
        )
    )
    clean = [p for p in pairs if p[0]]
    held = [(s, t) for split, s, t in rows if split == "valid"]
    assert held == clean[22::23]
    assert len(rows) == 99
    assert dropped == {"a blank side": 10}


def test_a_source_is_in_one_split_with_all_its_translations() -> None:
    pairs = [(f"s{i % 50}", f"t{i}") for i in range(200)]
    division = Division("source", 5, valid=0, test=1)
    places: dict[str, set[str]] = {}
    for split, src, _ in divide(
        "train", pairs, Cleaning(), division, Counter()
    ):
        places.setdefault(split, set()).add(src)
    assert set(places) == {"train", "valid", "test"}
    assert sum(map(len, places.values())) == 50


# --- from a name to pairs -------------------------------------------------


def test_a_registered_set_is_read_from_the_data_folder(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = registry()
    del known["multi30k"]["sha256"]  # these are not the real files
    monkeypatch.setattr(fetch_module, "registry", lambda: known)
    folder = data / "multi30k"
    put(folder / "val.en.gz", gzip.compress(b"a dog\n"))
    put(folder / "val.de.gz", gzip.compress(b"ein Hund\n"))
    pairs = load_pairs("multi30k", "valid", "en", "de")
    assert pairs == (["a dog"], ["ein Hund"])
    assert load_pairs("multi30k", "valid", "de", "en") == pairs[::-1]


@pytest.mark.parametrize("end", ["", ".gz", ".xz"])
def test_a_folder_of_ones_own_is_a_data_set(
    tmp_path: Path, end: str
) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[end]
    put(tmp_path / f"train.it{end}", pack(b"un cane\n"))
    put(tmp_path / "train.en", b"a dog\n")
    pairs = load_pairs(str(tmp_path), "train", "it", "en")
    assert pairs == (["un cane"], ["a dog"])


@pytest.mark.parametrize(
    ("name", "split", "source", "complaint"),
    [
        ("multi31k", "train", "en", "unknown data set 'multi31k'.*30k"),
        ("multi30k", "dev", "en", "no split 'dev'; it has train, valid"),
        ("multi30k", "train", "it", "no language 'it'; it has en, de"),
        ("copy", "train", "en", "unknown data set 'copy'"),
        (".", "train", "en", "has none of train.en, train.en.gz"),
    ],
)
def test_a_name_that_is_not_known_is_refused(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    split: str,
    source: str,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=complaint):
        load_pairs(name, split, source, "de")


def test_multi30k_is_as_the_registry_says() -> None:
    folder = os.environ.get("ANNOTATED_DATA")
    if not folder or not (Path(folder) / "multi30k").is_dir():
        pytest.skip("$ANNOTATED_DATA has no multi30k")
    entry = registry()["multi30k"]
    for split, card in entry["splits"].items():
        for language in entry["languages"]:
            file = card["file"].format(language=language)
            content = fetch_module.fetch("multi30k", file).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            assert digest == entry["sha256"][file], file
        sides = load_pairs("multi30k", split, "en", "de")
        assert [len(side) for side in sides] == [card["lines"]] * 2


def test_tatoeba_is_divided_by_its_source(data: Path) -> None:
    lines = "".join(f"dog {i // 2}\tHund {i}\n" for i in range(400))
    folder = data / "tatoeba"
    folder.mkdir(parents=True)
    archive = packed(folder, ".zip", {"x/deu.txt": lines.encode()})
    archive.rename(folder / "deu-eng.zip")
    splits = {
        split: load_pairs("tatoeba", split, "en", "de")
        for split in ("train", "valid", "test")
    }
    assert sum(len(src) for src, _ in splits.values()) == 400
    sources = [set(src) for src, _ in splits.values()]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 200
    back = load_pairs("tatoeba", "train", "de", "en")
    assert back[0][0].startswith("Hund")


def test_iwslt14_is_cut_as_it_always_is(data: Path) -> None:
    talks = "".join(f"<url>x</url>\nWort {i} .\n" for i in range(1, 47))
    sets = [
        "TED.dev2010",
        "TEDX.dev2012",
        "TED.tst2010",
        "TED.tst2011",
        "TED.tst2012",
    ]
    members = {}
    for language in ("de", "en"):
        members[f"de-en/train.tags.de-en.{language}"] = talks.encode()
        for name in sets:
            file = f"de-en/IWSLT14.{name}.de-en.{language}.xml"
            members[file] = f'<seg id="1"> {name} </seg>'.encode()
    folder = data / "iwslt14"
    folder.mkdir(parents=True)
    packed(folder, ".tgz", members).rename(folder / "de-en.tgz")
    train, _ = load_pairs("iwslt14", "train", "de", "en")
    valid, _ = load_pairs("iwslt14", "valid", "de", "en")
    test, _ = load_pairs("iwslt14", "test", "de", "en")
    assert valid == ["wort 23 .", "wort 46 ."]
    assert len(train) == 44
    assert test == [name.lower() for name in sets]


def test_a_member_that_was_unpacked_by_hand_is_used(data: Path) -> None:
    for language, line in (("en", b"dog\n"), ("de", b"Hund\n")):
        for name in ("europarl-v7", "news-commentary-v9"):
            put(data / f"wmt14/training/{name}.de-en.{language}", line)
        put(data / f"wmt14/commoncrawl.de-en.{language}", line)
    parts = parts_of("wmt14-en-de", "train", "en", "de")
    pairs = [pair for part in parts for pair in part.pairs()]
    assert pairs == [("dog", "Hund")] * 3
    with pytest.raises(DataError, match="data prepare wmt14-en-de"):
        load_pairs("wmt14-en-de", "train", "en", "de")


# --- synthetic data -------------------------------------------------------


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_splits_share_no_pair(name: str) -> None:
    seen: set[tuple[str, str]] = set()
    for seed, split in enumerate(("train", "valid", "test")):
        sides = synthetic_pairs(name, split, 300, seed)
        assert [len(side) for side in sides] == [300, 300]
        pairs = set(zip(*sides, strict=True))
        assert not pairs & seen
        seen |= pairs


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_pairs_are_a_function_of_the_seed(name: str) -> None:
    one, same, other = (
        synthetic_pairs(name, "train", 20, seed) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_copy_and_reverse_are_what_their_names_say() -> None:
    src, tgt = synthetic_pairs("copy", "train", 50, 0)
    assert src == tgt
    src, tgt = synthetic_pairs("reverse", "train", 50, 0)
    assert [line.split()[::-1] for line in src] == [x.split() for x in tgt]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_split_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="dev"):
        synthetic_pairs(name, "dev", 1, 0)


# --- one reader -----------------------------------------------------------

OPENS = {  # what opens text, or takes it from bytes
    *("open", "fdopen", "read_text", "read_bytes", "read1", "open_code"),
    *("fromfile", "loadtxt", "genfromtxt", "from_file", "urlopen", "input"),
    *("getline", "getlines", "getsource", "TextIOWrapper", "DictReader"),
    *("reader", "decode"),
}
OTHERS = {"Run", "Prepared", "self", "cls", "webbrowser", "os", "base64"}
READER = "annotated/corpora/reading"
NOT_A_PERSONS = {
    "is part of the package, which the press has written": """
        book/scripts.script book/paper.counted book/results.ledger
        school/milestones._run_of_the_book
        school/checks.exercises school/checks._unsealed
        corpora/registry.registry school/terminal._questions
        pocket/words.read_table""",
    "is of a run folder or a corpus, which we have written": """
        book/report.report checkpoints.load_checkpoint
        engine/checkpoints.restore engine/commands._keep
        corpora/pieces.load_tokenizer corpora/prepare.open
        engine/runs._read engine/runs.read_metrics engine/runs.results_of
        corpora/tokenizers.read_tokenizer""",
    "is another file that we have written": """
        book/paper.script book/sweep.kept school/course.state
        engine/files.keep_first engine/lock._taken engine/lock._holder
        engine/machine._value""",
    "is of the system": """
        engine/machine._words engine/machine.processor
        school/examiner._limit_memory""",
    "comes from a process of ours, or from our page in the browser": """
        book/look.answered engine/distributed._fresh_part
        school/examiner._read_all school/examiner._apart
        school/examiner.mark school/examiner.serve""",
    "is bytes, which are hashed, kept or only looked at": """
        corpora/fetch.file_hash corpora/fetch._download
        engine/files.checksum engine/lock._alive exchange/marian.check_files
        school/classroom.mend school/classroom._keep_beside
        school/classroom._is_json
        exchange/marian._tokenizers""",
    "comes from a server, whose errors are caught": "book/paper.fetched",
    "is a published model's, refused in one line": "exchange/marian._json",
    "is tokens, which become text": """
        corpora/tokenizers.valid_line evaluation._split_hyphens
        tokens.decode""",
    "is read by Python itself": """
        school/checks._crash school/course.source_of""",
    "is one key, or one letter, and any byte will do": """
        school/terminal._keyboard school/terminal._ask""",
    "is a constant of a notebook's code, which was read": "school/answers._folded",
    "goes through the reader": "engine/commands._arriving",
    "only sets or asks what kind it is": """
        cli.make_streams_legible school/examiner._serve_once
        school/terminal.work""",
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
