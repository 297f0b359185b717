"""Are the tests tested? Break the package everywhere, and count who notices.

    pip install mutmut
    python benchmarks/mutation.py --work FOLDER --modules masks loss
    python benchmarks/mutation.py --work FOLDER --minutes 60   # goes on
    python benchmarks/mutation.py --work FOLDER --minutes 0 \
        --json book/results/mutation.json

mutmut changes one thing at a time (a number, a comparison, an argument, a
string) and runs the tests that reach the changed function. A mutant that
no test notices has survived: it wants a test, or a line in
benchmarks/survivors.toml that says why it computes the same. A run can be
stopped and goes on; FOLDER holds a copy of the checkout for each module,
as it was when its run began.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from ledger import typed, write

from annotated.book.results import commit, entry

ROOT = Path(__file__).resolve().parents[1]
# the tests that are about a module; each is run where it gets there
TESTS = {
    "attention": "attention multi_head",
    "masks": "masks",
    "layers": "layers",
    "embeddings": "embeddings positions",
    "model": "model",
    "complexity": "complexity",
    "tokens": "tokens",
    "batches": "batches",
    "schedule": "schedule",
    "loss": "loss",
    "training": "training",
    "checkpoints": "checkpoints averaging",
    "search": "search",
    "evaluation": "evaluation",
    "alignment": "heads",
    "parallel": "parallel",
    "costs": "costs",
    "variations": "variations",
    "parsing": "parsing",
    "heads": "heads",
    "since": "since",
    "seq2seq": "seq2seq",
    "engine/packing": "packing",
    "engine/search": "search",
    "engine/trainer": "training precision checkpoints",
    "engine/distributed": "distributed",
    "engine/prepare": "prepare",
}
# mutmut's codes of how the tests ended
KILLED = {1, 3, 36, -24, 24, 152, 255}  # with those that never ended
SURVIVED = {0, 5, 33}  # with those that no test reaches
SETUP = """\
[mutmut]
source_paths=annotated
only_mutate=annotated/{module}.py
also_copy=
    {folders}
pytest_add_cli_args_test_selection=
    {tests}
pytest_add_cli_args=-p
    no:cacheprovider
    -p
    no:randomly
process_isolation=forkserver
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to break, and for how long."""

    work: Path
    """folder of the copies and of what has been found so far"""
    modules: tuple[str, ...] = tuple(TESTS)
    """attention, engine/packing, …"""
    minutes: float = 60.0
    """when to stop; 0: only tell what has been found"""
    processes: int = 1
    """at once"""
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
            attack(settings.work / module.replace("/", "."), module,
                   settings.processes, left)  # fmt: skip
    reasons = explanations(ROOT / "benchmarks" / "survivors.toml")
    found = {}
    for module in settings.modules:
        folder = settings.work / module.replace("/", ".")
        if (folder / "mutants").is_dir():
            found[module] = count(folder, module, reasons)
            print(module, {**found[module], "survivors": ...})
            for one in found[module]["survivors"]:
                if not one["why"]:
                    print(f"  {one['function']}\n    - {one['was']}\n"
                          f"    + {one['now']}")  # fmt: skip
    if settings.json is not None:
        write(settings.json, as_entry(settings, found))
    return found


def attack(folder: Path, module: str, processes: int, limit: float) -> None:
    """Run mutmut on one module, for so many seconds at most."""
    if not folder.is_dir():
        copy(folder, module)
    command = [sys.executable, "-m", "mutmut", "run"]
    process = subprocess.Popen(
        [*command, "--max-children", str(processes)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=(folder / "mutmut.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(limit)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, 2)  # as Ctrl-C does: it keeps what it has
        process.wait()


def copy(folder: Path, module: str) -> None:
    """The files of this checkout that git knows, and mutmut's settings."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    fresh = folder.with_name(f".{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, fresh / name)
    folders = sorted(
        p.name for p in fresh.iterdir() if p.name[0] not in ".t"
    )
    tests = [f"tests/test_{name}.py" for name in TESTS[module].split()]
    text = SETUP.format(
        module=module,
        folders="\n    ".join(folders),
        tests="\n    ".join(tests),
    )
    (fresh / "setup.cfg").write_text(text, "utf-8")
    (fresh / "COMMIT").write_text(commit() or "unknown", "utf-8")
    fresh.rename(folder)


def count(
    folder: Path, module: str, reasons: dict[tuple[str, str, str], str]
) -> dict[str, Any]:
    """What became of a module's mutants so far."""
    file = folder / "mutants" / "annotated" / f"{module}.py.meta"
    codes = json.loads(file.read_text("utf-8"))["exit_code_by_key"]
    checked = {n: c for n, c in codes.items() if c is not None}
    survivors: list[dict[str, Any]] = []
    for name in sorted(n for n, c in checked.items() if c in SURVIVED):
        one = change(folder, name)
        known = reasons.get((module, one["function"], one["now"]))
        survivors.append({**one, "why": known})
    return {
        "commit": (folder / "COMMIT").read_text("utf-8"),
        "mutants": len(codes),
        "checked": len(checked),
        "killed": sum(c in KILLED for c in checked.values()),
        "survived": len(survivors),
        "explained": sum(one["why"] is not None for one in survivors),
        "other": dict(
            Counter(
                str(code)
                for code in checked.values()
                if code not in KILLED | SURVIVED
            )
        ),
        "survivors": survivors,
    }


def change(folder: Path, name: str) -> dict[str, str]:
    """Where a mutant differs: its function, the line before and after."""
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", "show", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = {
        sign: " ".join(
            line[1:].strip()
            for line in done.stdout.splitlines()
            if line.startswith(sign) and not line.startswith(3 * sign)
        )
        for sign in "-+"
    }
    function = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    function = re.sub(r"^x_?", "", function).strip("ǁ").replace("ǁ", ".")
    return {"function": function, "was": lines["-"], "now": lines["+"]}


def explanations(path: Path) -> dict[tuple[str, str, str], str]:
    """Why survivors need no test, by module, function and new line."""
    if not path.exists():
        return {}
    import tomli

    told = tomli.loads(path.read_text("utf-8")).get("survivor", [])
    return {(s["module"], s["function"], s["now"]): s["why"] for s in told}


def as_entry(settings: Settings, found: dict[str, Any]) -> dict[str, Any]:
    chosen = asdict(settings)
    for name in ("json", "work"):
        del chosen[name]
    chosen["modules"] = list(found)
    return entry(
        "mutation",
        typed("mutation.py", Settings(work=Path("FOLDER"))),
        found,
        settings=chosen,
        threads=1,
        packages=("mutmut", "pytest", "hypothesis"),
        commit=", ".join(sorted({f["commit"] for f in found.values()})),
    )


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
