"""Whatever fails, nothing is lost.

Each call by which the package writes, flushes, renames, makes or deletes
something fails once, or is the last that anything is written by, or all
fail from then on, or the process is killed at it (tests/faults.py says
at what; tests/system.py does it). And runs are killed, moved, doubled and
damaged at random: each ends with the weights of a run that met nothing.

    pytest -m exhaustive tests/engine/test_faults.py -s      every call; two hundred
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from annotated import cli
from annotated.engine.checkpoints import _FILES, checkpoints
from annotated.engine.files import _LOCK
from annotated.engine.runs import read_metrics
from annotated.engine.trainer import Trainer
from tests import faults, system
from tests.helpers import content, environment, forking
from tests.lines import words

OPTIONS = (
    "--source en --target de --num-encoder-layers 1 --num-decoder-layers 1 "
    "--d-model 16 --d-ff 16 --num-heads 2 --dropout 0.1 --batch-tokens 40 "
    "--cooldown 0 --max-steps 24 --save-every 3 --keep 3 "
    "--precision float32 --device cpu"
)


# some of everything, for a test of seconds
SOME = ["train on", "save again", "average", "prepare", "forget"]


def faults_of(
    names: list[str], folder: Path, share: int
) -> dict[str, list[tuple[str, str]]]:
    """The calls of some operations. Fails where one of the faults at them,
    of which every share-th is tried, has done harm.
    """
    here, there = forking().Pipe()
    process = forking().Process(
        target=faults.strike, args=(there, folder, names, share)
    )
    process.start()
    there.close()
    found: dict[str, list[tuple[str, str]]] = {}
    tried, wrong = 0, []
    try:
        if reason := here.recv():
            pytest.skip(reason)
        while (told := here.recv()) is not None:
            if len(told) == 2:
                found[told[0]] = told[1]
                print(f"{told[0]}: {len(told[1])} calls")
                continue
            fault, call, harm = told
            tried += 1
            if harm:
                wrong.append((list(found)[-1], fault, call, harm))
                print(*wrong[-1])
    finally:
        process.kill()
        process.join()
    print(f"{tried} faults at {sum(map(len, found.values()))} calls")
    assert not wrong
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ptrace")
def test_a_call_that_fails_loses_nothing(tmp_path: Path) -> None:
    faults_of(SOME, tmp_path, 83)


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="ptrace")
@pytest.mark.parametrize("name", faults.OPERATIONS)
def test_every_call_may_fail(tmp_path: Path, name: str) -> None:
    faults_of([name], tmp_path, 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_as_many_calls_are_counted_as_strace_sees(tmp_path: Path) -> None:
    """And none of the files is written by a map in memory, unseen."""
    counted = faults_of(["train"], tmp_path, 10**9)["train"]
    place, log = (tmp_path / "strace").resolve(), tmp_path / "log"
    place.mkdir()
    code = (
        "from tests import faults; one = faults.OPERATIONS['train']; "
        "one.before(); open('/began', 'w').close(); one.act()"
    ).replace("/began", str(tmp_path / "began"))
    calls = ",".join(name for name, *_ in system.CALLS.values())
    subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", f"trace={calls},mmap",
         sys.executable, "-c", code],
        cwd=place, env=environment(OMP_NUM_THREADS="1"), check=True,
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    lines = log.read_text(errors="replace").splitlines()
    start = next(i for i, line in enumerate(lines) if "/began" in line)
    seen: Counter[str] = Counter()
    for line in lines[start + 1 :]:
        _, _, call = line.partition(" ")
        name, _, rest = call.strip().partition("(")
        if "resumed>" in name or not (ours := below(rest, name, place)):
            continue
        if name == "mmap":
            assert "MAP_SHARED" not in rest or "PROT_WRITE" not in rest
        elif "open" not in name or "O_CREAT" in rest or "O_TRUNC" in rest:
            seen[name] += ours
    assert seen == Counter(name for name, _ in counted)


def below(rest: str, name: str, place: Path) -> bool:
    """Whether a call in the log of strace is about something in place."""
    paths = re.findall(r'"([^"]*)"', rest) if name in NAMED else []
    return f"<{place}/" in rest or any(
        f"{place / path}".startswith(f"{place}/") for path in paths
    )


# their first arguments are paths, and not what is written
NAMED = [
    "mkdir",
    "rmdir",
    "unlink",
    "rename",
    "link",
    "open",
    "creat",
    "openat",
    "renameat",
]


def obey(say: Any, line: str, pause: float) -> None:
    """A command line in a process of its own, with slow steps."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    learn = Trainer.learn

    def slowly(self: Any, *args: Any) -> Any:
        time.sleep(pause)
        return learn(self, *args)

    Trainer.learn = slowly  # type: ignore[method-assign]
    sys.argv = ["annotated", *words(line)]
    code: Any = 0
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    say.send(said.getvalue())
    say.close()
    os._exit(code or 0)


