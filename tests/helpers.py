"""What several test files use: small shapes, processes, scripts."""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from annotated.engine.log import Log
from annotated.engine.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[1]

# a model that a test can train in a moment
SHAPE: dict[str, Any] = {
    "src_vocab": 12,
    "tgt_vocab": 12,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
}
# and a recipe of that size, of twenty steps
TINY = RECIPES["copy"].changed(
    train_pairs=200,
    valid_pairs=50,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=16,
    d_ff=16,
    num_heads=2,
    batch_tokens=200,
    cooldown=0,  # so that a longer run begins like a shorter one
    max_steps=20,
    save_every=5,
    keep=2,
    precision="float32",  # the same on every machine
)


class Killed(BaseException):
    """Stands for kill -9: nothing gets a chance to clean up."""


def content(folder: Path) -> dict[str, bytes]:
    """Every file below folder, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def at_step(
    monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], None]
) -> None:
    """Do something in the middle of a training run, after a step."""
    step = Log.step

    def and_act(log: Any, progress: Any) -> None:
        step(log, progress)
        if progress.step == number:
            action()

    monkeypatch.setattr(Log, "step", and_act)


def nodes_of(folder: str) -> Iterator[tuple[str, str, ast.AST]]:
    """Each part of the programs in a folder: its module's path, the
    innermost function that it stands in, and itself."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix()
        inside: list[tuple[ast.AST, str]]
        inside = [(ast.parse(path.read_text("utf-8")), "")]
        while inside:
            node, home = inside.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                home = node.name
            inside += [(part, home) for part in ast.iter_child_nodes(node)]
            yield module, home, node


def environment(**more: str) -> dict[str, str]:
    """For a process that finds this repository wherever it runs."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


def forking() -> Any:
    """Where to get processes that find torch imported already.

    They are copies of one that holds the package and nothing else, so
    that a test can start, and kill, many.
    """
    if os.name == "nt":
        pytest.skip("there are no forks")
    context = multiprocessing.get_context("forkserver")
    broken = ["tests.broken"] if "BROKEN" in os.environ else []
    # the last three are loaded by the first step of any optimizer
    preload = [
        *("annotated.commands.train", "annotated.cli", "pytest"),
        *("torch._dynamo", "torch.distributed.fsdp"),
        "torch.distributed.tensor",
    ]
    context.set_forkserver_preload([*preload, *broken])
    return context


def write_pairs(folder: Path, **counts: int) -> Path:
    """A folder of text for the recipe pair: so many lines in each split,
    alike on both sides.
    """
    folder.mkdir()
    for split, count in counts.items():
        lines = "".join("a " * (i % 7) + "b\n" for i in range(count))
        for side in ("source", "target"):
            (folder / f"{split}.{side}").write_text(lines)
    return folder


@contextmanager
def benchmark(name: str) -> Iterator[ModuleType]:
    """benchmarks/NAME.py, which is a script and in no package."""
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, threads = list(sys.path), torch.get_num_threads()
    sys.path.insert(0, str(path.parent))  # as python FILE does
    sys.modules[name] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]
        sys.path[:] = before
        torch.set_num_threads(threads)
