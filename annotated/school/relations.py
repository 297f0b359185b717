"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["near", "relation", "plain"]


# E20-checks.md: What one answer is to the other
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 2e-2}


def near(yours: Tensor, target: Tensor) -> Tensor:
    """Where the two are the same number, up to rounding; also in float64,
    with room for that of a table in float32, which is no mistake.
    """
    if not target.is_floating_point():
        return yours == target
    within = _ROUNDING.get(target.dtype, 2e-3)
    return torch.isclose(
        yours, target, rtol=within, atol=within / 10, equal_nan=True
    )


def relation(pairs: Sequence[tuple[Any, Any]]) -> str:
    """A sentence on what yours is to the target, true of all these pairs,
    (yours, target) each; "" where there is none.
    """
    if all(_is_number(x) for pair in pairs for x in pair):
        columns = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
        return next(_of_numbers(*columns), "")
    found = [list(_relations(*pair)) for pair in pairs]
    shared = [x for x in found[0] if all(x in other for other in found)]
    return shared[0] if shared else ""


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _relations(yours: Any, target: Any) -> Iterator[str]:
    """All that is true of one pair, the most telling first."""
    if isinstance(yours, Tensor) and isinstance(target, Tensor):
        if all(plain(x) for x in (yours, target)):
            yield from _of_tensors(yours.detach(), target.detach())
    elif type(yours) is type(target) and isinstance(target, (list, tuple)):
        yield from _of_rows(yours, target)
    elif isinstance(yours, str) and isinstance(target, str):
        yield from _of_rows(list(yours), list(target))
    elif _is_number(yours) and _is_number(target):
        yield from _of_numbers(
            *torch.tensor([[yours], [target]], dtype=torch.float64)
        )
    elif isinstance(yours, dict) and isinstance(target, dict):
        names = list(target)
        mine = [yours[name] for name in names if name in yours]
        yield from _of_entries(mine, [target[n] for n in names], names)


def plain(x: Tensor) -> bool:
    """Whether its numbers can be read: it is no sparse one, say."""
    here = x.device.type == "cpu" and x.layout == torch.strided
    return here and not x.is_complex()


def _of_tensors(yours: Tensor, target: Tensor) -> Iterator[str]:
    if yours.dtype != target.dtype:
        told = str(target.dtype).removeprefix("torch.")
        if _equal(yours.double(), target.double()):
            yield f"The numbers are right; they should be {told}."
    elif target.dtype == torch.bool and _equal(~yours, target):
        yield "True and False are exchanged."
    yours, target = yours.double(), target.double()
    if yours.shape != target.shape:
        yield from _of_shapes(yours, target)
        return
    lost, wrong = yours.isnan() & ~target.isnan(), ~near(yours, target)
    if lost.any():
        if at := _confined(lost):
            yield f"It is NaN {at}."
        return
    if not wrong.any() or target.numel() < 2:
        return
    several = target.unique().numel()
    if several > 2:
        yield from _of_numbers(yours.flatten(), target.flatten())
    yield from _moved(yours, target)
    if several > 3:
        if _equal(yours.sort(-1).values, target.sort(-1).values):
            yield "In each row the numbers are right, but at wrong places."
        if _equal(*(x.flatten().sort().values for x in (yours, target))):
            yield "The numbers are right, but at wrong places."
    if several > 2 and target.ndim:
        yield from _of_each_row(yours, target)
    if at := _confined(wrong):
        yield f"It is wrong {at}."


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(near(one, other).all())


def _axis(axis: int, x: Tensor) -> str:
    """Along which axis, if there are several."""
    if x.ndim < 2:
        return ""
    last = axis == x.ndim - 1
    return " along the last axis" if last else f" along axis {axis}"


_NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "the square of": torch.square,
    "the root of": torch.sqrt,
    "the reciprocal of": torch.reciprocal,
    "1 minus": lambda x: 1 - x,
    "the logarithm of": torch.log,
    "the exponential of": torch.exp,
}


