"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import builtins
import dataclasses
import io
import json
import math
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any

import torch

import annotated
from annotated.engine.files import write_json
from annotated.engine.processes import end_with_parent, tied
from annotated.school import checks
from annotated.school.checks import (
    LIMIT,
    Exam,
    Solution,
    TooSlow,
    as_given,
    attempt,
    defined,
    examine,
    examine_source,
    mistakes,
    ours,
)
from annotated.school.exercises import Exercise, Verdict, exercises

__all__ = ["examined", "Mark", "marked", "Examiner", "warm"]


# E29-answers.md: A process of its own
_MEMORY = 4 * 2**30  # bytes that an answer may take, on top of ours
_WALL = 3 * LIMIT  # seconds for all checks together


# elsewhere a forked process may not use the system's libraries, or cannot
# be had; a new interpreter imports torch first
_FORKS, _IMPORTS = sys.platform == "linux", 60.0


_WAITS = "stopped after {:g} s. Does it wait for something?"
_ENDED = (
    "it ended the process ({}) before the checks were done. Is there an "
    "exit() in it?"
)


class _Lost(Exception):
    """A child has not answered: its outcome, and what there is to say."""

    def __init__(self, outcome: str, text: str):
        super().__init__(text)
        self.outcome, self.text = outcome, text


def _apart(
    job: Callable[[], Any], wall: float = _WALL, private: Sequence[int] = ()
) -> Any:
    """What job returns, in a child that does not have our private files.
    _Lost where it does not come back.
    """
    if not _FORKS:
        return job()
    sys.stdout.flush()
    key = secrets.token_hex(16)
    into, out = os.pipe()
    line, held = os.pipe()  # for its end when we end
    child = os.fork()
    if child == 0:
        os.close(into)
        os.close(held)
        _serve_once(job, key, out, line, private)
    os.close(out)
    os.close(line)
    try:
        said = _read_all(into, time.monotonic() + wall)
    finally:
        os.close(into)
        _kill(child)
        os.close(held)
        _, status = os.waitpid(child, 0)
    if said is None:
        raise _Lost("too slow", _WAITS.format(wall))
    if not said.endswith("\n"):  # nothing, or cut off
        how = os.waitstatus_to_exitcode(status)
        end = f"exit code {how}" if how >= 0 else f"signal {-how}"
        raise _Lost("crashed", _ENDED.format(end))
    if not said.startswith(key):
        raise _Lost("refused", "it has answered in the examiner's place.")
    found = json.loads(said.removeprefix(key))
    if "raised" in found:
        raise _Lost("stopped", found["raised"])
    return found["found"]


def _serve_once(
    job: Callable[[], Any],
    key: str,
    out: int,
    line: int,
    private: Sequence[int],
) -> None:
    """What the child does; it never returns."""
    try:
        end_with_parent(line)
        for handle in private:  # through which it could answer for us
            os.close(handle)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # for what it starts
        sys.stdin = io.StringIO()
        torch.set_num_threads(1)  # threads do not survive a fork
        _limit_memory()
        encode = json.JSONEncoder().encode  # before an answer runs
        try:
            found = {"found": job()}
        except BaseException as error:  # it has raised KeyboardInterrupt
            found = {"raised": type(error).__name__}
        text = f"{key}{encode(found)}\n"
        sys.stdout.flush()
        with os.fdopen(out, "wb") as pipe:
            pipe.write(text.encode())
    finally:
        os._exit(0)


def _limit_memory() -> None:
    """Addresses for _MEMORY more than now, where that can be said."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):
        return  # not Linux


def _read_all(pipe: int, until: float) -> str | None:
    """What comes through a pipe before it is closed; None if that takes
    too long.
    """
    said = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        if not (more := os.read(pipe, 65536)):
            return said.decode("utf-8", "replace")
        said += more
        if said.endswith(b"\n"):  # though a child of it may hold the pipe
            return said.decode("utf-8", "replace")
    return None


def _kill(child: int) -> None:
    """End a child and what it has started."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)


