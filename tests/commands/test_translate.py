"""annotated translate: a line for every line, whatever comes."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from annotated.cli import load
from annotated.commands import translate as translating
from annotated.commands.translate import Translate
from annotated.engine import runs as runs_module
from annotated.engine import search as decoding
from annotated.engine import translate as translate_module
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run
from annotated.search import Hypothesis
from tests.commands.conftest import Call, silent
from tests.helpers import environment


def test_search_takes_the_precision_that_it_is_told_or_measures(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In sixteen bits the scores change a little, and float32 says so."""
    line = f"translate --run {run} --nbest 2 --beam 2 --workers 1"
    exact = call(f"{line} --precision float32", b"a b c\n")
    asked = call(f"{line} --precision bfloat16", b"a b c\n")
    assert "searching in bfloat16" in asked.err
    assert "searching" not in exact.err
    scores = [
        [float(row.split("\t")[1]) for row in done.out.splitlines()]
        for done in (exact, asked)
    ]
    assert scores[0] != scores[1]
    assert scores[1] == pytest.approx(scores[0], rel=0.1)
    whole = call(f"{line} --precision int8", b"a b c\n")
    assert "searching in int8" in whole.err
    assert whole.out not in (exact.out, asked.out)
    found = ("bfloat16", "as told")
    monkeypatch.setattr(translating, "pick_precision", lambda device: found)
    assert call(line, b"a b c\n").out == asked.out


# a machine that multiplies bfloat16 faster would take it, and say so
FLOAT32 = "--precision", "float32"


ODD = {
    "blank": b"\n",
    "blanks": b" \t \n",
    "nothing": b"",
    "no last end": b"a b\nc d",
    "Windows": b"a b\r\nc d\r\n",
    "a return": b"a\rb\n",
    "separators": "a\u2028b\u2029c\x85d\n".encode(),
    "controls": bytes(range(1, 10)) + bytes(range(11, 32)) + b"\x7f\n",
    "emoji": "a 👩‍👩‍👧 b \u202eabc\n".encode(),
    "signature": b"\xef\xbb\xbfa b\n",
    "unknown": "ß ß ß\nzz\n".encode(),
    "special": b"<pad> <s> </s> <unk>\n",
    "long": b"a " * 50_000 + b"\nb\n",
    "long word": b"a" * 100_000 + b"\nb\n",
    "many": b"a b c\n\n" * 30,
}


@pytest.mark.parametrize("name", ODD)
def test_every_line_is_answered_with_a_line(
    call: Call, run: Path, name: str
) -> None:
    text = ODD[name]
    # a long line is many pieces; by default, three are searched at once
    options = "--beam 1 --extra 1 --batch-tokens 30000"
    done = call(f"translate --run {run} {options}", text)
    assert done.code == 0, done.err
    lines = text.split(b"\n")
    expected = len(lines) - (lines[-1] == b"")
    assert len(done.out.splitlines()) == expected
    for line, answer in zip(lines, done.out.split("\n"), strict=False):
        if not line.strip():
            assert answer == ""


@pytest.mark.parametrize(
    "coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]
)
def test_standard_input_is_read_as_a_file_is(
    call: Call, run: Path, coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def translate(
        self: Any, lines: list[str], *rest: Any, **more: Any
    ) -> Any:
        arrived.extend(lines)
        return real(self, lines, *rest, **more)

    arrived: list[str] = []
    real = runs_module.Run.translate
    monkeypatch.setattr(runs_module.Run, "translate", translate)
    mark = "\ufeff" if coding[-2:] in ("le", "be") else ""
    text = f"{mark}a b\r\n\r\nc d\r\n"
    done = call(f"translate --run {run} --beam 1", text.encode(coding))
    assert arrived == ["a b", "", "c d"]
    assert len(done.out.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"a b\n\x8erztin\n", "line 2, byte 1: not UTF-8 text; on Windows"),
        (b"a b\nm\xfcde", "line 2, byte 2: not UTF-8 text; on Windows"),
        (b"a b\nc\0d\n", "line 2, byte 2: a NUL byte; "),
        ("a b\n".encode("utf-16-le"), "line 1, byte 2: a NUL byte; "),
        ("a b\nc".encode("utf-16")[:-1], "standard input is cut off"),
    ],
)
def test_what_is_no_text_on_standard_input_is_not_guessed_at(
    call: Call, run: Path, text: bytes, complaint: str
) -> None:
    line = f"translate --run {run} --beam 1 {' '.join(FLOAT32)}"
    done = call(line, text)
    assert done.code == 2
    told = done.err.splitlines()[-1]  # before it, perhaps an empty answer
    assert told.startswith("annotated: standard input")
    assert complaint in told
    before = b"" if "line 1" in complaint else b"a b\n"
    assert done.out == call(line, before).out


