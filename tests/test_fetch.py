"""Files that are not here yet: annotated.engine.fetch, from page E7."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import http.server
import multiprocessing
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from annotated.engine import fetch as fetching
from annotated.engine.errors import DataError
from annotated.engine.fetch import fetch
from annotated.engine.registry import data_folder, folder_of, registry


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; downloads are tried without pauses."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ANNOTATED_DATA", str(folder))
    monkeypatch.setattr(fetching, "PAUSES", (0, 0, 0))
    return folder


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_data_folder_is_the_users_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANNOTATED_DATA", "somewhere")
    assert data_folder() == Path("somewhere")
    assert folder_of("wmt14-en-de") == Path("somewhere", "wmt14")
    monkeypatch.setenv("ANNOTATED_DATA", "")
    assert data_folder().name == "annotated"


FAILURES = [
    ConnectionError("Name or service not known\nand more"),
    TimeoutError("timed out"),
    http.client.IncompleteRead(b""),
    urllib.error.URLError("certificate verify failed"),
    PermissionError(13, "Permission denied"),
    OSError(28, "No space left on device"),
]


@pytest.mark.parametrize(
    "failure", FAILURES, ids=lambda f: type(f).__name__
)
def test_a_failed_download_says_what_a_person_can_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(urllib.request, "urlopen", fails)
    with pytest.raises(DataError) as caught:
        fetch("multi30k", "val.de.gz")
    said = str(caught.value)
    assert f"{registry()['multi30k']['url']}/val.de.gz" in said
    assert str(data / "multi30k") in said
    assert "ANNOTATED_DATA" in said
    assert type(failure).__name__ in said
    assert "\n" not in said


class Server(http.server.BaseHTTPRequestHandler):
    """Serves GOOD in the ways that `how` names, one for each request."""

    GOOD = gzip.compress(os.urandom(200_000), mtime=0)
    asked: list[str] = []
    how: list[str] = []

    def do_GET(self) -> None:
        Server.asked.append(self.path)
        how = Server.how.pop(0) if Server.how else "well"
        if how.isdigit():
            self.send_error(int(how))
            return
        content = bytes(len(self.GOOD)) if how == "wrong" else self.GOOD
        self.send_response(200)
        if how != "no length":
            lie = 1000 if how == "too long" else 0
            self.send_header("Content-Length", str(len(content) + lie))
        self.end_headers()
        half = how in ("cut", "stall")
        self.wfile.write(content[: len(content) // 2 if half else None])
        if how == "stall":
            self.wfile.flush()
            time.sleep(0.6)

    def log_message(self, *_: Any) -> None:
        """The test's output is no place for requests."""


@pytest.fixture
def server(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a set that lies on a server of our own."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetching, "PATIENCE", 0.2)
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    entry = {
        "url": f"http://127.0.0.1:{httpd.server_port}",
        "sha256": {
            "good.gz": hashlib.sha256(Server.GOOD).hexdigest(),
            "old.gz": "md5:" + hashlib.md5(Server.GOOD).hexdigest(),
            "bad.gz": "0" * 64,
        },
    }
    monkeypatch.setattr(fetching, "registry", lambda: {"ours": entry})
    monkeypatch.setattr(fetching, "folder_of", lambda name: data / name)
    Server.asked, Server.how = [], []
    yield data / "ours"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.mark.parametrize("file", ["good.gz", "old.gz", "de/new.gz"])
def test_a_file_is_downloaded_once(server: Path, file: str) -> None:
    path = fetch("ours", file)
    assert path == server / file
    assert path.read_bytes() == Server.GOOD
    assert fetch("ours", file) == path
    assert Server.asked == [f"/{file}"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "how", ["cut", "stall", "wrong", "too long", "500", "503"]
)
def test_a_download_that_fails_is_tried_again(
    server: Path, how: str
) -> None:
    Server.how = [how]
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    assert len(Server.asked) == 2
    assert [p.name for p in server.iterdir()] == ["good.gz"]


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_half_a_file_is_worth_nothing(server: Path, how: str) -> None:
    Server.how = [how] * 9
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("ours", "new.gz")  # of which no hash is known
    assert list(server.iterdir()) == []


def test_a_server_need_not_know_the_length(server: Path) -> None:
    Server.how = ["no length"]
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD


def test_a_wrong_hash_is_told_and_nothing_is_kept(server: Path) -> None:
    with pytest.raises(DataError, match=r"its hash is .* not 0+"):
        fetch("ours", "bad.gz")
    assert list(server.iterdir()) == []


@pytest.mark.parametrize("code", ["403", "404"])
def test_a_file_that_does_not_exist_is_asked_for_once(
    server: Path, code: str
) -> None:
    Server.how = [code] * 9
    with pytest.raises(DataError, match=f"HTTP Error {code}"):
        fetch("ours", "good.gz")
    assert len(Server.asked) == 1


def test_a_file_that_is_there_is_compared_with_its_hash(
    server: Path,
) -> None:
    put(server / "good.gz", Server.GOOD)
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    put(server / "good.gz", b"another")
    with pytest.raises(DataError, match="does not match the registry"):
        fetch("ours", "good.gz")
    assert (server / "good.gz").read_bytes() == b"another"
    assert Server.asked == []


def test_a_file_without_a_known_hash_is_taken(server: Path) -> None:
    put(server / "new.gz", b"anything")
    assert fetch("ours", "new.gz").read_bytes() == b"anything"
    assert Server.asked == []


def test_what_another_process_brings_meanwhile_is_used(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Server.how = ["503"]
    monkeypatch.setattr(
        time,
        "sleep",
        lambda _: Server.asked and put(server / "good.gz", Server.GOOD),
    )
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    assert len(Server.asked) == 1


def test_processes_that_fetch_at_once_do_no_harm(server: Path) -> None:
    fork = multiprocessing.get_context("fork")
    several = [
        fork.Process(target=fetch, args=("ours", "good.gz"))
        for _ in range(4)
    ]
    for process in several:
        process.start()
    for process in several:
        process.join(20)
    assert [process.exitcode for process in several] == [0] * 4
    assert [p.name for p in server.iterdir()] == ["good.gz"]
    assert (server / "good.gz").read_bytes() == Server.GOOD