def examined(
    exercise: Exercise,
    code: str,
    filename: str,
    limit: float = LIMIT,
    wall: float = _WALL,
) -> Verdict:
    """The verdict on the code of a file, run in a child."""
    if not _FORKS:
        return _examined_anew(exercise, code, filename, limit, wall)

    def job() -> dict[str, Any]:
        sys.path.insert(0, str(Path.cwd()))
        verdict = examine_source(exercise, code, filename, limit=limit)
        return dataclasses.asdict(verdict)

    try:
        return Verdict(**_apart(job, wall))
    except _Lost as lost:
        return Verdict.early(exercise, lost.outcome, lost.text)


def _examined_anew(
    exercise: Exercise, code: str, filename: str, limit: float, wall: float
) -> Verdict:
    """The same where there is no fork: in a new interpreter."""
    begin = (
        "from annotated.school.examiner import _answer_anew; _answer_anew()"
    )
    with TemporaryDirectory() as folder, tied() as tie:
        said = Path(folder) / "verdict.json"
        asked = [exercise.name, code, filename, limit, str(said)]
        try:
            done = subprocess.run(
                [sys.executable, "-c", begin],
                input=json.dumps(asked),
                text=True,
                timeout=_IMPORTS + wall,
                env=_environment(),
                **tie,
            )
        except subprocess.TimeoutExpired:
            text = _WAITS.format(wall)
            return Verdict.early(exercise, "too slow", text)
        if said.exists():
            return Verdict(**json.loads(said.read_text("utf-8")))
    text = _ENDED.format(f"exit code {done.returncode}")
    return Verdict.early(exercise, "crashed", text)


def _answer_anew() -> None:
    """What that interpreter does."""
    name, code, filename, limit, path = json.loads(sys.stdin.read())
    sys.stdin = io.StringIO()
    sys.path.insert(0, str(Path.cwd()))
    torch.set_num_threads(1)
    verdict = examine_source(exercises()[name], code, filename, limit=limit)
    write_json(Path(path), dataclasses.asdict(verdict))


# E29-answers.md: The points
@dataclasses.dataclass(frozen=True)
class Mark:
    """The share of the points, from 0 to 1, and why."""

    share: float
    outcome: str
    text: str

    @classmethod
    def none(cls, exercise: Exercise, outcome: str, why: str) -> Mark:
        """No points, and why."""
        return cls(0.0, outcome, f"{outcome} · {exercise.name}: {why}")


def marked(exercise: Exercise, thing: Any, exam: Exam) -> Mark:
    """What an answer earns; thing is the answer, or the Verdict that says
    why there is none.
    """
    mine, verdict = Solution(thing), thing
    if not isinstance(thing, Verdict):
        verdict = examine(exercise, mine, exam)
    if verdict.outcome == "passed":
        return Mark(1.0, verdict.outcome, verdict.text)
    if verdict is thing or verdict.outcome in ("not attempted", "too slow"):
        return Mark(0.0, verdict.outcome, verdict.text)
    held = _holding(exercise, mine, exam)
    before = 0
    if not exercise.is_part:  # code that was given passes some of them
        held_before = _holding(exercise, as_given(exercise), exam)
        before = _counting(exercise, held_before)
    count, of = _counting(exercise, held), verdict.of
    share = max(0.0, (count - before) / (of - before))
    said = f"{sum(held.values())} of {of} checks pass."
    if count < sum(held.values()):
        said += " Those of form count where all others hold."
    return Mark(share, verdict.outcome, f"{verdict.text}\n\n{said}")


def _holding(
    exercise: Exercise, mine: Solution, exam: Exam
) -> dict[str, bool]:
    """Whether each check holds by itself; none after one without end."""
    checks = exercise.properties(exam.hidden)
    held = dict.fromkeys(checks, False)
    for name, check in checks.items():
        errors = [
            mine.trial(check, seed, exam.limit).error for seed in exam.seeds
        ]
        if any(isinstance(error, TooSlow) for error in errors):
            break
        held[name] = not any(errors)
    return held


def _counting(exercise: Exercise, held: dict[str, bool]) -> int:
    """How many of the checks that hold count."""
    checks = exercise.properties()
    form = {name for name in checks if hasattr(checks[name], "form")}
    rest = [held[name] for name in held if name not in form]
    return sum(held.values() if all(rest) else rest)


