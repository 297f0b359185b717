"""What tests of run folders share: a small recipe, and a corpus of one's own."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from annotated.engine.recipes import (
    Recipe,
)
from annotated.engine.runs import (
    read_metrics,
)
from tests import helpers

TINY = helpers.TINY.changed(dropout=0.1)


def send(*signals: int) -> Callable[[], None]:
    def action() -> None:
        for number in signals:
            signal.raise_signal(number)

    return action


def same_training(one: Path, other: Path) -> None:
    """Weights are equal bit for bit, and so is what was noted."""
    for name in (
        "model.safetensors",
        "checkpoints/00000020/model.safetensors",
    ):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name
    notes = []
    for folder in (one, other):
        notes.append(read_metrics(folder))
        for entry in notes[-1]:
            entry.pop("seconds", None)
    assert notes[0] == notes[1]


def own_corpus(folder: Path, **files: bytes) -> Recipe:
    """A recipe that trains on files of its own; some may be replaced."""
    lines = b"".join(b"%c b c\n" % (97 + i % 16) for i in range(40))
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid"):
        for language in ("en", "de"):
            name = f"{split}.{language}"
            text = files.get(name.replace(".", "_"), lines)
            (folder / name).write_bytes(text)
    return TINY.changed(
        data=str(folder), source="en", target="de", train_pairs=None
    )


def replaced(part: str = "", **changes: Any) -> Callable[[Path], None]:
    """Change fields of recipe.json, or of a part of it; ... takes one
    out.
    """

    def change(run: Path) -> None:
        recipe = json.loads((run / "recipe.json").read_text())
        fields = recipe[part] if part else recipe
        fields |= changes
        for name, value in changes.items():
            if value is ...:
                del fields[name]
        (run / "recipe.json").write_text(json.dumps(recipe))

    return change
