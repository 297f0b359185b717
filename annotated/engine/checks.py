"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import asyncio
import base64
import copy
import importlib.resources
import inspect
import json
import linecache
import math
import random
import signal
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from annotated.engine.answers import answer_in, borrowed, reaching

__all__ = [
    "Wrong", "note", "same", "holds", "sizes", "form", "difference", "ROOM",
    "drawn", "untouched", "same_gradients", "Guess", "predicted",
    "Exercise", "exercises", "run_code", "SEEDS", "LIMIT", "TooSlow",
    "Trial", "Verdict", "attempt", "examine", "examine_source", "objection",
    "defined", "Mistake", "diagnose",
]  # fmt: skip


# E20-checks.md: What a check says
class Wrong(Exception):
    """Something asked for does not hold. shown are values to look at."""

    def __init__(self, what: str, **shown: Any):
        super().__init__(what)
        self.what, self.shown = what, shown


_seen: list[Any] = []  # what the student's code has returned in a check


def note(yours: Any) -> None:
    """Remember what came back: a known mistake returns the same."""
    _seen.append(_kept(yours))


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    try:
        return copy.deepcopy(value)
    except Exception:  # no copy of a generator, say: its kind will do
        return type(value)


def same(yours: Any, target: Any, **given: Any) -> None:
    """Raise Wrong unless yours is target: kind, shape, dtype, values up to
    rounding. given are the arguments that led there, to be shown.
    """
    note(yours)
    if what := difference(yours, target):
        if "dtype" in what:  # the values would only distract
            raise Wrong(what)
        raise Wrong(what, **given, **_nearer(target, yours))


def holds(
    fine: bool | Tensor, what: str, yours: Any = None, **shown: Any
) -> None:
    """Raise Wrong with what, unless it is fine."""
    note(yours if yours is not None else bool(fine))
    if not bool(fine):
        if yours is not None:
            shown["yours"] = yours
        raise Wrong(what, **shown)


_chance: list[random.Random] = []  # where a check runs with a secret seed


def sizes(*usual: int) -> list[int]:
    """The sizes of a check: as usual, or with a secret seed larger ones;
    different where the usual ones are, and 1 where they are 1.
    """
    if not _chance:
        return list(usual)
    (chance,) = _chance
    more = {0: 0, 1: 1}
    for size in sorted(set(usual) - {0, 1}):
        least = max(more.values())
        more[size] = max(size, least) + chance.randint(1, 2)
    return [more[size] for size in usual]


def form(check: Callable[[Any], object]) -> Callable[[Any], object]:
    """A check of form: it counts once every other check holds."""
    check.form = True  # type: ignore[attr-defined]
    return check


def difference(yours: Any, target: Any) -> str:
    """In what yours is not target; "" where it is."""
    if yours is None and target is not None:
        return "it returned None: is there a return at its end?"
    if isinstance(target, Tensor):
        return _unlike(yours, target)
    if isinstance(target, dict) and isinstance(yours, dict):
        return _unlike_by_name(yours, target)
    if isinstance(target, (list, tuple)):
        if type(yours) is not type(target):
            return f"it returned {_kind(yours)}, not {_kind(target)}"
        if len(yours) != len(target):
            return f"it has {len(yours)} entries, not {len(target)}"
        for place, (one, other) in enumerate(zip(yours, target)):
            if what := difference(one, other):
                return f"in entry {place}, {what}"
        return ""
    if isinstance(target, float) and isinstance(yours, (int, float)):
        within = getattr(target, "within", 1e-6)
        near = math.isclose(yours, target, rel_tol=within, abs_tol=1e-9)
        both_nan = math.isnan(yours) and math.isnan(target)
        if near or both_nan:
            return ""
        return f"it is {yours:.6g}, not {target:.6g}"
    if type(yours) is not type(target):
        return f"it returned {_kind(yours)}, not {_kind(target)}"
    return "" if yours == target else "the values differ"


