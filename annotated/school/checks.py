"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import copy
import ctypes
import inspect
import linecache
import math
import random
import re
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from annotated.school.answers import answer_in, borrowed, reaching
from annotated.school.exercises import Exercise, Verdict, run_code
from annotated.school.relations import near, plain, relation
from annotated.school.slips import slips

__all__ = [
    "Wrong", "note", "same", "holds", "sizes", "form", "drawn", "untouched",
    "same_gradients", "predicted", "SEEDS", "LIMIT", "Exam", "TooSlow",
    "attempt", "Solution", "ours", "as_given", "mistakes", "examine",
    "examine_source", "objection", "defined",
]  # fmt: skip


# E20-checks.md: What a check says
class Wrong(Exception):
    """Something asked for does not hold. shown are values to look at, pair
    what came back and what was wanted.
    """

    def __init__(
        self, what: str, pair: tuple[Any, Any] | None = None, **shown: Any
    ):
        super().__init__(what)
        self.what, self.pair, self.shown = what, pair, shown


_Pair = tuple[Any, Any]  # what came back, and what was wanted
_seen: list[Any] = []  # what the student's code has returned in a check
_followed: list[Iterator[Any]] = []  # what should come back, if any
_collecting: list[list[_Pair]] = []  # what `same` compares


def note(yours: Any) -> None:
    """Remember what came back: a known mistake returns the same."""
    _seen.append(_kept(yours))
    if _followed and _difference(yours, next(_followed[-1], ...)):
        raise _Otherwise


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
    if _collecting:
        _collecting[-1].append((_kept(yours), target))
        return
    if what := _difference(yours, target):
        pair = _kept(yours), target
        if "dtype" in what:  # the values would only distract
            raise Wrong(what, pair)
        raise Wrong(what, pair, **given, **_nearer(target, yours))


def holds(
    fine: bool | Tensor, what: str, yours: Any = None, **shown: Any
) -> None:
    """Raise Wrong with what, unless it is fine."""
    note(yours if yours is not None else bool(fine))
    if not bool(fine) and not _collecting:
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


def _difference(yours: Any, target: Any) -> str:
    """In what yours is not target; "" where it is."""
    if yours is None and target is not None:
        return "it returned None: is there a return at its end?"
    if isinstance(target, Tensor):
        return _unlike(yours, target)
    if isinstance(target, float) and isinstance(yours, (int, float)):
        within = getattr(target, "within", 1e-5)
        close = math.isclose(yours, target, rel_tol=within, abs_tol=1e-9)
        both_nan = math.isnan(yours) and math.isnan(target)
        if close or both_nan:
            return ""
        digits = _enough(yours, target, least=6)
        return f"it is {yours:.{digits}g}, not {target:.{digits}g}"
    if type(yours) is not type(target):
        return f"it returned {_kind(yours)}, not {_kind(target)}"
    where, places = "in entry", [*range(len(_parts(target)))]
    if isinstance(target, dict):
        where, places = "at", [*target]
        if yours.keys() != target.keys():
            return f"its keys are {list(yours)}, not {list(target)}"
    elif isinstance(target, (list, tuple)):
        if len(yours) != len(target):
            return f"it has {len(yours)} entries, not {len(target)}"
    else:
        return "" if yours == target else "the values differ"
    for place in places:
        if what := _difference(yours[place], target[place]):
            return f"{where} {place!r}, {what}"
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
    if plain(target) and not plain(yours):
        return f"it is {drawn(yours)}"
    if not target.dtype.is_floating_point:
        return "" if torch.equal(yours, target) else "the values differ"
    lost = yours.isnan() & ~target.isnan()
    if lost.any():
        return f"{int(lost.sum())} of its values are NaN"
    return "" if near(yours, target).all() else "the values differ"


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


_ROOM = 8  # rows and columns of a matrix that is shown
_LONG = 400  # characters of anything else


