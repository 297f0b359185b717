"""What a page's sentences claim, tried on its results, and on false ones.

Runs in the page's kernel, by its path: it imports nothing of the press.
A claims cell is assignments and assertions, which may stand in loops. Each
assertion is cut into comparisons, each of which has to hold for what the
page computed, and is then tried on results in which what it says should be
false: the values of two labels swapped, everything twice as large, all
alike, and so on. One that no such result turns red claims nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

MARK = "claims: "  # before the line that the press reads
CLAIM = "__claim__"  # what an assertion calls, to be tried
Leaf = Callable[[Any], Any]


def hold(source: str, page: dict[str, Any]) -> None:
    """Raise where a claim is false; print what turned each one red: of one
    in a loop, in any round.
    """
    names = dict(page)  # what a claims cell assigns, the page never sees
    claims = Claims()
    tree = ast.fix_missing_locations(claims.visit(ast.parse(source)))
    red: dict[str, list[str]] = {
        ast.unparse(piece): []
        for test in claims.tests
        for piece in pieces(test)
    }

    def claim(number: int) -> None:
        for piece in pieces(claims.tests[number]):
            said = ast.unparse(piece)
            if not judge(piece, names):
                raise AssertionError(f"{said}{_where(piece, names)}")
            red[said] += seen_red(piece, names)

    names[CLAIM] = claim
    exec(compile(tree, "<claims>", "exec"), names)
    found = [
        {"says": said, "red": list(dict.fromkeys(by))}
        for said, by in red.items()
    ]
    print(MARK + json.dumps(found))


class Claims(ast.NodeTransformer):
    """Each assertion becomes a call that tries it, where it stands."""

    def __init__(self) -> None:
        self.tests: list[ast.expr] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.tests.append(node.test)
        number = ast.Constant(len(self.tests) - 1)
        return ast.Expr(ast.Call(ast.Name(CLAIM, ast.Load()), [number], []))


def pieces(test: ast.expr) -> Iterator[ast.expr]:
    """The comparisons of an assertion, each by itself."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from pieces(value)
    elif isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        for op, (left, right) in zip(
            test.ops, pairwise(sides), strict=True
        ):
            yield ast.Compare(left, [op], [right])
    else:
        yield test


def judge(piece: ast.expr, names: dict[str, Any]) -> bool:
    tree = ast.fix_missing_locations(ast.Expression(piece))
    return bool(eval(compile(tree, "<claims>", "eval"), names))


def _where(piece: ast.expr, names: dict[str, Any]) -> str:
    values = [f"{name} = {names[name]!r}" for name in read(piece, names)]
    return f", where {'; '.join(values)[:600]}" if values else ""


def read(piece: ast.expr, names: dict[str, Any]) -> list[str]:
    """The results that it reads: names whose values can be shaken."""
    used = {n.id for n in ast.walk(piece) if isinstance(n, ast.Name)}
    return sorted(n for n in used if n in names and _leaves(names[n]))


# --- false results --------------------------------------------------------


def seen_red(piece: ast.expr, names: dict[str, Any]) -> list[str]:
    """The shakes in which what it says is false."""
    red = []
    for what, false in shakes({n: names[n] for n in read(piece, names)}):
        try:
            if not judge(piece, {**names, **false}):
                red.append(what)
        except Exception:  # a result that no run could give: no verdict
            continue
    return list(dict.fromkeys(red))


