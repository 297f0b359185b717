"""The mutants of one module, each tried in a process of its own.

mutmut says how a line may be changed; that is all that is taken from it. The
mutated module has every mutant of every function, and a switch that says
which one is called. The tests are collected once. Then each of them runs
alone, in a fork, to find the functions that it reaches and how much time of
the processor it takes; and each mutant has a fork that runs the tests that
reach its function, first those that killed its neighbours, then the quickest,
until one fails, or takes many times as long as it should, by the clock or of
the processor.

    python benchmarks/mutants.py TREE MODULE FOUND SECONDS SLOW COMMIT
        [--again] TESTS …

TREE is a copy of the checkout, which is changed; FOUND a file to which each
result is added as a line of JSON, with those that are there already left
out; a test of more than SLOW seconds is not used; --again tries survivors
once more, but for those that FOUND.explained.json has. What each test takes
and reaches stands in FOUND.tests.json. benchmarks/mutation.py calls it.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import importlib
import inspect
import json
import multiprocessing
import os
import resource
import signal
import sys
import textwrap
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from mutmut.mutation import file_mutation
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.pragma_handling import IgnoredCode

SWITCH = '''\
"""Which mutant is called; written by benchmarks/mutants.py."""
import inspect
import os
from functools import wraps

active = os.environ.get("MUTANT", "")
seen = set()


def reached(name):
    if name not in seen and os.environ.get("MUTANT_REACHED"):
        seen.add(name)
        with open(os.environ["MUTANT_REACHED"], "a") as file:
            file.write(name + "\\n")


def switched(function, copies, is_classmethod=False):
    def chosen():
        if active == "?":
            reached(function)
        return copies.get(active) or copies[function]

    def around(original):
        if is_classmethod:
            @wraps(original)
            def call(cls, *args, **kwargs):
                return chosen()(cls, *args, **kwargs)
        elif inspect.isgeneratorfunction(original):
            @wraps(original)
            def call(*args, **kwargs):
                return (yield from chosen()(*args, **kwargs))
        else:
            @wraps(original)
            def call(*args, **kwargs):
                return chosen()(*args, **kwargs)
        return call
    return around
'''


# --- making them --------------------------------------------------------------


class Visitor(MutationVisitor):
    """mutmut's, which leaves out decorated functions; this one does not,
    but leaves out the words of errors.
    """

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Raise | cst.Decorator):
            return True
        if isinstance(node, cst.FunctionDef) and node.decorators:
            never = file_mutation.NEVER_MUTATE_FUNCTION_NAMES
            return node.name.value in never
        return super()._skip_node_and_children(node)


def mutated(source: str) -> tuple[str, list[dict[str, Any]]]:
    """The module with all its mutants, and what they are."""
    wrapper = cst.MetadataWrapper(cst.parse_module(source))
    nothing = IgnoredCode(set(), set(), set())
    visitor = Visitor(file_mutation.mutation_operators, nothing)
    module = wrapper.visit(visitor)
    groups = file_mutation.group_by_top_level_node(visitor.mutations)
    told: list[dict[str, Any]] = []

    def with_copies(function: Any, owner: str) -> tuple[list, list, list]:
        name = f"{owner}.{function.name.value}".strip(".")
        flat = name.replace(".", "__")
        text = module.code_for_node(function)
        digest = digest_of(text)
        kinds = {
            module.code_for_node(d.decorator) for d in function.decorators
        }
        plain = function.with_changes(decorators=[], leading_lines=[])
        copies = {name: plain}
        for number, mutation in enumerate(groups[function], 1):
            copy = deep_replace(
                plain, mutation.original_node, mutation.mutated_node
            )
            was, now = changed(module, plain, copy)
            copies[f"{name}#{number}"] = copy
            told.append(
                {
                    "function": name,
                    "digest": digest,
                    "number": number,
                    "was": was,
                    "now": now,
                }
            )
        bodies = []
        after = []
        for number, (key, copy) in enumerate(copies.items()):
            own = f"mutant_{flat}_{number}"
            bodies.append(copy.with_changes(name=cst.Name(own)))
            prefix = f"{owner}." if owner else ""
            after.append(f"mutants_{flat}[{key!r}] = {prefix}{own}")
        decorator = cst.parse_expression(
            f"_switched({name!r}, mutants_{flat}, {'classmethod' in kinds})"
        )
        first = function.with_changes(
            decorators=[*function.decorators, cst.Decorator(decorator)]
        )
        return (
            list(cst.parse_module(f"mutants_{flat} = {{}}\n").body),
            [first, *bodies],
            list(cst.parse_module("\n".join(after) + "\n").body),
        )

    start = file_mutation.get_statements_until_func_or_class(module.body)
    result: list[Any] = list(start)
    result += cst.parse_module(
        "from mutant_switch import switched as _switched\n"
    ).body
    for statement in module.body[len(start) :]:
        if isinstance(statement, cst.FunctionDef) and groups.get(statement):
            for part in with_copies(statement, ""):
                result += part
        elif isinstance(statement, cst.ClassDef) and isinstance(
            statement.body, cst.IndentedBlock
        ):
            before, body, after = [], [], []
            for part in statement.body.body:
                if isinstance(part, cst.FunctionDef) and groups.get(part):
                    one, two, three = with_copies(
                        part, statement.name.value
                    )
                    before += one
                    body += two
                    after += three
                else:
                    body.append(part)
            inside = statement.body.with_changes(body=body)
            result += [*before, statement.with_changes(body=inside), *after]
        else:
            result.append(statement)
    return module.with_changes(body=result).code, told


def digest_of(text: str) -> str:
    """Of a function, without its docstring, its comments and its look."""
    [function] = ast.parse(textwrap.dedent(text).strip()).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    if ast.get_docstring(function) is not None:
        del function.body[0]  # may leave none
    return hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:12]


def changed(module: cst.Module, old: Any, new: Any) -> tuple[str, str]:
    """The lines that differ, before and after."""
    one, two = (module.code_for_node(n).splitlines() for n in (old, new))
    sides: tuple[list[str], list[str]] = [], []
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            sides[0].extend(line.strip() for line in one[a:b])
            sides[1].extend(line.strip() for line in two[c:d])
    return " ".join(sides[0]), " ".join(sides[1])


# --- trying them --------------------------------------------------------------


class Attack:
    """A pytest plugin that runs its tests against every mutant."""

    def __init__(
        self,
        told: list[dict[str, Any]],
        found: Path,
        end: float,
        slow: float,
        again: bool,
        commit: str,
        words: list[str],
        files: list[str],
        digest: bytes,
    ) -> None:
        self.told = told
        self.found = found
        self.end = end
        self.slow = slow
        self.again = again
        self.commit = commit
        self.words = words
        self.files = files
        self.digest = digest
        file = found.with_suffix(".explained.json")
        self.explained = json.loads(file.read_text("utf-8"))
        self.failed = ""
        self.cost: dict[Any, float] = {}
        self.wall: dict[Any, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid
            if os.environ.get("MUTANT_SHOW"):
                print(report.longreprtext, file=sys.__stderr__)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            sys.exit("the tests cannot be collected")
        importlib.import_module("torch._dynamo")  # else in each fork
        self.session = session
        import mutant_switch

        # what the tests call while they are imported
        self.at_import = set(mutant_switch.seen)
        del os.environ["MUTANT"]
        mutant_switch.active = ""
        mutant_switch.seen.clear()
        self.before = self.results()
        todo = [one for one in self.told if self.wanted(one)]
        print(
            f"{len(todo)} of {len(self.told)} to try", file=sys.__stderr__
        )
        if not todo or time.monotonic() > self.end:
            return True
        reach, cost = self.stats(session.items)
        self.cost = cost
        killers: dict[str, list[Any]] = defaultdict(list)
        lately: list[Any] = []
        for one in todo:
            if time.monotonic() > self.end:
                break
            name = one["function"]
            items = sorted(reach.get(name, ()), key=cost.get)
            first = [i for i in killers[name] + lately if i in set(items)]
            order = list(dict.fromkeys(first[:4] + items))
            limit = 15 + 8 * sum(cost[item] for item in order)
            if name in self.at_import:
                limit += 8 * sum(cost.values())
            result = "untested", "", 0.0
            if order or name in self.at_import:
                result = self.attempt(
                    f"{name}#{one['number']}", order, limit
                )
            self.add(
                {
                    **one,
                    "end": result[0],
                    "by": result[1],
                    "seconds": round(result[2], 2),
                    "commit": self.commit,
                }
            )
            for item in order:
                if item.nodeid == result[1]:
                    killers[name].insert(0, item)
                    lately.insert(0, item)
            del killers[name][4:], lately[4:]
        return True

    def results(self) -> dict[tuple[Any, ...], str]:
        if not self.found.exists():
            return {}
        lines = self.found.read_text("utf-8").splitlines()
        told = [json.loads(line) for line in lines]
        return {key(one): one["end"] for one in told}

    def wanted(self, one: dict[str, Any]) -> bool:
        end = self.before.get(key(one))
        if end in ("survived", "untested"):
            told = [one["function"], one["now"]] in self.explained
            return self.again and not told
        return end is None

    def add(self, result: dict[str, Any]) -> None:
        with self.found.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")

    def stats(self, items: list[Any]) -> tuple[dict[str, list[Any]], dict]:
        """Which tests reach a function, and what each of them takes."""
        reach: dict[str, list[Any]] = defaultdict(list)
        cost: dict[Any, float] = {}
        file = Path("reached.txt").resolve()
        kept = self.found.with_suffix(".tests.json")
        known = json.loads(kept.read_text()) if kept.exists() else {}
        left = []
        for item in items:
            # as measured before, where neither side has changed; that a
            # helper has can only leave more survivors
            drawn = getattr(item.function, "hypothesis", None)
            test = drawn.inner_test if drawn else item.function
            both = self.digest + inspect.getsource(test).encode()
            mark = f"{item.nodeid} {hashlib.sha256(both).hexdigest()[:12]}"
            end = "survived"
            if mark not in known:
                file.write_text("")
                os.environ["MUTANT_REACHED"] = str(file)
                started = time.monotonic()
                end, _, seconds = self.attempt("?", [item], 2 * self.slow)
                wall = time.monotonic() - started
                names = sorted(set(file.read_text().split()))
                if end == "survived":
                    known[mark] = seconds, wall, names
            else:
                seconds, wall, names = known[mark]
            if end != "survived" or seconds > self.slow:
                left.append((item.nodeid, end, round(seconds, 1)))
                continue
            cost[item], self.wall[item] = seconds, wall
            for name in names:
                reach[name].append(item)
        os.environ.pop("MUTANT_REACHED", None)
        kept.write_text(json.dumps(known))
        print(f"{len(cost)} tests take {sum(cost.values()):.1f} s; left"
              f" out: {left}", file=sys.__stderr__)  # fmt: skip
        return reach, cost

    def attempt(
        self, mutant: str, items: list[Any], limit: float
    ) -> tuple[str, str, float]:
        """How the tests end, the one that failed, and the processor's time."""
        told, tell = os.pipe()
        before = spent()
        child = os.fork()
        if child == 0:
            os.close(told)
            os.setpgid(0, 0)
            code = 1
            try:
                code = self.run(mutant, items, limit, tell)
            finally:
                os._exit(code)
        os.close(tell)
        end = time.monotonic() + 30 + 6 * limit
        status = None
        while status is None and time.monotonic() < end:
            done, got = os.waitpid(child, os.WNOHANG)
            status = got if done else None
            if status is None:
                time.sleep(0.004)
        late = status is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if late:
            status = os.waitpid(child, 0)[1]
        with os.fdopen(told) as pipe:
            name = pipe.read()
        seconds = spent() - before
        if late or os.WIFSIGNALED(status):
            return "timeout", name, seconds
        return ("killed" if status else "survived"), name, seconds

    def run(
        self, mutant: str, items: list[Any], limit: float, tell: int
    ) -> int:
        """In the fork: the tests, until one of them fails."""
        import mutant_switch

        if not os.environ.get("MUTANT_SHOW"):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
        soft = int(limit) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 2))
        os.environ["MUTANT"] = mutant_switch.active = mutant
        for item, following in zip(items, [*items[1:], None], strict=True):
            if item in self.cost:
                # a loop without an end is seen soon, and so are processes
                # that wait for one another
                most = 4 + 8 * self.cost[item]
                signal.setitimer(signal.ITIMER_PROF, most)
                most = 5 + 8 * self.wall[item]
                signal.setitimer(signal.ITIMER_REAL, most)
            self.session.config.hook.pytest_runtest_protocol(
                item=item, nextitem=following
            )
            if self.failed:
                os.write(tell, self.failed.encode())
                return 1
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if mutant.partition("#")[0] in self.at_import:
            # the tests' constants have to be made by the mutant, too
            for name in [n for n in sys.modules if n.startswith("tests.")]:
                del sys.modules[name]
            words = [*self.words, "-x", *self.files]
            if pytest.main(words, plugins=[Told(self)]):
                os.write(tell, self.failed.encode())
                return 1
        return 0


