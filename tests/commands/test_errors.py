"""What a user can mend is told in one line, with exit code 2."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated import cli
from annotated.commands import options
from annotated.commands.translate import Translate
from annotated.corpora import fetch as fetching
from annotated.engine import runs as runs_module
from tests.commands.conftest import Call, process
from tests.helpers import environment
from tests.lines import words

# those that tyro tells, naming the option, in a box of its own
OPTIONS = {
    "no value": ("train copy --out", "--out"),
    "field": ("train copy --out x --layers 3", "--layers"),
    "no number": ("train copy --out x --d-model wide", "--d-model"),
    "no choice": ("train copy --out x --norm mid", "--norm"),
    "precision": ("train copy --out x --precision float8", "--precision"),
    "number": ("train copy --out x --d-model 7", "does not divide d_model"),
    "step": ("train copy --out x --max-steps 0", "max_steps must be"),
    "beam": ("train copy --out x --beam 0", "beam must be"),
    "too much": ("train copy --out x y", "y"),
    "no run": ("translate", "--run"),
    "recipes": ("recipes copy", "copy"),
    "data": ("data fetch", "fetch"),
    "no workers": ("translate --run x --workers two", "--workers"),
    "form": ("export --run x --out y --to pdf", "--to"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_option_is_named(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line, complaint = OPTIONS[name]
    done = call(line)
    assert (done.code, done.out) == (2, "")
    assert complaint in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


# those that are ours, in one line
WRONG = {
    "name": ("trane", "unknown subcommand 'trane': did you mean train"),
    "option before the recipe": (
        "train --out x",
        "the recipe comes first, before --out",
    ),
    "option before the subcommand": (
        "--run x translate",
        "the subcommand comes first, before --run",
    ),
    "recipe": (
        "train cpoy --out x",
        "unknown recipe 'cpoy': did you mean copy?",
    ),
    "no out": ("train copy", "--out"),
    "data": ("train copy --out x --data coyp", "unknown data set 'coyp'"),
    "device": ("train copy --out x --device tpu", "no 'tpu' device"),
    "not a run": ("translate --run .", ". is not a run folder"),
    "no folder": (
        "evaluate --run nowhere --split test",
        "nowhere is not a run",
    ),
    "nothing": ("evaluate --run x", "--split, or --src with --ref"),
    "both": (
        "evaluate --run x --split test --src a --ref b",
        "--split, or",
    ),
    "src": ("evaluate --run x --src a", "--split, or --src with --ref"),
    "ref": ("evaluate --run x --ref a", "--split, or --src with --ref"),
    "split, ref": ("evaluate --run x --split test --ref a", "--split, or"),
    "resume": ("train copy --out nowhere --resume", "nowhere is not a run"),
    "pair": ("data prepare pair --out x", "give --src and --tgt"),
    "hold out": (
        "data prepare pair --src a --tgt b --hold-out 2 --out x",
        "hold_out must be above 2, not 2",
    ),
    "divide": (
        "data prepare multi30k --divide-by block",
        "--divide-by goes with pair",
    ),
    "hold out of a set": (
        "data prepare multi30k --hold-out 7",
        "--hold-out goes with pair",
    ),
    "a test of a set": (
        "data prepare multi30k --test a b",
        "--test goes with pair",
    ),
    "draws of nothing": (
        "data prepare pair --src a --tgt b --back-sample --out x",
        "--back-sample goes with --mono",
    ),
    "one of several": (
        "data prepare pair --src a --tgt b --weights 1 x --out x",
        "argument --weights: invalid int value: 'x'",
    ),
    "repeated": (
        "translate --run x --require",
        "argument --require: expected one argument",
    ),
    "nothing as a number": (
        "translate --run x --beam None",
        "argument --beam: invalid int value: 'None'",
    ),
    "treebank": (
        "train parse-small --norm post --out x",
        "annotated treebank BANK --out DIR, and give --data DIR",
    ),
    "cleaning": (
        "data prepare pair --src a --tgt b --ratio 0.5 --out x",
        "ratio must be at least 1, not 0.5",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_answered_with_one_clear_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line, complaint = WRONG[name]
    done = call(line)
    assert complaint in done.complaint
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_process_refuses_with_exit_code_2(tmp_path: Path) -> None:
    done = process("data show cpoy", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"annotated: ")
    assert done.stderr.count(b"\n") == 1


def test_a_number_of_processes_that_is_none_is_named(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "abc")
    done = call("recipes")
    assert done.code == 2
    assert "WORLD_SIZE must be a number, not 'abc'" in done.err


def test_a_narrow_terminal_gets_help_too(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    assert "--beam" in call("translate --help").out
    assert os.environ["COLUMNS"] == "40"


def test_what_is_for_one_process_refuses_to_be_started_by_torchrun(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = call("translate --run RUN").complaint
    assert "translate" in said and "torchrun" in said


@pytest.fixture
def multi30k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small multi30k in $ANNOTATED_DATA, to damage; no network."""

    def no_network(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("no route to host")

    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            path = folder / f"{split}.{language}.gz"
            path.write_bytes(gzip.compress(b"a dog runs\n" * 20))
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setattr(fetching, "_PAUSES", (0,))
    known = fetching.registry()
    del known["multi30k"]["sha256"]  # these are not the real files
    monkeypatch.setattr(fetching, "registry", lambda: known)
    return folder


DAMAGE = {
    "absent": (None, "Download https://"),
    "short": (gzip.compress(b"ein Hund\n" * 19), "has 19"),
    "empty": (gzip.compress(b""), "is empty"),
    "latin": (
        gzip.compress(b"ein\nM\xe4dchen\n"),
        "line 2, byte 2: not UTF",
    ),
    "nul": (gzip.compress(b"ein\n\0\n"), "line 2, byte 1: a NUL byte"),
    "cut": (gzip.compress(b"ein Hund\n" * 20)[:-9], "is damaged"),
    "page": (b"<!doctype html>", "is damaged"),
}


@pytest.mark.parametrize("file", ["train.de.gz", "val.de.gz"])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_bad_file_is_named_and_nothing_begun(
    call: Call, tmp_path: Path, multi30k: Path, file: str, name: str
) -> None:
    text, complaint = DAMAGE[name]
    if text is None:
        (multi30k / file).unlink()
    else:
        (multi30k / file).write_bytes(text)
    done = call(f"train multi30k --out {tmp_path / 'run'}")
    assert complaint in done.complaint
    assert file in done.complaint
    assert str(multi30k) in done.complaint
    assert not (tmp_path / "run").exists()


def test_a_bad_reference_file_is_named(
    call: Call, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a b\nc\n")
    (tmp_path / "b").write_bytes(b"a b\n")
    line = f"evaluate --run {run} --src {tmp_path / 'a'} --ref {tmp_path}"
    assert "a has 2 lines but" in call(f"{line}/b").complaint
    assert "absent cannot be read" in call(f"{line}/absent").complaint


def test_a_damaged_run_is_named(call: Call, run: Path) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:3000])
    done = call(f"translate --run {run}", b"a b\n")
    assert f"{path} cannot be read" in done.complaint