def _of_numbers(yours: Tensor, target: Tensor) -> Iterator[str]:
    """What is true of each number: a factor, a difference, a function."""
    if not (yours.isfinite().all() and target.isfinite().all()):
        return
    several = target.unique().numel() > 1
    gap = yours - target
    size = float(gap.abs().max())
    if 0 < size < 1e-3 * float(target.abs().max()) and several:
        yield (
            f"Nearly right: the two differ by {size:.1g} at most. Is "
            "something rounded, to float32, say, or a small constant such "
            "as ε at another place?"
        )
    some = target.abs() > 1e-9
    if some.any() and bool((yours[~some].abs() < 1e-7).all()):
        ratios = yours[some] / target[some]
        factor = float(ratios[0])
        said = _factor(factor)
        if not _steady(ratios) or abs(factor - 1) <= 1e-4:
            pass
        elif factor and (several or said):
            each = "It is" if len(target) == 1 else "Each number is"
            said = said or f"{factor:.4g} times"
            yield f"{each} {said} what was wanted."
        elif several:
            yield "It is 0 everywhere."
    if several and _steady(gap):
        way = "large" if gap[0] > 0 else "small"
        yield f"Each number is too {way}, by {abs(float(gap[0])):.4g}."
    for name, function in _NAMED.items():
        if several and _equal(yours, function(target)):
            yield f"Each number is {name} what was wanted."


def _steady(x: Tensor, axis: int = 0) -> bool:
    """Whether it is the same number along an axis."""
    return _equal(x, x.narrow(axis, 0, 1).expand_as(x))


def _factor(x: float) -> str:
    """A factor that says something: -1, 2, 1/3, √5; or ""."""
    sign, size = ("minus " if x < 0 else ""), abs(x)
    if math.isclose(size, 1, rel_tol=1e-4):
        return f"{sign}1 times" if sign else ""
    for value, text in ((size, "{}"), (1 / size if size else 0, "1/{}")):
        n, square = round(value), round(value * value)
        if 1 < n < 10_000 and math.isclose(value, n, rel_tol=1e-4):
            root = " = " + text.format(f"√{n * n}") if n < 100 else ""
            return f"{sign}{text.format(n)}{root} times"  # may be a width
        if 1 < square < 10_000 and math.isclose(
            value * value, square, rel_tol=1e-4
        ):
            return f"{sign}{text.format(f'√{square}')} times"
    return ""


def _of_shapes(yours: Tensor, target: Tensor) -> Iterator[str]:
    """Right numbers in another shape, or too many or too few of them."""
    if yours.numel() == target.numel():
        if 1 < yours.ndim < 5:
            for order in itertools.permutations(range(yours.ndim)):
                if _equal(yours.permute(order), target):
                    yield "The numbers are right; axes are exchanged."
        if _equal(yours.reshape(target.shape), target):
            yield "The numbers are right, in their order: only the shape."
    sizes = list(zip(yours.shape, target.shape))
    axes = [axis for axis, (n, m) in enumerate(sizes) if n != m]
    if yours.ndim != target.ndim or len(axes) != 1:
        return
    [axis] = axes
    shared, more = min(sizes[axis]), sizes[axis][0] - sizes[axis][1]
    what, name = "too many" if more > 0 else "missing", _axis(axis, target)
    for place, start in (("end", 0), ("beginning", -shared)):
        parts = [x.narrow(axis, start, shared) for x in (yours, target)]
        if shared and near(*parts).all():
            at = f"the {place}{name}" if name else f"its {place}"
            yield f"{abs(more)} {what} at {at}; the rest is right."


def _moved(yours: Tensor, target: Tensor) -> Iterator[str]:
    """The right numbers, turned round or shifted."""
    for one, other in itertools.combinations(range(target.ndim), 2):
        if _equal(yours.transpose(one, other), target):
            yield "It is right but transposed: two axes are exchanged."
    for axis, n in enumerate(target.shape):
        name = _axis(axis, target)
        if n > 1 and _equal(yours.flip(axis), target):
            yield f"It is right but turned round{name}."
        for i, when in enumerate(("early", "late") if n > 2 else ()):
            ours = yours.narrow(axis, i, n - 1)
            if _equal(ours, target.narrow(axis, 1 - i, n - 1)):
                yield (
                    f"It is right but shifted by one{name}: each comes too "
                    f"{when}."
                )