def _unlike_by_name(yours: dict[Any, Any], target: dict[Any, Any]) -> str:
    if yours.keys() != target.keys():
        return f"its keys are {list(yours)}, not {list(target)}"
    for name, value in target.items():
        if what := difference(yours[name], value):
            return f"at {name!r}, {what}"
    return ""


def _unlike(yours: Any, target: Tensor) -> str:
    if not isinstance(yours, Tensor):
        return f"it returned {_kind(yours)}, not a tensor"
    if yours.shape != target.shape:
        return (
            f"the shape is {tuple(yours.shape)}, not {tuple(target.shape)}"
        )
    if yours.dtype != target.dtype:
        return f"the dtype is {_name(yours)}, not {_name(target)}"
    if not target.dtype.is_floating_point:
        return "" if torch.equal(yours, target) else "the values differ"
    lost = yours.isnan() & ~target.isnan()
    if lost.any():
        return f"{int(lost.sum())} of its values are NaN"
    exact = target.dtype == torch.float64
    near = torch.isclose(
        yours,
        target,
        rtol=1e-7 if exact else 1e-4,
        atol=1e-9 if exact else 1e-5,
        equal_nan=True,
    )
    return "" if near.all() else "the values differ"


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


ROOM = 8  # rows and columns of a matrix that is shown


def drawn(value: Any) -> str:
    """A value as a person reads it: a matrix, rows below each other."""
    if not isinstance(value, Tensor):
        text = repr(value)
        return text if len(text) <= 400 else f"{text[:400]} …"
    value = value.detach()
    if value.ndim > 2 and math.prod(value.shape[:-2]) == 1:
        value = value.reshape(value.shape[-2:])
    fits = value.ndim <= 2 and all(n <= ROOM for n in value.shape)
    if not fits:
        return f"a tensor of {_name(value)}, {tuple(value.shape)}"
    if value.ndim == 0:
        return _digits(value.item())
    rows = [value.tolist()] if value.ndim == 1 else value.tolist()
    cells = [[_digits(x) for x in row] for row in rows]
    width = max((len(c) for row in cells for c in row), default=0)
    return "\n".join(" ".join(f"{c:>{width}}" for c in r) for r in cells)


def _digits(x: float | bool) -> str:
    if isinstance(x, bool):
        return "1" if x else "·"
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def _nearer(target: Any, yours: Any) -> dict[str, Any]:
    """Both, or of large ones the matrix, or the entry, that differs."""
    both = {"wanted": target, "yours": yours}
    if not (
        isinstance(yours, Tensor)
        and isinstance(target, Tensor)
        and yours.shape == target.shape
        and yours.numel()
    ):
        return both
    gap = (yours.double() - target.double()).abs()
    gap = gap.nan_to_num(math.inf, math.inf)
    place = tuple(int(i) for i in (gap == gap.max()).nonzero()[0])
    if target.ndim > 2:  # the matrix in which they differ most
        both = {n: x[place[:-2]] for n, x in both.items()}
    if max(both["wanted"].shape, default=0) > ROOM:
        both = {n: x[place[-2:]] for n, x in both.items()}
    if target.shape != both["wanted"].shape:
        whole = target.ndim > 2 and both["wanted"].ndim == 2
        both["at"] = list(place[:-2] if whole else place)
    return both


def untouched(f: Callable[..., Any], *inputs: Any, **given: Any) -> Any:
    """f(*inputs); raise Wrong if that has changed one of them."""
    before = [_kept(x) for x in inputs]
    out = f(*inputs)
    for place, (old, new) in enumerate(zip(before, inputs)):
        if difference(new, old):
            note(new)
            raise Wrong(
                f"argument {place} is not what it was before the call",
                before=old,
                after=new,
                **given,
            )
    return out


