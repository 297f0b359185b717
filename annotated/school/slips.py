"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

__all__ = ["slips"]


# E20-checks.md: Naming a mistake by mutation
_KIN = [  # names that are taken for each other
    "sum mean amax amin median prod", "min max", "argmax argmin",
    "sigmoid tanh relu softmax log_softmax exp", "sin cos", "any all",
    "relu gelu leaky_relu abs", "log log2 log10", "sqrt square",
    "tril triu", "zeros_like ones_like", "eval train", "randn rand",
    "rand_like randn_like", "float double half", "BOS EOS PAD",
]  # fmt: skip
_TAKEN = {
    ast.Lt: "LtE Gt GtE", ast.LtE: "Lt GtE Gt", ast.Gt: "GtE Lt LtE",
    ast.GtE: "Gt LtE Lt", ast.Eq: "NotEq LtE GtE Lt Gt",
    ast.NotEq: "Eq Gt Lt", ast.In: "NotIn", ast.NotIn: "In",
    ast.Is: "IsNot", ast.IsNot: "Is", ast.Add: "Sub Mult",
    ast.Sub: "Add", ast.Mult: "Div Add", ast.Div: "Mult FloorDiv",
    ast.Pow: "Mult", ast.Mod: "FloorDiv", ast.FloorDiv: "Mod Div",
    ast.BitAnd: "BitOr", ast.BitOr: "BitAnd", ast.And: "Or", ast.Or: "And",
}  # fmt: skip
_LONG = 50  # characters of ours that are told
_Slip = Callable[[], str]  # says which it is


def slips(tree: ast.Module) -> Iterator[_Slip]:
    """Make slips in tree, one after the other: each is there until the
    next is asked for.
    """
    for scope, block, place in _statements(tree, tree):
        old = block[place]
        if _is_text(old):  # which does nothing
            continue
        for told, new in _of_statement(old):
            block[place] = _at(old, new)
            yield told
            block[place] = old
        if place and not _is_text(block[place - 1]):
            earlier = block[place - 1]
            block[place - 1 : place + 1] = old, earlier
            yield partial(_swapped, old, earlier)
            block[place - 1 : place + 1] = earlier, old
        for fields, key, node in _expressions(old):
            for new in _instead(node, scope):
                fields[key] = _at(node, new)
                yield partial(_exchanged, new, node)
                fields[key] = node


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(
        node.value, ast.Constant
    )


def _exchanged(new: ast.AST, old: ast.AST) -> str:
    return f"with {_said(new)} in the place of {_said(old)}"


def _swapped(one: ast.AST, other: ast.AST) -> str:
    return f"with {_said(one)} before {_said(other)}"


def _said(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return f"`{text if len(text) <= _LONG else text[: _LONG - 2] + ' …'}`"


def _at(old: Any, new: Any) -> Any:
    """A node, or a list of statements, for the place of an old one."""
    if isinstance(new, list):
        new = ast.If(ast.Constant(True), new, [])
    return ast.fix_missing_locations(ast.copy_location(new, old))


def _statements(
    node: Any, scope: ast.AST
) -> Iterator[tuple[ast.AST, list[ast.stmt], int]]:
    """The statements of functions, each with its block and its function."""
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if not isinstance(block, list):
            continue
        for place, child in enumerate(list(block)):
            inner = isinstance(child, ast.FunctionDef)
            if isinstance(scope, ast.FunctionDef) and not inner:
                yield scope, block, place
            yield from _statements(child, child if inner else scope)


def _expressions(node: ast.AST) -> Iterator[tuple[Any, Any, ast.AST]]:
    """The expressions of a statement, without those of its blocks; each
    with the list, or the fields of a node, that it is in, and its key.
    """
    for field, value in ast.iter_fields(node):
        many = isinstance(value, list)
        fields: Any = value if many else vars(node)
        for key, child in enumerate(value) if many else [(field, value)]:
            if not isinstance(child, ast.AST) or field == "annotation":
                continue
            if not isinstance(child, ast.stmt):
                yield fields, key, child
                yield from _expressions(child)


def _of_statement(
    node: ast.stmt,
) -> Iterator[tuple[_Slip, list[ast.stmt]]]:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Return)):
        return
    if isinstance(node, ast.If):
        test = node.test
        yield lambda: f"without asking {_said(test)}", node.body
        rest = node.orelse or [ast.Pass()]
        yield lambda: f"without the case {_said(test)}", rest
        return
    yield lambda: f"without {_said(node)}", [ast.Pass()]
    if isinstance(node, (ast.For, ast.While)):
        once = copy.copy(node)
        once.body = [*node.body, ast.Break()]
        yield lambda: f"if {_said(node)} went round once", [once]
    if isinstance(node, ast.Expr):
        yield lambda: f"with {_said(node)} twice", [node, node]
    if isinstance(node, ast.AugAssign):
        read = copy.copy(node.target)
        read.ctx = ast.Load()
        both = ast.BinOp(read, node.op, node.value)
        for value in (both, node.value):
            new = ast.Assign([node.target], value, lineno=0)
            yield partial(_exchanged, new, node), [new]


