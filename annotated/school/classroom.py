"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any, Literal

import tyro

from annotated.corpora.reading import json_of
from annotated.engine.errors import DataError, UsageError
from annotated.engine.files import replacing, write_text
from annotated.school.answers import answer_in, statements_of
from annotated.school.checks import SEEDS, Exam, TooSlow, examine
from annotated.school.course import source_of
from annotated.school.examiner import Examiner, Mark, marked
from annotated.school.exercises import Exercise, exercises

__all__ = ["grade", "overruled", "repaired", "Classroom"]


# E26-classroom.md: A graded cell
_HIDDEN = "ANNOTATED_HIDDEN"  # names the teacher's file: a seed, and checks
_examiner = cache(Examiner)  # one for this process


def grade(answer: Callable[[], Any], name: str, points: float) -> float:
    """Print the verdict on the answer to the exercise of this name; return
    its points. What is marked is its source, in this notebook's cells or
    else in the file of what answer() returns. Nothing is raised, and
    standard error stays empty: nbgrader would take either for a mistake.
    """
    exercise = exercises()[name]
    with _silent_errors():
        try:
            mark = _mark_here(exercise, answer)
        except (Exception, KeyboardInterrupt, SystemExit, TooSlow) as error:
            mark = Mark.none(exercise, "stopped", type(error).__name__)
    print(mark.text)
    return round(points * mark.share, 2)


def _mark_here(exercise: Exercise, answer: Callable[[], Any]) -> Mark:
    """The mark of what this process has run."""
    cells = _cells_run()
    if cells:
        mark = _mark_of(exercise, cells)
        if mark.share or not _passes(exercise, answer):
            return mark
        return dataclasses.replace(mark, text=f"{mark.text}\n\n{_ALONE}")
    try:
        thing = answer()
    except NameError:
        return _nothing(exercise)
    if source := source_of(thing):
        return _mark_of(exercise, [source])
    return marked(exercise, thing, _exam(exercise.name))  # typed


_ALONE = (
    "In this notebook it passes. It is marked by itself, with what it "
    "needs of other cells: what else does it need?"
)


def _passes(exercise: Exercise, answer: Callable[[], Any]) -> bool:
    try:
        return examine(exercise, answer()).outcome == "passed"
    except NameError:
        return False


def _cells_run() -> list[str]:
    """What the cells of this notebook were when they ran; [] elsewhere."""
    if "IPython" not in sys.modules:
        return []
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None or shell.history_manager is None:
        return []
    return list(shell.history_manager.input_hist_raw)[1:]


def _mark_of(
    exercise: Exercise,
    cells: Sequence[str],
    until: int | None = None,
    tried: str = "",
    hidden: Path | None = None,
) -> Mark:
    """The mark of the answer that stands in cells, those before until
    first. tried is what stands where the answer should be.
    """
    answer = answer_in(cells, exercise.defines, exercise.starter, until)
    if answer.cells and not answer.given:
        exam = _exam(exercise.name, hidden)
        mark = _examiner().mark(exercise, answer.cells, exam)
        if answer.left:
            more = f"Not taken along: {answer.left}."
            mark = dataclasses.replace(mark, text=f"{mark.text}\n\n{more}")
        return mark
    if _written(tried, exercise.starter):
        why = f"nothing is called {exercise.defines} in the cell"
        return Mark.none(exercise, "wrong", f"{why} where it should be.")
    return _nothing(exercise, bool(answer.cells))


def _nothing(exercise: Exercise, given: bool = False) -> Mark:
    """The mark of an answer that is not there, or as it was given."""
    what = f"nothing is called {exercise.defines}; did its cell run?"
    if given:
        what = f"{exercise.defines} still stands as it was given."
    return Mark.none(exercise, "not attempted", what)


def _written(text: str, starter: str) -> bool:
    """Whether there is more than comments in it, and not the starter."""
    statements, unknown = statements_of([text])
    given = {one.text for one in statements_of([starter])[0]}
    return bool(unknown) or any(x.text not in given for x in statements)


def _exam(name: str, hidden: Path | None = None) -> Exam:
    """For an exercise: with the teacher's file, what only the teacher has,
    checks and two more seeds for all of them.
    """
    path = hidden or os.environ.get(_HIDDEN, "")
    if not path:
        return Exam()
    secret = json_of(Path(path))
    words = [f"{secret['seed']} {name} {n}".encode() for n in range(2)]
    seeds = [int(hashlib.sha256(x).hexdigest()[:14], 16) for x in words]
    checks = list(secret["checks"].get(name, []))
    return Exam(checks, seeds=[*SEEDS, *seeds])


