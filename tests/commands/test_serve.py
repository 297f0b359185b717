"""annotated serve: sentences over HTTP, translated together, none lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from annotated.commands.serve import _LONGEST, Serve, _Batcher
from annotated.engine.runs import Run
from annotated.engine.translate import Translation
from annotated.pocket import pocket_pairs
from tests.commands.conftest import Call
from tests.helpers import environment

uvicorn = pytest.importorskip("uvicorn")
SENTENCES = [pair.source for pair in pocket_pairs(24, "test")]


def ask(
    port: int, body: object = None, path: str = "/translate", **more: Any
) -> tuple[int, Any]:
    """What the server says: the code of HTTP, and the JSON or the text."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    sent = (
        body
        if isinstance(body, bytes | None)
        else json.dumps(body).encode()
    )
    method = more.pop("method", "GET" if body is None else "POST")
    line.request(method, path, sent, more)
    reply = line.getresponse()
    text = reply.read().decode()
    line.close()
    found = (reply.getheader("content-type") or "").startswith(
        "application/json"
    )
    return reply.status, json.loads(text) if found else text


def translations(port: int, text: object) -> list[str]:
    code, said = ask(port, {"text": text})
    assert code == 200, said
    return said["translations"]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server, which at the end is asked to end."""
    line = "annotated serve --run pocket --port 0 --precision float32"
    server = subprocess.Popen(
        [sys.executable, "-m", *line.split(), "--wait", "20", "--nbest", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    try:
        assert server.stdout
        first = server.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", first)
        assert found, (first, server.communicate())
        number = int(found[1])
        yield number
        with ThreadPoolExecutor() as pool:
            last = pool.submit(translations, number, SENTENCES)
            while not ask(number, path="/health")[1]["waiting_tokens"]:
                if last.done():
                    break
            server.send_signal(signal.SIGINT)
            assert len(last.result()) == len(SENTENCES)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, err) == (0, ""), out
    finally:
        server.kill()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    found = Run.open(Path("pocket")).translate(SENTENCES)
    return [best.text for best, *_ in found]


def test_many_clients_get_what_translate_writes(
    port: int, expected: list[str]
) -> None:
    """In one request, and each in its own, which are gathered: of each
    the last byte is sent when the server has all others, so that they come
    together from a busy machine too.
    """
    assert translations(port, SENTENCES) == expected
    before = ask(port, path="/health")[1]
    lines = []
    for text in SENTENCES:
        body = json.dumps({"text": text}).encode()
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        line.putrequest("POST", "/translate")
        line.putheader("Content-Length", str(len(body)))
        line.endheaders(body[:-1])
        lines.append((line, body[-1:]))
    for line, last in lines:
        line.send(last)
    each = [json.load(line.getresponse()) for line, _ in lines]
    assert [said["translations"] for said in each] == [
        [x] for x in expected
    ]
    after = ask(port, path="/health")[1]
    assert after["sentences"] - before["sentences"] == len(SENTENCES)
    assert after["batches"] - before["batches"] < len(SENTENCES) / 2


def test_an_answer_has_every_hypothesis_and_the_unknown_words(
    port: int,
) -> None:
    code, said = ask(port, {"text": ["Anna schläft .\r\n", "", "zzz"]})
    assert code == 200
    assert said["unknown_words"] == ["zzz"]
    best, blank, _ = said["hypotheses"]
    assert [one["text"] for one in best][0] == "Anna sleeps ."
    assert len(best) == 2 and best[0]["score"] > best[1]["score"]
    assert (
        [one["text"] for one in blank] == [said["translations"][1]] == [""]
    )


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"", 400, "must be like"),
        (b"{", 400, "the request is not JSON"),
        (b"[" * 90_000, 400, "the request is not JSON"),
        (b'{"text": "\xff"}', 400, "line 1, byte 11: not UTF-8"),
        (b'{"text": "a\0"}', 400, "line 1, byte 12: a NUL byte"),
        (b'"' + b"x" * _LONGEST + b'"', 413, "more than 100,000 bytes"),
        (b"x" * 20 * _LONGEST, 413, "send several requests"),
        ([], 400, "must be like"),
        ({}, 400, "must be like"),
        ({"text": 5}, 400, "must be like"),
        ({"text": []}, 400, "must be like"),
        ({"text": ["a", None]}, 400, "text 2 is no string"),
        ({"text": ["a", "b\0"]}, 400, "text 2, character 2: a NUL byte"),
        ({"text": "\ud800"}, 400, "text 1, character 1: not UTF-8"),
        ({"text": "a\nb"}, 400, "text 1 has several lines"),
        ({"txt": "a", "text": "b"}, 400, "did you mean text?"),
        ({"text": "a", "beam": 9}, 400, "options are the server's"),
        ({"text": "Anna", "prefix": 5}, 400, "must be like"),
        ({"text": "Anna", "require": ["dog", 5]}, 400, "require 2 is no"),
        ({"text": "Anna", "prefix": ["a", "b"]}, 400, "one prefix"),
        ({"text": "Anna", "require": ["dog"] * 11}, 400, "10 words at most"),
        ({"text": "Anna", "require": "zebra"}, 400, "cannot be written"),
        ({"text": "Anna", "prefix": "zebra"}, 400, "cannot be written"),
        ({"text": "Anna", "require": " "}, 400, "one is empty"),
        ({"text": "Anna", "prefix": "dog " * 90}, 400, "leaves no room"),
    ],
)  # fmt: skip
def test_a_broken_request_is_answered_with_one_line(
    port: int, body: object, code: int, said: str
) -> None:
    found, reply = ask(port, body)
    assert found == code and reply.keys() == {"error"}
    assert said in reply["error"] and "\n" not in reply["error"]
    assert len(reply["error"]) < 200


def test_a_request_says_what_its_translations_are_like(
    port: int, expected: list[str]
) -> None:
    """Beside others in one batch, which are as before."""
    said = {"text": SENTENCES[:2], "prefix": "This", "require": ["always"]}
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(translations, port, x) for x in SENTENCES]
        code, found = ask(port, said)
        assert [each.result() for each in others] == [[x] for x in expected]
    assert code == 200, found
    for text in found["translations"]:
        assert text.split()[0] == "This" and "always" in text.split()


def test_what_is_no_address_of_its_own_is_refused(port: int) -> None:
    assert ask(port, path="/")[1].startswith("POST /translate")
    assert ask(port, path="/health")[1]["status"] == "ok"
    assert ask(port, path="/" + "x" * 900)[0] == 404
    assert ask(port)[0] == ask(port, {}, "/")[0] == 405
    assert ask(port, path="/", Host=f"LocalHost:{port}")[0] == 200
    code, said = ask(port, {"text": "Anna"}, Host="evil.example:80")
    assert code == 403 and "evil.example" in said["error"]
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"\xff\0 is no HTTP\r\n\r\n")
        assert b" 400 " in line.recv(100)


def test_who_leaves_takes_nothing_along(
    port: int, expected: list[str]
) -> None:
    """Before the end of a request, and before its answer."""
    body = json.dumps({"text": SENTENCES}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    for sent in (head + body[:9], head + body, head[:20]):
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(sent)
    assert translations(port, SENTENCES[:3]) == expected[:3]
    assert ask(port, path="/health")[1]["waiting_tokens"] == 0


def test_a_port_that_is_taken_is_one_line(port: int, call: Call) -> None:
    done = call(f"serve --run pocket --port {port}")
    assert f"127.0.0.1:{port} cannot be had" in done.complaint


def test_what_no_request_could_have_is_refused_at_the_start(
    call: Call,
) -> None:
    done = call("serve --run pocket --port 0 --min-length 90")
    assert "min_length 90 exceeds" in done.complaint


def test_only_another_host_than_this_machine_is_warned_of(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    async def serve(self: Serve, *given: Any) -> None:
        names.append(given[-1].names)

    monkeypatch.setattr(Serve, "serve", serve)
    line = "serve --run pocket --port 0 --precision float32"
    assert call(line).err == ""
    [said] = call(f"{line} --host 0.0.0.0").err.splitlines()
    assert "there is no authentication" in said
    assert "localhost" in names[0] and names[1] == []


def test_a_missing_library_is_named(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install uvicorn" in call("serve --run pocket").complaint


# --- the batches ----------------------------------------------------------


def batched(
    lines: list[str], most: int, leave: int = -1
) -> list[list[str]]:
    """The batches in which lines of one token are searched."""
    batches = []

    def translate(some: list[str], wishes: Any) -> list[list[Translation]]:
        assert wishes == [(line, ()) for line in some]
        batches.append(some)
        if "bad" in some:
            raise MemoryError(len(some))
        return [[Translation(text.upper(), 0.0, 0.0)] for text in some]

    async def main() -> None:
        batcher = _Batcher(translate, most, 0.0)
        answers = [batcher.add(line, (line, ()), 1) for line in lines]
        if leave >= 0:
            answers[leave].cancel()
        work = asyncio.create_task(batcher.work())
        found = await asyncio.wait_for(
            asyncio.gather(*answers, return_exceptions=True), 60
        )
        work.cancel()
        for i, (line, answer) in enumerate(zip(lines, found)):
            if i == leave:
                assert isinstance(answer, asyncio.CancelledError)
            elif line == "bad":
                assert isinstance(answer, MemoryError)
            else:
                assert answer[0].text == line.upper()
        assert batcher.tokens == 0

    asyncio.run(main())
    return batches


def test_a_batch_has_as_many_tokens_as_fit() -> None:
    assert batched(["a", "b", "c", "d", "e"], 2) == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]
    assert batched(["a", "b"], 99) == [["a", "b"]]


def test_nobody_is_translated_for_who_has_left() -> None:
    assert batched(["a", "b", "c"], 2, leave=1) == [["a", "c"]]


def test_an_error_meets_only_the_line_that_caused_it() -> None:
    assert batched(["a", "bad", "b"], 3) == [
        ["a", "bad", "b"],
        ["a"],
        ["bad"],
        ["b"],
    ]


def test_a_line_waits_for_others_but_not_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def main() -> list[int]:
        sizes: list[int] = []
        real, over = asyncio.sleep, asyncio.Event()

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            await over.wait()

        def translate(some: list[str], _: Any) -> list[list[Translation]]:
            sizes.append(len(some))
            return [[Translation("", 0.0, 0.0)]] * len(some)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        batcher = _Batcher(translate, 99, 0.05)
        work = asyncio.create_task(batcher.work())
        first = batcher.add("a", ("", ()), 1)
        while not waits:
            await real(0)
        second = batcher.add("b", ("", ()), 1)
        over.set()
        await asyncio.gather(first, second)
        work.cancel()
        return sizes

    assert asyncio.run(main()) == [2]
    assert waits == [0.05]