def drawn(value: Any, digits: int = 4) -> str:
    """A value as a person reads it: a matrix, rows below each other."""
    if type(value) is float:
        return _digits(value, max(digits, 6))
    if not isinstance(value, Tensor):
        text = repr(value)
        return text if len(text) <= _LONG else f"{text[:_LONG]} …"
    value = value.detach()
    if plain(value) and value.ndim > 2 and math.prod(value.shape[:-2]) == 1:
        value = value.reshape(value.shape[-2:])
    fits = value.ndim <= 2 and all(n <= _ROOM for n in value.shape)
    if not plain(value):
        kind = str(value.layout).removeprefix("torch.")
        return (
            f"a tensor of {_name(value)}, {tuple(value.shape)}, {kind}, on "
            f"{value.device}"
        )
    if not fits:
        return f"a tensor of {_name(value)}, {tuple(value.shape)}"
    if value.ndim == 0:
        return _digits(value.item(), digits)
    rows = [value.tolist()] if value.ndim == 1 else value.tolist()
    cells = [[_digits(x, digits) for x in row] for row in rows]
    width = max((len(c) for row in cells for c in row), default=0)
    return "\n".join(" ".join(f"{c:>{width}}" for c in r) for r in cells)


def _digits(x: float | bool, digits: int) -> str:
    if isinstance(x, bool):
        return "1" if x else "·"
    return f"{x:.{digits}g}" if isinstance(x, float) else str(x)


