"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass

__all__ = ["statements_of", "answer_in", "borrowed", "reaching"]


# E29-answers.md: What a statement does
_COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp", "genexpr"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class _Statement:
    """A statement of a cell, and what it does to names."""

    cell: int
    text: str
    kind: str  # def, value, import, load (import a.b), star, future, seed
    binds: frozenset[str]
    changes: frozenset[str]
    now: frozenset[str]  # names that it uses at once
    later: frozenset[str]  # that its functions use when they are called
    effects: frozenset[str]  # that its functions change
    calls: frozenset[tuple[str, str, bool]]  # made at once, as in _calls
    patches: bool  # whether a function of it writes into an argument

    @property
    def hides(self) -> bool:
        """Whether nobody can read off what it defines."""
        return self.kind == "star" or bool(self.now & {"exec", "globals"})

    @property
    def runs(self) -> bool:
        """Whether it does more than to give names a value."""
        return self.kind in ("seed", "other") or bool(self.calls)

    @property
    def uses(self) -> frozenset[str]:
        return self.now | self.later | self.changes | self.effects


def _statement(node: ast.stmt, text: str, cell: int) -> _Statement:
    """SyntaxError where its names contradict each other."""
    binds, now, later, effects = _names_of(
        symtable.symtable(text, "<cell>", "exec"), inside=False
    )
    # what is changed at once, and inside of functions
    changed: tuple[set[str], set[str]] = (set(), set())
    stored: tuple[set[str], set[str]] = (set(), set())
    arguments: set[str] = set()
    calls: set[tuple[str, str, bool]] = set()
    dropped: list[ast.AST] = []
    for part, inside in _walk(node):
        name = _root(_written_to(part))
        stored[inside].add(name)
        changed[inside].add(name)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del):
            changed[inside].add(part.id)
        if isinstance(part, _FUNCTIONS):
            arguments |= {
                x.arg for x in ast.walk(part.args) if isinstance(x, ast.arg)
            }
        if isinstance(part, ast.Expr):
            dropped.append(part.value)
        if isinstance(part, ast.Call) and isinstance(
            part.func, ast.Attribute
        ):
            changed[inside].add(_root(part.func))
        if not inside:
            calls |= _calls(part, part in dropped)
    if isinstance(node, ast.AugAssign):
        now.add(_root(node.target))
    return _Statement(
        cell=cell,
        text=text,
        kind=_kind(node),
        binds=frozenset(binds),
        changes=frozenset(changed[False] - {""}),
        now=frozenset(now - {""}),
        later=frozenset(later),
        effects=frozenset(effects | changed[True] & later),
        calls=frozenset(calls),
        patches=bool(stored[True] & arguments - {"self", "cls"}),
    )


def _walk(
    node: ast.AST, inside: bool = False
) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs only when a function is called."""
    yield node, inside
    function = isinstance(node, (*_FUNCTIONS, ast.Lambda))
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                later = function and name == "body"
                yield from _walk(child, inside or later)


def _calls(node: ast.AST, dropped: bool) -> set[tuple[str, str, bool]]:
    """The calls that a node makes: of which name, with which argument, and
    whether the result is dropped.
    """
    if not isinstance(node, ast.Call):
        above = getattr(node, "decorator_list", [])
        return {(_root(one), "", False) for one in above}
    given = [*node.args, *(k.value for k in node.keywords)]
    roots = [_root(x) for x in given] or [""]
    return {(_root(node.func), name, dropped) for name in roots}


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.ImportFrom):
        if node.module == "__future__":
            return "future"
        return "star" if node.names[0].name == "*" else "import"
    if isinstance(node, ast.Import):
        dotted = "." in node.names[0].name and not node.names[0].asname
        return "load" if dotted else "import"
    simple = isinstance(node, (ast.Assign, ast.AnnAssign))
    if simple and isinstance(node.value, ast.Lambda):  # type: ignore
        return "def"
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return "def"
    called = getattr(getattr(node, "value", None), "func", None)
    if isinstance(node, ast.Expr) and (
        getattr(called, "attr", "") in ("seed", "manual_seed")
    ):
        return "seed"
    return "value" if simple else "other"


def _names_of(
    table: symtable.SymbolTable, inside: bool
) -> tuple[set[str], set[str], set[str], set[str]]:
    """Global names: bound, used at once, used later, and bound by a
    function that declares them global.
    """
    top = table.get_type() == "module"
    names: tuple[set[str], ...] = (set(), set(), set(), set())
    binds, now, later, effects = names
    for symbol in table.get_symbols():
        if not (top or symbol.is_global()):
            continue
        if symbol.is_referenced():
            (later if inside else now).add(symbol.get_name())
        given = symbol.is_assigned() or symbol.is_imported()
        if given and (top or symbol.is_declared_global()):
            (effects if inside else binds).add(symbol.get_name())
    for child in table.get_children():
        function = child.get_type() == "function"
        deferred = function and child.get_name() not in _COMPREHENSIONS
        for mine, found in zip(names, _names_of(child, inside or deferred)):
            mine |= found
    return binds, now, later, effects


def _root(node: ast.AST | None) -> str:
    """The name that a.b[c].d or vars(a)[b] begins with; or ""."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and node.args
            and getattr(node.func, "id", "") == "vars"
        ):
            node = node.args[0]
        else:
            return str(getattr(node, "id", ""))  # of an ast.Name


