"""annotated --help, and that of each subcommand; completion."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from annotated.cli import COMMANDS, _similar, load, main
from annotated.engine.recipes import RECIPES
from tests.commands.conftest import Call, process
from tests.helpers import environment
from tests.lines import words


@pytest.mark.parametrize("line", ["", "-h", "--help"])
def test_help_names_the_subcommands(call: Call, line: str) -> None:
    done = call(line)
    assert done.code == 0
    for name in COMMANDS:
        assert f"  {name} " in done.out
        assert load(name)


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
        "translate --run pocket 'Anna ist müde .' 'Die Ärztin kommt .'",
        "paper 3.2.1",
        "train pocket --out r --dry-run",
        "train copy --out ★ --max-steps 1 --train-pairs 50",
        "sweep table3 --minutes 0",
    ),
    *(
        "trane",
        "exercises ★",
        "train ü",
        "--debug ü",
    ),
]


def refuse(*_: object, **__: object) -> None:
    raise OSError("there is no network “here”")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_no_command_ends_for_want_of_a_character(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str
) -> None:
    """What a redirected standard output takes on Windows, or in a
    container, where Python raises UnicodeEncodeError. ASCII is the least."""
    assert {line.split()[0] for line in TOLD} >= COMMANDS.keys()
    monkeypatch.chdir(tmp_path)
    # nothing is fetched: there is no copy of the paper, and no network
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    for line in TOLD:
        monkeypatch.setattr(sys, "argv", ["annotated", *words(line)])
        streams = [
            io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(3)
        ]
        streams[0] = io.TextIOWrapper(io.BytesIO(b"\xe4\na\n"), "utf-8")
        for name, stream in zip(("stdin", "stdout", "stderr"), streams):
            monkeypatch.setattr(sys, name, stream)
        with contextlib.suppress(SystemExit):
            main()
        streams[1].flush()
        assert b"Traceback" not in streams[2].buffer.getvalue(), line
    said = _similar(UnicodeEncodeError("x", "a ✓ ★ ü", 2, 7, "lacks"))
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

    lines = [
        *("annotated transl", "annotated ", "annotated train poc"),
        *("annotated train pocket --max-st", "annotated translate --r"),
    ]
    asked = f"source '{script}'\n"  # once: it is long
    for line in lines:
        parts, empty = line.split(" "), "''" * line.endswith(" ")
        asked += (
            f"COMP_WORDS=({line}{empty}); COMP_CWORD={len(parts) - 1}; "
            "COMPREPLY=(); _tyro_annotated; echo ${COMPREPLY[@]}\n"
        )
    answered = subprocess.run(
        [bash, "-c", asked], capture_output=True, text=True, check=True
    )
    verb, verbs, recipe, field, option = map(
        str.split, answered.stdout.splitlines()
    )
    assert verb == ["translate"] and recipe == ["pocket"]
    assert set(COMMANDS) <= set(verbs)
    assert field == ["--max-steps"] and "--run" in option


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(call: Call, shell: str) -> None:
    done = call(f"completion {shell}")
    assert done.code == 0 and "annotated" in done.out
    assert "multi30k" in done.out and "max-minutes" in done.out


def test_help_does_not_wait_for_torch() -> None:
    """Importing it takes seconds."""
    script = (
        "import sys; from annotated.cli import dispatch; dispatch(['--help']); "
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
    said = " ".join(done.out.replace("│", " ").split())
    said = said.replace(", --no-", " --no-")  # of a flag
    for name in RECIPES["multi30k"].flat():
        option = f"--{name.replace('_', '-')} "
        assert option in said, option
        # an option without a text is followed by its default at once
        after = said.split(option, 1)[1].split("(default", 1)[0]
        assert len(after.split()) >= 3, f"{option} has no text"


@pytest.mark.parametrize("module", ["annotated", "annotated.cli"])
def test_the_package_and_its_program_can_both_be_run(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert b"translate sentences, or standard input" in done.stdout


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


def test_threads_are_told_not_to_spin_before_torch_is_there() -> None:
    """Two runs side by side would spend their time in watching."""
    script = (
        "import os, sys\n"
        "import annotated.cli as command\n"
        "sys.argv = ['annotated', 'data', 'list']\n"
        "command.main()\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['GOMP_SPINCOUNT'], os.environ['KMP_BLOCKTIME'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(KMP_BLOCKTIME="7"),  # what is set is left so
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.stdout.splitlines()[-1] == "1000 7", done.stderr


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="Linux has a full device"
)
def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    """Also where what is printed waits in a buffer until the end."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "annotated", "recipes"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment() | {"PYTHONUNBUFFERED": ""},
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "annotated: standard output: No space left on device\n"
    )


def test_a_reader_who_leaves_is_not_complained_to() -> None:
    for line in ("--help", "data list"):
        read, write = os.pipe()
        os.close(read)
        done = process(line, stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")