def _enough(one: Any, other: Any, least: int = 4) -> int:
    """As many digits as tell two values apart, where they differ most."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        readable = plain(one) and plain(other)
        if one.shape != other.shape or not (one.numel() and readable):
            return least
        at = _farthest(one, other)
        one, other = one[at].item(), other[at].item()
    if not (isinstance(one, float) and isinstance(other, float)):
        return least
    for digits in range(least, 17):
        if f"{one:.{digits}g}" != f"{other:.{digits}g}":
            return digits
    return 17


def _farthest(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """The place at which two tensors of one shape differ most."""
    gap = (one.double() - other.double()).abs()
    gap = gap.nan_to_num(math.inf, math.inf)
    return tuple(int(i) for i in (gap == gap.max()).nonzero()[0])


def _nearer(target: Any, yours: Any) -> dict[str, Any]:
    """Both, or of large ones the part that differs."""
    both = {"wanted": target, "yours": yours}
    if isinstance(yours, Tensor) and isinstance(target, Tensor):
        alike = yours.shape == target.shape and yours.numel()
        alike = alike and plain(yours) and plain(target)
        return _nearer_matrix(target, yours) if alike else both
    if len(repr(target)) <= _LONG >= len(repr(yours)) and not any(
        isinstance(x, Tensor) for x in _parts(target)
    ):
        return both
    if isinstance(target, str) and isinstance(yours, str):
        pairs = enumerate(zip(yours, target))
        shorter = min(len(yours), len(target))
        first = next((i for i, (x, y) in pairs if x != y), shorter)
        start = max(0, first - 40)
        return {n: f"…{x[start : start + 300]}" for n, x in both.items()}
    parts, others = _parts(target), _parts(yours)
    if parts and len(parts) == len(others):
        for one, other in zip(parts, others):
            if _difference(other, one):
                return _nearer(one, other)
    return both


def _parts(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return list(x.values())
    return list(x) if isinstance(x, (list, tuple)) else []


def _nearer_matrix(target: Tensor, yours: Tensor) -> dict[str, Any]:
    both = {"wanted": target, "yours": yours}
    place = _farthest(yours, target)
    if target.ndim > 2:  # the matrix in which they differ most
        both = {n: x[place[:-2]] for n, x in both.items()}
    if max(both["wanted"].shape, default=0) > _ROOM:
        both = {n: x[place[-2:]] for n, x in both.items()}
    shown: dict[str, Any] = dict(both)
    if target.shape != both["wanted"].shape:
        whole = target.ndim > 2 and both["wanted"].ndim == 2
        shown["at"] = list(place[:-2] if whole else place)
    return shown


def untouched(f: Callable[..., Any], *inputs: Any, **given: Any) -> Any:
    """f(*inputs); raise Wrong if that has changed one of them."""
    before = [_kept(x) for x in inputs]
    out = f(*inputs)
    for place, (old, new) in enumerate(zip(before, inputs)):
        if not _unchanged(new, old):
            note(new)
            raise Wrong(
                f"argument {place} is not what it was before the call",
                before=old,
                after=new,
                **given,
            )
    return out


def _unchanged(new: Any, old: Any) -> bool:
    """To the last bit, whatever it is made of."""
    if isinstance(new, Tensor) and isinstance(old, Tensor):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            return False
        return bool(((new == old) | (new.isnan() & old.isnan())).all())
    if _parts(new) or _parts(old):
        pairs = list(zip(_parts(new), _parts(old)))
        if len(_parts(new)) != len(_parts(old)):
            return False
        if isinstance(new, dict) and list(new) != list(old):
            return False
        return all(_unchanged(*pair) for pair in pairs)
    return not _difference(new, old)


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
        if _difference(yours, target):
            raise Wrong(
                f"the gradient of argument {place} is another",
                (yours, target),
                **_nearer(target, yours),
            )


# E20-checks.md: A prediction
class _Guess(float):
    """A number that is the same within a share of itself."""

    within: float

    def __new__(cls, value: float, within: float = 0.0) -> _Guess:
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
        holds(not _difference(yours, target), f"{name!r} is not so", yours)
        return
    try:
        yours = _Guess(yours, within)
    except (TypeError, ValueError):
        holds(False, f"{name!r} is {_kind(yours)}, not a number", yours)
    note(yours)
    if not math.isfinite(yours):
        raise Wrong(f"{name!r} is no finite number")
    if _difference(yours, _Guess(target, within)):
        raise Wrong(f"{name!r} is {_off(yours, target)}", yours=yours)


def _off(yours: float, target: float) -> str:
    """In which direction a guess is wrong, and whether by far."""
    low, high = sorted(map(abs, (yours, target)))
    far = ", by a factor of ten or more" if high >= 10 * low else ""
    return f"too {'large' if yours > target else 'small'}{far}"


# E20-checks.md: The verdict
_Check = Callable[[Any], object]
SEEDS = (0, 1, 2)
LIMIT = 20.0  # seconds of processor time; ours need less than 2
_SHORT = 2.0  # of them, where an answer is only compared


class Exam(NamedTuple):
    """What an answer has to pass: all checks, with each of the seeds."""

    hidden: Sequence[str] = ()  # the teacher's own checks
    limit: float = LIMIT
    seeds: Sequence[int] = SEEDS


_USUAL = Exam()


class TooSlow(BaseException):
    """Not an Exception, so that no `except Exception` catches it."""


@dataclass(frozen=True)
class _Trial:
    """One check with one seed."""

    error: BaseException | None
    seen: list[Any]


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after so much processor time."""
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")):
        with _watched(seconds):
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


@contextmanager
def _watched(seconds: float) -> Iterator[None]:
    """The same without a timer, as on Windows: a thread watches. What it
    asks for is never taken back: Python 3.11 would look for it for ever.
    """
    ended, start = threading.Event(), time.process_time()
    stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
    block = ctypes.c_ulong(threading.get_ident())

    def watch() -> None:
        while not ended.wait(0.05):
            if time.process_time() - start > seconds:
                stop(block, ctypes.py_object(TooSlow))
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with suppress(TooSlow):  # asked for too late, it comes here
            ended.set()
            watcher.join()
            time.sleep(0)


def attempt(
    check: _Check, thing: Any, seed: int, limit: float = LIMIT
) -> _Trial:
    """Run one check on the student's thing. What goes wrong is kept, not
    swallowed; only Ctrl-C goes through.
    """
    _seen.clear()
    error: BaseException | None = None
    generators = torch.get_rng_state(), random.getstate()
    graphs, usual = torch.is_grad_enabled(), torch.get_default_dtype()
    torch.set_grad_enabled(True)  # whatever was set around the answer
    torch.set_default_dtype(torch.float32)
    torch.default_generator.manual_seed(seed)  # of no other device
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
        torch.set_grad_enabled(graphs)
        torch.set_default_dtype(usual)
        _chance.clear()
    return _Trial(error, list(_seen))