def _of_each_row(yours: Tensor, target: Tensor) -> Iterator[str]:
    """A factor or a difference of its own for each row, or column."""
    for axis, what in ((-1, "row"), (-2, "column")):
        if target.ndim < 2 or target.size(axis) < 3:
            continue
        if bool((target.abs() > 1e-9).all()):
            sums = target.sum(axis)
            one = _equal(sums, torch.ones_like(sums))
            told = ", and does not sum to 1" if one else ""
            if _steady(yours / target, axis):
                own = f"Each {what} is right up to a factor of its own"
                yield f"{own}{told}."
        if _steady(yours - target, axis):
            yield f"In each {what} all numbers are off by the same amount."
    for axis, n in enumerate(target.shape):
        if n > 2 and bool((yours.amax(axis) == yours.amin(axis)).all()):
            yield f"All entries{_axis(axis, target)} are the same."


def _confined(wrong: Tensor) -> str:
    """Where alone something is wrong, if that is at one end of an axis."""
    if wrong.all():
        return ""
    for axis, n in enumerate(wrong.shape):
        if n < 2:
            continue
        name = _axis(axis, wrong)
        hit = wrong.movedim(axis, 0).reshape(n, -1).any(1).tolist()
        if sum(hit) == 1 and (hit[0] or hit[-1]):
            end = "first" if hit[0] else "last"
            return f"at the {end} place{name} alone"
        if n > 2 and sum(hit) == n - 1 and not (hit[0] and hit[-1]):
            end = "last" if hit[0] else "first"
            return f"everywhere but at the {end} place{name}"
    return ""


def _of_rows(yours: Sequence[Any], target: Sequence[Any]) -> Iterator[str]:
    """Lists: what is missing, too many, or in another order."""
    every, n = [*yours, *target], len(target)
    if any(isinstance(x, Tensor) for x in every):
        yield from _of_entries(yours, target, range(n))
        return
    numbers = all(map(_is_number, every))
    kinds = {repr(x): float(i) for i, x in enumerate(every)}
    codes = [x if numbers else kinds[repr(x)] for x in every]
    both = torch.tensor(codes, dtype=torch.float64)
    ours, right = both[: len(yours)], both[len(yours) :]
    compare = _moved if len(ours) == n else _of_shapes
    yield from compare(ours, right)
    if _equal(ours.sort().values, right.sort().values) and n > 1:
        yield "It has the right entries, in another order."
    elif _equal(ours.unique(), right.unique()):
        often = "too seldom" if len(ours) < n else "too often"
        yield f"It has the right entries, but some of them {often}."
    if numbers and len(ours) == n > 1:
        yield from _of_tensors(ours, right)
    yield from _of_entries(yours, target, range(n))


def _of_entries(
    yours: Sequence[Any], target: Sequence[Any], names: Sequence[Any]
) -> Iterator[str]:
    """The one entry that is wrong, and what is wrong with it."""
    if len(yours) != len(target):
        return
    wrong = [i for i, x in enumerate(target) if not _same(yours[i], x)]
    if len(wrong) == 2:
        one, other = wrong
        crossed = (yours[one], target[other]), (yours[other], target[one])
        if all(_same(*pair) for pair in crossed):
            yield f"{names[one]!r} and {names[other]!r} are exchanged."
    if len(wrong) == 1 and len(target) > 1:
        name = repr(names[wrong[0]])
        for text in _relations(yours[wrong[0]], target[wrong[0]]):
            yield f"Only {name} is wrong. {text}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        readable = plain(one) and plain(other)
        return readable and one.dtype == other.dtype and _equal(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-9)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        one, other = [[*one], *one.values()], [[*other], *other.values()]
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
