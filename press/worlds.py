"""The book in other worlds: other processors, threads, seeds, precisions.

A sentence about a result has to hold wherever it is read. Each world is
another machine, as far as this one can play it; a call executes the pages
that are not done in the first world that has any, and keeps a report,
`build/worlds/NAME.json`: stopped, the next call goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from press import files
from press.chapters import Chapter, PressError, read_book, select
from press.execute import Say, World, run
from press.keys import Package, key

HOOK = "\nc.InteractiveShellApp.exec_lines = [{!r}]\n"

# pages set one thread themselves, for sums that are the same every time
THREADS = """\
import torch
torch.set_num_threads(2)
torch.set_num_threads = lambda n: None
"""
SEEDS = """\
import random, torch
for module, name in ((torch, "manual_seed"), (random, "seed")):
    def other(seed, _as_it_was=getattr(module, name)):
        return _as_it_was(seed + {more})
    setattr(module, name, other)
"""
# products alone are rounded: forced kernels take thirty times as long
BFLOAT16 = """\
import torch
from torch.overrides import TorchFunctionMode


class Rounded(TorchFunctionMode):
    products = {
        torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.Tensor.mm,
        torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm,
        torch.nn.functional.linear, torch.nn.functional.embedding,
        torch.nn.functional.scaled_dot_product_attention,
    }

    def __torch_function__(self, f, types, args=(), kwargs=None):
        out = f(*args, **(kwargs or {}))
        single = getattr(out, "dtype", None) == torch.float32
        if f in self.products and single:
            return out.bfloat16().float()
        return out


Rounded().__enter__()
"""


def _playing(code: str) -> str:
    return HOOK.format(code)


WORLDS = (
    World("no-vectors", {"ATEN_CPU_CAPABILITY": "default"}),
    World("avx2", {"ATEN_CPU_CAPABILITY": "avx2"}),
    World(
        "two-threads",
        {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        _playing(THREADS),
    ),
    World("seed-100", {}, _playing(SEEDS.format(more=100))),
    World("seed-200", {}, _playing(SEEDS.format(more=200))),
    World("float32", {"ANNOTATED_PRECISION": "float32"}),
    World(
        "bfloat16",
        {"ANNOTATED_PRECISION": "float32"},
        _playing(BFLOAT16),
    ),
)


def worlds(
    root: Path, name: str | None, pages: list[str], say: Say = print
) -> list[str]:
    """Execute what is left of a world; what is false there, by page."""
    chosen = [world for world in WORLDS if name in (None, world.name)]
    if not chosen:
        known = ", ".join(world.name for world in WORLDS)
        raise PressError(f"'{name}' is no world; there are {known}")
    package = Package(root)
    chapters = [c for c in select(read_book(root), pages) if c.code]
    keys = {c.name: key(c, package) for c in chapters}
    for world in chosen:
        path = _path(root, world)
        report = _report(path)
        left = [
            chapter
            for chapter in chapters
            if report.get(chapter.name, {}).get("key") != keys[chapter.name]
        ]
        if not (left or name):
            continue  # to the next that has something left
        say(f"{world.name}: {len(left)} of {len(chapters)} pages to do")
        for chapter in left:
            _, seconds, problem = run(root, chapter, world)
            first = problem.splitlines()[0] if problem else ""
            say(f"{chapter.name}: {first or f'{seconds:.0f} s'}")
            report = _report(path)  # others may have played it meanwhile
            report[chapter.name] = {
                "key": keys[chapter.name],
                "seconds": seconds,
                "problem": first,
            }
            files.replace(path, json.dumps(report, indent=1) + "\n")
        return _false(world, chapters, report)
    say(f"all {len(WORLDS)} worlds are done")
    return [
        line for world in chosen
        for line in _false(world, chapters, _report(_path(root, world)))
    ]  # fmt: skip


def _path(root: Path, world: World) -> Path:
    return root / "build" / "worlds" / f"{world.name}.json"


def _false(
    world: World, chapters: list[Chapter], report: dict[str, Any]
) -> list[str]:
    """What does not hold there."""
    return [
        f"{world.name}: {report[chapter.name]['problem']}"
        for chapter in chapters
        if report[chapter.name]["problem"]
    ]


def _report(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