class Solution:
    """An answer, right or wrong, and what came of its trials; of a known
    mistake, the sentence for its author, too.
    """

    def __init__(self, thing: Any, sentence: str = ""):
        self.thing, self.sentence = thing, sentence
        self._trials: dict[tuple[str, int], _Trial] = {}
        self._compared: dict[tuple[str, int], list[_Pair]] = {}

    def trial(
        self, check: _Check, seed: int, limit: float = _SHORT
    ) -> _Trial:
        """attempt, which is made only once for each check and seed."""
        key = (check.__name__, seed)
        if key not in self._trials:
            trial = attempt(check, self.thing, seed, limit)
            if self.sentence and trial.error:  # its frames hold tensors
                trial.error.__traceback__ = None
            self._trials[key] = trial
        return self._trials[key]

    def answers(self, check: _Check, seed: int) -> list[_Pair]:
        """All that a check compares, where it does not stop at what is
        wrong: what came back, and what was wanted.
        """
        key = (check.__name__, seed)
        if key not in self._compared:
            _collecting.append([])
            try:
                attempt(check, self.thing, seed, limit=_SHORT)
            finally:
                self._compared[key] = _collecting.pop()
        return self._compared[key]


@cache
def ours(exercise: Exercise) -> Solution:
    """The reference."""
    code = exercise.reference
    return Solution(exercise.answer(code, f"<reference {exercise.name}>"))


@cache
def as_given(exercise: Exercise) -> Solution:
    """The starter."""
    return Solution(exercise.answer(exercise.starter, "<starter>"))


@cache
def mistakes(exercise: Exercise) -> list[Solution]:
    """The mutants."""
    name = exercise.name
    return [
        Solution(exercise.answer(code, f"<mutant {name} {n}>"), sentence)
        for n, (sentence, code) in enumerate(exercise.mutants)
    ]


def examine(exercise: Exercise, thing: Any, exam: Exam = _USUAL) -> Verdict:
    """Run the checks in their order, and tell the first that fails; thing
    is the answer, or a Solution, which remembers what came of it.
    """
    checks = exercise.properties(exam.hidden)
    name, of = exercise.name, len(checks)
    mine = thing if isinstance(thing, Solution) else Solution(thing)
    if _untouched(mine.thing):
        return _not_attempted(exercise)
    if home := _home_in_book(mine.thing, exercise.defines):
        return _the_books(exercise, home)
    for place, check in enumerate(checks.values()):
        for seed in exam.seeds:
            error = mine.trial(check, seed, exam.limit).error
            if error is None:
                continue
            if _unwritten(error):
                return _not_attempted(exercise)
            failure = _Failure(exercise, check, seed, mine)
            outcome, told = failure.told(exam.limit)
            asked, look = _docs(check)
            count = f"check {place + 1} of {of}"
            head = f"{outcome} · {name}, {count}: {asked}"
            text = "\n\n".join(filter(None, [head, told, look]))
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


def _not_attempted(exercise: Exercise) -> Verdict:
    why = (
        f"{exercise.defines} still stands as it was given.\n\n"
        "Write it, then check again; there are hints to begin with."
    )
    return Verdict.early(exercise, "not attempted", why)


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
    why = (
        f"this is the book's own {exercise.defines}, imported from {home}; "
        "define yours below the import, and check that."
    )
    return Verdict.early(exercise, "not attempted", why)


def _docs(check: Callable[..., object]) -> tuple[str, str]:
    """What a check asks for, and where to look."""
    first, _, rest = (check.__doc__ or check.__name__).partition("\n\n")
    look = " ".join(rest.split())
    asked = " ".join(first.split())
    return asked, f"Where to look: {look}" if look else ""