# E29-answers.md: Whether the examiner is still the examiner
def _parts(exercise: Exercise, hidden: Sequence[str]) -> dict[str, Any]:
    """The functions of which a verdict is made, by where they are."""
    properties = exercise.properties(hidden)
    own = next(iter(properties.values())).__globals__
    found = {
        f"torch.Tensor.{name}": value
        for base in reversed(torch.Tensor.__mro__)
        for name, value in vars(base).items()
    }
    for module in (
        torch, torch.nn.functional, math, builtins, dataclasses, os,
        json, json.encoder, json.JSONEncoder,
    ):  # fmt: skip
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = value
    spaces = {"checks": vars(checks), "the check": own}
    for where, space in (spaces | {"the examiner": globals()}).items():
        for name, value in space.items():
            if name == "__warningregistry__":
                continue  # Python notes there what it has warned of
            found[f"{where}.{name}"] = value
            for inner in ("__code__", "__defaults__", "__globals__"):
                if hasattr(value, inner):
                    found[f"{where}.{name}.{inner}"] = getattr(value, inner)
            if str(getattr(value, "__module__", "")).startswith("annot"):
                for inner, part in getattr(value, "__dict__", {}).items():
                    found[f"{where}.{name}.{inner}"] = part
    return found


_OURS = ("checks.", "the check.", "the examiner.", "torch.Tensor.")


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first part that is another one now; or ""."""
    for name in {**before, **after}:
        mine = name.startswith(_OURS)
        if name not in before and not mine:
            continue  # a module that torch has loaded
        if name not in before or before[name] is not after.get(name):
            return name
    return ""


_Known = tuple[Callable[[Any], object], Solution]


def _drawn(exercise: Exercise) -> list[_Known]:
    """For each check a few mistakes that it rejects, which nobody can
    foresee.
    """
    found: list[_Known] = []
    known = mistakes(exercise)
    for check in exercise.properties().values():
        rejected = (
            (check, one)
            for one in random.SystemRandom().sample(known, len(known))
            if not isinstance(
                one.trial(check, 0).error, (TooSlow, NoneType)
            )
        )
        found += islice(rejected, 4)
    return found


def _lenient(known: Sequence[_Known]) -> str:
    """What is asked by a check that lets a mistake pass which it has
    rejected; or "".
    """
    for check, mistake in known:
        if attempt(check, mistake.thing, 0, 2.0).error is None:
            asked = (check.__doc__ or "").partition("\n\n")[0]
            return " ".join(asked.split())
    return ""


def _marked_in_child(
    exercise: Exercise,
    cells: Sequence[str],
    exam: Exam,
    private: Sequence[int] = (),
) -> Mark:
    """The mark of an answer's own cells."""

    # whatever the answer replaces
    now, differ, still, name = _parts, _changed, _lenient, exercise.name

    def job() -> dict[str, Any]:
        if any("compile" in code for code in cells):
            _load_compiler()  # which replaces some functions of torch
        before = now(exercise, exam.hidden)
        _close(exercise)
        thing = defined(exercise, cells, "the answer", exam.limit)
        mark = marked(exercise, thing, exam)
        share, outcome, text, what = mark.share, mark.outcome, mark.text, ""
        if part := differ(before, now(exercise, exam.hidden)):
            what = f"it has changed {part}"
        elif share and (asked := still(tried)):
            what = f"after it, nothing is wrong any more for “{asked}”"
        if what:
            share, outcome = 0.0, "refused"
            text = f"refused · {name}: {what}."
        return {"share": share, "outcome": outcome, "text": text}

    tried = _drawn(exercise)  # before the answer runs
    try:
        return Mark(**_apart(job, private=private))
    except _Lost as lost:
        return Mark.none(exercise, lost.outcome, lost.text)


def _load_compiler() -> None:
    with suppress(Exception):  # of a torch that cannot compile here
        import_module("torch._dynamo")


# E29-answers.md: What is not there
_PROGRAMS = ("subprocess.", "os.system", "os.fork", "os.posix_spawn")
_DATA = ("torch", "numpy", "collections", "_codecs", "copy", "pathlib")


