"""The table of page E32: each part, and all that a run goes through."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.cli import dispatch
from annotated.engine.errors import RunError
from annotated.engine.parts import _import_file, build, trainable
from annotated.engine.recipes import Recipe
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from annotated.engine.trainer import RunConfig, Trainer
from annotated.exchange.export import export_run
from annotated.model import Transformer
from annotated.search import SearchConfig, plain_beam_search
from annotated.training import copy_corpus
from tests.engine.folders import TINY, own_corpus
from tests.engine.groups import SHARDED_ONLY, together, weights_of
from tests.engine.parts import PARTS
from tests.helpers import Killed, at_step

MINE = Path(__file__).with_name("my_parts.py")
_import_file(MINE)
OWN: dict[str, dict[str, Any]] = {
    "scale-norm": {"parts": ("scale-norm",), "norm": "pre"},
    "near": {"parts": ("near",)},
    "shifted": {"parts": ("shifted",)},
    "copier": {"parts": ("copier",)},
    "focal": {"loss": "focal"},
    "sharp": {"loss": "sharp"},
    "random": {"batching": "random"},
    "cosine": {"schedule": "cosine"},
    "two-kinds": {"optimizer": "two-kinds"},
    "together": {
        "parts": ("scale-norm", "near", "copier"), "loss": "focal",
        "schedule": "cosine", "optimizer": "two-kinds", "gated": True,
    },
}  # fmt: skip
ROWS = PARTS | OWN
EVERY = pytest.mark.parametrize("row", ROWS)
FEW = "all", "all by distance", "shifted", "together"
SOME = pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, marks=[] if row in FEW else pytest.mark.exhaustive
        )
        for row in ROWS
    ],
)


def recipe_of(row: str, base: Recipe = TINY) -> Recipe:
    small = base.changed(num_heads=4, num_encoder_layers=2)
    return small.changed(max_steps=4, save_every=2, **ROWS[row])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return own_corpus(tmp_path_factory.mktemp("own") / "data")


@pytest.fixture(scope="module")
def run_of(
    base: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The finished run of a row, made when it is first asked for."""
    made: dict[str, Path] = {}

    def run(row: str) -> Path:
        if row not in made:
            folder = tmp_path_factory.mktemp("rows") / "run"
            train_recipe(recipe_of(row, base), folder)
            made[row] = folder
        return made[row]

    return run


@SOME
def test_a_killed_run_goes_on_to_the_same_weights(
    row: str, run_of: Any, base: Recipe, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def kill() -> None:
        raise Killed

    expected = Run.open(run_of(row)).model.state_dict()
    at_step(monkeypatch, 3, kill)
    with pytest.raises(Killed):
        train_recipe(recipe_of(row, base), tmp_path / "run")
    monkeypatch.undo()
    train_recipe(recipe_of(row, base), tmp_path / "run", resume=True)
    found = Run.open(tmp_path / "run").model.state_dict()
    first = Run.as_begun(tmp_path / "run").model.state_dict()
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name], expected[name]), name
    assert any(not torch.equal(first[name], found[name]) for name in found)