@dataclass(frozen=True)
class _Failure:
    """A check that an answer does not pass, with a seed."""

    exercise: Exercise
    check: _Check
    seed: int
    mine: Solution

    @property
    def trial(self) -> _Trial:
        return self.mine.trial(self.check, self.seed)

    def told(self, limit: float) -> tuple[str, str]:
        """Outcome and message."""
        error = self.trial.error
        if isinstance(error, TooSlow):
            return "too slow", (
                f"It was stopped after {limit:g} s of processor time; ours "
                "takes less than two. Is there a loop that does not end?"
            )
        known = self.diagnosis()
        if isinstance(error, Wrong):
            stop = "" if error.what.endswith(("?", ".", "!")) else "."
            what = error.what[:1].upper() + error.what[1:] + stop
            parts = [known, what, *_values(error)]
            return "wrong", "\n".join(filter(None, parts))
        crash = _crash(self.trial)
        return "crashed", "\n".join(filter(None, [known, crash]))

    # E20-checks.md: The name of a mistake
    def diagnosis(self) -> str:
        """What is to be said about it: the sentence of the mutant that
        does the same, or what has been done to the arguments, or what
        the answer is to the right one; or "".
        """
        return (
            self.unmended()
            or self.known()
            or self.side_effect()
            or self.slip()
            or self.relation()
        )

    def unmended(self) -> str:
        """Whether code that was to be mended does what it did."""
        exercise = self.exercise
        if exercise.kind != "fix":
            return ""
        if self.shared(as_given(exercise)) < len(exercise.properties()):
            return ""
        return "It still does what it did as it was given."

    def known(self) -> str:
        """The sentence of the mutant that does what was done; or ""."""
        found = {x: self.shared(x) for x in mistakes(self.exercise)}
        most = max(found.values())
        best = [x for x in found if found[x] == most > 0]
        if len({x.sentence for x in best}) > 1:  # what do they do later?
            checks = self.exercise.properties().values()
            best.sort(key=lambda x: -sum(self.agrees(x, y) for y in checks))
        return best[0].sentence if best else ""

    def agrees(self, other: Solution, check: _Check) -> bool:
        """Whether the same came back in every case of a check."""
        one, two = (x.answers(check, self.seed) for x in (self.mine, other))
        return len(one) == len(two) and not any(
            _difference(x, y) for (x, _), (y, _) in zip(one, two)
        )

    def shared(self, other: Solution) -> int:
        """In how many checks the answer does what another one does; 0
        where that is not enough to call it by its name.
        """
        check, seed, mine = self.check, self.seed, self.mine
        if not _alike(self.trial, other.trial(check, seed)):
            return 0
        if self.exercise.kind == "predict":  # each check has its own
            return 1
        right = ours(self.exercise)
        compares = bool(right.answers(check, seed))
        if compares and not self.agrees(other, check):
            return 0
        telling = _telling(self.trial, right.trial(check, seed))
        count = 1
        for one in self.exercise.properties().values():
            if one.__name__ == check.__name__:
                continue
            own, its = mine.trial(one, seed), other.trial(one, seed)
            alike = _alike(own, its)
            excused = own.error and getattr(one, "form", False)
            both = (own.error is None) == (its.error is None)
            if not (alike or excused or telling and both):
                return 0
            count += alike
        return count

    # E20-checks.md: What was done to the arguments
    def side_effect(self) -> str:
        """What the answer has done to its arguments that ours does not
        do, or has not done that ours does; "" where there is nothing.
        """
        error, mine = self.trial.error, self.mine.thing
        if isinstance(mine, dict) or isinstance(error, TooSlow):
            return ""
        yours, right = _Watched(mine), _Watched(ours(self.exercise).thing)
        for one in (yours, right):
            attempt(self.check, one, self.seed, limit=_SHORT)
        pairs = list(zip(yours.calls, right.calls))
        for name in {name: 0 for call, _ in pairs for name in call}:
            told = [
                (one[name][1], other[name][1])
                for one, other in pairs
                if name in one and name in other
            ]
            if not told:
                continue
            changed, should = (any(x) for x in zip(*told))
            if changed and not should:
                return (
                    f"Your code changes `{name}`, which belongs to the "
                    "caller (`+=`, `append`, `x[…] =`, a method with `_` "
                    "at its end)."
                )
            if should and not changed and isinstance(error, Wrong):
                if isinstance(yours.calls[0].get(name, [0])[0], tuple):
                    return f"No weight of `{name}` has changed."
                return (
                    f"Nothing in `{name}` has changed. `{name} = …` gives "
                    "the name to something new: it has to be changed in "
                    "place."
                )
        pair = getattr(error, "pair", None)
        last = yours.calls[-1] if yours.calls else {}
        for name, (old, _) in last.items():
            large = isinstance(old, Tensor) and old.numel() > 1
            if pair and large and _unchanged(pair[0], old):
                return f"What comes back is `{name}`, as it was given."
        return ""

    def relation(self) -> str:
        """What the answers are to the right ones, as a sentence; or ""."""
        first = getattr(self.trial.error, "pair", None)
        if first is None:
            return ""
        each = [
            [
                pair
                for pair in self.mine.answers(self.check, seed)
                if _difference(*pair)
            ]
            for seed in dict.fromkeys([self.seed, *SEEDS])
        ]
        found = [pair for pairs in each for pair in pairs]
        large = [(x, y) for x, y in found if len(_leaves(y)) > 2]
        alone = [first] if len(_leaves(first[1])) > 2 else []
        firsts = [pairs[0] for pairs in each if pairs]
        for pairs in (large or found, alone, firsts):
            if pairs and (told := relation(pairs)):
                return told
        return ""

    # E20-checks.md: Naming a mistake by mutation
    def slip(self) -> str:
        """What slip in our solution does the same; or ""."""
        exercise, error = self.exercise, self.trial.error
        if isinstance(self.mine.thing, dict) or isinstance(error, TooSlow):
            return ""
        right = ours(exercise).trial(self.check, self.seed).seen
        kinds = [(type(x), type(y)) for x, y in zip(self.trial.seen, right)]
        if any(x is not y for x, y in kinds):
            return ""  # no slip makes a text of a tensor
        if not right or isinstance(error, (AttributeError, TypeError)):
            return ""
        if "raise " not in exercise.reference and _raised_by_hand(error):
            return ""  # no slip makes a raise
        tree = ast.parse(exercise.reference)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a slip's are no student's
            for told in slips(tree):
                thing = _made(exercise, tree)
                if (
                    thing is not None
                    and self.followed_by(thing)
                    and self.shared(Solution(thing))
                ):
                    return f"It does what our solution would do {told()}."
        return ""

    def followed_by(self, thing: Any) -> bool:
        """Whether a thing does in the check what was done in the trial."""
        _followed.append(iter(self.trial.seen))
        try:
            other = attempt(self.check, thing, self.seed, limit=1.0)
        finally:
            _followed.pop()
        return _alike(self.trial, other)