def test_letters_that_a_shell_has_lost_are_asked_about(
    call: Call, run: Path
) -> None:
    done = call(f"translate --run {run} --beam 1", b"a ?rztin m?de b ?\n")
    assert "?rztin: if the shell has put ? for a letter, on W" in done.err
    done = call(f"translate --run {run} --beam 1", b"a ? b?\n")
    assert "if the shell" not in done.err


def test_lines_come_in_order_whatever_their_lengths(
    call: Call, run: Path
) -> None:
    texts = [b"a b c d e f", b"a", b"", b"c d", b"a b c d e f", b"b"]
    together = call(f"translate --run {run}", b"\n".join(texts)).out
    alone = [call(f"translate --run {run}", t + b"\n").out for t in texts]
    assert together == "".join(alone)


def test_much_input_is_read_in_parts(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    translate = runs_module.Run.translate

    def noted(self: Any, lines: list[str], *rest: Any, **more: Any) -> Any:
        sizes.append(len(lines))
        return translate(self, [""] * len(lines), *rest, **more)

    monkeypatch.setattr(runs_module.Run, "translate", noted)
    done = call(f"translate --run {run}", b"a\n" * 80_000)
    assert done.out == "\n" * 80_000
    assert sum(sizes) == 80_000
    assert max(sizes) <= 2**15
    sizes.clear()
    call(f"translate --run {run}", (b"a" * 2**19 + b"\n") * 5)
    assert sizes == [0] + [1] * 5  # first, whether it can be done at all


@pytest.fixture
def translator(finished: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`annotated translate` as a process, with both its ends in hand."""
    command = ["-m", "annotated", "translate", "--run", str(finished)]
    with subprocess.Popen(
        [sys.executable, *command, *FLOAT32],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def answer(translator: subprocess.Popen[bytes]) -> bytes:
    """What a blank line is answered with, while more may come."""
    assert translator.stdin and translator.stdout
    translator.stdin.write(b"\n")
    translator.stdin.flush()
    return translator.stdout.readline()


def test_a_line_is_answered_before_the_next_one_comes(
    translator: subprocess.Popen[bytes],
) -> None:
    """And the reader may leave, and the writer: nobody complains."""
    assert [answer(translator) for _ in range(3)] == [b"\n"] * 3
    assert translator.stdin and translator.stdout and translator.stderr
    translator.stdout.close()
    translator.stdin.write(b"\n" * 10)
    translator.stdin.close()
    assert translator.wait(60) == 0
    assert translator.stderr.read() == b""


MANY = b"a b c d e f\nb\n" * 300  # enough for two processes


@pytest.mark.parametrize("wish", ["translate", "evaluate"])
def test_workers_change_nothing_but_the_time(
    call: Call,
    run: Path,
    tmp_path: Path,
    wish: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "cores", lambda: 2)
    (tmp_path / "text").write_bytes(MANY)
    files = f"--src {tmp_path}/text --ref {tmp_path}/text --json"
    files = files if wish == "evaluate" else ""
    line = f"{wish} --run {run} --precision float32 {files}"
    one = call(f"{line} --workers 1", MANY)
    two = call(f"{line} --workers 2", MANY)
    assert one.code == two.code == 0, two.err
    assert one.err == two.err  # which lines came out empty
    if wish == "translate":
        assert one.out == two.out
        return
    found, expected = json.loads(two.out), json.loads(one.out)
    del found["seconds"], expected["seconds"]
    assert found == expected


def test_a_gpu_has_no_workers(run: Path) -> None:
    wish = Translate(run=run, workers=2)
    assert wish.processes(Run.open(run)) == 2
    assert wish.processes(Run.open(run, device="meta")) == 1


def test_a_worker_that_dies_is_told_of(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "cores", lambda: 2)
    monkeypatch.setattr(decoding, "beam_search", lambda *_: os._exit(9))
    wish = f"translate --run {run} --precision float32 --workers 2"
    done = call(wish, MANY)
    assert done.code == 2 and done.out == ""
    assert "fewer workers" in done.err and done.err.count("\n") == 1


def test_control_c_is_quiet_with_workers_too(finished: Path) -> None:
    """It goes to all processes of the terminal."""
    command = ["-m", "annotated", "translate", "--run", str(finished)]
    with subprocess.Popen(
        [sys.executable, *command, "--workers", "2", *FLOAT32],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        for _ in range(20):
            process.stdin.write(MANY)
        process.stdin.flush()
        process.stdout.readline()  # the next part is being searched
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(600) == 130
        told = process.stderr.read().splitlines()
        assert all(x.startswith(b"empty translation of") for x in told)


def wait_until_asleep(pid: int) -> None:
    """Until a process waits for something, and for a while has done nothing
    else. (At once where the system does not tell.)
    """
    seen: list[str] = []
    while Path(f"/proc/{pid}/stat").exists():
        _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        state, *numbers = rest.split()
        seen.append(f"{state} {numbers[10:12]}")  # and its processor time
        if len(seen) > 5 and state in "SZ" and len(set(seen[-5:])) == 1:
            return
        time.sleep(0.1)


def test_control_c_is_quiet(translator: subprocess.Popen[bytes]) -> None:
    assert answer(translator) == b"\n"  # it has begun
    # and reads: on its way there Python may miss a signal
    wait_until_asleep(translator.pid)
    translator.send_signal(signal.SIGINT)
    assert translator.wait(600) == 130
    assert translator.stderr and translator.stderr.read() == b""


def test_ten_thousand_odd_lines_are_answered_in_order(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line comes back as a word that says which one it was."""

    def echo(model: Any, pieces: Any, *_: Any, **__: Any) -> Any:
        return [
            [Hypothesis([4 + len(piece) % 7], -1.0, -1.0)]
            for piece in pieces
        ]

    monkeypatch.setattr(translate_module, "search_in_order", echo)
    kinds = [k for k in ODD if k not in ("nothing", "no last end", "many")]
    draw = random.Random(0)
    lines: list[bytes] = []
    while len(lines) < 10_000:
        kind = draw.choice(kinds)
        if "long" in kind and draw.random() < 0.99:
            continue
        lines += ODD[kind].removesuffix(b"\n").split(b"\n")
    lines = lines[:10_000]
    done = call(f"translate --run {run}", b"\n".join(lines) + b"\n")
    assert done.code == 0, done.err
    answers = done.out.split("\n")
    assert answers.pop() == "" and len(answers) == 10_000
    opened = runs_module.Run.open(run)
    for line, answer in zip(lines[::7], answers[::7], strict=True):
        text = line.decode("utf-8", "replace").removesuffix("\r")
        [alone] = opened.translate([text])
        assert answer == alone[0].text


def test_json_has_a_line_for_each_line(call: Call, run: Path) -> None:
    done = call(f"translate --run {run} --json --nbest 2", b"a b\n\n")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["line"] for row in rows] == [0, 1]
    first, blank = (row["translations"] for row in rows)
    assert len(first) == 2
    assert set(first[0]) == {"text", "score", "log_probability"}
    assert first[0]["score"] >= first[1]["score"]
    assert [one["text"] for one in blank] == [""]


@pytest.mark.parametrize("words", [["a b", ""], [""], ["", "b a", ""]])
def test_an_empty_argument_is_an_empty_line(
    call: Call, run: Path, words: list[str]
) -> None:
    typed = " ".join(shlex.quote(word) for word in words)
    text = "".join(f"{word}\n" for word in words).encode()
    wanted = call(f"translate --run {run}", text).out
    assert call(f"translate --run {run} {typed}").out == wanted
    assert wanted.count("\n") == len(words)


def test_batches_of_any_size_say_the_same(call: Call, run: Path) -> None:
    text = b"a b c d\n\nb\na b c d e f g\n"
    together = call(f"translate --run {run}", text).out
    alone = call(f"translate --run {run} --batch-tokens 1", text).out
    assert together == alone
    done = call(f"translate --run {run} --batch-tokens 0", text)
    assert "batch_tokens must be an integer >= 1, not 0" in done.complaint


def test_a_translation_that_is_empty_is_told_of(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    told = "empty translation of line "
    done = call(f"translate --run {run}", stdin=b"a\n" * 3 + b"b\nb\n")
    assert done.out == "\nword\nword\nword\n\n"
    assert f"{told}1, 5\n" in done.err
    done = call(f"translate --run {run}", stdin=b" \na\n")
    assert told not in done.err  # nothing was asked
    done = call(f"translate --run {run} --json", stdin=b"a\n" * 99)
    assert f"{told}1, 5, 9, 13, 17, 21, 25, 29, 33, 37 …\n" in done.err
    for name in ("src", "ref"):
        (tmp_path / name).write_text("a\nb\n")
    files = f"--src {tmp_path / 'src'} --ref {tmp_path / 'ref'}"
    done = call(f"evaluate --run {run} {files}")
    assert done.code == 0 and f"{told}1\n" in done.err


def test_lines_are_counted_through_the_parts_in_which_they_come(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    parts = [["a"], ["a", "a"]]
    monkeypatch.setattr(translating, "arriving", lambda given: iter(parts))
    done = call(f"translate --run {run}")
    assert done.err.count("empty translation of line 1\n") == 1
    assert done.err.count("empty translation of line 2\n") == 1


def test_nbest_numbers_the_lines(call: Call, run: Path) -> None:
    done = call(f"translate --run {run} --nbest 3", b"a b\n\nc\n")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] + ["2"] * 3
    assert all(len(row) == 3 for row in rows)
    scores = [float(row[1]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--nbest 5", "nbest 5 is more than beam 4"),
        ("--beam 0", "beam must be"),
        ("--alpha nan", "alpha must be a number in [0, 10), not nan"),
        ("--alpha 1e300", "alpha must be a number in [0, 10), not 1e+300"),
        ("--workers 0", "workers must be an integer >= 1, not 0"),
        ("--extra 0", "extra must be"),
        ("--nbest 0", "nbest must be"),
    ],
)
def test_a_search_that_cannot_be_is_refused(
    call: Call, run: Path, option: str, complaint: str
) -> None:
    done = call(f"translate --run {run} {option}", b"a\n")
    assert complaint in done.complaint


@pytest.mark.parametrize("kind", ["translate", "evaluate", "parse"])
@pytest.mark.parametrize(
    ("name", "value"), [("beam", 7), ("alpha", 0.25), ("extra", 9)]
)
def test_every_option_of_a_search_reaches_it(
    kind: str, name: str, value: float
) -> None:
    usual = RECIPES["pocket"].search
    run: Any = SimpleNamespace(recipe=RECIPES["pocket"])
    asked = load(kind)(run=Path("x"), **{name: value})
    wanted = dataclasses.replace(usual, **{name: value})
    assert asked.search(run) == wanted != usual


def test_sentences_may_be_given_as_arguments(call: Call, run: Path) -> None:
    """Which every system hands over letter for letter, as no pipe of
    Windows does; standard input is then not read."""
    line = f"translate --run {run} --beam 1"
    text = "a b ü\n\nc d\n"
    piped = call(line, text.encode()).out
    done = call(f"{line} 'a b ü' '' 'c d'", b"not this\n")
    assert (done.code, done.out) == (0, piped)
    assert piped.count("\n") == 3
    raw = b"m\xfcde".decode("utf-8", "surrogateescape")
    done = call(f"{line} 'a {raw}'")
    assert "what was given, line 1, byte 4: not UTF-8" in done.complaint