def _written_to(node: ast.AST) -> ast.AST | None:
    """Of a.b = …, a[i] = …, setattr(a, …), vars(a).update(…), what is
    written to.
    """
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return None if isinstance(node.ctx, ast.Load) else node
    if not isinstance(node, ast.Call):
        return None
    method = getattr(node.func, "attr", "")
    name = method or _root(node.func)
    if node.args and name.strip("_") in ("setattr", "delattr"):
        return node.args[0] if not method or node.args[1:] else None
    space = getattr(node.func, "value", None)
    patched = _root(getattr(space, "func", None)) == "vars"
    patched = patched or getattr(space, "attr", "") == "__dict__"
    return space if patched else None


# E29-answers.md: Cells as IPython reads them
_AROUND = ("time", "capture", "prun")  # magics that run code as it stands
_Parsed = tuple[list[tuple[ast.stmt, str]], str]  # nodes, texts; a reason
_TOO_MUCH = (SyntaxError, ValueError, RecursionError, MemoryError)
_SPLIT = 5  # cells into which a function may have been cut


def statements_of(
    cells: Sequence[str],
) -> tuple[list[_Statement], dict[int, str]]:
    """All statements; and by its place, of each cell that is not, or not
    wholly, understood, the reason.
    """
    found: list[_Statement] = []
    unknown: dict[int, str] = {}
    place = 0
    while place < len(cells):
        count = 1
        nodes, reason = _parsed(cells[place])
        rest = list(range(place + 1, len(cells)))[: _SPLIT - 1]
        while not nodes and reason and rest and _plain(cells[rest[0]])[1]:
            count += 1
            joined, why = _parsed("\n".join(cells[place : rest.pop(0) + 1]))
            if not why:
                nodes, reason = joined, ""
        try:
            new = [_statement(node, text, place) for node, text in nodes]
        except _TOO_MUCH as error:
            new, reason = [], _said(error)
        if reason:
            unknown[place] = reason
            count = 1
        found += new
        place += count
    return found, unknown


def _plain(text: str) -> _Parsed:
    """The statements of Python source; none where there is a reason."""
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of "\d" in a string
            body = ast.parse(text).body
    except _TOO_MUCH as error:
        return [], _said(error)
    lines = text.split("\n")
    return [
        (one, _written(one, lines) if one is node else ast.unparse(one))
        for node in body
        for one in _single(node)
    ], ""


def _single(node: ast.stmt) -> list[ast.stmt]:
    """An import of several names as several imports."""
    if isinstance(node, ast.Import) and node.names[1:]:
        return [ast.Import([name]) for name in node.names]
    if isinstance(node, ast.ImportFrom) and node.names[1:]:
        module, level = node.module, node.level
        return [ast.ImportFrom(module, [n], level) for n in node.names]
    return [node]