def _values(error: Wrong) -> list[str]:
    """What is to be looked at; what came back and what was wanted with
    as many digits as tell them apart.
    """
    digits = dict.fromkeys(error.shown, 4)
    for one, other in (("wanted", "yours"), ("before", "after")):
        if {one, other} <= digits.keys():
            enough = _enough(error.shown[one], error.shown[other])
            digits[one] = digits[other] = enough
    return [_shown(n, x, digits[n]) for n, x in error.shown.items()]


def _shown(name: str, value: Any, digits: int) -> str:
    """A name, and beside it a value of one or several lines."""
    first, *more = drawn(value, digits).splitlines() or [""]
    margin = " " * max(len(name) + 2, 10)
    return "\n".join([f"  {name:8}{first}", *(margin + x for x in more)])


def _crash(trial: _Trial) -> str:
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
    theirs = [
        (frame, row)
        for frame, row in frames[last + 1 :]
        if not _foreign(frame.f_code.co_filename)
    ]
    for frame, row in theirs:
        code = frame.f_code
        source = linecache.getline(code.co_filename, row).strip()
        lines.append(f"  line {row}, in {code.co_name}: {source}")
    if not lines and in_check:  # what it returned broke the check itself
        frame, row = frames[last]
        source = linecache.getline(frame.f_code.co_filename, row).strip()
        lines.append(f"  what you gave or returned was used in: {source}")
    lines.append(f"  {type(error).__name__}: {error}")
    if theirs:
        frame, row = theirs[-1]
        source = linecache.getline(frame.f_code.co_filename, row)
        used = set(re.findall(r"\w+", source))
        lines += _seen_there("there", frame.f_locals, used)
    if in_check:
        given = frames[last][0].f_locals
        lines += _seen_there("the check had", given, set(given))
    return "\n".join(lines)


