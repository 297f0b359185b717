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
could notice. A run can be stopped and goes on. FOLDER has a line for each
mutant tried; what the ledger knows of functions that are still the same
is written there first, so that only those of others are tried.
"""

from __future__ import annotations

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
LEDGER = ROOT / "book" / "results" / "mutation.json"
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
    "costs": "costs dry_run",
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
    settings.work.mkdir(parents=True, exist_ok=True)
    before = json.loads(LEDGER.read_text("utf-8"))["metrics"]["modules"]
    # the ledger file has all modules, whichever are tried now
    wanted = TESTS if settings.json else settings.modules
    told = {module: listed(module) for module in wanted}
    for module, mutants in told.items():
        if module in before:
            path = file_of(settings.work, module)
            inherit(path, mutants, before[module])
    for module in settings.modules:
        if (left := end - time.monotonic()) > 0:
            attack(settings, module, left)
    reasons = explanations(ROOT / "benchmarks" / "survivors.toml")
    found = {}
    for module, mutants in told.items():
        tried = results(file_of(settings.work, module), mutants)
        found[module] = count(module, tried)
        explain(module, found[module], reasons)
        show(module, found[module], module in settings.modules)
    if settings.json is not None:
        write(settings.json, as_entry(found))
    return found


def file_of(work: Path, module: str) -> Path:
    return work / f"{module.replace('/', '.')}.jsonl"


def listed(module: str) -> list[dict[str, Any]]:
    """The mutants of a module as it is now."""
    from mutants import mutated

    path = ROOT / "annotated" / f"{module}.py"
    return mutated(path.read_text("utf-8"))[1]


def inherit(
    path: Path, told: list[dict[str, Any]], known: dict[str, Any]
) -> None:
    """Add to a module's file what the ledger knows of its mutants, and the
    file does not.
    """
    ends = {
        **{(one[0], one[1]): "timeout" for one in known["by_time"]},
        **{
            (one["function"], one["number"]): "survived"
            for one in known["survivors"]
        },
    }
    commits = ", ".join(known["commits"])
    with path.open("a", encoding="utf-8") as file:
        for one in results(path, told):
            same = known["functions"].get(one["function"])
            if "end" not in one and one["digest"] == same:
                end = ends.get((one["function"], one["number"]), "killed")
                line = one | {"end": end, "commit": commits}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def attack(settings: Settings, module: str, limit: float) -> None:
    """Try the mutants of one module, for so many seconds at most."""
    tree = settings.work / "tree" / module.replace("/", ".")
    copy(tree)
    reasons = explanations(ROOT / "benchmarks" / "survivors.toml")
    explained = [key[1:] for key in reasons if key[0] == module]
    path = file_of(settings.work, module).with_suffix(".explained.json")
    path.write_text(json.dumps(explained), "utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "mutants.py")]
    command += [str(tree), module, str(file_of(settings.work, module))]
    command += [str(limit), str(settings.slow), commit() or "unknown"]
    if settings.again:
        command.append("--again")
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


def results(path: Path, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a file says of these mutants; those that have not been tried
    have no end.
    """
    known = {}
    text = path.read_text("utf-8") if path.exists() else ""
    for line in text.splitlines():
        one = json.loads(line)
        known[one["function"], one["digest"], one["number"]] = one
    return [
        known.get((one["function"], one["digest"], one["number"]), one)
        for one in told
    ]


def count(module: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of a module's mutants so far."""
    tried = [one for one in told if "end" in one]
    ends = Counter(one["end"] for one in tried)
    survivors = [
        {key: one[key] for key in ("function", "number", "was", "now")}
        for one in tried
        if one["end"] in ("survived", "untested")
    ]
    open_ones = {one["function"] for one in told if "end" not in one}
    return {
        "tests": TESTS[module].split(),
        "commits": sorted(
            {c for one in tried for c in one["commit"].split(", ")}
        ),
        # those of which every mutant has been tried, by digest
        "functions": {
            one["function"]: one["digest"]
            for one in told
            if one["function"] not in open_ones
        },
        "mutants": len(told),
        "tried": len(tried),
        "killed": ends["killed"] + ends["timeout"],
        "by_time": [
            [one["function"], one["number"]]
            for one in tried
            if one["end"] == "timeout"
        ],
        "survived": len(survivors),
        "explained": 0,
        "survivors": survivors,
    }


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


def show(module: str, found: dict[str, Any], survivors: bool) -> None:
    print(
        f"{module}: {found['tried']} of {found['mutants']} tried,"
        f" {found['killed']} killed, {found['survived']} survived,"
        f" {found['explained']} explained"
    )
    for one in found["survivors"] if survivors else ():
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


def as_entry(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The ledger file; modules of which nothing is known are not begun."""
    modules = {name: found[name] for name in TESTS if name in found}
    modules = {name: one for name, one in modules.items() if one["tried"]}
    commits = sorted(
        {c for one in modules.values() for c in one["commits"]}
    )
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
