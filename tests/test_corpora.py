"""Files from elsewhere: annotated.corpora, from chapter 18."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import lzma
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated import corpora
from annotated.corpora import (
    SYNTHETIC,
    DataError,
    data_folder,
    fetch,
    load_pairs,
    read_lines,
    read_pair,
    registry,
    synthetic_pairs,
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; downloads are tried without pauses."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ANNOTATED_DATA", str(folder))
    monkeypatch.setattr(corpora, "PAUSES", (0, 0))
    return folder


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- the registry ---------------------------------------------------------


def test_every_data_set_says_where_it_is_from() -> None:
    for name, entry in registry().items():
        for key in ("title", "url", "homepage", "licence", "citation"):
            assert entry[key], f"{name} does not say its {key}"
        assert entry["url"].startswith("https://")


def test_every_file_has_its_hash() -> None:
    for entry in registry().values():
        for split in entry["splits"].values():
            for language in entry["languages"]:
                file = split["file"].format(language=language)
                assert len(bytes.fromhex(entry["sha256"][file])) == 32


def test_no_name_is_used_twice() -> None:
    assert not registry().keys() & SYNTHETIC.keys()


# --- getting a file -------------------------------------------------------


def test_the_data_folder_is_the_users_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANNOTATED_DATA", "somewhere")
    assert data_folder() == Path("somewhere")
    monkeypatch.setenv("ANNOTATED_DATA", "")
    assert data_folder().name == "annotated"


def test_a_file_that_is_there_is_used(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        corpora.pooch, "retrieve", None
    )  # must not be called
    there = put(data / "multi30k" / "train.en.gz", b"anything")
    assert fetch("multi30k", "train.en.gz") == there


FAILURES = [
    requests.ConnectionError("Name or service not known\nand more"),
    requests.Timeout("timed out"),
    requests.HTTPError("503 Server Error: come back later"),
    requests.exceptions.ChunkedEncodingError("connection broken"),
    requests.exceptions.SSLError("certificate verify failed"),
    ValueError("SHA256 hash of downloaded file (x) does not match"),
    PermissionError(13, "Permission denied"),
]


@pytest.mark.parametrize(
    "failure", FAILURES, ids=lambda f: type(f).__name__
)
def test_a_failed_download_says_what_a_person_can_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(corpora.pooch, "retrieve", fails)
    with pytest.raises(DataError) as caught:
        fetch("multi30k", "val.de.gz")
    said = str(caught.value)
    assert f"{registry()['multi30k']['url']}/val.de.gz" in said
    assert str(data / "multi30k") in said
    assert "ANNOTATED_DATA" in said
    assert type(failure).__name__ in said
    assert "\n" not in said


class Server(http.server.BaseHTTPRequestHandler):
    """Serves GOOD; cut.gz ends early; the rest is not there."""

    GOOD = gzip.compress(b"Ein Hund.\n" * 1000, mtime=0)
    asked: list[str] = []
    broken = 0  # requests still to be answered with an error

    def do_GET(self) -> None:
        Server.asked.append(self.path)
        if Server.broken:
            Server.broken -= 1
            self.send_error(503)
            return
        if self.path == "/absent.gz":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.GOOD)))
        self.end_headers()
        cut = self.path == "/cut.gz"
        self.wfile.write(self.GOOD[: len(self.GOOD) // 2 if cut else None])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a set that lies on a server of our own."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    right = hashlib.sha256(Server.GOOD).hexdigest()
    entry = {
        "url": f"http://127.0.0.1:{httpd.server_port}",
        "sha256": {"good.gz": right, "cut.gz": right, "bad.gz": "0" * 64},
    }
    monkeypatch.setattr(corpora, "registry", lambda: {"ours": entry})
    Server.asked, Server.broken = [], 0
    yield data / "ours"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_file_is_downloaded_once(server: Path) -> None:
    path = fetch("ours", "good.gz")
    assert path == server / "good.gz"
    assert path.read_bytes() == Server.GOOD
    assert fetch("ours", "good.gz") == path
    assert Server.asked == ["/good.gz"]


def test_a_file_without_a_known_hash_is_taken(server: Path) -> None:
    assert fetch("ours", "new.gz").read_bytes() == Server.GOOD


def test_a_download_that_fails_is_tried_again(server: Path) -> None:
    Server.broken = 1
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    assert len(Server.asked) == 2


@pytest.mark.parametrize("file", ["bad.gz", "cut.gz", "absent.gz"])
def test_a_file_that_is_not_right_is_not_kept(
    server: Path, file: str
) -> None:
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("ours", file)
    left = list(server.iterdir()) if server.exists() else []
    assert left == []
    assert Server.asked == [f"/{file}"] * len(corpora.PAUSES)


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
    st.sampled_from(["", ".gz", ".xz"]),
)
def test_what_was_written_is_read(lines: list[str], end: str) -> None:
    content = "".join(line + "\n" for line in lines).encode()
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[end]
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


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty", b"", "x/empty is empty"),
        ("empty.gz", gzip.compress(b""), "is empty"),
        ("nul", b"a\nb\0c\n", "line 2: a NUL byte"),
        ("utf16", "ab\nc\n".encode("utf-16"), "line 1: a NUL byte"),
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


# --- from a name to pairs -------------------------------------------------


def test_a_registered_set_is_read_from_the_data_folder(data: Path) -> None:
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
        ("multi31k", "train", "en", "no data set 'multi31k'.* multi30k"),
        ("multi30k", "dev", "en", "no split 'dev'; it has train, valid"),
        ("multi30k", "train", "it", "no language 'it'; it has en, de"),
        ("copy", "train", "en", "no data set 'copy'"),
        (".", "train", "en", "has no file train.en, train.en.gz"),
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
            content = fetch("multi30k", file).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            assert digest == entry["sha256"][file], file
        sides = load_pairs("multi30k", split, "en", "de")
        assert [len(side) for side in sides] == [card["lines"]] * 2


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