def _instead(node: Any, scope: Any) -> Iterator[Any]:
    """What may have been written for an expression."""
    op: Any = getattr(node, "op", None)
    if isinstance(node, ast.Compare):
        op = node.ops[0]
    for name in _TAKEN.get(type(op), "").split():
        new, other = copy.copy(node), getattr(ast, name)()
        if isinstance(node, ast.Compare):
            new.ops = [other, *node.ops[1:]]
        else:
            new.op = other
        yield new
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
        yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant):
        yield from map(ast.Constant, _values(node.value))
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _names(node, scope)
    elif isinstance(node, ast.Attribute):
        yield from _attributes(node, scope)
    elif isinstance(node, (ast.Tuple, ast.List)):
        for i, j in itertools.combinations(range(len(node.elts)), 2):
            elts = list(node.elts)
            elts[i], elts[j] = elts[j], elts[i]
            yield type(node)(elts, node.ctx)
        if isinstance(node.ctx, ast.Load):
            for i in range(len(node.elts)):
                rest = node.elts[:i] + node.elts[i + 1 :]
                yield type(node)(rest, node.ctx)
    else:
        yield from _of_parts(node)


def _of_parts(node: Any) -> Iterator[Any]:
    """Parts of a sequence: an end, a step, a condition."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield node.value
    if isinstance(node, ast.Slice):
        for edge in ("lower", "upper", "step"):
            if value := getattr(node, edge):
                for other in (None, *_beside(value)):
                    cut = copy.copy(node)
                    setattr(cut, edge, other)
                    yield cut
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        for place, part in enumerate(node.generators):
            if part.ifs:
                new = copy.copy(node)
                new.generators = list(node.generators)
                new.generators[place] = copy.copy(part)
                new.generators[place].ifs = []
                yield new


def _beside(node: Any) -> list[Any]:
    """One more and one less."""
    one = ast.Constant(1)
    return [ast.BinOp(node, op, one) for op in (ast.Add(), ast.Sub())]


def _values(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0, 1, 2 * value, -value]
    if isinstance(value, float):
        return [value * 2, value / 2, 1 - value, 1.0, 0.0, -value]
    return []


def _kin(name: str) -> list[str]:
    """The names that are taken for this one."""
    groups = [group.split() for group in _KIN]
    return [x for group in groups if name in group for x in group]


def _calls(node: ast.Call) -> Iterator[Any]:
    if isinstance(node.func, ast.Attribute):
        yield node.func.value
    yield from node.args[:1]
    for i in range(len(node.args)):
        rest = node.args[:i] + node.args[i + 1 :]
        yield ast.Call(node.func, rest, node.keywords)
        for j in range(i):
            args = list(node.args)
            args[i], args[j] = args[j], args[i]
            yield ast.Call(node.func, args, node.keywords)
    for i in range(len(node.keywords)):
        rest_named = node.keywords[:i] + node.keywords[i + 1 :]
        yield ast.Call(node.func, node.args, rest_named)


def _attributes(node: ast.Attribute, scope: ast.AST) -> Iterator[Any]:
    """Another method, or another part of the same object."""
    for other in _kin(node.attr):
        yield ast.Attribute(node.value, other, node.ctx)
    owner = ast.dump(node.value)
    if isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
        parts = {
            x.attr: 0
            for x in ast.walk(scope)
            if isinstance(x, ast.Attribute) and ast.dump(x.value) == owner
        }
        for other in parts:
            yield ast.Attribute(node.value, other, node.ctx)


def _names(node: ast.Name, scope: Any) -> Iterator[Any]:
    """Another name of the function, or a little beside it."""
    given = [x.arg for x in (*scope.args.args, *scope.args.kwonlyargs)]
    made = [
        x.id
        for x in ast.walk(scope)
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
    ]
    names = dict.fromkeys([*given, *made])
    others = [x for x in names if x not in ("self", node.id)]
    for other in others if node.id in names else _kin(node.id):
        yield ast.Name(other, ast.Load())
    if node.id in names:
        yield from _beside(node)
        yield ast.UnaryOp(ast.Invert(), node)
        yield ast.Constant(None)
