"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annotated.corpora.reading import python_of
from annotated.engine.errors import UsageError, unknown
from annotated.engine.files import (
    clear,
    move,
    one_at_a_time,
    write_json,
    write_text,
)
from annotated.school.exercises import Exercise, Verdict, exercises

__all__ = ["book_parts", "Workspace", "redirected", "source_of", "named"]


# E21-course.md: What is yours
_MARK = re.compile(r"^# --- (\d\d-[a-z0-9-]+)$", re.M)


def book_parts() -> dict[str, Exercise]:
    """The exercises of which a Transformer is made, by name."""
    return {n: one for n, one in exercises().items() if one.is_part}


@dataclass(frozen=True)
class _Part:
    """A solution that is kept: where it stands, and its code."""

    exercise: str
    path: Path
    line: int  # of its first line in that file, from 1
    code: str


@dataclass(frozen=True)
class Workspace:
    """The folder mine/: solutions that pass, and progress.json."""

    folder: Path

    @classmethod
    def here(cls) -> Workspace:
        """mine/ in this folder, or $ANNOTATED_MINE."""
        return cls(Path(os.environ.get("ANNOTATED_MINE", "mine")))

    def parts(self) -> dict[str, _Part]:
        """What is yours, by exercise, in the order of the book."""
        found = {}
        for path in sorted(self.folder.glob("*.py")):
            head, *blocks = _MARK.split(python_of(path))
            line = head.count("\n") + 2
            for name, code in zip(blocks[::2], blocks[1::2]):
                found[name] = _Part(
                    name, path, line, code[1:].rstrip() + "\n"
                )
                line += code.count("\n")
        return {name: found[name] for name in book_parts() if name in found}

    def keep(self, exercise: Exercise, code: str) -> None:
        """Put a solution into its module of mine/; of a module of mine/,
        its block. OSError where that cannot be written.
        """
        _, *blocks = _MARK.split(code)
        if exercise.name in blocks[::2]:
            code = blocks[blocks.index(exercise.name) + 1].strip("\n")
        code = _MARK.sub(r"# \1", code)  # which would cut it in two
        self.folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(self.folder):
            codes = {name: x.code for name, x in self.parts().items()}
            self._write(codes | {exercise.name: code})

    def forget(self, name: str) -> None:
        """Take a solution, and what is remembered of it, out again."""
        with one_at_a_time(self.folder):
            codes = {n: part.code for n, part in self.parts().items()}
            removed = codes.pop(name, None)
            if codes or removed:  # what is left may still import it
                self._write(codes)
            state = self.state()
            if state.pop(name, None) is not None:
                write_json(self.folder / "progress.json", state)

    def _write(self, codes: dict[str, str]) -> None:
        """Every module that changes: one that gains a part first and one
        that loses a part last, so that at no moment one is imported that
        is not there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        clear(self.folder)
        texts = {"__init__": '"""Your own Transformer."""\n'}
        for name, exercise in book_parts().items():
            if name not in codes:
                continue
            home = f'"""Yours: parts of annotated.{exercise.module}."""\n'
            others = set(codes) - {name}  # its own would import itself
            block = redirected(codes[name], "mine", others)
            texts.setdefault(exercise.module, home)
            texts[exercise.module] += f"\n\n# --- {name}\n{block}"
        files = self.folder.glob("*.py")
        old = {path.stem: python_of(path) for path in files}
        ours = {name for name, text in old.items() if _MARK.search(text)}

        def order(module: str) -> tuple[int, str]:
            before, now = old.get(module, ""), texts.get(module, "")
            lost = len(_MARK.findall(before)) - len(_MARK.findall(now))
            return lost, module

        for module in sorted({*texts, *ours}, key=order):
            path, text = self.folder / f"{module}.py", texts.get(module)
            if text is None:
                path.unlink()
            elif text != old.get(module):
                write_text(path, text)

    def state(self) -> dict[str, dict[str, Any]]:
        """What is remembered of each exercise: outcome, hints given."""
        try:
            return self._remembered()
        except OSError:
            return {}  # no solution is in it

    def _remembered(self) -> dict[str, dict[str, Any]]:
        """The same; OSError if there is a file that may not be read."""
        try:
            text = (self.folder / "progress.json").read_text("utf-8-sig")
            known = json.loads(text)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}  # also if it is damaged
        entries = known.items() if isinstance(known, dict) else ()
        return {k: facts for k, facts in entries if isinstance(facts, dict)}

    def remember(self, name: str, **facts: Any) -> bool:
        """Add facts to what is remembered; where that cannot be written,
        say why, and answer False.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(self.folder):  # as of two notebooks
                path = self.folder / "progress.json"
                state = self._remembered()
                if path.exists() and not state:  # it can be mended by hand
                    move(path, path.with_name(f"damaged-{path.name}"))
                state[name] = state.get(name, {}) | facts
                write_json(path, state)
        except OSError as error:
            print(f"\nNothing is remembered: {error}")
            return False
        return True

    def record(
        self,
        exercise: Exercise,
        verdict: Verdict,
        code: str | None,
        examine: Callable[[Exercise, str, str], Verdict],
        is_file: bool = False,
    ) -> bool:
        """Remember a verdict, keep what a part has that passed, and say
        what came of it; whether it is remembered. examine says whether
        the code of a cell, or of a file that does more, passes by itself.
        """
        facts = {"outcome": verdict.outcome, "checks": verdict.passed}
        if not self.remember(exercise.name, **facts):
            return False
        if verdict.outcome == "passed" and exercise.is_part and code:
            print(f"\n{self._offer(exercise, code, examine, is_file)}")
        return True

    def _offer(
        self, exercise: Exercise, code: str, examine: Any, is_file: bool
    ) -> str:
        try:
            if not (is_file and _stands_alone(code)):
                code = _exported(code)
                alone = examine(exercise, code, f"<{exercise.name}>")
                if alone.outcome != "passed":
                    return (
                        "Not kept: by itself, without what runs around it, "
                        f"it is {alone.text.splitlines()[0]}"
                    )
            self.keep(exercise, code)
        except SyntaxError:
            return "Not kept: its cell has lines that are not Python."
        except OSError as error:
            return f"Not kept: {error}"
        return f"Kept in {self.folder / exercise.module}.py."

    # E21-course.md: Which exercise, and how it stands
    def following(self, chosen: Iterable[Exercise]) -> Exercise | None:
        """The first of these exercises that has not passed."""
        state = self.state()
        left = (
            one
            for one in chosen
            if state.get(one.name, {}).get("outcome") != "passed"
        )
        return next(left, None)

    def listed(self, chosen: Collection[Exercise]) -> str:
        """A line for each exercise, and how many have passed."""
        state, mine, done, lines = self.state(), self.parts(), 0, []
        for one in chosen:
            known = state.get(one.name, {})
            outcome = known.get("outcome", "not attempted")
            mark = {"passed": "✓", "not attempted": " "}.get(outcome, "·")
            file = f"{mine[one.name].path}" if one.name in mine else ""
            done += outcome == "passed"
            lines.append(
                f"{mark} {one.number:>5}  {one.name:23} {one.stars:3} "
                f"{one.minutes:3} min  {outcome:13} {file}".rstrip()
            )
        return "\n".join([*lines, f"{done} of {len(chosen)} passed."])