def same_gradients(
    f: Callable[..., Tensor],
    oracle: Callable[..., Tensor],
    *inputs: Tensor,
) -> None:
    """Raise Wrong unless the gradients of a weighted sum of the outputs
    are the oracle's, for each floating input.
    """
    found = []
    for function in (f, oracle):
        own = [
            x.detach().clone().requires_grad_()
            if x.is_floating_point()
            else x
            for x in inputs
        ]
        out = function(*own)
        if function is f and not out.requires_grad:
            note("no gradient")
            raise Wrong(
                "the output has no gradient: something detaches it "
                "(.data, .item(), a new tensor made of numbers, argmax)"
            )
        weight = torch.linspace(1, 2, out.numel(), dtype=out.dtype)
        (out * weight.view_as(out)).sum().backward()
        found.append([x.grad for x in own if x.is_floating_point()])
    for place, (yours, target) in enumerate(zip(*found)):
        note(yours)
        if target is None or yours is None:
            if target is not None and target.abs().max() > 1e-12:
                raise Wrong(f"argument {place} gets no gradient")
            continue
        if difference(yours, target):
            raise Wrong(
                f"the gradient of argument {place} is another",
                **_nearer(target, yours),
            )


# E20-checks.md: A prediction
class Guess(float):
    """A number that is the same within a share of itself."""

    within: float

    def __new__(cls, value: float, within: float = 0.0) -> Guess:
        found = super().__new__(cls, value)
        found.within = within
        return found

    def __repr__(self) -> str:
        return f"{self:.8g}"


def predicted(
    answers: dict[str, Any], name: str, target: Any, within: float = 0.01
) -> None:
    """Raise Wrong unless the answer of this name is target: a number,
    within a share of it, or else a shape, True or False.
    """
    yours = answers.get(name, ...)
    if yours is ...:
        holds(False, f"{name!r} has no answer yet", "nothing")
    if isinstance(target, (bool, tuple)):
        if isinstance(yours, (list, tuple)):  # torch.Size is one, too
            yours = tuple(yours)
        holds(not difference(yours, target), f"{name!r} is not so", yours)
        return
    try:
        yours = Guess(yours, within)
    except (TypeError, ValueError):
        holds(False, f"{name!r} is {_kind(yours)}, not a number", yours)
    note(yours)
    if not math.isfinite(yours):
        raise Wrong(f"{name!r} is no finite number")
    if difference(yours, Guess(target, within)):
        raise Wrong(f"{name!r} is {_off(yours, target)}", yours=yours)


def _off(yours: float, target: float) -> str:
    """In which direction a guess is wrong, and whether by far."""
    low, high = sorted(map(abs, (yours, target)))
    far = ", by a factor of ten or more" if high >= 10 * low else ""
    return f"too {'large' if yours > target else 'small'}{far}"


