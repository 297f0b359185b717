"""Page E32: parts of one's own that are wrong in ordinary ways are refused
in one line, which says what is wrong and where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from annotated.engine import parts
from annotated.engine.errors import RunError
from annotated.engine.parts import _import_file
from annotated.engine.runner import train_recipe
from annotated.model import count_parameters
from tests.engine.folders import TINY
from tests.engine.parts import config_of

HEAD = """import torch
from torch import nn
from annotated.attention import MultiHeadAttention
from annotated.engine.parts import register

"""


@pytest.fixture(autouse=True)
def only_mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(parts, "_REGISTERED", {})
    yield


def import_text(folder: Path, text: str, name: str = "mine.py") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(HEAD + text)
    _import_file(folder / name)


A_PART = "@register('part', 'mine', of={})\nclass Mine({}):\n    {}\n"


@pytest.mark.parametrize(
    ("of", "inside", "message"),
    [
        (
            "nn.LayerNorm",
            "def __init__(self): pass",
            "TypeError: .*argument",
        ),
        (
            "MultiHeadAttention",
            "def __init__(self, config): pass",
            "TypeError: .*argument",
        ),
        (
            "nn.Module",
            "def __new__(cls, config): return None",
            "is None, not an nn.Module",
        ),
        (
            "nn.Identity",
            "def forward(self, x): return x[..., 1:]",
            "RuntimeError",
        ),
        (
            "nn.Identity",
            "def forward(self, x): return undefined",
            r"NameError: .*\(mine.py, line 8\)",
        ),
    ],
)
def test_a_part_that_fails_is_named(
    of: str, inside: str, message: str, tmp_path: Path
) -> None:
    place = "MultiHeadAttention" if of[0] == "M" else "nn.LayerNorm"
    import_text(tmp_path, A_PART.format(place, of, inside))
    config = config_of("none", positions="sinusoidal", parts=("mine",))
    with pytest.raises(RunError, match=f"part mine:? .*{message}"):
        config.padded()


def test_a_whole_model_that_fails_is_named_where_it_is_only_counted(
    tmp_path: Path,
) -> None:
    """As a dry run does, before anything has tried it."""
    inside = "def __init__(self, config): undefined"
    import_text(
        tmp_path,
        "from annotated.model import Transformer\n"
        + A_PART.format("Transformer", "Transformer", inside),
    )
    config = config_of("none", positions="sinusoidal", parts=("mine",))
    with pytest.raises(RunError, match=r"part mine: .*\(mine.py, line 9\)"):
        count_parameters(config)


@pytest.mark.parametrize(
    ("kind", "arguments", "result", "message"),
    [
        ("loss", "logits", "logits", "TypeError: .*argument"),
        ("loss", "logits, labels, config", "(1, 2)", "returned tuple, not"),
        (
            "loss",
            "logits, labels, config",
            "torch.zeros(len(labels))",
            "does not depend on the logits",
        ),
        (
            "loss",
            "logits, labels, config",
            "logits[labels.size(9)]",
            r"IndexError: .*\(mine.py, line 8\)",
        ),
        ("optimizer", "named", "named", "TypeError: .*argument"),
        ("optimizer", "named, config", "None", "returned None, not one of"),
        ("schedule", "step", "1.0", "TypeError: .*argument"),
        ("schedule", "step, config, d_model", "None", "TypeError"),
        (
            "schedule",
            "step, config, d_model",
            "-1.0",
            "rate of step 1 is -1, not a number >= 0",
        ),
        (
            "schedule",
            "step, config, d_model",
            "float('nan')",
            "rate of step 1 is nan",
        ),
        ("batching", "corpus", "[]", "TypeError: .*argument"),
    ],
)
def test_what_else_fails_is_named(
    kind: str, arguments: str, result: str, message: str, tmp_path: Path
) -> None:
    text = f"@register('{kind}', 'mine')\ndef mine({arguments}):\n"
    import_text(tmp_path, f"{text}    return {result}\n")
    recipe = TINY.changed(**{kind: "mine"})
    with pytest.raises(RunError, match=f"{kind} mine:? .*{message}"):
        train_recipe(recipe, tmp_path / "run", device="cpu")


def test_an_import_that_ends_the_program_has_failed(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"SystemExit: 0 \(mine.py, line 6\)"
    ):
        import_text(tmp_path, "raise SystemExit(0)\n")
    with pytest.raises(RunError, match="a folder, not a file"):
        _import_file(tmp_path)


def test_one_name_for_two_parts_of_a_file_is_refused(
    tmp_path: Path,
) -> None:
    text = (
        "@register('loss', 'mine')\ndef {}(logits, labels, config): ...\n"
    )
    with pytest.raises(RunError, match="loss mine is registered twice"):
        import_text(tmp_path, text.format("one") + text.format("other"))
    import_text(tmp_path, text.format("renamed"))  # edited since
    import_text(tmp_path, text.format("renamed"))


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 1 GiB",
        "CUDA error: out of memory",
        "DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_a_full_memory_stays_what_it_is(
    message: str, tmp_path: Path
) -> None:
    text = "@register('loss', 'mine')\ndef mine(): ...\n"
    import_text(tmp_path, text)
    with (
        pytest.raises(RuntimeError, match=f"^{re.escape(message)}"),
        parts.own_code("loss", "mine"),
    ):
        raise RuntimeError(message)
    with (
        pytest.raises(
            RunError, match="loss mine: ValueError: cannot alloc"
        ),
        parts.own_code("loss", "mine"),
    ):
        raise ValueError("cannot allocate 3 heads")
