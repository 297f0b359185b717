"""The command line: annotated.cli and engine.commands, page E12."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from annotated.cli import COMMANDS, main, similar
from annotated.corpora import fetch as fetching
from annotated.engine import commands
from annotated.engine import runs as runs_module
from annotated.engine import search as decoding
from annotated.engine import translate as translate_module
from annotated.engine.errors import UsageError
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run, read_metrics
from annotated.engine.translate import Translation
from annotated.search import Hypothesis
from annotated.tokens import SPECIALS, Tokenizer
from tests.helpers import at_step, content, environment

TINY = (
    "--train-pairs 200 --num-encoder-layers 1 --num-decoder-layers 1 "
    "--d-model 16 --d-ff 16 --num-heads 2 --batch-tokens 200 "
    "--max-steps 20 --save-every 10 --keep 2 --precision float32"
)


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that a refusal consists of."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.endswith("\n")
        *before, line = self.err.splitlines()
        assert line.startswith("annotated: "), self.err
        assert "Traceback" not in self.err
        return line


Call = Callable[..., Done]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Give a command line to main, and bytes to its standard input."""

    def run(line: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["annotated", *shlex.split(line)])
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))
        )
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line, in another process. Do not touch."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = process(f"train copy --out {folder} {TINY}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 20
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to do things to."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def process(
    line: str, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """The command line as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "annotated", *shlex.split(line)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        **{"stdout": -1, "stderr": -1} | options,
    )


# --- help -----------------------------------------------------------------


@pytest.mark.parametrize("line", ["", "-h", "--help"])
def test_help_names_the_subcommands(call: Call, line: str) -> None:
    done = call(line)
    assert done.code == 0
    for name in COMMANDS:
        assert f"  {name} " in done.out
        assert name in ("train", "doctor") or name in commands.KINDS


TOLD = [  # what prints other characters than ASCII's, or may
    *(f"{name} --help" for name in COMMANDS),
    *("recipes", "data list", "data show multi30k", "train copy --help"),
    *("doctor", "exercises", "exercises 03-padding --solution"),
    *("exercises 03-padding --hint", "milestone", "questions"),
    *(
        "questions 2a",
        "completion bash",
        "report --run pocket --out r.html",
    ),
    *(
        "trane",
        "exercises ★",
        "train ü",
        "--debug ü",
    ),
]


def test_no_command_ends_for_want_of_a_character(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a redirected standard output takes on Windows, or in a
    container, where Python raises UnicodeEncodeError. ASCII is the least."""
    monkeypatch.chdir(tmp_path)
    for line in TOLD:
        monkeypatch.setattr(sys, "argv", ["annotated", *shlex.split(line)])
        streams = [
            io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(3)
        ]
        streams[0] = io.TextIOWrapper(io.BytesIO(b"\xe4\na\n"), "utf-8")
        for name, stream in zip(("stdin", "stdout", "stderr"), streams):
            monkeypatch.setattr(sys, name, stream)
        with contextlib.suppress(SystemExit):
            main()
        streams[1].flush()
        assert b"Traceback" not in streams[2].buffer.getvalue(), line
    said = similar(UnicodeEncodeError("x", "a ✓ ★ ü", 2, 7, "lacks"))
    assert said == ("+ * \\xfc", 7)


def test_a_shell_completes_what_is_typed(
    call: Call, tmp_path: Path
) -> None:
    bash = shutil.which("bash")
    if bash is None or os.name == "nt":
        pytest.skip("there is no bash")
    done = call("completion bash")
    assert done.code == 0
    script = tmp_path / "annotated.bash"
    script.write_text(done.out)

    def offered(line: str) -> list[str]:
        words, empty = line.split(" "), "''" * line.endswith(" ")
        ask = (
            f"source {script}; COMP_WORDS=({line}{empty}); "
            f"COMP_CWORD={len(words) - 1}; _tyro_annotated; "
            "echo ${COMPREPLY[@]}"
        )
        found = subprocess.run(
            [bash, "-c", ask], capture_output=True, text=True, check=True
        )
        return found.stdout.split()

    assert offered("annotated transl") == ["translate"]
    assert set(COMMANDS) <= set(offered("annotated "))
    assert offered("annotated train poc") == ["pocket"]
    assert offered("annotated train pocket --max-st") == ["--max-steps"]
    assert "--run" in offered("annotated translate --r")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(call: Call, shell: str) -> None:
    done = call(f"completion {shell}")
    assert done.code == 0 and "annotated" in done.out
    assert "multi30k" in done.out and "max-minutes" in done.out