@contextmanager
def _silent_errors() -> Iterator[None]:
    """Let nothing reach standard error, from Python or from below it."""
    sys.stderr.flush()
    below, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        os.dup2(below, 2)
        os.close(below)
        os.close(nowhere)


# E26-classroom.md: Marks that a notebook cannot write itself
def overruled(
    notebook: dict[str, Any], hidden: Path | None = None
) -> dict[str, Any]:
    """The notebook, with our mark in each graded cell, whatever stood
    there. hidden is the teacher's file, which kernels do not know.
    """
    new = copy.deepcopy(notebook)
    for cell in new["cells"]:
        if exercise := _graded_by(cell):
            mark = _mark_in(exercise, notebook, hidden)
            text = mark.text
            printed = _verdict_of(cell)
            if printed and printed[1] not in (mark.outcome, "not run"):
                text += f"\n\n{_DIFFERS} {printed[1]}."
            if printed and not mark.share and _ALONE in printed[2]:
                text += f"\n\n{_ALONE}"
            points = round(exercise.points * mark.share, 2)
            cell["outputs"] = [
                {
                    "output_type": "stream",
                    "name": "stdout",
                    "text": f"{text}\n",
                },
                {
                    "output_type": "execute_result",
                    "execution_count": cell.get("execution_count"),
                    "metadata": {},
                    "data": {"text/plain": str(points)},
                },
            ]
    return new


def _mark_in(
    exercise: Exercise, notebook: dict[str, Any], hidden: Path | None
) -> Mark:
    """The mark of the answer in a notebook, whatever that is."""
    work = _Work.of(notebook, exercise)
    tried = "\n".join(work.sources[i] for i in work.labelled)
    try:
        return _mark_of(exercise, work.sources, work.until, tried, hidden)
    except Exception as error:  # another answer comes after this
        why = f"{type(error).__name__}: {error}"
        return Mark.none(exercise, "stopped", why)


@dataclasses.dataclass(frozen=True)
class _Work:
    """Of a notebook, what matters for one exercise."""

    sources: list[str]  # of all cells with a student's code
    labelled: list[int]  # which of them are for this exercise
    until: int | None  # how many come before its graded cell

    @classmethod
    def of(cls, notebook: dict[str, Any], exercise: Exercise) -> _Work:
        until, places = None, []
        sources: list[str] = []
        for cell in notebook["cells"]:
            if _graded_by(cell) is exercise and until is None:
                until = len(sources)
            if _is_code(cell):
                if _label_of(cell).get("grade_id") == exercise.name:
                    places.append(len(sources))
                sources.append(_text_of(cell))
        return cls(sources, places, until)


def _is_code(cell: dict[str, Any]) -> bool:
    """Whether a student's code may stand in a cell: not in a graded one;
    in one whose type was changed by accident, yes.
    """
    label = _label_of(cell)
    if cell["cell_type"] != "code":
        return label.get("grade_id") in exercises()
    return not label.get("grade")


def _graded_by(cell: dict[str, Any]) -> Exercise | None:
    """The exercise that a graded cell is for."""
    label = _label_of(cell)
    name = str(label.get("grade_id", "")).removeprefix("grade-")
    is_code = cell["cell_type"] == "code" and label.get("grade")
    return exercises().get(name) if is_code else None


def _label_of(cell: dict[str, Any]) -> dict[str, Any]:
    """How nbgrader knows a cell."""
    label = cell["metadata"].get("nbgrader", {})
    return label if isinstance(label, dict) else {}


def _text_of(cell: dict[str, Any]) -> str:
    """What stands in a cell, whose source is a text or a list of lines."""
    return "".join(cell["source"])