def _said(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        return f"line {error.lineno} does not parse ({error.msg}): {line}"
    return f"it does not parse ({error or type(error).__name__})"


def _written(node: ast.stmt, lines: Sequence[str]) -> str:
    """How a statement is written, with its decorators."""
    above = [d.lineno for d in getattr(node, "decorator_list", [])]
    first = min(above, default=node.lineno)
    rows = list(lines[first - 1 : node.end_lineno])
    if not above:  # it may share its lines; columns are counted in bytes
        rows[-1] = rows[-1].encode()[: node.end_col_offset].decode()
        rows[0] = rows[0].encode()[node.col_offset :].decode()
    return "\n".join(rows)


def _parsed(text: str) -> _Parsed:
    """The statements of a cell, and what is not understood of it."""
    plain, reason = _plain(text)
    if not reason:
        return plain, ""
    try:
        from IPython.core.inputtransformer2 import TransformerManager

        turned, _ = _plain(TransformerManager().transform_cell(text))
        magics, found = _Magics(), []
        for node, written in turned:
            if "get_ipython()" not in written:
                found.append((node, written))
                continue
            new = magics.visit(node)
            found += [
                (one, ast.unparse(one))
                for one in (new if isinstance(new, list) else [new])
                if not isinstance(one, ast.Pass)
            ]
    except ImportError:
        return [], reason
    except _TOO_MUCH as error:
        return [], reason or _said(error)
    return found, magics.unknown if turned else reason


class _Magics(ast.NodeTransformer):
    """What IPython's own syntax runs, in place of the call of it."""

    unknown = ""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        code = self.code_of(node.value)
        if code is None:
            self.generic_visit(node)
            return node
        nodes, reason = _parsed(code)
        self.unknown = self.unknown or reason
        return [one for one, _ in nodes] or ast.Pass()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if code := self.code_of(node):  # x = %time f()
            return ast.parse(code, mode="eval").body
        self.generic_visit(node)
        return node

    def code_of(self, node: ast.AST) -> str | None:
        """The code that a magic runs, "" where it defines nothing; None of
        any other expression.
        """
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "get_ipython()"
        ):
            return None
        given = [a.value for a in node.args if isinstance(a, ast.Constant)]
        if not node.func.attr.startswith("run_") or len(given) < 2:
            return ""
        name, code = str(given[0]), str(given[-1])
        if name in _AROUND:
            return code
        if node.func.attr == "run_cell_magic":
            self.unknown = f"%%{name} is no cell of Python"
        elif name in ("run", "load"):
            self.unknown = f"%{name} {code}: that file is not here"
        return ""


# E29-answers.md: What an answer depends on
_IMPORTS = ("import", "load")
_COMMANDS = {  # of the book
    "check", "hint", "solution", "progress", "reset", "milestone", "grade",
}  # fmt: skip
_OF_COMMANDS = re.compile(
    r"import annotated$|(from|import) annotated\.(checks|school)\b"
    r"|from annotated import (checks|school)\b"
)
_QUIET = (
    frozenset(dir(builtins)) - {"setattr", "delattr"}
    | _COMMANDS
    | {"display"}
)


def _index(names: Iterable[Collection[str]]) -> dict[str, list[int]]:
    """For each name, the places at which it is."""
    found: dict[str, list[int]] = {}
    for place, several in enumerate(names):
        for name in several:
            found.setdefault(name, []).append(place)
    return found


def _closure(
    names: Collection[str], following: Callable[[str], set[str]]
) -> set[str]:
    """Names, and all to which following leads from them."""
    reached: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        reached.add(name)
        left |= following(name) - reached
    return reached