def test_help_does_not_wait_for_torch() -> None:
    """Importing it takes seconds."""
    script = (
        "import sys; from annotated.cli import obey; obey(['--help']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("\nFalse\n")


@pytest.mark.parametrize("line", ["recipes", "train", "train --help"])
def test_recipes_are_listed(call: Call, line: str) -> None:
    done = call(line)
    assert done.code == 0
    for name, recipe in RECIPES.items():
        assert name in done.out
        assert recipe.about in done.out


def test_every_field_of_a_recipe_is_an_option_and_explained(
    call: Call,
) -> None:
    done = call("train multi30k --help")
    assert done.code == 0
    words = " ".join(done.out.replace("│", " ").split())
    words = words.replace(", --no-", " --no-")  # of a flag
    for name in RECIPES["multi30k"].flat():
        option = f"--{name.replace('_', '-')} "
        assert option in words, option
        # an option without a text is followed by its default at once
        after = words.split(option, 1)[1].split("(default", 1)[0]
        assert len(after.split()) >= 3, f"{option} has no text"


@pytest.mark.parametrize("module", ["annotated", "annotated.cli"])
def test_the_package_and_its_program_can_both_be_run(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert b"translate standard input" in done.stdout


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "train"])
def test_no_option_is_said_to_be_none_or_something(
    call: Call, name: str
) -> None:
    """A recipe's fields alone may be unset: --max-minutes None."""
    lines = [f"{name} --help"]
    if name == "data":
        lines = [f"data {which} --help" for which in ("show", "prepare")]
    for line in lines:
        done = call(line)
        assert done.code == 0 and "{None" not in done.out


@pytest.mark.parametrize("name", ["translate", "evaluate"])
def test_other_subcommands_explain_themselves(
    call: Call, name: str
) -> None:
    done = call(f"{name} --help")
    assert done.code == 0
    for option in ("--run", "--beam", "--alpha", "--extra", "--device"):
        assert option in done.out