# E20-checks.md: An exercise
@dataclass(frozen=True)
class Exercise:
    """One of book/exercises/, as the package carries it."""

    name: str
    title: str
    kind: str
    minutes: int
    difficulty: int
    goals: list[str]
    section: str
    needs: list[str]
    points: int
    track: str
    defines: str  # the name of what is to be written
    module: str  # the module that has it in the book
    statement: str
    starter: str
    checks: list[str]
    hints: list[str]
    sealed: str
    number: str = ""  # as its page counts it: 4.1
    symptom: str = ""  # what shows that a starter is broken

    @cached_property
    def _unsealed(self) -> dict[str, Any]:
        packed = base64.b64decode(self.sealed)
        return dict(json.loads(zlib.decompress(packed)))

    @property
    def reference(self) -> str:
        return str(self._unsealed["reference"])

    @property
    def variants(self) -> list[str]:
        return list(self._unsealed["variants"])

    @property
    def mutants(self) -> list[tuple[str, str]]:
        """Sentence and code of each."""
        return [(m[0], m[1]) for m in self._unsealed["mutants"]]

    @cached_property
    def mistakes(self) -> list[Mistake]:
        """The mutants, ready to be tried."""
        return [
            Mistake(text, self.answer(code, f"<mutant {self.name} {n}>"))
            for n, (text, code) in enumerate(self.mutants)
        ]

    @property
    def insight(self) -> str:
        return str(self._unsealed["insight"])

    @property
    def rubric(self) -> list[str]:
        """What earns a point in what is written about it."""
        return list(self._unsealed.get("rubric", []))

    @property
    def chapter(self) -> str:
        """The number of its page, as 04."""
        return self.name[:2]

    @property
    def place(self) -> tuple[int, ...]:
        """Its number, to sort by; without one it is its page's last."""
        number = self.number or f"{self.chapter}.999"
        return tuple(map(int, number.split(".")))

    @property
    def stars(self) -> str:
        return "★" * self.difficulty

    @property
    def is_part(self) -> bool:
        """Whether its answer goes into a package of one's own."""
        return self.kind == "implement"

    def properties(
        self, hidden: Sequence[str] = ()
    ) -> dict[str, Callable[[Any], object]]:
        """The checks by name, in their order; compiled once, so that what
        an answer does later to a module does not reach them.
        """
        if tuple(hidden) not in self._compiled:
            space: dict[str, Any] = {"__name__": f"check {self.name}"}
            for place, code in enumerate([*self.checks, *hidden]):
                run_code(code, f"<check {self.name} {place}>", space)
            self._compiled[tuple(hidden)] = {
                name: value
                for name, value in space.items()
                if name.startswith("check_")
            }
        return self._compiled[tuple(hidden)]

    @cached_property
    def _compiled(
        self,
    ) -> dict[tuple[str, ...], dict[str, Callable[[Any], object]]]:
        return {}

    def answer(self, code: str, filename: str) -> Any:
        """What code defines under the exercise's name."""
        space = {"__name__": self.name}
        run_code(code, filename, space)
        return space[self.defines]


@cache
def exercises() -> dict[str, Exercise]:
    """All, by name, in the order of the book."""
    file = importlib.resources.files("annotated") / "exercises.json"
    carried = json.loads(file.read_text(encoding="utf-8"))
    return {
        name: Exercise(name, **facts) for name, facts in carried.items()
    }


def run_code(code: str, filename: str, space: dict[str, Any]) -> None:
    """Execute code, as a cell that may await; a traceback will show its
    lines.
    """
    lines = [f"{line}\n" for line in code.split("\n")]
    linecache.cache[filename] = (len(code), None, lines, filename)
    waits = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compiled = compile(code, filename, "exec", waits, dont_inherit=True)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, space))
    else:
        exec(compiled, space)


# E20-checks.md: The verdict
SEEDS = (0, 1, 2)
LIMIT = 20.0  # seconds of processor time; ours need less than 2


class TooSlow(BaseException):
    """Not an Exception, so that no `except Exception` catches it."""


@dataclass(frozen=True)
class Trial:
    """One check with one seed."""

    error: BaseException | None
    seen: list[Any]