class Told:
    """The name of a test that fails, for an Attack."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.attack.failed = report.nodeid


def fork_always() -> None:
    """A test that asks for a fork server gets forks of its own process,
    where the mutant is, and torch need not be imported again.
    """
    contexts = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return contexts("fork" if method == "forkserver" else method)

    multiprocessing.get_context = get_context


def key(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["function"], one["digest"], one["number"]


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    tree, module, found, seconds, slow, commit, *rest = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    again = "--again" in rest
    tests = [name for name in rest if not name.startswith("--")]
    target = Path(found).resolve()
    os.chdir(tree)
    path = Path("annotated") / f"{module}.py"
    original = path.with_suffix(".original")
    if not original.exists():
        original.write_bytes(path.read_bytes())
    code, told = mutated(original.read_text("utf-8"))
    path.write_text(code, "utf-8")
    Path("mutant_switch.py").write_text(SWITCH, "utf-8")
    here = str(Path.cwd())
    os.environ["PYTHONPATH"] = here
    sys.path.insert(0, here)
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
    )
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line",
             "--hypothesis-profile=mutants", "-m",
             "not exhaustive and not gpu"]  # fmt: skip
    if os.environ.get("MUTANT_SHOW"):
        words.append("-s")
    os.environ["MUTANT"] = "?"
    os.environ["MUTANT_REACHED"] = os.devnull
    fork_always()
    attack = Attack(
        told, target, end, float(slow), again, commit, words, tests,
        hashlib.sha256(code.encode()).digest(),
    )  # fmt: skip
    sys.exit(pytest.main([*words, *tests], plugins=[attack]))


if __name__ == "__main__":
    main()
