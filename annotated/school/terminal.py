"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import select
import sys
import textwrap
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import tyro

from annotated import checks
from annotated.corpora.reading import python_of
from annotated.engine.errors import DataError, UsageError, unknown
from annotated.engine.files import write_text
from annotated.school.course import Workspace, named
from annotated.school.exercises import Exercise, exercises

__all__ = ["Exercises", "Milestone", "Questions"]


# E22-terminal.md: One exercise and its file
_KEYS = "c check · n next · h hint · s solution · l list · r reset · q quit"


def _starter_file(exercise: Exercise) -> str:
    """What a student begins with."""
    number = f"{exercise.number} " if exercise.number else ""
    lines = [
        f"{number}{exercise.title}",
        f"{exercise.stars} · {exercise.minutes} minutes · chapter "
        f"{exercise.section}",
        "",
    ]
    for paragraph in exercise.statement.splitlines():
        lines += textwrap.wrap(paragraph, 73) or [""]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    text = f"{comment}\n\n{exercise.starter}\n"
    if exercise.symptom:  # python exercises/NN-name.py shows it
        seen = textwrap.indent(exercise.symptom, "    ")
        text += f'\n\nif __name__ == "__main__":\n{seen}\n'
    return text


@dataclasses.dataclass
class _Session:
    """An exercise that is being worked on in a file."""

    workspace: Workspace
    exercise: Exercise
    path: Path
    chosen: list[Exercise]  # what n goes through

    @property
    def name(self) -> str:
        return self.exercise.name

    def begin(self) -> None:
        """Make the file, if it is not there."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, _starter_file(self.exercise))
            print(f"{self.path} is there for you: open it, write, save.")

    def check(self) -> str:
        """Check the file as it is now; the outcome. DataError if it
        cannot be read as Python would read it.
        """
        from annotated.school.examiner import examined

        code = python_of(self.path)
        verdict = examined(self.exercise, code, str(self.path))
        print(verdict.text)
        self.workspace.record(
            self.exercise, verdict, code, examined, is_file=True
        )
        return verdict.outcome

    def look(self) -> None:
        """Check while watching, which no file ends."""
        try:
            self.check()
        except DataError as bad:
            print(f"not read · {bad}")

    def press(self, key: str) -> bool:
        """Do what a key stands for; whether to go on."""
        if key == "q":
            return False
        if key in ("c", "\r", "\n"):
            self.look()
        elif key == "h":
            checks.hint(self.name)
        elif key == "s":
            checks.solution(self.name)
        elif key == "l":
            print(_listed(self.workspace, self.chosen))
        elif key == "r":
            self.reset()
        elif key == "n":
            self.go_on()
        else:
            return True
        print(f"\n{_KEYS}", flush=True)
        return True

    def reset(self) -> None:
        """Begin anew; what the file was is kept beside it."""
        if self.path.exists():
            names = (
                self.path.with_suffix(f".{n}.old") for n in range(1, 1000)
            )
            old = next(path for path in names if not path.exists())
            self.path.rename(old)
            print(f"What you had is in {old}.")
        checks.reset(self.name)
        self.begin()

    def go_on(self) -> None:
        """To the next exercise that has not passed."""
        names = [one.name for one in self.chosen]
        start = names.index(self.name) + 1 if self.name in names else 0
        later = self.chosen[start:] + self.chosen[:start]
        coming = self.workspace.following(later)
        if coming is None:
            print("All of them have passed.")
            return
        self.exercise = coming
        self.path = _usual_file(coming)
        self.begin()
        self.look()


def _usual_file(exercise: Exercise) -> Path:
    """Where an exercise is written if no file is named."""
    return Path("exercises") / f"{exercise.name}.py"


# E22-terminal.md: Watching
def _watch(session: _Session, events: Iterator[str]) -> None:
    """Check at once, after each saving, and on the keys' behalf; events
    are keys, or "" for a moment in which none was pressed.
    """
    from annotated.school.examiner import warm

    seen = _stamp(session.path)  # before: it may be saved during a check
    warm(session.exercise)
    session.look()
    print(f"\nWatching {session.path} …  {_KEYS}", flush=True)
    for key in events:
        if key:
            path = session.path
            if not session.press(key):
                return
            if path != session.path or key == "r":
                seen = _stamp(session.path)
        elif (now := _stamp(session.path)) not in (seen, None):
            seen = now
            warm(session.exercise)
            print(f"\n{'─' * 60}")
            session.look()
            print(f"\n{_KEYS}", flush=True)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Another one after each saving; None while there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _keyboard() -> Generator[str, None, None]:
    """Keys as they are pressed, "" ten times a second."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield from _console_keys()
        return
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        while True:
            if select.select([0], [], [], 0.1)[0]:
                key = os.read(0, 1).decode("ascii", "replace")
                if not key or key == "\x04":  # Ctrl-D, a closed terminal
                    return
                yield key
            else:
                yield ""
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _console_keys() -> Iterator[str]:
    """The same in a Windows console."""
    import msvcrt

    while True:
        if not msvcrt.kbhit():  # type: ignore[attr-defined]
            time.sleep(0.1)
            yield ""
            continue
        key = msvcrt.getwch()  # type: ignore[attr-defined]
        if key in "\x04\x1a":  # Ctrl-D, Ctrl-Z
            return
        if key in "\0\xe0":  # an arrow, a function key: a second code
            msvcrt.getwch()  # type: ignore[attr-defined]
            continue
        yield key