def _close(exercise: Exercise) -> None:
    """Take out of this process what would give an answer away."""
    package = Path(annotated.__path__[0])
    files = [package / "exercises.json", *package.glob("school/**/*")]
    if exercise.module:
        home = import_module(f"annotated.{exercise.module}")
        files += [Path(str(home.__file__)), Path(str(home.__cached__))]
        value = vars(home).get(exercise.defines, home)
        for module in [*sys.modules.values()]:
            if vars(module).get(exercise.defines) is value:
                delattr(module, exercise.defines)
                names = getattr(module, "__all__", [])
                vars(module)["__all__"] = [  # `import *` goes on
                    name for name in names if name != exercise.defines
                ]
    for name in [x for x in sys.modules if x.startswith(_SCHOOL)]:
        del sys.modules[name]
    for name in ("school", "checks"):
        vars(annotated).pop(name, None)
    stat, refuse = os.stat, PermissionError  # whatever is replaced later
    closed = {
        (at.st_dev, at.st_ino)
        for at in (stat(file) for file in files if file.is_file())
    }

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], (str, bytes)):
            try:
                at = stat(given[0])
            except OSError:
                return
            if (at.st_dev, at.st_ino) in closed:
                raise refuse("this file is closed to an answer")
        elif event == "import" and given[0].startswith(_SCHOOL):
            raise refuse(f"{given[0]} is closed to an answer")
        elif event == "pickle.find_class":
            builtin = given[0] in ("builtins", "__builtin__")
            if not f"{given[0]}.".startswith(_DATA) and (
                not builtin or given[1] in _CALLABLE
            ):
                raise refuse(f"{given[1]} is no data")
        elif event.startswith(_PROGRAMS):
            raise refuse("an answer starts no other program")

    sys.addaudithook(watch)


_SCHOOL = ("annotated.school", "annotated.checks")
_CALLABLE = {"exec", "eval", "compile", "getattr", "open", "__import__"}


# E29-answers.md: An examiner that knows no notebook
_BEGIN = "from annotated.school.examiner import _serve; _serve()"


def _environment() -> dict[str, str]:
    """For an interpreter that finds this package and no secret."""
    home = str(Path(annotated.__path__[0]).parent)
    paths = [home, os.environ.get("PYTHONPATH", "")]
    env = {k: v for k, v in os.environ.items() if k != "ANNOTATED_HIDDEN"}
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Examiner:
    """An interpreter that has loaded PyTorch and nothing of a student's.
    It ends when this process does.
    """

    def __init__(self) -> None:
        self.folder = TemporaryDirectory()  # in which there is nothing
        self.tie = ExitStack()
        self.process: subprocess.Popen[str] | None = None

    def mark(
        self, exercise: Exercise, cells: Sequence[str], exam: Exam
    ) -> Mark:
        """The mark of an answer's own cells, in a child of that process."""
        if self.process is None or self.process.poll() is not None:
            self.process = self.started()
        assert self.process.stdin and self.process.stdout
        asked = json.dumps([exercise.name, list(cells), exam])
        try:
            self.process.stdin.write(asked + "\n")
            self.process.stdin.flush()
            ended = threading.Timer(_IMPORTS + _WALL, self.process.kill)
            if not _FORKS:
                ended.start()
            mark = Mark(**json.loads(self.process.stdout.readline()))
            ended.cancel()
            if not _FORKS:  # it ends after each answer
                self.process.wait()
            return mark
        except (OSError, ValueError):  # it has ended
            self.process.kill()
            self.process.wait()
            why = "it ended the examiner's process."
            return Mark.none(exercise, "crashed", why)

    def started(self) -> subprocess.Popen[str]:
        self.tie.close()  # of one that has ended
        return subprocess.Popen(
            [sys.executable, "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self.folder.name,
            env=_environment(),
            **self.tie.enter_context(tied()),
        )


def _serve() -> None:
    """Answer on standard output what is asked on standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what answers print
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, cells, exam = json.loads(line)
        exercise = exercises()[name]
        warm(exercise)
        mark = _marked_in_child(
            exercise, cells, Exam(*exam), [answers.fileno()]
        )
        answers.write(json.dumps(dataclasses.asdict(mark)) + "\n")
        answers.flush()
        if not _FORKS:
            return  # an answer has run in this process


@cache
def warm(exercise: Exercise) -> None:
    """Check our own solution here, once: what PyTorch loads when it is
    first needed would be loaded in each child again.
    """
    examine(exercise, ours(exercise))