@dataclass(frozen=True)
class Verdict:
    """What came out, and the text that says so."""

    exercise: str
    outcome: str  # passed, wrong, not attempted, crashed, too slow, refused
    text: str
    passed: int  # checks that passed
    of: int

    def __str__(self) -> str:
        return self.text


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after so much processor time."""
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(
    check: Callable[[Any], object],
    thing: Any,
    seed: int,
    limit: float = LIMIT,
) -> Trial:
    """Run one check on the student's thing. What goes wrong is kept, not
    swallowed; only Ctrl-C goes through.
    """
    _seen.clear()
    error: BaseException | None = None
    generators = torch.get_rng_state(), random.getstate()
    torch.manual_seed(seed)
    random.seed(seed)
    _chance[:] = [] if seed in SEEDS else [random.Random(seed)]
    try:
        with _limited(limit):
            check(thing)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        error = raised
    finally:
        torch.set_rng_state(generators[0])
        random.setstate(generators[1])
        _chance.clear()
    return Trial(error, list(_seen))


def examine(
    exercise: Exercise,
    thing: Any,
    hidden: Sequence[str] = (),
    limit: float = LIMIT,
    seeds: Sequence[int] = SEEDS,
) -> Verdict:
    """Run the checks in their order, and tell the first that fails."""
    checks = exercise.properties(hidden)
    name, of = exercise.name, len(checks)
    if _untouched(thing):
        return _not_attempted(exercise, of)
    if home := _home_in_book(thing, exercise.defines):
        return _the_books(exercise, home)
    for place, check in enumerate(checks.values()):
        for seed in seeds:
            trial = attempt(check, thing, seed, limit)
            if trial.error is None:
                continue
            if _unwritten(trial.error):
                return _not_attempted(exercise, of)
            outcome, text = _tell(
                exercise, check, thing, seed, trial, limit
            )
            asked, look = _docs(check)
            count = f"check {place + 1} of {of}"
            head = f"{outcome} · {name}, {count}: {asked}"
            text = "\n\n".join(filter(None, [head, text, look]))
            return Verdict(name, outcome, text, place, of)
    plural = "the one check here passes"
    if of > 1:
        plural = f"all {of} checks here pass"
    text = f"passed · {name}: {plural}.\n\n{exercise.insight}"
    return Verdict(name, "passed", text, of, of)


def _untouched(thing: Any) -> bool:
    """Whether an answer still has the dots of the starter."""
    if isinstance(thing, dict):
        return all(value is ... for value in thing.values())
    return thing is ... or thing is None


def _unwritten(error: BaseException) -> bool:
    """Whether the starter's own `raise NotImplementedError` was met.
    torch's errors of that class have something to say.
    """
    return type(error) is NotImplementedError and not error.args


def _not_attempted(exercise: Exercise, of: int) -> Verdict:
    still = "still stands as it was given"
    text = (
        f"not attempted · {exercise.name}: {exercise.defines} {still}.\n\n"
        "Write it, then check again; there are hints to begin with."
    )
    return Verdict(exercise.name, "not attempted", text, 0, of)


def _home_in_book(thing: Any, name: str) -> str:
    """The module of the book that a thing, what it inherits from, or what
    it wraps, is from; or "".
    """
    inner = (getattr(thing, x, None) for x in ("__wrapped__", "func"))
    for one in (thing, *getattr(thing, "__mro__", ()), *inner):
        home = str(getattr(one, "__module__", ""))
        if home.startswith("annotated.") and (
            getattr(one, "__name__", "") == name
        ):
            return home
    return ""


def _the_books(exercise: Exercise, home: str) -> Verdict:
    name, defines = exercise.name, exercise.defines
    text = (
        f"not attempted · {name}: this is the book's own {defines}, "
        f"imported from {home}; define yours below the import, and check "
        "that."
    )
    return Verdict(name, "not attempted", text, 0, len(exercise.checks))


def _docs(check: Callable[..., object]) -> tuple[str, str]:
    """What a check asks for, and where to look."""
    first, _, rest = (check.__doc__ or check.__name__).partition("\n\n")
    look = " ".join(rest.split())
    asked = " ".join(first.split())
    return asked, f"Where to look: {look}" if look else ""


def _tell(
    exercise: Exercise,
    check: Callable[[Any], object],
    thing: Any,
    seed: int,
    trial: Trial,
    limit: float,
) -> tuple[str, str]:
    """Outcome and message of a trial that failed."""
    error = trial.error
    if isinstance(error, TooSlow):
        return "too slow", (
            f"It was stopped after {limit:g} s of processor time; ours "
            "takes less than two. Is there a loop that does not end?"
        )
    if isinstance(error, Wrong):
        known = diagnose(exercise, check, seed, trial, thing)
        stop = "" if error.what.endswith(("?", ".", "!")) else "."
        parts = [known, f"{_capital(error.what)}{stop}"]
        parts += [_shown(name, x) for name, x in error.shown.items()]
        return "wrong", "\n".join(filter(None, parts))
    known = diagnose(exercise, check, seed, trial, thing)
    return "crashed", "\n".join(filter(None, [known, _crash(trial)]))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(name: str, value: Any) -> str:
    """A name, and beside it a value of one or several lines."""
    first, *more = drawn(value).splitlines() or [""]
    margin = " " * max(len(name) + 2, 10)
    return "\n".join([f"  {name:8}{first}", *(margin + x for x in more)])


def _crash(trial: Trial) -> str:
    """The student's lines of a traceback, and the call that led there."""
    error = trial.error
    assert error is not None
    frames = list(traceback.walk_tb(error.__traceback__))
    in_check = [
        place
        for place, (frame, _) in enumerate(frames)
        if frame.f_code.co_filename.startswith("<check ")
    ]
    lines: list[str] = []
    last = in_check[-1] if in_check else 0
    for frame, row in frames[last + 1 :]:
        if _foreign(frame.f_code.co_filename):
            continue
        code = frame.f_code
        source = linecache.getline(code.co_filename, row).strip()
        lines.append(f"  line {row}, in {code.co_name}: {source}")
    if not lines and in_check:  # what it returned broke the check itself
        frame, row = frames[last]
        source = linecache.getline(frame.f_code.co_filename, row).strip()
        lines.append(f"  what you gave or returned was used in: {source}")
    lines.append(f"  {type(error).__name__}: {error}")
    if in_check:
        frame = frames[last][0]
        given = {
            name: tuple(value.shape)
            for name, value in frame.f_locals.items()
            if isinstance(value, Tensor)
        }
        if given:
            shapes = ", ".join(f"{n} {s}" for n, s in given.items())
            lines.append(f"  the check had: {shapes}")
    return "\n".join(lines)