class _Program:
    """The statements of cells, and how they depend on each other. Calls
    of the answer itself are trials of it: nothing depends on them.
    """

    def __init__(self, statements: Sequence[_Statement], answer: str = ""):
        self.all, self.answer = list(statements), answer
        self.binders = _index(one.binds for one in self.all)
        self.changers = _index(self.changed(one) for one in self.all)

    def of(self, name: str) -> list[_Statement]:
        return [self.all[place] for place in self.binders.get(name, [])]

    def only(self, name: str, *kinds: str) -> bool:
        """Whether a name is bound, and by statements of these kinds."""
        found = self.of(name)
        return bool(found) and all(one.kind in kinds for one in found)

    def reached(
        self, names: Collection[str], without: Collection[str] = ()
    ) -> set[str]:
        """What calls of these names use, and what those use in turn."""

        def used(name: str) -> set[str]:
            later = {n for one in self.of(name) for n in one.later}
            return later - set(without)

        return _closure(set(names) - set(without), used)

    def asks(self, one: _Statement) -> bool:
        """Whether a statement calls one of the book's commands."""
        for callee, _, _ in one.calls:
            texts = [x.text for x in self.of(callee)]
            named = callee in _COMMANDS and not texts
            if named or any(map(_OF_COMMANDS.match, texts)):
                return True
        return False

    def made_of(self, names: Collection[str]) -> set[str]:
        """These, and what they were made of and may share: what changes
        an optimizer changes its model.
        """

        def shared(name: str) -> set[str]:
            made = [
                x for x in self.of(name) if x.kind in ("value", "other")
            ]
            return {n for x in made for n in x.now if self.is_data(n)}

        return _closure(names, shared)

    def is_data(self, name: str) -> bool:
        return name in self.binders and not self.only(
            name, "def", *_IMPORTS
        )

    def changed(self, one: _Statement) -> set[str]:
        """Names whose value a statement may change. Those of imports are
        not among them: what is patched there is no part of an answer.
        """
        found = set(one.changes)
        for callee, given, dropped in one.calls:
            by = self.of(callee)
            if self.only(given, "def", *_IMPORTS):
                if any(x.patches for x in by):
                    found.add(given)
            elif callee not in _QUIET and (
                dropped or not self.only(callee, *_IMPORTS) and by
            ):
                found.add(given)
        if one.calls and not self.asks(one):
            for name in self.reached(one.now, {self.answer}):
                found |= {n for x in self.of(name) for n in x.effects}
        found = self.made_of(found)
        return {
            name
            for name in found - one.binds
            if name in self.binders and not self.only(name, *_IMPORTS)
        }

    def needed(
        self,
        name: str,
        without: Collection[int] = (),
        until: int | None = None,
    ) -> list[int]:
        """The places of the statements on which a name depends, in their
        order. Of those in cells from until on, only what is not there
        before; and none of without.
        """
        chosen: set[int] = set()
        left, seen = [name], set()
        unbound, home = False, -1
        while left:
            wanted = left.pop()
            if wanted in seen:
                continue
            seen.add(wanted)
            binders = set(self.binders.get(wanted, [])) - set(without)
            places = binders | set(self.changers.get(wanted, []))
            early = {
                p
                for p in places
                if until is None or self.all[p].cell < until
            }
            unbound |= not binders and not hasattr(builtins, wanted)
            taken = (early if early & binders else places) - set(without)
            if wanted == name:
                home = max((self.all[p].cell for p in taken), default=-1)
            for place in self.once(taken, home) - chosen:
                chosen.add(place)
                left += self.all[place].uses
        runs = any(self.all[place].calls for place in chosen)
        cells = {self.all[place].cell for place in chosen}
        for place, one in enumerate(self.all):
            seeded = runs and one.cell in cells
            fits = {"future": True, "star": unbound, "seed": seeded}
            if fits.get(one.kind):
                loaded = {
                    p for n in one.now for p in self.binders.get(n, [])
                }
                chosen |= {place} | self.once(loaded - set(without), home)
        return self.ordered(chosen)

    def once(self, places: Collection[int], home: int) -> set[int]:
        """These; of what is imported again and again, what home imports,
        or else the first of its kind. What loads a submodule stays.
        """
        if any(self.all[p].kind not in ("import", "load") for p in places):
            return set(places)
        first: dict[str, int] = {}
        near = [p for p in places if self.all[p].cell == home]
        for place in sorted(near or places):
            first.setdefault(self.all[place].text, place)
        loads = {p for p in places if self.all[p].kind == "load"}
        return set(first.values()) | loads

    def ordered(self, chosen: Collection[int]) -> list[int]:
        """As in the notebook; but first what is used before it is there,
        as where the cells were run in another order.
        """
        found: list[int] = []
        begun: set[int] = set()

        def put(place: int) -> None:
            if place in begun:
                return
            begun.add(place)
            one = self.all[place]
            for name in self.reached(one.now) if one.runs else one.now:
                binders = [
                    p for p in self.binders.get(name, []) if p in chosen
                ]
                if binders and min(binders) > place:
                    for binder in binders:
                        put(binder)
            found.append(place)

        future = [p for p in chosen if self.all[p].kind == "future"]
        for place in (*future, *sorted(chosen)):
            put(place)
        return found

    def replaced(self, places: Sequence[int]) -> set[int]:
        """Of these, definitions that another replaces before anything runs
        that could have used them.
        """
        found = set()
        for at, place in enumerate(places):
            one = self.all[place]
            if one.runs or one.kind not in ("def", "import", "value"):
                continue
            for later in map(self.all.__getitem__, places[at + 1 :]):
                if later.runs or later.now & one.binds:
                    break
                if later.changes & one.binds:
                    break
                if one.binds and later.binds >= one.binds:
                    found.add(place)
                    break
        return found


