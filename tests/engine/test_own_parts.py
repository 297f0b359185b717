"""Page E32: what somebody registers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from annotated.cli import dispatch
from annotated.engine import parts
from annotated.engine.errors import RunError, UsageError
from annotated.engine.packing import PackedTransformer, packed
from annotated.engine.parts import _import_file, build, register, trainable
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from annotated.layers import FeedForward
from annotated.model import Transformer
from tests.engine.folders import TINY
from tests.engine.parts import config_of

MINE = Path(__file__).with_name("my_parts.py")


@pytest.fixture(autouse=True)
def only_mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(parts, "_REGISTERED", {})
    _import_file(MINE)
    yield


def config(*names: str) -> Any:
    return config_of("none", positions="sinusoidal", parts=names)


# --- packed, padded or refused


def test_what_treats_each_token_by_itself_runs_packed() -> None:
    for names in (["scale-norm"], ["near"], ["scale-norm", "near"]):
        assert config(*names).padded() == ""
        assert type(build(config(*names))) is PackedTransformer


def test_what_needs_whole_sentences_is_said_and_padded() -> None:
    assert config("shifted").padded() == "shifted needs whole sentences"
    assert config("copier").padded() == "Copier is a model of its own"
    model = build(config("near", "copier"))
    assert type(model).__name__ == "Copier"
    assert trainable(model)[0] is model
    for action in (packed, trainable):
        fast = PackedTransformer(config("shifted"))
        with pytest.raises(RunError, match="shifted needs whole sentences"):
            action(fast if action is trainable else build(fast.config))


class Later(nn.Module):
    """A network that sees the next token."""

    def __init__(self, config: Any):
        super().__init__()
        self.outer = nn.Linear(config.d_model, config.d_model)
        nn.init.zeros_(self.outer.weight)  # at first it hides that

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + x.roll(-1, dims=-2))


class Counted(nn.LayerNorm):
    """A norm with numbers that no checkpoint keeps."""

    def __init__(self, config: Any):
        super().__init__(config.d_model)
        self.register_buffer("seen", torch.zeros(()))


class Ahead(Transformer):
    """A whole model, whose decoder has no mask."""

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        x = self.embeddings.read_target(tgt)
        mask = (tgt != 0)[:, None, None]
        return self.decoder(x, memory, mask, (src != 0)[:, None, None])


@pytest.mark.parametrize(
    ("part", "of", "message"),
    [
        (Later, FeedForward, "depends on the padding"),
        (Counted, nn.LayerNorm, "seen is no parameter"),
        (Ahead, Transformer, "sees tokens to come"),
    ],
)
def test_what_would_compute_something_wrong_is_refused(
    part: Any, of: type, message: str
) -> None:
    register("part", "wrong", of=of)(part)
    with pytest.raises(RunError, match=f"parts wrong: .*{message}"):
        build(config("wrong"))


def test_a_part_of_what_is_not_there_is_refused() -> None:
    register("part", "lost", of=nn.BatchNorm1d)(nn.Identity)
    with pytest.raises(UsageError, match="place of BatchNorm1d"):
        Transformer(config("lost"))


# --- names and files


def test_a_name_has_to_be_registered_and_rightly() -> None:
    for kind, name, of in (
        ("part", "x", None), ("loss", "x", nn.LayerNorm),
        ("optimizer", "adam", None), ("colour", "red", None),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            register(kind, name, of)
    with pytest.raises(ValueError, match=r"no part 'far' \(there is scale"):
        config("far")
    for kind in ("loss", "optimizer", "schedule", "batching"):
        with pytest.raises(ValueError, match=f"no {kind} 'far'"):
            TINY.changed(**{kind: "far"})


def test_a_loss_says_a_number_for_each_token(tmp_path: Path) -> None:
    def total(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
        return logits.sum()

    register("loss", "total")(total)
    with pytest.raises(RunError, match="not a number for each of"):
        train_recipe(TINY.changed(loss="total"), tmp_path / "run")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run trained with a file of somebody's."""
    file = tmp_path / "theirs.py"
    file.write_text(MINE.read_text("utf-8"), "utf-8")
    parts._REGISTERED.clear()
    _import_file(file)
    recipe = TINY.changed(parts=("scale-norm",), max_steps=1, save_every=1)
    train_recipe(recipe, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_names_its_files_and_runs_none(
    run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "theirs.py"
    imports = json.loads((run / "recipe.json").read_text())["imports"]
    assert imports == {"theirs.py": parts._sha256(file)}
    parts._REGISTERED.clear()
    command = ["average", "--run", str(run), "--out", str(tmp_path / "m")]
    with pytest.raises(RunError, match="parts of theirs.py: give --import"):
        dispatch(command)
    assert not parts._REGISTERED
    dispatch([*command, "--import", str(file)])
    parts._REGISTERED.clear()
    file.write_text(file.read_text() + "# changed\n")
    _import_file(file)
    with pytest.raises(RunError, match="theirs.py is not the file that"):
        Run.open(run)


def test_another_file_of_that_name_takes_nothing_away(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "theirs.py"
    other.write_text(
        "from annotated.engine.parts import register\n\n\n"
        "@register('loss', 'other')\n"
        "def other(logits, labels, config):\n"
        "    return logits.logsumexp(-1)\n"
    )
    _import_file(other)
    assert Run.open(run).recipe.model.parts == ("scale-norm",)


def test_a_file_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("register\n")
    for file, message in (
        ("none.py", "there is no such file"),
        ("bad.py", "failed: NameError: name 'register'"),
    ):
        with pytest.raises(RunError, match=message):
            dispatch(["recipes", f"--import={tmp_path / file}"])
    with pytest.raises(UsageError, match="--import needs a file"):
        dispatch(["recipes", "--import"])
    (tmp_path / "twice.py").write_text(MINE.read_text())
    with pytest.raises(RunError, match="is registered by .*my_parts.py"):
        _import_file(tmp_path / "twice.py")