@EVERY
def test_it_translates_and_with_the_cache_as_without(
    row: str, run_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(run_of(row))
    config = SearchConfig(beam=2, extra=3)
    line = "a b c d"
    (found,) = run.translate([line], config)
    (ids,) = run.source.encode([line])
    best = plain_beam_search(run.model, ids, config)[0]
    assert found[0].text == run.target.decode([best.ids])[0]
    assert found[0].score == pytest.approx(best.score, abs=1e-4)
    slowly = "without a cache" in capsys.readouterr().err
    assert slowly == ("shifted" in row)


@SOME
def test_it_is_evaluated_averaged_and_reported(
    row: str, run_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, mean = str(run_of(row)), tmp_path / "mean"
    (tmp_path / "src").write_text("a b c\nd e\n")
    files = f"--src {tmp_path}/src --ref {tmp_path}/src".split()
    dispatch(["average", "--run", run, "--out", str(mean)])
    capsys.readouterr()
    dispatch(["evaluate", "--run", str(mean), *files, "--json"])
    assert "bleu" in json.loads(capsys.readouterr().out)
    page = tmp_path / "page.html"
    dispatch(["report", "--run", run, "--out", str(page)])
    text = page.read_text("utf-8")
    for name in ROWS[row]:
        assert name in text


REFUSED = {
    "RMSNorm": "RMSNorm", "gated": "gated networks",
    "none": "none positions", "rotary": "rotary positions",
    "groups": "heads that share keys and values",
    "qk_norm": "norms of queries and keys", "alibi": "alibi positions",
    "relative": "relative positions", "windows": "windows by layer",
    "all": "norms of queries and keys",
    "all by distance": "relative positions and windows by layer",
    "scale-norm": r"parts of your own \(scale-norm\)",
    "near": r"parts of your own \(near\)",
    "shifted": r"parts of your own \(shifted\)",
    "copier": r"parts of your own \(copier\)",
    "together": r"parts of your own \(scale-norm\)",
}  # fmt: skip


@EVERY
def test_it_is_exported_or_refused_by_name(
    row: str, run_of: Any, tmp_path: Path
) -> None:
    run = Run.open(run_of(row))
    export_run(run, "safetensors", tmp_path / "safetensors")
    again = Run.open(tmp_path / "safetensors").model.state_dict()
    for name, weight in run.model.state_dict().items():
        assert torch.equal(again[name], weight)
    forms = ["transformers"]
    if row not in ("RMSNorm", "gated", "none", "rotary", "groups"):
        forms.append("ctranslate2")  # these it has: tests/exchange
    if ROWS[row].get("parts"):
        forms.append("onnx")
    if row in REFUSED:
        for form in forms:
            with pytest.raises(RunError, match=REFUSED[row]):
                export_run(run, form, tmp_path / form)
            assert not (tmp_path / form).exists()


PADDED = "shifted", "copier", "sharp", "together"


@EVERY
def test_batches_are_packed_where_they_can_be(row: str) -> None:
    recipe = recipe_of(row)
    model = build(recipe.config(12, 12))
    _, why = trainable(model, recipe.training.loss)
    assert bool(why) == (row in PADDED), why


# --- several processes


def learn(rows: list[str], shard: bool) -> dict[str, Any]:
    """For each row, the losses and weights of a short training."""
    _import_file(MINE)
    learned = {}
    for row in rows:
        recipe = recipe_of(row).changed(dropout=0.0, max_steps=3)
        training = RunConfig(**vars(recipe.training))
        torch.manual_seed(0)
        config = recipe.config(12, 12)
        model = config.kind(config)
        corpus = copy_corpus(30, vocab=12, length=6)
        trainer = Trainer(model, corpus, training, shard)
        losses = [p.loss for p in trainer.steps()]
        learned[row] = losses, weights_of(trainer)
    return learned


@functools.cache
def learned(how: str, few: bool) -> Any:
    """What each process has learned, of the rows that are always run or of
    all others.
    """
    rows = [row for row in ROWS if (row in FEW) == few]
    if how == "alone":
        return [learn(rows, False)]
    return together(2, learn, rows, how == "sharded")


@SOME
@pytest.mark.parametrize(
    "how", ["in two", pytest.param("sharded", marks=SHARDED_ONLY)]
)
def test_two_processes_learn_what_one_does(row: str, how: str) -> None:
    (alone,) = learned("alone", row in FEW)
    for one in learned(how, row in FEW):
        assert isinstance(one, dict), one
        losses, weights = one[row]
        assert losses == pytest.approx(alone[row][0], abs=2e-4)
        for name, weight in weights.items():
            # the bias of the keys has no gradient but rounding errors
            if "w_k.bias" not in name:
                off = abs(weight - alone[row][1][name]).max()
                assert off < 1e-3, name


def test_what_is_not_ours_is_no_other_model() -> None:
    config = recipe_of("copier").config(12, 12)
    assert type(config.kind(config)).__name__ == "Copier"
    assert recipe_of("near").config(12, 12).kind is Transformer