@dataclass(frozen=True)
class _Answer:
    """What a notebook has for an exercise."""

    cells: list[str]  # the answer's statements, as cells, in their order
    places: set[int]  # the cells from which they are
    given: bool  # nothing but what was given
    unknown: dict[int, str]  # by its place, a cell that is not understood
    left: str = ""  # a line elsewhere that changes what is imported

    @property
    def text(self) -> str:
        return "\n\n\n".join(self.cells)


def answer_in(
    cells: Sequence[str], name: str, starter: str, until: int | None = None
) -> _Answer:
    """The statements that define a name and all that it depends on. Where
    nothing does, a cell that is not understood and speaks of it.
    """
    statements, unknown = statements_of(cells)
    program = _Program(statements, name)
    first, _ = statements_of([starter])
    given = {_plainly(one.text) for one in first}
    old = {
        place
        for place in program.binders.get(name, [])
        if _plainly(statements[place].text) in given
    }
    dead: set[int] = set()
    places = program.needed(name, old, until)
    if not any(name in statements[p].binds for p in places):
        places = program.needed(name, (), until)  # the starter, changed
        old = set()
    while more := program.replaced(places) - dead:
        dead |= more
        places = program.needed(name, old | dead, until)
    texts = [statements[place].text for place in places]
    if not any(name in statements[p].binds for p in places):
        places = [p for p, one in enumerate(statements) if one.hides]
        if places:  # it may define anything
            places = program.ordered(places)
            used = {statements[place].cell for place in places}
            return _Answer(_as_cells(program, places), used, False, unknown)
        word = re.compile(rf"\b{re.escape(name)}\b")
        spoken = [p for p in unknown if word.search(cells[p])][-1:]
        texts = [cells[place] for place in spoken]
        return _Answer(texts, set(spoken), not spoken, unknown)
    unchanged = all(_plainly(text) in given for text in texts)
    used = {
        one.cell for p in places if (one := statements[p]).kind != "load"
    }
    others = set(range(len(statements))) - set(places)
    rest = [statements[place].text for place in sorted(others)]
    left = _patching(rest, texts)
    return _Answer(
        _as_cells(program, places), used, unchanged, unknown, left
    )


def _plainly(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text))
    except _TOO_MUCH:  # to write it down again
        return text


def _as_cells(program: _Program, places: Sequence[int]) -> list[str]:
    """What stood in one cell stands in one again."""
    found: list[str] = []
    last = -1
    for one in map(program.all.__getitem__, places):
        if one.cell == last:
            gap = "\n" if one.kind in ("import", "value") else "\n\n\n"
            found[-1] += gap + one.text
        else:
            found.append(one.text)
        last = one.cell
    return found


# E29-answers.md: What an answer may not do
_EXAMINER = ("annotated.checks", "annotated.school", "sys.modules")
_CALLED = {"exec", "eval", "compile", "globals", "__import__"}
_MODULES = {
    "builtins", "ctypes", "gc", "importlib", "inspect", "_thread",
    "pkgutil", "runpy", "timeit", "code", "codeop", "pydoc", "pdb",
    "marshal",
}  # fmt: skip
_INSIDE = {  # what leads to the checks, and what is equal to everything
    "__globals__", "__code__", "__builtins__", "__subclasses__",
    "__closure__", "f_back", "f_globals", "f_locals", "f_builtins",
    "tb_frame", "gi_frame", "cr_frame", "_getframe", "_current_frames",
    "settrace", "setprofile", "meta_path", "path_hooks",
    "_exit", "abort", "kill", "killpg", "getppid",
    "__eq__", "__ne__", "__bool__", "__getattr__", "__getattribute__",
    "__torch_function__", "__torch_dispatch__", "__instancecheck__",
}  # fmt: skip