def test_an_error_about_a_file_is_readable(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "x/recipe.json")

    monkeypatch.setattr(Path, "read_text", locked)
    done = call(f"translate --run {run}")
    assert done.complaint == "annotated: x/recipe.json: Permission denied"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let opening a run fail so."""

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(runs_module.Run, "open", fails)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_want_of_memory_is_said_so(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error)
    told = call("translate --run x").complaint
    assert "out of memory: try a smaller batch_tokens" in told
    assert told.endswith("or in a search beam or extra")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the size of tensor a must match"),
        RuntimeError("CUDA error: an illegal memory access was met"),
        ValueError("too many values to unpack"),
        KeyError("step"),
    ],
)
def test_a_mistake_of_ours_is_not_hidden(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        call("translate --run x")


@pytest.mark.parametrize("wish", ["option", "variable"])
def test_the_traceback_is_shown_when_asked_for(
    call: Call, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    plain = call("translate --run nowhere")
    line = "translate --run nowhere"
    if wish == "option":
        line += " --debug"
    else:
        monkeypatch.setenv("ANNOTATED_DEBUG", "1")
    done = call(line)
    assert done.code == 2
    assert "Traceback" in done.err and "in dispatch" in done.err
    assert done.err.endswith(plain.err)


def test_an_option_of_search_is_checked_before_work(
    call: Call, run: Path
) -> None:
    done = call(f"translate --run {run} --beam 2 --nbest 3")
    assert "nbest 3 is more than beam 2" in done.complaint


def test_closed_streams_end_in_no_traceback(run: Path) -> None:
    """As a shell closes them with <&- and >&-; a closed standard input is
    an empty one."""
    code = (
        "import os, sys; os.close({}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'annotated', "
        f"'translate', '--run', {str(run)!r}, *sys.argv[1:]])"
    )

    def closed(number: int, *more: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code.format(number), *more],
            env=environment(),
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    assert closed(0)[0] == 0 and "Error" not in closed(0)[1]
    refused, told = closed(1, "a b")
    assert (refused, told.count("\n")) == (2, 1)
    assert told.startswith("annotated: standard output is closed")
    assert closed(2, "--beam", "0") == (2, "")


def test_what_cannot_be_written_is_named_as_it_was_typed(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        where = str(run.parent / ".x.out.part")
        raise PermissionError(errno.EACCES, "Permission denied", where)

    monkeypatch.setattr("annotated.engine.files.mkdtemp", full)
    out = run.parent / "out"
    done = call(f"export --run {run} --to safetensors --out {out}")
    assert done.complaint == f"annotated: {out}: Permission denied"


def test_export_says_what_it_has_written(call: Call, run: Path) -> None:
    out = run.parent / "out"
    done = call(f"export --run {run} --to safetensors --out {out}")
    assert json.loads(done.out) == {
        "to": "safetensors",
        "out": str(out),
        "files": sorted(path.name for path in out.iterdir()),
    }


def test_a_closed_pipe_is_no_error_on_windows_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There it is EINVAL, as a file name that cannot be is, too."""
    closed = OSError(errno.EINVAL, "Invalid argument")
    name = OSError(errno.EINVAL, "Invalid argument", "a?b")
    pipe = BrokenPipeError(errno.EPIPE, "Broken pipe")
    with monkeypatch.context() as patch:
        gone = [cli._reader_gone(e) for e in (pipe, closed, name)]
        patch.setattr(cli.os, "name", "nt")
        there = [cli._reader_gone(e) for e in (pipe, closed, name)]
    assert gone == [True, False, False]
    assert there == [True, True, False]


@pytest.mark.parametrize(
    "typed",
    [
        "--require a --require=b",  # which may be repeated
        "--beam 2 '- How are you?' '-- How are you?' '--beam is one'",
        "--beam 2 -- --beam --beam=3",
        "--prefix=--beam --beam 2",
    ],
)
def test_what_only_looks_like_an_option_given_twice_is_no_mistake(
    typed: str,
) -> None:
    assert options._twice(Translate, ["--run", "x", *words(typed)]) == ""