def shakes(
    results: dict[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Other values for these names: one name at a time, and all."""
    for group in [[name] for name in results] + [list(results)]:
        leaves = [x for name in group for x in _leaves(results[name])]
        for what, f in _of_numbers([x for x in leaves if _number(x)]):
            yield what, {n: changed(results[n], f) for n in group}
        yield (
            "other words",
            {n: changed(results[n], _other_word) for n in group},
        )
    for name, value in results.items():
        for other in swapped(value):
            yield "labels swapped", {name: other}
    for one, two in pairwise(results):
        both = {one: results[two], two: results[one]}
        yield "labels swapped", both


def _of_numbers(leaves: list[float]) -> Iterator[tuple[str, Leaf]]:
    finite = [float(x) for x in leaves if math.isfinite(x)]
    if not finite:
        return
    low, high = min(finite), max(finite)
    mean = sum(finite) / len(finite)
    room = (high - low) or abs(high) or 1.0

    def of(f: Callable[[float], float]) -> Leaf:
        return lambda x: f(x) if _number(x) else x

    yield (
        "mirrored",
        lambda x: (
            not x
            if isinstance(x, bool)
            else of(lambda y: low + high - y)(x)
        ),
    )
    yield "all alike", of(lambda _: mean)
    yield "twice", of(lambda x: 2 * x)
    yield "half", of(lambda x: x / 2)
    yield "tenfold", of(lambda x: 10 * x)  # a loss of a shorter run
    yield "a tenth", of(lambda x: x / 10)
    yield "more", of(lambda x: x + room)
    yield "less", of(lambda x: x - room)
    if low >= 0 and high <= 1:  # shares, each of which could be the rest
        yield "the rest", of(lambda x: 1 - x)


def _number(x: Any) -> bool:
    return isinstance(x, int | float)


def _other_word(x: Any) -> Any:
    return x[::-1] + "?" if isinstance(x, str) else x


def swapped(value: Any) -> Iterator[Any]:
    """The same values under each other's labels."""
    if _array(value):
        for axis in range(value.ndim):
            yield (
                value.flip(axis) if _torch(value) else _np_flip(value, axis)
            )
    elif isinstance(value, dict):
        keys, values = list(value), list(value.values())
        yield dict(zip(keys, values[1:] + values[:1], strict=True))
        yield dict(zip(keys, values[::-1], strict=True))
        for key in keys:  # of one entry
            for other in swapped(value[key]):
                yield {**value, key: other}
    elif isinstance(value, list | tuple):
        rows = list(value)
        yield _like(value, rows[::-1])
        yield _like(value, rows[1:] + rows[:1])
        if rows and all(isinstance(row, dict) for row in rows):
            for key in rows[0]:  # of one column of a table
                column = [row.get(key) for row in rows]
                turned = zip(rows, column[::-1], strict=True)
                yield _like(value, [{**row, key: x} for row, x in turned])
        elif rows and all(isinstance(row, list | tuple) for row in rows):
            for place in range(min(map(len, rows))):
                turned = zip(rows, rows[::-1], strict=True)
                yield _like(
                    value,
                    [
                        _like(
                            row, [*row[:place], x[place], *row[place + 1 :]]
                        )
                        for row, x in turned
                    ],
                )


def changed(value: Any, f: Leaf) -> Any:
    """The value with f on each number and word in it; keys stay."""
    if _array(value):
        flat = value.reshape(-1).tolist()
        new = [f(x) for x in flat]
        if _torch(value):
            made = sys.modules["torch"].tensor(new)
            return made.reshape(value.shape)
        return sys.modules["numpy"].array(new).reshape(value.shape)
    if isinstance(value, dict):
        return {key: changed(x, f) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [changed(x, f) for x in value])
    if _record(value):
        fields = {
            field.name: changed(getattr(value, field.name), f)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **fields)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    return f(value) if isinstance(value, str | int | float) else value


def _leaves(value: Any, depth: int = 0) -> list[Any]:
    """The numbers and words in a value; a model has none."""
    if depth > 6:
        return []
    if _array(value):
        return list(value.reshape(-1).tolist())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [x for part in value for x in _leaves(part, depth + 1)]
    if _record(value):
        parts = [getattr(value, f.name) for f in dataclasses.fields(value)]
        return [x for part in parts for x in _leaves(part, depth + 1)]
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    return [value] if isinstance(value, str | int | float) else []


def _record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _array(value: Any) -> bool:
    kinds = [
        getattr(sys.modules[module], name)
        for module, name in (("torch", "Tensor"), ("numpy", "ndarray"))
        if module in sys.modules
    ]
    return isinstance(value, tuple(kinds))


def _torch(value: Any) -> bool:
    return type(value).__module__.startswith("torch")


def _np_flip(value: Any, axis: int) -> Any:
    return sys.modules["numpy"].flip(value, axis)


def _like(value: Any, rows: list[Any]) -> Any:
    if isinstance(value, tuple):
        named = hasattr(value, "_fields")
        return type(value)(*rows) if named else tuple(rows)
    return rows
