"""Are the tests tested? Break the package everywhere, and count who notices.

    pip install mutmut==3.8.1
    python benchmarks/mutation.py --work FOLDER --modules masks loss
    python benchmarks/mutation.py --work FOLDER --minutes 60   # goes on
    python benchmarks/mutation.py --work FOLDER --again        # survivors
    python benchmarks/mutation.py --work FOLDER --minutes 0 \
        --json book/results/mutation.json

One thing is changed at a time (a number, a comparison, an argument, a
string; benchmarks/mutants.py tells what not), and the tests that reach the
changed function are run. A mutant that no test notices has survived: it
wants a test, or an entry in benchmarks/survivors.toml that says why nobody
could notice. A run can be stopped and goes on; a mutant is tried again when
its function has changed. FOLDER has a line for each mutant tried. --json
keeps what the ledger has of other modules, unless they have changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from ledger import write

from annotated.book.results import commit, entry

ROOT = Path(__file__).resolve().parents[1]
# the tests that are about a module; each is run where it gets there
TESTS = {
    "attention": "attention multi_head",
    "masks": "masks",
    "layers": "layers",
    "embeddings": "embeddings positions",
    "model": "model configuration",
    "complexity": "complexity",
    "tokens": "tokens",
    "batches": "batches",
    "schedule": "schedule",
    "loss": "loss",
    "training": "training two_trainers",
    "checkpoints": "checkpoints interrupted averaging",
    "search": "story/search cache engine/search search_numbers",
    "evaluation": "evaluation",
    "alignment": "alignment",
    "parallel": "parallel",
    "costs": "costs",
    "variations": "variations",
    "parsing": "parsing",
    "heads": "heads heads_runs",
    "since": "since since_runs",
    "seq2seq": "seq2seq",
    "engine/packing": "packing packed_attention chunked_loss",
    "engine/search": "engine/search search_batches search_numbers cache",
    "engine/checkpoints": "checkpoints interrupted averaging",
    "engine/trainer": (
        "trainer two_trainers training precision checkpoints interrupted"
    ),
    "engine/micro": "micro two_trainers",
    "engine/distributed": (
        "distributed distributed_accidents distributed_commands"
    ),
    "corpora/prepare": "prepare preparation prepare_refused prepared_runs",
}
SLOW = 12.0  # seconds; a slower test is left out
RULE = (
    "Not mutated: what stands inside a raise statement (the words of an"
    " error), text in triple quotes, types, the arguments of len and"
    " isinstance (mutmut's own rule), and what runs when the module is"
    " imported, such as the default of a field."
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to break, and for how long."""

    work: Path
    """folder of what has been found so far, and of a copy to break"""
    modules: tuple[str, ...] = tuple(TESTS)
    """attention, engine/packing, …"""
    minutes: float = 60.0
    """when to stop; 0: only tell what has been found"""
    again: bool = False
    """try survivors once more that nobody has explained"""
    slow: float = SLOW
    """leave out slower tests, by seconds: fewer leave more survivors, for
    --again"""
    json: Path | None = None
    """write the ledger file"""


def main(settings: Settings) -> dict[str, Any]:
    for module in settings.modules:
        if module not in TESTS:
            sys.exit(f"no module {module!r}: one of {', '.join(TESTS)}")
    end = time.monotonic() + 60 * settings.minutes
    for module in settings.modules:
        left = end - time.monotonic()
        if left > 0:
            attack(settings, module, left)
        elif file_of(settings.work, module).exists():
            attack(settings, module, 0.0)  # only lists its mutants anew
    reasons = explanations(ROOT / "benchmarks" / "survivors.toml")
    found = {}
    for module in settings.modules:
        told = results(settings.work, module)
        if told:
            found[module] = count(module, told, reasons)
            show(module, found[module])
    if settings.json is not None:
        write(settings.json, as_entry(settings.json, found, reasons))
    return found


def file_of(work: Path, module: str) -> Path:
    return work / f"{module.replace('/', '.')}.jsonl"