# E22-terminal.md: The subcommands
def _listed(workspace: Workspace, chosen: list[Exercise]) -> str:
    """A line for each exercise, and which is next."""
    text, first = workspace.listed(chosen), workspace.following(chosen)
    if first is None:
        return text
    return f"{text}\nNext: annotated exercises {first.number or first.name}"


@dataclasses.dataclass(frozen=True)
class Exercises:
    """List the exercises, or check one of them whenever its file is saved.

    Exit code 0: it passes; 1: not yet; 2: a wrong command line.
    """

    # 4.1, 04-heads, MultiHeadAttention, or next (unset: list all)
    which: tyro.conf.Positional[str | None] = None
    # your file (unset: exercises/NN-name.py, made if it is not there)
    file: Path | None = None
    # check once, do not watch (what happens without a terminal, too)
    once: tyro.conf.FlagCreatePairsOff[bool] = False
    hint: tyro.conf.FlagCreatePairsOff[bool] = False  # one more hint
    # our solution, once yours has passed or when asked for twice
    solution: tyro.conf.FlagCreatePairsOff[bool] = False
    # begin anew; what you had is kept beside the new file
    reset: tyro.conf.FlagCreatePairsOff[bool] = False
    # list from this page on
    start: Annotated[str | None, tyro.conf.arg(name="from")] = None
    track: Literal["fast", "all"] = "all"  # list the fast track only

    def act(self) -> None:
        workspace, chosen = Workspace.here(), self.chosen()
        if self.which is None:
            print(_listed(workspace, chosen))
            return
        exercise = (
            workspace.following(chosen)
            if self.which == "next"
            else named(self.which)
        )
        if exercise is None:
            raise UsageError("all of these exercises have passed")
        path = self.file or _usual_file(exercise)
        if self.file and not path.is_file():
            raise UsageError(f"{path} is not there, or no file")
        if path.suffix == ".ipynb":
            raise UsageError(
                f"{path} is a notebook: use check() in it, or name a file "
                "of Python"
            )
        session = _Session(workspace, exercise, path, chosen)
        if self.hint:
            checks.hint(exercise.name)
        elif self.solution:
            checks.solution(exercise.name)
        elif self.reset:
            session.reset()
        else:
            self.work(session)

    def chosen(self) -> list[Exercise]:
        """Those of a track, from a page on."""
        start = self.start or "0"
        if not start.isdecimal():
            raise UsageError(f"--from is a page, as 03, not {start!r}")
        chosen = [
            one
            for one in exercises().values()
            if int(one.chapter) >= int(start)
            and self.track in ("all", one.track)
        ]
        if not chosen:
            raise UsageError(f"no exercise is from page {start} on")
        return sorted(chosen, key=lambda one: one.place)

    def work(self, session: _Session) -> None:
        """Watch, or check once."""
        import torch

        torch.set_num_threads(1)
        session.begin()
        if not self.once and sys.stdin.isatty() and sys.stdout.isatty():
            with closing(_keyboard()) as events:
                _watch(session, events)
        elif session.check() != "passed":
            raise SystemExit(1)


@dataclasses.dataclass(frozen=True)
class Milestone:
    """Run the book on what you have solved, and on ours where you have
    not. Exit code 0: it is reached; 1: not yet; 2: its data are missing.
    """

    which: tyro.conf.Positional[str | None] = None  # 1, … (unset: list)

    def act(self) -> None:
        from annotated.school.milestones import MILESTONES, reach

        if self.which is None:
            for number, run in MILESTONES.items():
                first = (run.__doc__ or "").split(";")[0].split(": ", 1)
                print(f"  {number}  {' '.join(first[-1].split())}")
            return
        known = {str(number): number for number in MILESTONES}
        if self.which not in known:
            every = ", ".join(known)
            raise UsageError(f"milestones are {every}, not {self.which!r}")
        said = reach(known[self.which], Workspace.here())
        print(said)
        if said.startswith("not run"):  # its data are missing
            raise SystemExit(2)
        if not said.startswith("reached"):
            raise SystemExit(1)


