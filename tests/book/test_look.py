"""annotated look: the figure of chapter 19 for any run (page E27)."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("matplotlib")

import torch

from annotated.book.look import (
    _LONGEST,
    _WIDEST,
    _answer,
    _greedy_steps,
    look,
)
from annotated.cli import dispatch
from annotated.engine.errors import RunError, UsageError
from annotated.engine.runs import Run, run_folder
from annotated.pocket import pocket_pairs
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import BOS, EOS

POCKET = Path("pocket")
SENTENCE = "Der Hund sucht den Jungen ."


@pytest.fixture(scope="module")
def run() -> Run:
    return Run.open(run_folder(POCKET))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with look(POCKET) as (server, address):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield address
        server.shutdown()
        thread.join()


def ask(
    address: str,
    body: bytes | dict[str, Any] | None = None,
    path: str | None = None,
    **headers: str,
) -> tuple[int, str]:
    """POST to the address, or GET it where there is no body."""
    parts = urlsplit(address)
    assert parts.hostname and parts.port
    line = http.client.HTTPConnection(
        parts.hostname, parts.port, timeout=60
    )
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    own = parts.path + ("" if body is None else "ask")
    line.request(method, own if path is None else path, body, headers)
    reply = line.getresponse()
    said = reply.status, reply.read().decode()
    line.close()
    return said


def test_it_writes_what_greedy_search_writes(run: Run) -> None:
    for pair in pocket_pairs(5, "test"):
        [src] = run.source.encode([pair.source])
        [best] = plain_beam_search(run.model, src, SearchConfig(beam=1))
        said = _answer(run, {"text": pair.source})
        assert [s["id"] for s in said["steps"]] == [*best.ids, EOS]
        assert said["said"] == run.target.decode([best.ids])[0]
        assert said["beam"] == run.translate([pair.source])[0][0].text
        assert said["source"] == pair.source.split()


def test_its_probabilities_and_maps_are_the_models(run: Run) -> None:
    said = _answer(run, {"text": SENTENCE})
    [src] = run.source.encode([SENTENCE])
    ids = [step["id"] for step in said["steps"]]
    both = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *ids[:-1]]])
    with torch.no_grad():
        logits = run.model.eval()(*both)[0]
    logits[:, [0, BOS]] = -torch.inf
    chances = logits.softmax(dim=-1)
    for step, row in zip(said["steps"], chances, strict=True):
        assert step["p"] == pytest.approx(row[step["id"]].item(), abs=1e-5)
        likely = [chance for _, chance, _ in step["likely"]]
        assert likely == pytest.approx(
            row.topk(5).values.tolist(), abs=1e-5
        )
    maps = run.model.attention_maps(*both)
    assert said["maps"].keys() == maps.keys()
    for name, weights in maps.items():
        found = torch.tensor(said["maps"][name])
        torch.testing.assert_close(found, weights[0], rtol=0, atol=1e-4)


def test_it_goes_on_from_what_the_reader_chose(run: Run) -> None:
    free = _answer(run, {"text": SENTENCE})["steps"]
    other = free[1]["likely"][1][0]
    led = _answer(run, {"text": SENTENCE, "prefix": [free[0]["id"], other]})
    assert [s["id"] for s in led["steps"][:2]] == [free[0]["id"], other]
    assert led["steps"][0] == free[0]
    assert led["steps"][1]["likely"] == free[1]["likely"]
    assert led["steps"][1]["p"] == free[1]["likely"][1][1]


def test_a_silent_head_changes_what_follows_and_nothing_later(
    run: Run,
) -> None:
    before = _answer(run, {"text": SENTENCE})
    heads = [f"cross.1.{head}" for head in range(4)]
    silent = _answer(run, {"text": SENTENCE, "silent": heads})
    assert silent["steps"] != before["steps"] and silent["beam"] == ""
    assert _answer(run, {"text": SENTENCE}) == before


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"text": "  "}, "0 pieces; 1 to 60"),
        ({"text": "Hund " * (_WIDEST + 1)}, "61 pieces; 1 to 60"),
        (
            {"text": "Hund", "silent": ["cross.9.0"]},
            "no head 0 in 'cross.9'",
        ),
        ({"text": "Hund", "silent": ["cross"]}, "invalid literal"),
        ({}, "text"),
        ([], "list"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    address: str, question: Any, said: str
) -> None:
    code, reply = ask(address, json.dumps(question).encode())
    assert code == 400 and said in json.loads(reply)["error"]


def test_the_page_has_the_figure_and_asks_nobody_else(address: str) -> None:
    code, page = ask(address)
    assert code == 200
    assert 'class="moves moves-translate"' in page and "askTheModel" in page
    source = pocket_pairs(1, "test")[0].source
    assert json.dumps(source, ensure_ascii=False) in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_an_answer_comes_by_the_secret_address_alone(address: str) -> None:
    question = {"text": SENTENCE}
    code, reply = ask(address, question)
    assert code == 200 and json.loads(reply)["said"]
    for path in ("/", "/ask", "/guess/ask", "/guess/"):
        for body in (None, question):
            assert ask(address, body, path) == (404, "")


@pytest.mark.parametrize("body", [None, {"text": SENTENCE}])
def test_another_name_for_this_machine_is_not_known(
    address: str, body: Any
) -> None:
    """As a page elsewhere would ask that has made its name point here."""
    assert ask(address, body, Host="evil.example:80") == (404, "")
    port = urlsplit(address).port
    assert ask(address, body, Host=f"localhost:{port}")[0] == 200


def test_what_is_no_question_is_refused(address: str) -> None:
    assert ask(address, b"{")[0] == 400
    code, reply = ask(address, b'"' + b"x" * _LONGEST + b'"')
    assert code == 400 and "too long" in reply


def test_each_server_has_a_secret_of_its_own() -> None:
    with look(POCKET) as (_, one), look(POCKET) as (_, other):
        secrets = {urlsplit(at).path for at in (one, other)}
        assert len(secrets) == 2 and all(len(s) == 24 for s in secrets)
        assert {urlsplit(at).hostname for at in (one, other)} == {
            "127.0.0.1"
        }


def test_a_port_that_is_taken_and_a_folder_that_is_no_run(
    tmp_path: Path,
) -> None:
    with (
        look(POCKET) as (server, _),
        pytest.raises(UsageError, match=r"^port \d+ cannot be had"),
        look(POCKET, server.server_port),
    ):
        raise AssertionError
    with pytest.raises(UsageError, match="99999"), look(POCKET, 99_999):
        raise AssertionError
    with pytest.raises(RunError), look(tmp_path):
        raise AssertionError
    with pytest.raises(RunError, match="is not a run folder"):
        dispatch(["look", "--run", str(tmp_path), "--no-browser"])


def test_no_answer_is_longer_than_a_search_may_write() -> None:
    run = Run.open(Path("pocket"))
    search = SearchConfig(beam=1, extra=3)
    short = replace(run, recipe=replace(run.recipe, search=search))
    with torch.no_grad():  # an end is never likely
        run.model.embeddings.output[EOS] *= 0
    steps = list(_greedy_steps(short, [5, 6], []))
    [said] = plain_beam_search(run.model, [5, 6], search)
    assert [step["id"] for step in steps] == [*said.ids, EOS]
    assert len(steps) == 5


def test_weights_that_are_no_numbers_are_one_sentence() -> None:
    """In what translates, parses and scores, and on the page."""
    run = Run.open(Path("pocket"))
    with torch.no_grad():
        run.model.decoder.layers[0].norm1.weight[0] = torch.nan
    for ask in (
        lambda: run.translate(["Die Frau schläft ."]),
        lambda: run.translate(["Die Frau schläft ."] * 60, workers=2),
        lambda: list(_greedy_steps(run, [5, 6], [])),
    ):
        with pytest.raises(RunError, match="numbers are not finite"):
            ask()


def test_a_browser_that_leaves_too_early_says_nothing(
    address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = urlsplit(address)
    assert parts.hostname and parts.port
    ended = struct.pack("ii", 1, 0)  # at once, without a farewell
    for size in ("9", "-1", "nine"):
        with socket.create_connection((parts.hostname, parts.port)) as line:
            line.settimeout(30)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ended)
            line.sendall(
                f"POST {parts.path}ask HTTP/1.1\r\nHost: {parts.netloc}\r\n"
                f"Content-Length: {size}\r\n\r\n".encode()
            )
            if size != "9":
                assert line.recv(100).startswith(b"HTTP/1.0 400")
    assert ask(address)[0] == 200  # it goes on
    with look(POCKET) as (server, _):
        for error in (BrokenPipeError(), ConnectionResetError()):
            try:
                raise error
            except OSError:
                server.handle_error(None, ("here", 1))  # type: ignore
    assert capfd.readouterr().err == ""
