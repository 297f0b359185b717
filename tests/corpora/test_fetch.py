"""Files that are not here yet: annotated.corpora.fetch, from page E7."""

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
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from annotated.commands.data import _here
from annotated.corpora import fetch as fetching
from annotated.corpora.fetch import fetch
from annotated.corpora.registry import data_folder, folder_of, registry
from annotated.engine.errors import DataError


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; downloads are tried without pauses."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ANNOTATED_DATA", str(folder))
    monkeypatch.setattr(fetching, "_PAUSES", (0, 0, 0))
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
    assert not data.exists()  # an empty folder would look like the data


def test_a_data_set_is_here_once_a_file_is(data: Path) -> None:
    entry = registry()["iwslt17"]
    (data / "iwslt17" / "de").mkdir(parents=True)
    put(data / "iwslt17/de/.en-de.tgz.123", b"half of it")
    assert _here("iwslt17", entry) == "not downloaded"
    put(data / "iwslt17/de/en-de.tgz", b"all of it")
    assert _here("iwslt17", entry) == "here"


class Server(http.server.BaseHTTPRequestHandler):
    """Serves GOOD in the ways that `how` names, one for each request."""

    GOOD = gzip.compress(os.urandom(200_000), mtime=0)
    asked: list[str] = []
    headers_sent: list[dict[str, str]] = []
    how: list[str] = []
    stalled = threading.Event()  # ends what stalls

    def do_GET(self) -> None:
        Server.asked.append(self.path)
        Server.headers_sent.append(dict(self.headers))
        how = Server.how.pop(0) if Server.how else "well"
        if how.isdigit():
            self.send_response(int(how))
            self.send_header("Retry-After", "7")
            self.end_headers()
            return
        content = bytes(len(self.GOOD)) if how == "wrong" else self.GOOD
        first = self.headers["Range"]
        if first and how != "from the start":
            content = content[int(first[6:-1]) :]
            self.send_response(206)
        else:
            self.send_response(200)
        if how != "no length":
            lie = 1000 if how == "too long" else 0
            self.send_header("Content-Length", str(len(content) + lie))
        self.end_headers()
        half = how in ("cut", "stall")
        self.wfile.write(content[: len(content) // 2 if half else None])
        if how == "stall":
            self.wfile.flush()
            Server.stalled.wait()  # until the test is over

    def log_message(self, *_: Any) -> None:
        """The test's output is no place for requests."""


@pytest.fixture
def server(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a set that lies on a server of our own."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    serve = partial(httpd.serve_forever, poll_interval=0.01)
    thread = threading.Thread(target=serve, daemon=True)
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
    monkeypatch.setattr(
        fetching, "_LONGEST", 0
    )  # of the pauses it asks for
    Server.asked, Server.how, Server.headers_sent = [], [], []
    Server.stalled = threading.Event()
    yield data / "ours"
    Server.stalled.set()
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
    "how", ["cut", "stall", "too long", "500", "503", "408", "429"]
)
def test_a_download_that_fails_is_tried_again(
    server: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "stall":  # then well, for which a busy machine has time
        monkeypatch.setattr(fetching, "_PATIENCE", 2.0)
    Server.how = [how]
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    assert len(Server.asked) == 2
    assert [p.name for p in server.iterdir()] == ["good.gz"]


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_half_a_file_is_worth_nothing(
    server: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "stall":
        monkeypatch.setattr(fetching, "_PATIENCE", 0.2)
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
    assert len(Server.asked) == 1  # another time it would be the same


def test_a_server_that_is_asked_too_often_says_how_long_to_wait(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(fetching, "_LONGEST", 60)
    Server.how = ["429", "503"]
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    assert waited == [0, 7, 7]


def test_what_has_come_is_not_fetched_again(server: Path) -> None:
    """A download that breaks off is taken up, and as often as it gets on."""
    Server.how = ["cut"] * 6
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    asked = [sent.get("Range") for sent in Server.headers_sent]
    half = len(Server.GOOD) // 2
    assert asked[:2] == [None, f"bytes={half}-"]
    assert len(asked) == 7
    assert [p.name for p in server.iterdir()] == ["good.gz"]


def test_a_server_may_begin_again(server: Path) -> None:
    Server.how = ["cut", "from the start"]
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD


def test_where_there_is_no_rest_the_whole_is_fetched(server: Path) -> None:
    Server.how = ["cut", "416"]
    assert fetch("ours", "good.gz").read_bytes() == Server.GOOD
    asked = ["Range" in sent for sent in Server.headers_sent]
    assert asked == [False, True, False]


def test_without_a_hash_two_halves_are_not_joined(server: Path) -> None:
    """They might be of two versions."""
    Server.how = ["cut"]
    assert fetch("ours", "new.gz").read_bytes() == Server.GOOD
    assert all("Range" not in sent for sent in Server.headers_sent)


def test_servers_are_told_who_asks(server: Path) -> None:
    fetch("ours", "good.gz")
    (sent,) = Server.headers_sent
    assert sent["User-Agent"].startswith("attention-annotated")


def test_everything_is_fetched_over_https() -> None:
    """Some files have no hash."""
    assert "http://" not in repr(
        [
            {k: v for k, v in entry.items() if k != "homepage"}
            for entry in registry().values()
        ]
    )


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
    if os.name == "nt":
        pytest.skip("there are no forks")
    fork = multiprocessing.get_context("fork")
    several = [
        fork.Process(target=fetch, args=("ours", "good.gz"))
        for _ in range(4)
    ]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0] * 4
    assert [p.name for p in server.iterdir()] == ["good.gz"]
    assert (server / "good.gz").read_bytes() == Server.GOOD