# E22-terminal.md: Questions
_SIGNS = {
    "approx": "≈", "beta": "β", "cdot": "·", "epsilon": "ε",
    "infty": "∞", "text": "", "times": "×", "top": "T",
}  # fmt: skip
_WIDTH = 76


@dataclasses.dataclass(frozen=True)
class _Question:
    """One of the study guide: choices, each with what is to be said."""

    name: str  # 4a
    chapter: str  # 04
    title: str
    text: str
    choices: list[tuple[str, str]]
    right: int


@cache
def _questions() -> dict[str, _Question]:
    """All, by name, in the order of the book."""
    file = resources.files("annotated") / "questions.json"
    carried = json.loads(file.read_text(encoding="utf-8"))
    return {name: _Question(name, **x) for name, x in carried.items()}


def _plain(markdown: str, indent: str = "") -> str:
    """Prose as a terminal shows it: without marks, in short lines."""
    text = re.sub(r"\\([a-z]+)", lambda m: _SIGNS.get(m[1], m[1]), markdown)
    text = re.sub(r"[*`$]|[{}](?=[^ ]|$)|(?<=[^ ])[{}]", "", text)
    parts = [
        textwrap.fill(
            part, _WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        for part in re.split(r"\n\s*\n", text)
    ]
    return "\n\n".join(parts)


def _ask(question: _Question) -> bool | None:
    """Whether the first answer was right; None if it was left out.
    EOFError where nobody answers any more.
    """
    print(f"\n{question.name} · {_plain(question.title)}\n")
    print(_plain(question.text), end="\n\n")
    letters = "abcdefghi"[: len(question.choices)]
    for letter, (choice, _) in zip(letters, question.choices):
        print(_plain(f"{letter}) {choice}", "     ")[3:])
    first: bool | None = None
    while True:
        try:
            said = input(f"\n{', '.join(letters)}, or Enter to go on: ")
        except EOFError:
            if first is None:
                raise
            return first
        said = said.strip().lower()
        if not said:
            return first
        if len(said) != 1 or said not in letters:
            continue
        place = letters.index(said)
        right = place == question.right
        first = right if first is None else first
        reason = question.choices[place][1]
        print(_plain(f"{'Right' if right else 'Not so'}: {reason}", "  "))
        if right:
            return first


@dataclasses.dataclass(frozen=True)
class Questions:
    """Ask the questions of the study guide, or list how many there are.

    Only the first answer to each counts; it is remembered in mine/.
    """

    # a page, 4 or 04, or a single question, 4b (unset: list all)
    which: tyro.conf.Positional[str | None] = None

    def act(self) -> None:
        workspace = Workspace.here()
        if self.which is None:
            print(self.listed(workspace.state().get("questions", {})))
            return
        asked = self.chosen()
        answers = []
        try:
            for question in asked:
                right = _ask(question)
                if right is None:
                    continue
                answers.append(right)
                self.remember(workspace, question.name, right)
        except EOFError:
            print()
        count = f"{sum(answers)} of {len(asked)}"
        print(f"\n{count} right at the first answer.")

    def chosen(self) -> list[_Question]:
        """UsageError where there is none."""
        which = (self.which or "").lstrip("0") or "0"
        if which in _questions():
            return [_questions()[which]]
        page = which.zfill(2)
        several = [q for q in _questions().values() if q.chapter == page]
        if not several:
            pages = dict.fromkeys(q.chapter for q in _questions().values())
            told = f"use a page, {' '.join(pages)}, or a question, as 2a"
            raise UsageError(unknown("page", self.which or "", pages, told))
        return several

    def remember(
        self, workspace: Workspace, name: str, right: bool
    ) -> None:
        """Keep the first answer of all times; without a folder, nothing."""
        if name not in workspace.state().get("questions", {}):
            workspace.remember("questions", **{name: right})

    def listed(self, known: dict[str, bool]) -> str:
        """A line for each page."""
        pages: dict[str, list[str]] = {}
        for question in _questions().values():
            pages.setdefault(question.chapter, []).append(question.name)
        lines = []
        for page, names in pages.items():
            done = [known[name] for name in names if name in known]
            lines.append(
                f"{page}  {len(names)} questions, {len(done)} answered, "
                f"{sum(done)} right at once"
            )
        return "\n".join([*lines, "Begin: annotated questions 2"])