# E26-classroom.md: Answers back into their cells
def repaired(
    submitted: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The notebook as it was given, with the answers of the submitted one,
    and the names of those that stood elsewhere.
    """
    new, moved = copy.deepcopy(given), []
    for cell in new["cells"]:
        name = str(_label_of(cell).get("grade_id"))
        if not _label_of(cell).get("solution"):
            continue
        exercise = exercises().get(name)
        if cell["cell_type"] == "markdown" or exercise is None:
            said = [
                _text_of(one)
                for one in submitted["cells"]
                if _label_of(one).get("grade_id") == name
            ]
            cell["source"] = (
                max(said, key=len, default="") or cell["source"]
            )
            continue
        code, here = _answer(exercise, submitted)
        cell["source"] = code
        if here != [code]:
            moved.append(name)
    new["cells"] += _others(submitted, given, new)
    return new, moved


def _answer(
    exercise: Exercise, notebook: dict[str, Any]
) -> tuple[str, list[str]]:
    """What goes into the cell of an exercise, and what stands there."""
    work = _Work.of(notebook, exercise)
    here = [work.sources[i] for i in work.labelled]
    answer = answer_in(
        work.sources, exercise.defines, exercise.starter, work.until
    )
    alone = len(here) == 1 and answer.places == set(work.labelled)
    if alone:
        return here[0], here
    if answer.cells and not answer.given:
        return answer.text, here
    tried = [text for text in here if _written(text, exercise.starter)]
    return (tried or [exercise.starter])[-1], here


def _others(
    submitted: dict[str, Any], given: dict[str, Any], new: dict[str, Any]
) -> list[dict[str, Any]]:
    """The cells of a student that are not in the new notebook, as cells
    without a label.
    """
    known = [_text_of(x).strip() for x in (*new["cells"], *given["cells"])]
    others: list[dict[str, Any]] = []
    for cell in submitted["cells"]:
        text, label = _text_of(cell).strip(), _label_of(cell)
        locked = label.get("grade") and not label.get("solution")
        if locked or any(text in other for other in known):
            continue
        metadata = {
            k: v for k, v in cell["metadata"].items() if k != "nbgrader"
        }
        more = {"id": f"own-{len(others)}"} if "id" in cell else {}
        others.append(cell | {"metadata": metadata} | more)
    return others


# E26-classroom.md: A folder of notebooks
@dataclasses.dataclass(frozen=True)
class Classroom:
    """Repair submitted notebooks whose cells were copied, cut or deleted;
    or, once they are graded, count the mistakes.

    repair: each answer goes back into the cell that it was given in, found
    by the name that it defines. What was submitted is kept beside it.
    Exit code 2: a notebook could not be read; its row says why.
    """

    what: tyro.conf.Positional[Literal["repair", "mistakes"]]
    course: tyro.conf.Positional[Path]  # the folder of `make classroom`

    def act(self) -> None:
        if self.what == "mistakes":
            graded = _Graded()
            lost = self.each("autograded", graded.add)
            graded.tell()
        else:
            lost = self.each("submitted", self.mend)
        if lost:
            more = f" (and {len(lost) - 1} more)" if lost[1:] else ""
            raise DataError(f"{lost[0]}{more}: left as it was")

    def each(self, folder: str, work: Callable[[Path], str]) -> list[str]:
        """Do work on every notebook, and print a row for each; why some
        could not be worked on.
        """
        lost = []
        for path in self.notebooks(folder):
            try:
                row = work(path)
            except Exception as error:  # another student comes after this
                row = str(error)
                if not isinstance(error, DataError):
                    row = f"{path}: {type(error).__name__}: {error}"
                lost.append(row)
                row = f"NOT READ: {row}"
            if row:
                print(f"{path.relative_to(self.course)}: {row}")
        return lost

    def notebooks(self, folder: str) -> list[Path]:
        """Those of all students, and what stands in a notebook's place;
        UsageError where there is no folder.
        """
        top = self.course / folder
        if not top.is_dir():
            raise UsageError(f"{top} is not a folder")
        paths = {*top.glob("*/*/*.ipynb"), *top.glob("*/*.ipynb")}
        used = {path.parent for path in paths}
        folders = {path for path in top.glob("*/*") if path.is_dir()}
        return sorted(paths | folders - used)

    def mend(self, path: Path) -> str:
        """Put one notebook right; what there is to say about it."""
        if path.parent.parent.name == "submitted" or path.is_dir():
            raise DataError(
                f"{path}: a notebook belongs to submitted/NAME/ASSIGNMENT/"
            )
        release = self.course / "release" / path.parent.name
        wanted = path
        if not (release / path.name).exists():  # 03 (1).ipynb is 03.ipynb
            wanted = path.with_stem(_COPY.sub("", path.stem))
        if wanted != path and wanted.exists():
            raise DataError(
                f"{path}: {wanted.name} is there, too: keep the one that "
                "is to be graded"
            )
        given = _notebook_at(release / wanted.name)
        raw = path.read_bytes()
        submitted = _notebook_at(path)
        new, said = repaired(submitted, given)
        labels = [_label_of(c).get("grade_id") for c in submitted["cells"]]
        every = [_label_of(c).get("grade_id") for c in given["cells"]]
        if not all(labels.count(x) == 1 for x in every if x):
            said.append("graded cells")
        if not _is_json(raw):
            said.append("written as UTF-8")
        if wanted != path:
            said.append(f"called {wanted.name} again")
        if said:
            copied = _keep_beside(wanted, raw)
            write_text(
                wanted, json.dumps(new, ensure_ascii=False, indent=1)
            )
            if wanted != path:
                path.unlink()
            said[-1] += f" (what was submitted is in {copied.name})"
        row = ", ".join(said) or "nothing to mend"
        for number, reason in _not_understood(submitted):
            row += f"\n    not understood: cell {number}: {reason}"
        return row


# what a browser, Jupyter or a file manager adds to a second copy's name,
# also one that speaks German, French, Spanish or Italian
_WORD = "(cop(y|ie|ia)|kopie)"
_COPY = re.compile(
    rf"(?<=.)( ?\(({_WORD} ?\d*|\d+)\)|[ -]+{_WORD} ?\d*)+$", re.I
)


def _keep_beside(path: Path, raw: bytes) -> Path:
    """Keep what was submitted, beside what may have been kept before."""
    count, copied = 1, path.with_suffix(".as-submitted")
    while copied.exists() and copied.read_bytes() != raw:
        count += 1
        copied = path.with_suffix(f".as-submitted-{count}")
    if not copied.exists():
        with replacing(copied) as fresh:
            fresh.write_bytes(raw)
    return copied


def _not_understood(notebook: dict[str, Any]) -> list[tuple[int, str]]:
    """Cells, counted from 1, in which something is not understood."""
    code = [
        (n, c) for n, c in enumerate(notebook["cells"], 1) if _is_code(c)
    ]
    _, unknown = statements_of([_text_of(cell) for _, cell in code])
    return [(code[i][0], reason) for i, reason in unknown.items()]


def _is_json(raw: bytes) -> bool:
    """Whether nbgrader can read it, too: UTF-8 without a mark."""
    try:
        json.loads(raw.decode("utf-8"))
    except ValueError:
        return False
    return True


def _notebook_at(path: Path) -> dict[str, Any]:
    """A notebook of format 4. DataError with the reason where there is
    none.
    """
    data, no = json_of(path), f"{path} is not a notebook"
    if not isinstance(data, dict):
        raise DataError(f"{no}: it is a {type(data).__name__}")
    if "worksheets" in data:
        raise DataError(
            f"{path} is a notebook of format 3: open it in a Jupyter of "
            "today and save it"
        )
    if not isinstance(data.get("cells"), list):
        raise DataError(f"{no}: it has no cells")
    for number, cell in enumerate(data["cells"], 1):
        try:
            fine = isinstance(cell["metadata"], dict)
            fine &= cell["cell_type"] in ("code", "markdown", "raw")
            _text_of(cell)
        except (TypeError, KeyError):
            fine = False
        if not fine:
            raise DataError(f"{no}: its cell {number} is not a cell")
    return data


_DIFFERS = "The notebook, which has no hidden checks, had printed:"


class _Graded:
    """The outcomes of each exercise, and how often each known mistake was
    made.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.known: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, path: Path) -> str:
        """Count one notebook."""
        for cell in _notebook_at(path)["cells"]:
            if verdict := _verdict_of(cell):
                name, outcome, text = verdict
                sentences = [x for x, _ in exercises()[name].mutants]
                known = [x for x in sentences if x in text]
                if _DIFFERS in text:
                    known.append("the notebook had printed something else")
                self.outcomes[name][outcome] += 1
                self.known[name].update(known)
        return ""

    def tell(self) -> None:
        """The most frequent first."""
        for name, counts in self.outcomes.items():
            told = ", ".join(f"{n} {o}" for o, n in counts.most_common())
            print(f"{name}: {told}")
            for sentence, count in self.known[name].most_common():
                print(f"  {count:3}  {sentence}")


def _verdict_of(cell: dict[str, Any]) -> tuple[str, str, str] | None:
    """Exercise, outcome and text that a graded cell has printed; None of
    any other cell.
    """
    exercise = _graded_by(cell)
    if exercise is None:
        return None
    text = "".join(
        "".join(out.get("text", "")) for out in cell.get("outputs", [])
    )
    head = text.partition("\n")[0]
    outcome = head.partition(" · ")[0] if " · " in head else "not run"
    return exercise.name, outcome, text