def _seen_there(where: str, values: dict[str, Any], names: set[str]) -> Any:
    """Shapes of tensors, also in lists, and what else is short."""
    said = [
        f"{name} {_outline(value)}"
        for name, value in values.items()
        if name in names and _outline(value)
    ]
    return [f"  {where}: {', '.join(said)}"] if said else []


def _outline(value: Any) -> str:
    """A value in a few characters; "" where that says nothing."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, (list, tuple)) and len(value) < 5:
        parts = [_outline(x) for x in value]
        text = ", ".join(parts) if all(parts) else ""
        brackets = "[]" if isinstance(value, list) else "()"
        return f"{brackets[0]}{text}{brackets[1]}" if len(text) < 60 else ""
    if isinstance(value, (list, tuple, str)) and len(value) >= 5:
        return f"of {len(value)}"
    plainly = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if plainly else ""


def _foreign(filename: str) -> bool:
    """Whether a frame is of a library or of ours."""
    path, ours = filename.replace("\\", "/"), __name__.replace(".", "/")
    return (
        "site-packages" in path
        or "dist-packages" in path  # of Debian, and of Colab
        or path.startswith(_STANDARD)
        or path.endswith(f"{ours}.py")
    )


_STANDARD = str(Path(traceback.__file__).parent).replace("\\", "/")


def examine_source(
    exercise: Exercise, code: str, filename: str, limit: float = LIMIT
) -> Verdict:
    """The verdict on code that should define the exercise's answer."""
    if not code.strip():
        why = f"{filename} is empty."
        return Verdict.early(exercise, "not attempted", why)
    thing = defined(exercise, [code], filename, limit, strict=True)
    if isinstance(thing, Verdict):
        return thing
    return examine(exercise, thing, Exam(limit=limit))


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
        why = f"an answer does not need {line}."
        return Verdict.early(exercise, "refused", why)
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
    if said := objection(exercise, cells):
        return said
    space: dict[str, Any] = {"__name__": exercise.name}
    problems: list[Verdict] = []
    for count, code in enumerate(cells):
        where = filename if len(cells) == 1 else f"{filename} [{count + 1}]"
        outcome, why = _run_cell(code, where, space, limit)
        if outcome:
            problems.append(Verdict.early(exercise, outcome, why))
            if strict or outcome == "too slow":
                return problems[-1]
    if exercise.defines in space:
        return space[exercise.defines]
    why = f"nothing in {filename} is called {exercise.defines}."
    problems.append(Verdict.early(exercise, "not attempted", why))
    return problems[0]


def _run_cell(
    code: str, filename: str, space: dict[str, Any], limit: float
) -> tuple[str, str]:
    """Run code in space; what has gone wrong: an outcome, and why."""
    try:
        with _limited(limit):
            run_code(code, filename, space)
        return "", ""
    except SyntaxError as error:
        line = (error.text or "").strip()
        why = (
            f"line {error.lineno} of {filename} does not parse "
            f"({error.msg}): {line}"
        )
    except ImportError as error:
        why = f"an import of {filename} fails: {error}"
    except KeyboardInterrupt:
        raise
    except TooSlow:
        return "too slow", f"{filename} does not come to its end."
    except BaseException as error:
        row = _row_in(error, filename)
        raised = type(error).__name__
        why = f"line {row} of {filename} raises {raised}: {error}"
    return "crashed", why