class Process:
    """A command line that is under way."""

    def __init__(self, line: str, pause: float):
        self.here, there = forking().Pipe()
        self.process = forking().Process(
            target=obey, args=(there, line, pause)
        )
        self.process.start()
        there.close()

    def alive(self) -> bool:
        return self.process.is_alive()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it has said, unless it was killed."""
        said = ""
        with contextlib.suppress(EOFError):
            said = self.here.recv()
        self.process.join()
        self.here.close()
        code = self.process.exitcode
        assert code in (0, 2, 128 + 15, -signal.SIGKILL, -signal.SIGTERM), (
            said
        )
        if code == 2:
            assert said.splitlines()[-1].startswith("annotated: "), said
            assert "Traceback" not in said
        return code, said


class Life:
    """A run, and what happens to it. Each fault says whether it struck."""

    def __init__(self, root: Path, draw: random.Random):
        self.root, self.draw, self.moves = root, draw, 0
        root.mkdir()
        self.run, self.data = root / "run", faults.corpus(root / "data")
        self.finished = False

    def begun(self) -> bool:
        return (self.run / "recipe.json").exists()

    def start(self, more: str = "", data: bool = True) -> Process:
        line = f"train copy --out {self.run} {more} "
        if data:
            line += f"--data {self.data} "
        line += "--resume" if self.begun() else OPTIONS
        return Process(line, self.draw.choice((0.0, 0.01, 0.03)))

    def wait(self) -> None:
        time.sleep(self.draw.choice((0.1, 0.4, 1.2)) * self.draw.random())

    def end(self, process: Process) -> tuple[int, str]:
        code, said = process.end()
        self.finished = code == 0
        return code, said

    def refused(self, *args: Any, **more: Any) -> str:
        """What a command says that changes nothing; what a killed process
        had begun to write may go.
        """

        def files() -> dict[str, bytes]:
            return {
                name: found
                for name, found in content(self.run).items()
                if name != _LOCK and ".part" not in name
            }

        before = files()
        code, said = self.start(*args, **more).end()
        assert code == 2, said
        assert files() == before
        return said

    # the faults

    def kill(self) -> bool:
        number = self.draw.choice((signal.SIGKILL, signal.SIGTERM))
        process = self.start(self.draw.choice(("", "--beam 2", "--beam 3")))
        self.wait()
        if process.alive():
            process.send(number)
        return self.end(process)[0] != 0

    def moved_run(self) -> bool:
        process = self.start()
        self.wait()
        moved = self.begun()
        if moved:
            self.moves += 1
            new = self.root / f"run{self.moves}"
            old, self.run = self.run, self.run.rename(new)
        self.end(process)
        if moved:
            assert not old.exists()
        return moved

    def moved_data(self) -> bool:
        if not self.begun():
            return False
        self.moves += 1
        new = self.root / f"data{self.moves}"
        self.data = self.data.rename(new)
        assert "--data" in self.refused(data=False)
        return True

    def doubled(self) -> bool:
        process = self.start()
        while process.alive() and not (self.run / _LOCK).exists():
            time.sleep(0.002)
        time.sleep(0.1 * self.draw.random())
        struck = False
        with contextlib.suppress(ProcessLookupError):
            process.send(signal.SIGSTOP)
            code, said = self.start().end()
            struck = code == 2 and "is being trained by process" in said
            process.send(signal.SIGCONT)
        self.wait()
        if process.alive():
            process.send(signal.SIGKILL)
        self.end(process)
        return struck

    def changed_option(self) -> bool:
        if not self.begun():
            return False
        option = self.draw.choice(("--d-ff 32", "--seed 1", "--norm pre"))
        assert "needs a new run" in self.refused(option)
        return True

    def other_data(self) -> bool:
        """A line of the data is another: the run is not continued on it."""
        if not self.begun():
            return False
        path = self.data / self.draw.choice(("train.en", "valid.de"))
        before = path.read_bytes()
        path.write_bytes(b"h g f\n" + before.partition(b"\n")[2])
        if path.read_bytes() == before:
            return False
        assert "are not those" in self.refused()
        path.write_bytes(before)
        return True

    def damaged(self) -> bool:
        """A bit of the newest checkpoint flips, or its end is cut off."""
        places = checkpoints(self.run / "checkpoints")
        if len(places) < 2:
            return False
        path = places[-1] / self.draw.choice(_FILES)
        whole = bytearray(path.read_bytes())
        at = self.draw.randrange(len(whole))
        if self.draw.random() < 0.5:
            whole[at] ^= 1 << self.draw.randrange(8)
            path.write_bytes(whole)
        else:
            path.write_bytes(whole[:at])
        return True


FAULTS: tuple[Callable[[Life], bool], ...] = (
    Life.kill, Life.kill, Life.moved_run, Life.moved_data, Life.doubled, Life.changed_option, Life.other_data,
    Life.damaged,
)  # fmt: skip


def results(folder: Path) -> tuple[dict[str, torch.Tensor], list[Any]]:
    notes = read_metrics(folder)
    for note in notes:
        note.pop("seconds", None)
    return load_file(folder / "model.safetensors"), notes


@pytest.mark.parametrize(
    "count", [5, pytest.param(200, marks=pytest.mark.exhaustive)]
)
def test_whatever_happens_to_a_run_it_ends_as_if_nothing_had(
    tmp_path: Path, count: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"random faults of seed {seed}")
    draw = random.Random(seed)
    whole = Life(tmp_path / "whole", draw)
    assert whole.end(whole.start())[0] == 0
    expected, notes = results(whole.run)
    struck: Counter[str] = Counter()
    lives = tries = 0
    while struck.total() < count:
        lives += 1
        life = Life(tmp_path / str(lives), draw)
        for _ in range(draw.randrange(3, 9)):
            fault = draw.choice(FAULTS)
            tries += 1
            struck[fault.__name__] += fault(life)
            if life.finished:
                break
        for _ in range(2):  # the second finds a run that has ended
            code, said = life.end(life.start())
            assert code == 0, said
        weights, found = results(life.run)
        for name, value in expected.items():
            assert torch.equal(weights[name], value), name
        assert found == notes
        assert not (life.run / _LOCK).exists()
        assert tries < 20 * count  # most faults have to strike
    print(f"{struck.total()} faults, {lives} runs: {dict(struck)}")
