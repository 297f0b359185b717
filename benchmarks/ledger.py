"""What the benchmarks share in writing a file of book/results.

    from ledger import typed, write

Its content is made by annotated.book.results.entry; book/results/README.md
tells what the keys mean.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from annotated.book.results import commit, entry, hardware


def options(settings: Any) -> list[str]:
    """The words of a command line that give these settings, a dataclass;
    none for a field that has its default, and no name for one that has
    none.
    """
    words = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        name = field.name.replace("_", "-")
        if value == field.default:
            continue
        if field.default is MISSING:
            words += map(
                str, value if isinstance(value, tuple) else (value,)
            )
        elif isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def typed(script: str, settings: Any) -> str:
    """The line that one types to do it again; where the result goes is
    left to whoever does.
    """
    words = options(replace(settings, json=None))
    return shlex.join(["python", f"benchmarks/{script}", *words])


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a ledger file and say so."""
    keep(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {path}")


def keep(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def annotated(*words: str) -> dict[str, Any]:
    """Run a command of the package; the JSON that it prints."""
    command = [sys.executable, "-m", "annotated", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


# --- many small runs, one per line of a file -------------------------------

Run = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to run."""

    steps: int = 500
    seeds: int = 5
    work: Path | None = None
    """a file of finished runs, to go on from; unless given, a new one"""
    json: Path | None = None
    """write the result here"""


# what may differ between calls that go on from one file: a run says it
OWN = (
    "first", "folders", "json", "kinds", "only", "peaks", "rows", "seeds",
    "warmups", "work",
)  # fmt: skip


def read(path: Path) -> list[Run]:
    """The runs of a file, one per line; none where there is no file."""
    return [one for one in _lines(path) if one.keys() != {"settings"}]


def _lines(path: Path) -> list[Run]:
    """What the lines of a file hold: runs, and the settings of a call.

    A last line that was cut off while it was written is none; another that
    cannot be read ends the script.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    rows, found = text.splitlines(), []
    for number, row in enumerate(rows, 1):
        try:
            found += [json.loads(row)] if row.strip() else []
        except ValueError:
            if number < len(rows) or text.endswith("\n"):
                sys.exit(
                    f"{path}, line {number} is no run: take the line out, "
                    "and its run is made again"
                )
    return found


def _add(path: Path, line: Run) -> None:
    """Add a line, in place of one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.read_bytes() if path.exists() else b""
    last = there.rpartition(b"\n")[2]
    data = json.dumps(line).encode() + b"\n"
    if last:
        try:
            json.loads(last)
            data = b"\n" + data
        except ValueError:
            os.truncate(path, len(there) - len(last))
            print(f"{path}: its last line was cut off: it is left out")
    with path.open("ab", buffering=0) as file:  # at once: others add, too
        file.write(data)


def append(path: Path, run: Run) -> None:
    """Add a run that was made here to a file, and show it."""
    run = run | {"hardware": hardware(threads=1)}
    _add(path, run)
    print({k: v for k, v in run.items() if k != "curve"}, flush=True)


def hold_to(work: Path, settings: Any) -> None:
    """Note in a file of runs what they are made with; end the script where
    the runs that are there were made with something else.
    """
    own = {f.name: f.default for f in fields(settings) if f.name in OWN}
    same = replace(settings, **own)
    words = shlex.join(options(same)) or "the defaults"
    known = [one["settings"] for one in _lines(work) if "settings" in one]
    for other in known:
        if other != words:
            sys.exit(
                f"{work} has runs with other settings ({other}) than these "
                f"({words}): name another --work"
            )
    if not known:
        _add(work, {"settings": words})


def entry_of_runs(
    script: str, settings: Any, metrics: Run, runs: list[Run], **more: Any
) -> Run:
    """What the ledger wants to know of runs in one thread. Their seconds
    are of the processor: several processes may have shared the work. A
    file of runs can have been begun on one machine and ended on another.
    """
    chosen = asdict(settings)
    for name in ("json", "work", "only", "first"):
        chosen.pop(name, None)
    return entry(
        script.removesuffix(".py"),
        typed(script, replace(settings, work=None)),
        metrics,
        settings=chosen,
        threads=1,
        wall_seconds=sum(one["seconds"] for one in runs),
        commit=", ".join(each(runs, "commit")),
        hardware="; ".join(each(runs, "hardware")),
        **more,
    )


def make_each(
    work: Path,
    seeds: int,
    key: str,
    names: Iterable[str],
    make: Callable[[str, int], Run],
) -> None:
    """Make the runs that work lacks, one seed of all names after the other;
    key says in a run what its name is.
    """
    done = {(one[key], one["seed"]) for one in read(work)}
    here = commit()  # of the code that was loaded
    for seed, name in itertools.product(range(seeds), names):
        if (name, seed) in done:
            continue
        begin = time.process_time()
        made = {key: name, "seed": seed, **make(name, seed)}
        seconds = round(time.process_time() - begin, 1)
        append(work, {"seconds": seconds, "commit": here} | made)


def rows_of(
    runs: list[Run], key: str, names: Iterable[str], values: Iterable[str]
) -> dict[str, Run]:
    """By name, a run's options, how many seeds there are, and the mean of
    each value over them; key says in a run what its name is.
    """
    rows = {}
    for name in names:
        if own := [one for one in runs if one[key] == name]:
            means = {v: mean(one[v] for one in own) for v in values}
            head = {"options": own[0]["options"], "seeds": len(own)}
            rows[name] = head | means
    return rows


def each(runs: list[Run], key: str) -> list[str]:
    """Every value that runs have there, once."""
    return sorted({str(one[key]) for one in runs})


def make_runs(
    settings: Any,
    run: Callable[[Any, Path], None],
    result: Callable[[Any, list[Run]], Run],
) -> None:
    """Make the runs that the file settings.work lacks (a new one, unless
    given), in one thread, and of all of them the ledger file
    settings.json, if named. A file of runs with other settings is refused:
    they would be told as if they had these.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = settings.work or Path(folder) / "runs.jsonl"
        if settings.json:  # said now, and not when all is done
            settings.json.parent.mkdir(parents=True, exist_ok=True)
            if settings.json.is_dir():
                sys.exit(f"{settings.json} is a folder: name a file")
        hold_to(work, settings)
        run(settings, work)
        if settings.json:
            write(settings.json, result(settings, read(work)))