def _foreign(filename: str) -> bool:
    """Whether a frame is of a library or of ours."""
    ours = __name__.replace(".", "/")
    return (
        "site-packages" in filename
        or "/lib/python" in filename
        or filename.endswith(f"{ours}.py")
    )


def examine_source(
    exercise: Exercise,
    code: str,
    filename: str,
    hidden: Sequence[str] = (),
    limit: float = LIMIT,
) -> Verdict:
    """The verdict on code that should define the exercise's answer."""
    if not code.strip():
        text = f"not attempted · {exercise.name}: {filename} is empty."
        of = len(exercise.properties(hidden))
        return Verdict(exercise.name, "not attempted", text, 0, of)
    thing = defined(exercise, [code], filename, limit, strict=True)
    if isinstance(thing, Verdict):
        return thing
    return examine(exercise, thing, hidden, limit)


def objection(
    exercise: Exercise, cells: Sequence[str], thing: Any = None
) -> Verdict | None:
    """What there is to say of an answer before it runs: that it is the
    book's own, or that it looks for those who examine it.
    """
    defines = exercise.defines
    answer = answer_in(cells, defines, exercise.starter)
    home = _home_in_book(thing, defines) or borrowed(answer.cells, defines)
    if home:
        return _the_books(exercise, home)
    if line := reaching(answer.cells):
        name, of = exercise.name, len(exercise.properties())
        text = f"refused · {name}: an answer does not need {line}."
        return Verdict(name, "refused", text, 0, of)
    return None