def _nodes(cells: Sequence[str]) -> list[tuple[ast.AST, str]]:
    """Every node of cells but docstrings, with the line that it is on."""
    found: list[tuple[ast.AST, str]] = []
    for code in cells:
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except _TOO_MUCH:
            continue
        lines = code.split("\n")
        alone = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
        found += [
            (node, lines[getattr(node, "lineno", 1) - 1].strip())
            for node in nodes
            if not (isinstance(node, ast.Constant) and id(node) in alone)
        ]
    return found


def _imports(
    nodes: Iterable[tuple[ast.AST, str]],
) -> Iterator[tuple[str, str, str]]:
    """Of each import: the name here, the module or "", the name there."""
    for node, _ in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for one in node.names:
                here = (one.asname or one.name).split(".")[0]
                yield here, getattr(node, "module", "") or "", one.name


def _folded(node: ast.AST) -> str:
    """The text that a constant, a sum or an f-string of them is; or ""."""
    value = getattr(node, "value", None)
    if isinstance(node, ast.Constant):
        value = value.decode("latin-1") if type(value) is bytes else value
        return value if isinstance(value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _folded(node.left) + _folded(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_folded, node.values))
    return (
        _folded(node.value) if isinstance(node, ast.FormattedValue) else ""
    )


def borrowed(cells: Sequence[str], name: str) -> str:
    """The module of the book from which cells take what has this name; or
    "".
    """
    nodes = _nodes(cells)
    book = {}  # modules of the book, by the name that they have here
    for here, module, there in _imports(nodes):
        path = f"{module}.{there}".strip(".")
        if path.split(".")[0] in ("annotated", "mine"):
            if module and there == name:
                return module
            book[here] = path
    for node, _ in nodes:
        owner: ast.AST | None = None
        if isinstance(node, ast.Attribute):
            owner = node if node.attr in (name, "__dict__") else None
        elif isinstance(node, ast.Call) and node.args:
            looks = _root(node.func) in ("getattr", "vars")
            owner = node.args[0] if looks else None
        if _root(owner) in book:
            return book[_root(owner)]
    return ""


def reaching(cells: Sequence[str]) -> str:
    """The line with which cells look for their examiner, or change what
    they have imported; or "".
    """
    nodes = _nodes(cells)
    imported = {here for here, _, _ in _imports(nodes)}
    own = set() if "*" in imported else {_bound(node) for node, _ in nodes}
    for node, line in nodes:
        if isinstance(node, ast.Name) and node.id in own - _CALLED:
            continue  # a variable that happens to be called kill, say
        if _closed(node, imported):
            return f"“{line}”"
    return _patching(cells)


def _bound(node: ast.AST) -> str:
    """The name of a variable, an argument or a function that a node
    makes; "" of one that begins with _, and of any other node.
    """
    name = ""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    elif isinstance(node, ast.arg):
        name = node.arg
    elif isinstance(node, _FUNCTIONS):
        name = node.name
    return "" if name.startswith("_") else name


def _patching(cells: Sequence[str], among: Sequence[str] = ()) -> str:
    """The line with which cells change what they, or those among which
    they stand, have imported; or "".
    """
    nodes = _nodes(cells)
    imported = {here for here, _, _ in _imports(nodes + _nodes(among))}
    for node, line in nodes:
        if _root(_written_to(node)) in imported:
            return f"“{line}”, which changes what is imported"
    return ""


def _closed(node: ast.AST, imported: Collection[str]) -> bool:
    """Whether a node leads to the examiner, or inside the interpreter."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        paths = [
            f"{x}.{y}".strip(".") for _, x, y in _imports([(node, "")])
        ]
        return any(
            (_MODULES | _INSIDE) & set(path.split("."))
            or path.startswith(_EXAMINER)
            for path in paths
        )
    if isinstance(node, ast.Attribute):
        known = _root(node) in imported
        leads = node.attr in _MODULES or ast.unparse(node).endswith(
            _EXAMINER
        )
        return node.attr in _INSIDE or (known and leads)
    if isinstance(node, ast.Name):
        return node.id in _CALLED | _INSIDE
    if isinstance(node, ast.Call):
        if _root(node.func) != "getattr" or not node.args[1:]:
            return False
        name = _folded(node.args[1])
        known = _root(node.args[0]) in imported
        return name in _INSIDE or (known and name in _MODULES | {"modules"})
    given = getattr(node, "name", None)
    name = given if isinstance(given, str) else _folded(node)
    return "annotated." in name or (
        name.startswith("__") and name in _INSIDE | _CALLED
    )