def attack(settings: Settings, module: str, limit: float) -> None:
    """Try the mutants of one module, for so many seconds at most; with no
    time, list them.
    """
    tree = settings.work / "tree" / module.replace("/", ".")
    copy(tree)
    reasons = explanations(ROOT / "benchmarks" / "survivors.toml")
    told = [key[1:] for key in reasons if key[0] == module]
    path = file_of(settings.work, module).with_suffix(".explained.json")
    path.write_text(json.dumps(told), "utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "mutants.py")]
    command += [str(tree), module, str(file_of(settings.work, module))]
    command += [str(limit), str(settings.slow), commit() or "unknown"]
    if settings.again:
        command.append("--again")
    if limit:
        tests = TESTS[module].split()
        command += [str(file_of_tests(tree, name)) for name in tests]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    shutil.rmtree(tree)


def file_of_tests(root: Path, name: str) -> Path:
    """Where test_NAME.py is, in any folder of tests/ or, as FOLDER/NAME,
    in that one; FileNotFoundError if there is none.
    """
    folder, _, stem = name.rpartition("/")
    for path in sorted((root / "tests" / folder).rglob(f"test_{stem}.py")):
        return path
    raise FileNotFoundError(f"tests/{folder or '*'}/test_{stem}.py")


def copy(folder: Path) -> None:
    """The files of this checkout that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def results(work: Path, module: str) -> list[dict[str, Any]]:
    """What has been tried of the module as it is now, each mutant once;
    those that have not been tried have no end.
    """
    path = file_of(work, module)
    if not path.exists():
        return []
    known = {}
    for line in path.read_text("utf-8").splitlines():
        one = json.loads(line)
        known[one["function"], one["digest"], one["number"]] = one
    listed = json.loads(path.with_suffix(".all.json").read_text("utf-8"))
    return [
        known.get((one["function"], one["digest"], one["number"]), one)
        for one in listed
    ]


def count(
    module: str,
    told: list[dict[str, Any]],
    reasons: dict[tuple[str, str, str], str],
) -> dict[str, Any]:
    """What became of a module's mutants so far."""
    tried = [one for one in told if "end" in one]
    ends = Counter(one["end"] for one in tried)
    survivors = [
        {key: one[key] for key in ("function", "was", "now")}
        for one in tried
        if one["end"] in ("survived", "untested")
    ]
    found = {
        "tests": TESTS[module].split(),
        "commits": sorted({one["commit"] for one in tried}),
        "functions": sorted({one["function"] for one in told}),
        "digest": digest(ROOT / "annotated" / f"{module}.py"),
        "mutants": len(told),
        "tried": len(tried),
        "killed": ends["killed"] + ends["timeout"],
        "by_time": ends["timeout"],
        "survived": len(survivors),
        "explained": 0,
        "survivors": survivors,
    }
    explain(module, found, reasons)
    return found


def explain(
    module: str,
    found: dict[str, Any],
    reasons: dict[tuple[str, str, str], str],
) -> None:
    """Write down with each survivor why nobody could notice it."""
    for one in found["survivors"]:
        one["why"] = reasons.get((module, one["function"], one["now"]))
    whys = [one["why"] for one in found["survivors"]]
    found["explained"] = len(whys) - whys.count(None)


def show(module: str, found: dict[str, Any]) -> None:
    print(
        f"{module}: {found['tried']} of {found['mutants']} tried,"
        f" {found['killed']} killed, {found['survived']} survived,"
        f" {found['explained']} explained"
    )
    for one in found["survivors"]:
        if not one["why"]:
            print(f"  {one['function']}\n    - {one['was']}\n"
                  f"    + {one['now']}")  # fmt: skip


def explanations(path: Path) -> dict[tuple[str, str, str], str]:
    """Why survivors need no test, by module, function and new line. An
    entry has one line, now, or a list of them.
    """
    if not path.exists():
        return {}
    import tomli

    reasons = {}
    for one in tomli.loads(path.read_text("utf-8")).get("survivor", []):
        lines = one["now"]
        for now in [lines] if isinstance(lines, str) else lines:
            reasons[one["module"], one["function"], now] = one["why"]
    return reasons


def digest(path: Path) -> str:
    """Of the functions of a file, without what is never mutated: comments
    and the words about them.
    """
    text = path.read_text("utf-8")
    lines = text.splitlines()
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    told = []
    for top in ast.parse(text).body:
        parts = top.body if isinstance(top, ast.ClassDef) else [top]
        for one in parts:
            if not isinstance(one, kinds):
                continue
            first = min(n.lineno for n in [one, *one.decorator_list])
            words = set()
            if ast.get_docstring(one) is not None:
                doc = one.body[0]
                words = set(range(doc.lineno, (doc.end_lineno or 0) + 1))
            told.append(getattr(top, "name", ""))
            for number in range(first, (one.end_lineno or first) + 1):
                line = lines[number - 1].strip()
                if number not in words and line and line[0] != "#":
                    told.append(line)
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]


def kept(
    path: Path,
    found: dict[str, Any],
    reasons: dict[tuple[str, str, str], str],
) -> dict[str, Any]:
    """What a ledger file has of modules that this run knows nothing of,
    and that are still the same.
    """
    if not path.exists():
        return {}
    metrics = json.loads(path.read_text("utf-8"))["metrics"]
    same = {}
    for module, one in metrics["modules"].items():
        if module in found or module not in TESTS:
            continue
        if one["digest"] != digest(ROOT / "annotated" / f"{module}.py"):
            print(f"{module} has changed, and leaves the ledger")
            continue
        same[module] = one
        explain(module, one, reasons)
    return same


def as_entry(
    path: Path,
    found: dict[str, Any],
    reasons: dict[tuple[str, str, str], str],
) -> dict[str, Any]:
    """The ledger file, in which other modules stay as they are."""
    every = found | kept(path, found, reasons)
    modules = {name: every[name] for name in TESTS if name in every}
    commits = sorted({c for one in every.values() for c in one["commits"]})
    return entry(
        "mutation",
        "python benchmarks/mutation.py --work FOLDER",
        {
            "modules": modules,
            "incomplete": [
                name
                for name, one in modules.items()
                if one["tried"] < one["mutants"]
            ],
            "not_begun": [name for name in TESTS if name not in modules],
        },
        settings={"rule": RULE, "slow": SLOW},
        threads=1,
        packages=("mutmut", "pytest", "hypothesis"),
        commit=", ".join(commits),
    )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