def defined(
    exercise: Exercise,
    cells: Sequence[str],
    filename: str,
    limit: float = LIMIT,
    strict: bool = False,
) -> Any:
    """What cells define under the exercise's name; or a Verdict that says
    why there is nothing to examine. As in a notebook, a cell that raises
    does not stop those after it, unless strict.
    """
    name, of = exercise.name, len(exercise.properties())
    if said := objection(exercise, cells):
        return said
    space: dict[str, Any] = {"__name__": name}
    problem: Verdict | None = None
    for count, code in enumerate(cells):
        where = filename if len(cells) == 1 else f"{filename} [{count + 1}]"
        wrong = _run_cell(exercise, code, where, space, limit)
        problem = problem or wrong
        if wrong and (strict or wrong.outcome == "too slow"):
            return wrong
    if exercise.defines in space:
        return space[exercise.defines]
    if problem:
        return problem
    text = (
        f"not attempted · {name}: nothing in {filename} is called "
        f"{exercise.defines}."
    )
    return Verdict(name, "not attempted", text, 0, of)


def _run_cell(
    exercise: Exercise,
    code: str,
    filename: str,
    space: dict[str, Any],
    limit: float,
) -> Verdict | None:
    """Run code in space; what has gone wrong, as a verdict."""
    name, of = exercise.name, len(exercise.properties())
    outcome = "crashed"
    try:
        with _limited(limit):
            run_code(code, filename, space)
        return None
    except SyntaxError as error:
        line = (error.text or "").strip()
        what = (
            f"line {error.lineno} of {filename} does not parse "
            f"({error.msg}): {line}"
        )
    except ImportError as error:
        what = f"an import of {filename} fails: {error}"
    except KeyboardInterrupt:
        raise
    except TooSlow:
        outcome = "too slow"
        what = f"{filename} does not come to its end."
    except BaseException as error:
        row = _row_in(error, filename)
        what = (
            f"line {row} of {filename} raises {type(error).__name__}: "
            f"{error}"
        )
    return Verdict(name, outcome, f"{outcome} · {name}: {what}", 0, of)


def _row_in(error: BaseException, filename: str) -> int | None:
    """The last line of a file that a traceback goes through."""
    rows = [
        row
        for frame, row in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == filename
    ]
    return rows[-1] if rows else None


# E20-checks.md: The name of a mistake
class Mistake:
    """A known wrong solution, the sentence for its author, and what came
    of its trials.
    """

    def __init__(self, sentence: str, thing: Any):
        self.sentence, self.thing = sentence, thing
        self.trials: dict[tuple[str, int], Trial] = {}

    def trial(
        self, check: Callable[[Any], object], seed: int, limit: float = 5.0
    ) -> Trial:
        """attempt, which is made only once for each check and seed."""
        key = (check.__name__, seed)
        if key not in self.trials:
            trial = attempt(check, self.thing, seed, limit)
            if trial.error is not None:  # its frames hold every tensor
                trial.error.__traceback__ = None
            self.trials[key] = trial
        return self.trials[key]


def diagnose(
    exercise: Exercise,
    check: Callable[[Any], object],
    seed: int,
    trial: Trial,
    thing: Any,
) -> str:
    """The sentence of the mutant that does what was done; or "". Where
    several do, it is the one that does so in the other checks, too.
    """
    found = [
        mistake
        for mistake in exercise.mistakes
        if _alike(trial, mistake.trial(check, seed))
    ]
    for other in exercise.properties().values():
        if len(found) < 2:
            break
        for again in SEEDS:
            own = attempt(other, thing, again, limit=5.0)
            alike = [
                mistake
                for mistake in found
                if _alike(own, mistake.trial(other, again))
            ]
            found = alike or found
    return found[0].sentence if found else ""


def _alike(one: Trial, other: Trial) -> bool:
    if one.error is None and other.error is None:
        return True
    if type(one.error) is not type(other.error) or not one.seen:
        # without a value, only a crash in the same words tells
        return (
            type(one.error) is type(other.error)
            and not isinstance(one.error, Wrong)
            and str(one.error) == str(other.error)
        )
    if len(one.seen) != len(other.seen):
        return False
    return str(one.error) == str(other.error) and not any(
        difference(x, y) for x, y in zip(one.seen, other.seen)
    )