def redirected(code: str, package: str, names: set[str]) -> str:
    """code, in which what exercises of these names define is imported
    from package; as it is where it does not parse. Lines keep their
    numbers.
    """
    homes = {
        (f"annotated.{e.module}", e.defines): f"{package}.{e.module}"
        for e in book_parts().values()
        if e.name in names
    }
    plain = re.sub(r"\bfrom mine\.", "from annotated.", code)
    lines = plain.rstrip("\n").split("\n")
    try:
        body = ast.parse(plain).body
    except SyntaxError:  # somebody has edited it: it is told elsewhere
        return code
    for node in body[::-1]:  # several may share a line
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        statements: dict[str, list[str]] = {}
        for alias in node.names:
            home = homes.get((module, alias.name), module)
            statements.setdefault(home, []).append(ast.unparse(alias))
        if set(statements) == {module}:
            continue
        text = "; ".join(
            f"from {home} import {', '.join(imported)}"
            for home, imported in statements.items()
        )
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        left = lines[first].encode()[: node.col_offset].decode()
        right = lines[last - 1].encode()[node.end_col_offset :].decode()
        blank = [""] * (last - first - 1)
        lines[first:last] = [left + text + right, *blank]
    return "\n".join(lines) + "\n"


_EXPORTED = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef,
    ast.Assign, ast.AnnAssign,
)  # fmt: skip


def _exported(code: str) -> str:
    """What the press would export of a cell: imports, definitions and
    constants. SyntaxError where it does not parse.
    """
    lines = code.split("\n")
    blocks: list[str] = []
    for node in ast.parse(code).body:
        if isinstance(node, _EXPORTED):
            above = getattr(node, "decorator_list", None)
            first = min(n.lineno for n in (node, *(above or [])))
            gap = "\n\n" if blocks and above is not None else ""
            blocks.append(
                gap + "\n".join(lines[first - 1 : node.end_lineno])
            )
    return "\n".join(blocks) + "\n"


def _stands_alone(code: str) -> bool:
    """Whether a file has nothing but texts that would not be exported."""
    rest = [n for n in ast.parse(code).body if not isinstance(n, _EXPORTED)]
    texts = [isinstance(getattr(n, "value", 0), ast.Constant) for n in rest]
    return all(texts)


def source_of(thing: Any) -> str | None:
    """The cell, or the file, that defines a function or a class; None
    where it was typed at a prompt.
    """
    parts = vars(thing).values() if inspect.isclass(thing) else [thing]
    for part in map(inspect.unwrap, parts):  # of torch.no_grad, say
        if inspect.isfunction(part):
            lines = linecache.getlines(part.__code__.co_filename)
            return "".join(lines) or None
    return None


# E21-course.md: Which exercise, and how it stands
def named(which: str) -> Exercise:
    """The exercise of a number (4.1, 04.1), of a name (04-heads), of what
    it defines, or of a page that has one. UsageError where there is none.
    """
    every = exercises().values()
    for one in every:
        if which in (one.name, one.defines):
            return one
        if one.number and which.lstrip("0") == one.number:
            return one
    of_page = [one for one in every if one.chapter == which.zfill(2)]
    if len(of_page) > 1:
        several = ", ".join(one.number for one in of_page)
        raise UsageError(f"page {which} has several exercises: {several}")
    if not of_page:
        known = [x for one in every for x in (one.name, one.defines)]
        raise UsageError(unknown("exercise", which, known))
    return of_page[0]