# --- lines that cannot be obeyed ------------------------------------------

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
    done = process("train cpoy --out x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"annotated: ")
    assert done.stderr.count(b"\n") == 1


def test_what_is_for_one_process_refuses_to_be_started_by_torchrun(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = call("translate --run RUN").complaint
    assert "translate" in said and "torchrun" in said


# --- train ----------------------------------------------------------------


def test_a_folder_that_is_in_use_is_not_written_to(
    call: Call, run: Path
) -> None:
    before = content(run)
    done = call(f"train reverse --out {run} {TINY}")
    assert "is not empty" in done.complaint
    assert content(run) == before


def test_any_field_can_be_changed(run: Path) -> None:
    fields = json.loads((run / "recipe.json").read_text())
    assert fields["model"]["d_model"] == 16
    assert fields["training"]["keep"] == 2
    assert fields["tokenizer"] == RECIPES["copy"].tokenizer


def test_a_stopped_run_says_how_to_go_on_and_does(
    call: Call,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        done = call(f"train copy --out {folder} {TINY}")
    assert done.code == 128 + signal.SIGTERM
    assert done.out == ""
    last = done.err.splitlines()[-1]
    assert last == "annotated: stopped at step 7; continue with --resume"
    # what was given at the beginning need not be given again
    done = call(f"train copy --out {folder} --resume")
    assert done.code == 0
    assert "resuming at step 7" in done.err
    assert json.loads(done.out)["steps"] == 20
    one, other = (
        load_file(p / "model.safetensors") for p in (finished, folder)
    )
    assert all((one[name] == other[name]).all() for name in one)
    assert [e["step"] for e in read_metrics(folder) if "loss" in e] == [
        1,
        10,
        20,
    ]


def test_to_resume_with_another_field_is_refused(
    call: Call, run: Path
) -> None:
    before = content(run)
    done = call(f"train copy --out {run} --resume --d-ff 32")
    assert "started with d_ff 16: resume it with that" in done.complaint
    done = call(f"train reverse --out {run} --resume")
    assert "was started as 'say the input again" in done.complaint
    assert content(run) == before


def test_with_resume_a_run_can_be_made_longer(
    call: Call, run: Path
) -> None:
    done = call(f"train copy --out {run} --resume --max-steps 25")
    assert json.loads(done.out)["steps"] == 25


def test_minutes_end_a_run_too(call: Call, tmp_path: Path) -> None:
    line = f"train copy --out {tmp_path / 'run'} {TINY} --max-minutes 1e-9"
    assert json.loads(call(line).out)["steps"] == 1


def test_what_diverges_is_said_to(call: Call, tmp_path: Path) -> None:
    line = f"train copy --out {tmp_path / 'run'} {TINY} --warmup 1"
    done = call(f"{line} --rate 1e30")
    assert "has loss" in done.complaint
    assert "step " in done.complaint


def test_ones_own_files_can_be_trained_on(
    call: Call, tmp_path: Path
) -> None:
    for split, count in (("train", 60), ("valid", 9), ("test", 9)):
        for language, word in (("it", "cane"), ("en", "dog")):
            lines = "".join(f"{word} {i}\n" for i in range(count))
            (tmp_path / f"{split}.{language}").write_text(lines)
    run = tmp_path / "run"
    line = f"--data {tmp_path} --source it --target en --vocab 300"
    tiny = TINY.replace("--train-pairs 200", "")
    done = call(f"train multi30k --out {run} {line} {tiny} --max-steps 2")
    assert done.code == 0, done.err
    done = call(f"evaluate --run {run} --split test --json --extra 5")
    assert json.loads(done.out)["sentences"] == 9


def test_data_that_were_moved_are_scored_where_they_are(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed as seen from a folder, evaluated from another one."""
    home, run = tmp_path / "home", tmp_path / "run"
    (home / "own").mkdir(parents=True)
    for split, count in (("train", 60), ("valid", 9), ("test", 7)):
        for language, word in (("it", "cane"), ("en", "dog")):
            lines = "".join(f"{word} {i}\n" for i in range(count))
            (home / f"own/{split}.{language}").write_text(lines)
    line = "--data own --source it --target en --vocab 300 --max-steps 2"
    tiny = TINY.replace("--train-pairs 200", "").replace(
        "--max-steps 20", ""
    )
    monkeypatch.chdir(home)
    done = call(f"train pair --out {run} {line} {tiny}")
    assert done.code == 0, done.err
    monkeypatch.chdir(tmp_path)
    score = f"evaluate --run {run} --json --extra 5 --beam 1"
    before = json.loads(call(f"{score} --split test").out)
    assert before["sentences"] == 7
    (home / "own").rename(tmp_path / "moved")
    done = call(f"{score} --split test")
    assert f"no folder {home / 'own'}" in done.complaint
    assert "--data" in done.complaint
    after = json.loads(call(f"{score} --split test --data moved").out)
    for scores in (before, after):
        del scores["seconds"]
    assert after == before
    assert "unknown data set 'gone'" in (
        call(f"{score} --split test --data gone").complaint
    )
    files = f"--src moved/test.it --ref moved/test.en --data {tmp_path}"
    assert "--data goes with --split" in call(f"{score} {files}").complaint


def test_what_is_typed_is_kept_even_where_it_is_the_default(
    call: Call, tmp_path: Path
) -> None:
    for split in ("train", "valid"):
        for language in ("it", "en"):
            lines = "".join(f"cane {i}\n" for i in range(50))
            (tmp_path / f"{split}.{language}").write_text(lines)
    run, defaults = tmp_path / "run", RECIPES["pair"].training
    done = call(
        f"train pair --out {run} --data {tmp_path} --source it --target en "
        "--d-model 16 --d_ff=16 --batch-tokens 200 --max-steps 3 "
        f"--warmup {defaults.warmup} --save-every {defaults.save_every}"
    )
    assert done.code == 0, done.err
    made = Run.open(run).recipe
    assert made.model.d_model == made.model.d_ff == 16
    assert made.training.warmup == defaults.warmup
    assert made.training.save_every == defaults.save_every
    # what was left open has been chosen
    assert made.model.num_encoder_layers == 2 and made.fit == ()


# --- bad files ------------------------------------------------------------


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
    monkeypatch.setattr(fetching, "PAUSES", (0,))
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
    assert "out of memory" in call("translate --run x").complaint


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
    assert "Traceback" in done.err and "in obey" in done.err
    assert done.err.endswith(plain.err)


def test_an_option_of_search_is_checked_before_work(
    call: Call, run: Path
) -> None:
    done = call(f"translate --run {run} --beam 2 --nbest 3")
    assert "nbest 3 is more than beam 2" in done.complaint


# --- translate ------------------------------------------------------------


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
    monkeypatch.setattr(commands, "pick_precision", lambda device: found)
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
    def translate(self: Any, lines: list[str], *rest: Any) -> Any:
        arrived.extend(lines)
        return real(self, lines, *rest)

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

    def noted(self: Any, lines: list[str], *rest: Any) -> Any:
        sizes.append(len(lines))
        return translate(self, [""] * len(lines), *rest)

    monkeypatch.setattr(runs_module.Run, "translate", noted)
    done = call(f"translate --run {run}", b"a\n" * 80_000)
    assert done.out == "\n" * 80_000
    assert sum(sizes) == 80_000
    assert max(sizes) <= 2**15
    sizes.clear()
    call(f"translate --run {run}", (b"a" * 2**19 + b"\n") * 5)
    assert sizes == [1] * 5


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
    wish = commands.Translate(run=run, workers=2)
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


def test_control_c_is_quiet(translator: subprocess.Popen[bytes]) -> None:
    assert answer(translator) == b"\n"  # it has begun
    time.sleep(0.5)  # and reads: on its way there Python may miss a signal
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


def test_batches_of_any_size_say_the_same(call: Call, run: Path) -> None:
    text = b"a b c d\n\nb\na b c d e f g\n"
    together = call(f"translate --run {run}", text).out
    alone = call(f"translate --run {run} --batch-tokens 1", text).out
    assert together == alone
    done = call(f"translate --run {run} --batch-tokens 0", text)
    assert "batch_tokens must be an integer >= 1, not 0" in done.complaint


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run answer every fourth line, the first too, with nothing."""

    def translate(run: Run, lines: list[str], *_: Any, **__: Any) -> Any:
        texts = ["" if i % 4 == 0 else "word" for i in range(len(lines))]
        return [[Translation(t, 0.0, 0.0)] for t in texts]

    monkeypatch.setattr(Run, "translate", translate)


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
    monkeypatch.setattr(commands, "_arriving", lambda: iter(parts))
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
        ("--alpha nan", "alpha must be a number in [0, inf), not nan"),
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


def test_a_reader_who_leaves_is_not_complained_to() -> None:
    for line in ("--help", "recipes"):
        read, write = os.pipe()
        os.close(read)
        done = process(line, stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")


# --- export ---------------------------------------------------------------


def test_an_exported_run_translates_as_before(
    call: Call, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = call(f"export --run {run} --to safetensors --out {out}")
    assert (done.code, done.out) == (0, "")
    before, after = (
        call(f"translate --run {folder}", b"a b c\n\n")
        for folder in (run, out)
    )
    assert before == after and before.code == 0
    again = call(f"export --run {run} --to safetensors --out {out}")
    assert "is not empty" in again.complaint
    wrong = call(f"export --run {run} --to gguf --out {tmp_path / 'new'}")
    assert wrong.code == 2 and "gguf" in wrong.err


# --- evaluate -------------------------------------------------------------

KEYS = ["bleu", "signature", "chrf", "exact_match", "sentences", "seconds"]


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """Options for a test set of three lines."""
    (tmp_path / "src").write_bytes(b"a b\n\nc d e\n")
    (tmp_path / "ref").write_bytes(b"a b\n\nc d e\n")
    return f"--src {tmp_path / 'src'} --ref {tmp_path / 'ref'}"


def test_json_has_the_promised_keys(
    call: Call, run: Path, pair: str
) -> None:
    done = call(f"evaluate --run {run} {pair} --json")
    assert (done.code, done.out.count("\n")) == (0, 1)
    scores = json.loads(done.out)
    assert list(scores) == KEYS
    assert scores["sentences"] == 3
    assert scores["exact_match"] >= 33.3  # the blank line, at least
    assert "tok:13a|" in scores["signature"]


def test_without_json_there_is_a_table(
    call: Call, run: Path, pair: str
) -> None:
    done = call(f"evaluate --run {run} {pair}")
    assert [line.split()[0] for line in done.out.splitlines()] == KEYS


def test_split_compounds_adds_keys_of_its_own(
    call: Call, run: Path, pair: str
) -> None:
    done = call(f"evaluate --run {run} {pair} --split-compounds --json")
    scores = json.loads(done.out)
    assert [*KEYS[:-1], "split_bleu", "split_signature", "seconds"] == (
        list(scores)
    )
    assert "tok:13a|" in scores["signature"]
    assert "tok:13a+hyphens|" in scores["split_signature"]


def test_two_runs_are_compared(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    line = f"evaluate --run {run} {pair} --against {other} --json"
    scores = json.loads(call(line).out)
    assert list(scores) == [*KEYS, "against"]
    assert scores["against"]["bleu"] == scores["bleu"]
    same = {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    for name in ("bleu_difference", "chrf_difference"):
        assert scores["against"][name] == same


def test_a_run_is_compared_with_translations_in_a_file(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    file = tmp_path / "others.txt"
    file.write_bytes((tmp_path / "ref").read_bytes())
    line = f"evaluate --run {run} {pair} --against {file}"
    scores = json.loads(call(f"{line} --json").out)
    assert scores["against"]["exact_match"] == 100.0
    assert scores["against"]["chrf_difference"]["difference"] == (
        pytest.approx(scores["chrf"] - 100, abs=0.02)
    )
    table = call(line).out.splitlines()
    assert "100.0" in next(x for x in table if x.startswith("exact_match"))
    assert "p = " in next(x for x in table if "bleu_difference" in x)


def test_bleu_0_beside_lines_that_are_right_is_explained(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.Evaluate, "_translated", lambda *x: x[-1])
    for text, told in (("a b c\nb\n", True), ("a b c d\nb\n", False)):
        (tmp_path / "text").write_text(text)
        files = f"--src {tmp_path}/text --ref {tmp_path}/text --json"
        done = call(f"evaluate --run {run} {files}")
        assert json.loads(done.out)["exact_match"] == 100
        assert ("no translation has four tokens" in done.err) == told


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_files_from_windows_are_scored_as_others_are(
    call: Call, run: Path, tmp_path: Path, coding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(commands.Evaluate, "_translated", lambda *x: x[-1])
    (tmp_path / "src").write_text("ä b c d\ne\n", "utf-8")
    (tmp_path / "ref").write_text("ä b c d\r\ne\r\n", coding)
    files = f"--src {tmp_path}/src --ref {tmp_path}/ref --json"
    done = call(f"evaluate --run {run} {files} --against {tmp_path}/ref")
    scores = json.loads(done.out)
    assert scores["exact_match"] == scores["against"]["exact_match"] == 100


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a\nb\n", "has 2 lines, but the test set has 3"),
        (b"", "is empty"),
        (b"a\n\xff\nb\n", "line 2, byte 1: not UTF-8"),
    ],
)
def test_translations_that_do_not_belong_are_refused(
    call: Call, run: Path, pair: str, tmp_path: Path,
    content: bytes, complaint: str,
) -> None:  # fmt: skip
    (tmp_path / "others").write_bytes(content)
    line = f"evaluate --run {run} {pair} --against {tmp_path / 'others'}"
    assert complaint in call(line).complaint


def test_another_run_that_is_none_is_refused(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    line = f"evaluate --run {run} {pair} --against"
    done = call(f"{line} {tmp_path / 'nowhere'}")
    assert "nowhere cannot be read" in done.complaint
    assert "is not a run folder" in call(f"{line} {tmp_path}").complaint


def test_a_run_of_other_languages_is_refused(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    recipe = json.loads((other / "recipe.json").read_text())
    (other / "recipe.json").write_text(
        json.dumps(recipe | {"source": "en"})
    )
    done = call(f"evaluate --run {run} {pair} --against {other}")
    assert "translates en to symbols" in done.complaint


# --- ensemble -------------------------------------------------------------


@pytest.fixture
def early(run: Path, tmp_path: Path) -> Path:
    """The run with the weights that it had at step 10."""
    other = Path(shutil.copytree(run, tmp_path / "early"))
    shutil.copy(other / "checkpoints/00000010/model.safetensors", other)
    return other


def test_runs_vote(call: Call, run: Path, early: Path, pair: str) -> None:
    wish = f"translate --run {run} --beam 2 --json --precision float32"
    done = call(f"{wish} --ensemble {early}", b"a b c\n")
    [found] = json.loads(done.out)["translations"]
    runs = [Run.open(folder) for folder in (run, early)]
    search = dataclasses.replace(runs[0].recipe.search, beam=2)
    [[best]] = decoding.beam_search(
        [one.model for one in runs],
        runs[0].source.encode(["a b c"]),
        search,
    )
    assert found["log_probability"] == pytest.approx(best.log_probability)
    alone = json.loads(call(wish, b"a b c\n").out)["translations"][0]
    assert found["log_probability"] != pytest.approx(
        alone["log_probability"]
    )
    scored = call(f"evaluate --run {run} --ensemble {early} --json {pair}")
    assert json.loads(scored.out)["sentences"] == 3


@pytest.mark.parametrize("side", ["source", "target"])
def test_runs_that_vote_have_the_same_words(
    call: Call, run: Path, early: Path, side: str
) -> None:
    file = early / f"{side}.json"
    known = Tokenizer.load(file).inner.get_vocab()
    words = sorted(known.keys() - set(SPECIALS), key=known.__getitem__)
    Tokenizer.of_words(words[::-1]).save(file)
    done = call(f"translate --run {run} --ensemble {early}", b"a b\n")
    assert str(early) in done.complaint
    assert "their vocabularies differ" in done.complaint


def test_a_run_that_cannot_vote_is_told_of(
    call: Call, run: Path, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    done = call(f"translate --run {run} --ensemble {absent}", b"a b\n")
    assert done.complaint.startswith(
        f"annotated: {absent} is not a run folder"
    )


# --- average --------------------------------------------------------------


def losses_of(run: Path, **nll: float) -> None:
    """Let the validations of a run have been these, by step."""
    entries = [
        {"step": int(step[1:]), "valid": {"nll": value}}
        for step, value in nll.items()
    ]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (run / "metrics.jsonl").write_text(text)


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


def test_the_last_checkpoints_are_averaged(
    call: Call, run: Path, tmp_path: Path
) -> None:
    before = content(run)
    out = tmp_path / "mean"
    done = call(f"average --run {run} --last 2 --out {out}")
    assert json.loads(done.out) == {"averaged": [10, 20]}
    places = [
        weights_of(run / "checkpoints" / f"{n:08d}") for n in (10, 20)
    ]
    for name, mean in weights_of(out).items():
        both = (places[0][name].double() + places[1][name].double()) / 2
        assert torch.equal(mean, both.float())
    assert content(run) == before


def test_a_mean_is_a_run_like_any_other(
    call: Call, run: Path, pair: str, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "mean"
    assert call(f"average --run {run} --out {out}").code == 0
    assert call(f"translate --run {out}", b"a b\n").code == 0
    done = call(f"evaluate --run {run} {pair} --against {out} --json")
    # train ended with the mean of all that it kept
    assert json.loads(done.out)["against"]["chrf_difference"]["p"] == 1.0


def test_the_best_checkpoint_is_the_one_that_validated_best(
    call: Call, run: Path, tmp_path: Path
) -> None:
    losses_of(run, s10=1.0, s20=2.0)
    out = tmp_path / "best"
    done = call(f"average --run {run} --best 1 --out {out}")
    assert json.loads(done.out) == {"averaged": [10]}
    best = weights_of(run / "checkpoints" / "00000010")
    for name, weight in weights_of(out).items():
        assert torch.equal(weight, best[name])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--last 3", "3 checkpoints are wanted, but there are 2"),
        ("--best 2", "2 validated checkpoints are wanted, but there are 1"),
        ("--last 0", "an integer >= 1, not 0"),
        ("--best -1", "an integer >= 1, not -1"),
        ("--last 1 --best 1", "give --last or --best, not both"),
    ],
)
def test_checkpoints_that_are_not_there_are_missed(
    call: Call, run: Path, tmp_path: Path, options: str, complaint: str
) -> None:
    losses_of(run, s20=1.0)
    out = tmp_path / "mean"
    done = call(f"average --run {run} --out {out} {options}")
    assert complaint in done.complaint
    assert not out.exists()


def test_a_mean_overwrites_nothing(call: Call, run: Path) -> None:
    before = content(run)
    done = call(f"average --run {run} --out {run}")
    assert f"{run} is not empty: choose another --out" in done.complaint
    done = call(f"average --run {run} --out {run / 'recipe.json'}")
    assert "recipe.json is a file: choose another --out" in done.complaint
    assert content(run) == before


def test_a_run_that_cannot_be_averaged_is_named(
    call: Call, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mean"
    done = call(f"average --run {tmp_path / 'no'} --out {out}")
    assert "is not a run folder" in done.complaint
    place = run / "checkpoints" / "00000020" / "model.safetensors"
    place.write_bytes(place.read_bytes()[:100])
    done = call(f"average --run {run} --out {out}")
    assert "00000020/model.safetensors cannot be read" in done.complaint
    shutil.rmtree(run / "checkpoints")
    done = call(f"average --run {run} --out {out}")
    assert "has no checkpoints to average" in done.complaint
    assert not out.exists()


def test_a_split_of_the_recipes_data_is_scored(
    call: Call, run: Path
) -> None:
    line = f"evaluate --run {run} --split valid --beam 1 --extra 1 --json"
    assert json.loads(call(line).out)["sentences"] == 1000
    done = call(f"evaluate --run {run} --split dev")
    assert "copy has no split 'dev'; it has train, valid" in done.complaint


def test_threads_are_told_not_to_spin_before_torch_is_there() -> None:
    """Two runs side by side would spend their time in watching."""
    script = (
        "import os, sys\n"
        "import annotated.cli as command\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['annotated', 'recipes']\n"
        "command.main()\n"
        "assert 'torch' in sys.modules\n"
        "print(os.environ['GOMP_SPINCOUNT'], os.environ['KMP_BLOCKTIME'])\n"
    )
    for own, expected in ({}, "1000 1"), ({"KMP_BLOCKTIME": "7"}, "1000 7"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment(**own),
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.stdout.splitlines()[-1] == expected, done.stderr


# --- every option arrives -------------------------------------------------

ARRIVES = {  # options of data prepare pair: value, field, what it becomes
    "source": ("it", "source", "it"),
    "target": ("la", "target", "la"),
    "vocab": ("77", "vocab", 77),
    "tokenizer": ("word", "tokenizer", "word"),
    "separate": ("", "shared", False),
    "vocab_pairs": ("8", "vocab_pairs", 8),
    "hold_out": ("9", "division.of", 9),
    "min_words": ("2", "cleaning.min_words", 2),
    "max_words": ("3", "cleaning.max_words", 3),
    "ratio": ("1.5", "cleaning.ratio", 1.5),
    "lower": ("", "cleaning.lower", True),
    "unescape": ("", "cleaning.unescape", True),
    "detokenize": ("", "cleaning.detokenize", True),
    "valid": ("c.de c.en", "parts.valid", ["c.de", "c.en"]),
    "test": ("d.de d.en", "parts.test", ["d.de", "d.en"]),
}


def prepared_by(
    call: Call, monkeypatch: pytest.MonkeyPatch, options: str
) -> dict[str, Any]:
    """What data prepare pair is about to prepare, by field."""
    seen: list[Any] = []

    def prepare(preparation: Any, out: Path) -> None:
        seen.append(preparation)
        raise UsageError("enough")

    monkeypatch.setattr(commands, "prepare", prepare)
    line = f"data prepare pair --src a.de --tgt b.en --out x {options}"
    assert "enough" in call(line).complaint
    found = vars(seen[0]) | {
        f"{name}.{key}": value
        for name in ("cleaning", "division")
        for key, value in vars(getattr(seen[0], name)).items()
    }
    for split, (part,) in seen[0].parts.items():
        files = part.src.path, part.tgt.path
        found[f"parts.{split}"] = [str(file) for file in files]
    del found["parts"]
    return found


@pytest.mark.parametrize("name", ARRIVES)
def test_every_option_of_prepare_reaches_the_preparation(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    value, field, becomes = ARRIVES[name]
    before = prepared_by(call, monkeypatch, "")
    option = f"--{name.replace('_', '-')} {value}"
    after = prepared_by(call, monkeypatch, option)
    assert after[field] == becomes != before.get(field)
    changed = {n for n in after if after[n] != before.get(n)}
    allowed = {field, field.split(".")[0], "division", "division.valid"}
    assert changed <= allowed | {"division.test"}


def test_no_option_of_prepare_is_left_out_here() -> None:
    names = {field.name for field in dataclasses.fields(commands.Prepare)}
    others = {"name", "out", "src", "tgt", "tokens", "json"}
    assert names == {*ARRIVES, *others}


@pytest.mark.parametrize("kind", ["Translate", "Evaluate", "Parse"])
@pytest.mark.parametrize(
    ("name", "value"), [("beam", 7), ("alpha", 0.25), ("extra", 9)]
)
def test_every_option_of_a_search_reaches_it(
    kind: str, name: str, value: float
) -> None:
    usual = RECIPES["pocket"].search
    run: Any = SimpleNamespace(recipe=RECIPES["pocket"])
    asked = getattr(commands, kind)(run=Path("x"), **{name: value})
    wanted = dataclasses.replace(usual, **{name: value})
    assert asked.search(run) == wanted != usual


# --- all the way ----------------------------------------------------------


def test_a_run_goes_all_the_way_as_a_user_leads_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared, trained, the data moved, resumed, averaged, exported,
    imported again: what comes out translates as what went in.
    """
    monkeypatch.chdir(tmp_path)
    for language, word in (("it", "cane"), ("en", "dog")):
        lines = "".join(f"{word} {i}\n" for i in range(300))
        Path(f"raw.{language}").write_text(lines)

    def done(line: str, stdin: bytes = b"") -> str:
        told = call(line, stdin)
        assert told.code == 0, told.err
        return told.out

    files = "--src raw.it --tgt raw.en --hold-out 20 --vocab 280"
    done(f"data prepare pair {files} --out ready")
    tiny = TINY.replace("--train-pairs 200", "--norm post --cooldown 0")
    done(f"train pair --data ready --out run {tiny}")
    Path("ready").rename("moved")
    Path("run").rename("there")
    assert "no folder" in call("train pair --out there --resume").complaint
    line = "train pair --out there --resume --data moved --max-steps 30"
    assert json.loads(done(line))["steps"] == 30
    done("average --run there --last 2 --out mean")
    done("export --run mean --to safetensors --out exported")
    done("export --run mean --to transformers --out theirs")
    done("import marian theirs --out back")
    done("export --run back --to transformers --out again")
    done("import marian again --out twice")
    said, scores = set(), []
    for run in ("mean", "exported", "back", "twice"):
        options = f"--run {run} --precision float32 --beam 2 --extra 5"
        said.add(done(f"translate {options}", b"cane 3\ncane 299\n\n"))
        line = f"evaluate {options} --split test --data moved --json"
        scores.append(json.loads(done(line)) | {"seconds": 0})
    assert len(said) == 1 and said.pop().count("\n") == 3
    assert scores == scores[:1] * 4
