"""From a name to pairs: corpora.registry, pairs, synthetic, page E7."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from pathlib import Path

import pytest

from annotated.corpora import fetch as fetch_module
from annotated.corpora import pairs as pairing
from annotated.corpora.cleaning import Cleaning
from annotated.corpora.pairs import (
    TextPair,
    columns_of,
    load_pairs,
    splits_of,
)
from annotated.corpora.reading import Text
from annotated.corpora.registry import registry
from annotated.corpora.synthetic import SYNTHETIC, synthetic_pairs
from annotated.engine.errors import DataError
from tests.corpora.texts import packed, put


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; nothing can be downloaded."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ANNOTATED_DATA", str(folder))
    return folder


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
        pairing, "fetch", lambda *what: asked.append(what) or Path("x")
    )
    entry = registry()[name]
    assert {"train", "valid", "test"} <= set(splits_of(entry))
    Cleaning(**entry.get("clean", {}))
    for split in splits_of(entry):
        for part in TextPair.registered(
            name, split, entry["source"], entry["target"]
        ):
            assert "{" not in f"{part.src} {part.tgt}"
    for _, file, url in asked:
        assert file and "{" not in file + url


def test_no_name_is_used_twice() -> None:
    assert not registry().keys() & SYNTHETIC.keys()


def test_lines_without_a_partner_are_refused(tmp_path: Path) -> None:
    src = put(tmp_path / "a.en", b"1\n2\n3\n")
    tgt = put(tmp_path / "a.de", b"1\n2\n")
    with pytest.raises(DataError, match=r"a.en has 3 lines .*a.de has 2"):
        columns_of(TextPair(Text(src), Text(tgt)).pairs())


def test_a_test_set_of_wmt_is_read_as_it_is(tmp_path: Path) -> None:
    sgm = b"""<srcset setid="x" srclang="any"><doc sysid="ref">
<hl><seg id="1">AT&T &amp; more</seg></hl>
<p><seg id="2"> a
b </seg></p></doc></srcset>"""
    file = Text(put(tmp_path / "x.sgm", sgm))
    pairs = list(TextPair(file, file, "segments").pairs())
    assert pairs == [("AT&T & more",) * 2, ("a b", "a b")]


def test_of_a_talk_only_what_was_said_is_kept(tmp_path: Path) -> None:
    talk = b"<url>http</url>\n<title>A talk</title>\n Hello \n<reviewer></reviewer>\n"
    file = Text(put(tmp_path / "x.en", talk))
    pairs = list(TextPair(file, file, "talks").pairs())
    assert [s for s, _ in pairs] == ["A talk", "Hello"]


def test_columns_are_taken_in_their_order(tmp_path: Path) -> None:
    file = Text(put(tmp_path / "x.txt", b"dog\tHund\tCC-BY\ncat\tKatze\n"))
    part = TextPair(file, file, "tsv", fields=("2", "1"))
    assert list(part.pairs()) == [("Hund", "dog"), ("Katze", "cat")]
    short = TextPair(file, file, "tsv", fields=("1", "3"))
    with pytest.raises(DataError, match="x.txt, line 2: 2 columns, but 3"):
        list(short.pairs())


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
        ("copy", "train", "en", "copy has no files: synthetic_pairs"),
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


@pytest.mark.parametrize("name", ["tatoeba", "iwslt17"])
@pytest.mark.parametrize("ways", [("fr", "de"), ("en", "en")])
def test_what_is_paired_with_english_has_no_other_pairs(
    name: str, ways: tuple[str, str], data: Path
) -> None:
    """They were English with a wrong label before."""
    with pytest.raises(DataError, match=f"{name} pairs each language with"):
        load_pairs(name, "train", *ways)


def test_of_a_file_per_language_any_two_are_a_pair(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing, "fetch", lambda *what: Path(what[1]))
    [part] = TextPair.registered("multi30k", "valid", "de", "fr")
    assert f"{part.src} {part.tgt}" == "val.de.gz val.fr.gz"


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
    parts = TextPair.registered("wmt14-en-de", "train", "en", "de")
    pairs = [pair for part in parts for pair in part.pairs()]
    assert pairs == [("dog", "Hund")] * 3
    with pytest.raises(DataError, match="data prepare wmt14-en-de"):
        load_pairs("wmt14-en-de", "train", "en", "de")


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