def _row_in(error: BaseException, filename: str) -> int | None:
    """The last line of a file that a traceback goes through."""
    rows = [
        row
        for frame, row in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == filename
    ]
    return rows[-1] if rows else None


# E20-checks.md: The name of a mistake
def _telling(trial: _Trial, right: _Trial) -> bool:
    """Whether something came back, and not what is right, that hardly
    comes by chance.
    """
    for place, value in enumerate(trial.seen):
        there = place < len(right.seen)
        if there and not _difference(value, right.seen[place]):
            continue
        if _rich(value):
            return True
    return False


def _rich(value: Any) -> bool:
    if isinstance(value, Tensor):
        real = plain(value) and value.is_floating_point()
        return real and len(value.unique()) > 2
    if isinstance(value, float):
        return math.isfinite(value) and not (value * 100).is_integer()
    numbers = [x for x in _parts(value) if isinstance(x, (int, float))]
    return len(set(numbers)) > 4 or any(map(_rich, _parts(value)))


def _alike(one: _Trial, other: _Trial) -> bool:
    """Whether all that came back is the same, and what was said of it."""
    if one.error is None and other.error is None:
        return True
    return (
        type(one.error) is type(other.error)
        and str(one.error) == str(other.error)
        and len(one.seen) == len(other.seen)
        and not any(_difference(x, y) for x, y in zip(one.seen, other.seen))
    )


# E20-checks.md: What was done to the arguments
class _Watched:
    """Stands for an answer; for each call, the arguments by their names:
    as they were, and whether the call has changed them.
    """

    def __init__(self, thing: Any):
        self.thing = thing
        self.calls: list[dict[str, tuple[Any, bool]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.thing, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not isinstance(self.thing, type):
            return self._watched(self.thing, *given, **named)
        made = self.thing(*given, **named)
        if isinstance(made, nn.Module):
            made.forward = partial(self._watched, made.forward)
        return made

    def _watched(
        self, call: Callable[..., Any], /, *given: Any, **named: Any
    ) -> Any:
        """call(*given, **named)"""
        try:
            bound = inspect.signature(call).bind(*given, **named).arguments
        except (TypeError, ValueError):
            bound = {}
        before = {name: _content(x) for name, x in bound.items()}
        out = call(*given, **named)
        self.calls.append(
            {
                name: (old, not _unchanged(_content(bound[name]), old))
                for name, old in before.items()
                if old is not None
            }
        )
        return out


def _content(x: Any) -> Any:
    """A copy of what is in an argument; None of what is not looked into."""
    if isinstance(x, nn.Module):
        return tuple(p.detach().clone() for p in x.parameters())
    known = isinstance(x, (Tensor, list, tuple, dict))
    return _kept(x) if known else None


def _leaves(x: Any) -> list[Any]:
    """The numbers of a tensor, the entries of a list and of its lists."""
    if isinstance(x, Tensor):
        return x.flatten().tolist() if x.numel() < 10_000 else [0] * 9
    parts = _parts(x)
    return [leaf for part in parts for leaf in _leaves(part)] or [x]


# E20-checks.md: Naming a mistake by mutation
class _Otherwise(BaseException):
    """Something else has come back than what is followed."""


def _raised_by_hand(error: BaseException | None) -> bool:
    """Whether an error comes from a `raise` in the answer itself."""
    trace = error.__traceback__ if error else None
    last = list(traceback.walk_tb(trace))[-1:]
    return any(
        linecache.getline(frame.f_code.co_filename, row)
        .lstrip()
        .startswith("raise")
        and not _foreign(frame.f_code.co_filename)
        for frame, row in last
    )


def _made(exercise: Exercise, tree: ast.Module) -> Any:
    """What tree defines; None where it does not run."""
    space: dict[str, Any] = {"__name__": exercise.name}
    try:
        exec(compile(tree, f"<slip {exercise.name}>", "exec"), space)
    except Exception:
        return None
    return space.get(exercise.defines)
