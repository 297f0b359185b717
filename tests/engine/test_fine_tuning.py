"""Pages E5, E9 and E10: a run that goes on from another's weights."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from safetensors.torch import load_file

from annotated.cli import dispatch, main
from annotated.corpora.prepare import Preparation, prepare
from annotated.engine import runner
from annotated.engine.data import open_data
from annotated.engine.errors import (
    DataError,
    RunError,
    Stopped,
    UsageError,
)
from annotated.engine.fit import fitted
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runner import train_recipe
from annotated.engine.runs import (
    FIRST,
    Run,
    read_metrics,
    read_recipe,
)
from annotated.engine.start import _old_corpus, begin_run, fine_tuning
from annotated.engine.trainer import RunConfig, Trainer, _freeze
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.tokens import Tokenizer
from annotated.training import copy_corpus
from tests.engine.groups import together
from tests.helpers import SHAPE, TINY, Killed, at_step, content


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to copy. Do not touch."""
    folder = tmp_path_factory.mktemp("other") / "run"
    train_recipe(TINY, folder, device="cpu")
    return folder


def tuned(other: Path, **changes: Any) -> Recipe:
    """To say backwards, from there on."""
    few: dict[str, Any] = {
        "train_pairs": 200,
        "save_every": 5,
        "keep": 2,
        "max_steps": 12,
    }
    few |= {"warmup": 3, "cooldown": 6, "rate": 0.1, "batch_tokens": 200}
    recipe = fine_tuning(RECIPES["reverse"], other)
    few |= {"precision": "float32", "valid_pairs": 100, "dropout": 0.1}
    return recipe.changed(**few | changes)


def tensors(folder: Path, name: str = "model.safetensors") -> Any:
    return load_file(folder / name)


def same(one: Any, two: Any) -> bool:
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


# --- it begins where the other has ended -----------------------------------


def test_it_begins_with_the_other_runs_weights_tokens_and_shape(
    other: Path, tmp_path: Path
) -> None:
    summary = train_recipe(tuned(other), tmp_path / "run", device="cpu")
    begun = Run.as_begun(tmp_path / "run")
    assert same(dict(begun.model.named_parameters()), tensors(other))
    assert not same(tensors(tmp_path / "run"), tensors(other))
    for side in ("source", "target"):
        files = [
            folder / f"{side}.json" for folder in (other, tmp_path / "run")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert begun.recipe.model.d_model == TINY.model.d_model
    # what it was before the first step stands in the log
    first = read_metrics(tmp_path / "run")[0]
    assert first["step"] == 0
    assert first["valid"] == summary["before"]["valid"]
    # and is what the other run makes of the new data
    run = Run.open(other)
    corpus = pairs_of(run, "reverse")
    found = Trainer(run.model, corpus, RunConfig()).validate(corpus)
    assert found["nll"] == pytest.approx(first["valid"]["nll"], abs=1e-5)


def test_the_first_weights_do_not_need_the_other_run(
    other: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(other, tmp_path / "other"))
    train_recipe(tuned(moved), tmp_path / "run", device="cpu")
    shutil.rmtree(moved)
    begun = Run.as_begun(tmp_path / "run")
    assert same(dict(begun.model.named_parameters()), tensors(other))


def test_first_weights_that_have_changed_are_noticed(
    other: Path, tmp_path: Path
) -> None:
    train_recipe(tuned(other), tmp_path / "run", device="cpu")
    shutil.copy(
        tmp_path / "run" / "model.safetensors", tmp_path / "run" / FIRST
    )
    with pytest.raises(RunError, match="by its checksum"):
        Run.as_begun(tmp_path / "run")
    Run.open(tmp_path / "run")  # which does not need them


# --- killed and resumed = never stopped ------------------------------------


@pytest.mark.parametrize("step", [2, 7])
@pytest.mark.parametrize("frozen", [(), ("embeddings", "encoder")])
def test_a_run_that_is_killed_ends_as_one_that_was_not(
    step: int,
    frozen: tuple[str, ...],
    other: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first checkpoint, and after it."""
    recipe = tuned(other, freeze=frozen, old_data="copy")
    train_recipe(recipe, tmp_path / "whole", device="cpu")

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, step, kill)
        train_recipe(recipe, tmp_path / "killed", device="cpu")
    train_recipe(recipe, tmp_path / "killed", resume=True, device="cpu")
    names = ("model.safetensors", "best.safetensors", FIRST)
    for name in names:
        own, whole = (tmp_path / run / name for run in ("killed", "whole"))
        assert own.read_bytes() == whole.read_bytes(), name
    checks = [
        [e for e in read_metrics(tmp_path / run) if "valid" in e]
        for run in ("killed", "whole")
    ]
    assert checks[0] == checks[1]
    assert [e["step"] for e in checks[0]] == [0, 5, 10, 12]
    assert all("old" in e for e in checks[0])


def alone(folder: str, other: str, resume: bool) -> Any:
    place = Path(folder)
    recipe = tuned(Path(other))
    if resume or not place.name.startswith("cut"):
        return train_recipe(recipe, place, resume=resume, device="cpu")
    steps = Trainer.steps

    def stopped(trainer: Trainer) -> Any:
        for progress in steps(trainer):
            trainer.stop = progress.step >= 7
            yield progress

    Trainer.steps = stopped  # type: ignore[method-assign]
    try:
        train_recipe(recipe, place, device="cpu")
    except Stopped as error:
        return str(error)
    finally:
        Trainer.steps = steps  # type: ignore[method-assign]


def test_two_processes_that_are_stopped_end_as_two_that_were_not(
    other: Path, tmp_path: Path
) -> None:
    together(2, alone, str(tmp_path / "whole"), str(other), False)
    said = together(2, alone, str(tmp_path / "cut"), str(other), False)
    assert all("step 8" in str(one) or "step 7" in str(one) for one in said)
    together(2, alone, str(tmp_path / "cut"), str(other), True)
    assert same(tensors(tmp_path / "cut"), tensors(tmp_path / "whole"))
    one = [e for e in read_metrics(tmp_path / "cut") if "valid" in e]
    two = [e for e in read_metrics(tmp_path / "whole") if "valid" in e]
    assert one == two


def test_a_change_that_is_allowed_keeps_the_first_weights(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 2, kill)
        train_recipe(tuned(other), tmp_path / "run", device="cpu")
    slower = tuned(other, rate=1e-9)
    train_recipe(slower, tmp_path / "run", resume=True, device="cpu")
    made, first = tensors(tmp_path / "run"), tensors(other)
    for name, weight in made.items():
        torch.testing.assert_close(weight, first[name], rtol=0, atol=1e-6)


# --- what is forgotten ------------------------------------------------------


def test_the_old_data_is_measured_beside_the_new(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tuned(other, old_data="copy", rate=1.0)
    summary = train_recipe(recipe, tmp_path / "run", device="cpu")
    checks = [e for e in read_metrics(tmp_path / "run") if "valid" in e]
    assert checks[0]["old"] == summary["before"]["old"]
    assert summary["old"]["nll"] != summary["valid"]["nll"]
    was, now = summary["before"]["old"], summary["old"]
    line = f"on the old data from {was['perplexity']:.2f} to "
    assert line + f"{now['perplexity']:.2f}" in capsys.readouterr().err
    # the numbers are those of the model that is written
    run = Run.open(tmp_path / "run")
    corpus = pairs_of(run, "copy")
    found = Trainer(run.model, corpus, RunConfig()).validate(corpus)
    assert found["nll"] == pytest.approx(summary["old"]["nll"], abs=1e-5)


def pairs_of(run: Run, data: str) -> Any:
    recipe = run.recipe.changed(data=data)
    corpus = open_data(recipe, (run.source, run.target)).corpus("valid")
    return corpus.first(100)


def test_it_is_measured_with_the_weights_that_are_chosen(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = {"nll": 0.0}, 2, tensors(other)
    monkeypatch.setattr(runner, "_chosen", lambda *_: choice)
    recipe = tuned(other, old_data="copy", rate=1.0)
    summary = train_recipe(recipe, tmp_path / "run", device="cpu")
    assert summary["old"] == summary["before"]["old"]


def test_old_data_that_is_gone_is_asked_for_by_its_own_option(
    tmp_path: Path,
) -> None:
    """--data would be the new data, which are where they were."""
    recipe = RECIPES["pair"].changed(old_data=str(tmp_path / "gone"))
    wanted = "no folder .*gone,.* with --old-data, or .* --old-data None$"
    with pytest.raises(DataError, match=wanted):
        _old_corpus(recipe, ANY)


def test_old_data_that_is_named_later_was_not_measured_before(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be named when the run is resumed, which must still end."""

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 7, kill)
        train_recipe(tuned(other), tmp_path / "run", device="cpu")
    later = tuned(other, old_data="copy")
    summary = train_recipe(
        later, tmp_path / "run", resume=True, device="cpu"
    )
    assert summary["before"].keys() == {"valid"}
    assert summary["old"]["nll"] > 0


def test_where_no_step_helps_the_first_weights_are_the_best(
    other: Path, tmp_path: Path
) -> None:
    recipe = tuned(other, data="copy", rate=300.0, clip=None)
    summary = train_recipe(recipe, tmp_path / "run", device="cpu")
    assert summary["best"] == 0
    best = tensors(tmp_path / "run", "best.safetensors")
    assert same(best, tensors(other))


# --- parts that are not trained --------------------------------------------

PARTS = {
    "embeddings": "embeddings.",
    "encoder": "encoder.",
    "decoder": "decoder.",
}


@pytest.mark.parametrize(
    "frozen",
    [
        ("embeddings",),
        ("encoder",),
        ("decoder",),
        ("embeddings", "encoder"),
    ],
)
def test_what_is_frozen_stays_to_the_last_bit(
    frozen: tuple[str, ...], other: Path, tmp_path: Path
) -> None:
    recipe = tuned(other, freeze=frozen, rate=1.0)
    train_recipe(recipe, tmp_path / "run", device="cpu")
    made, first = tensors(tmp_path / "run"), tensors(other)
    for part, begins in PARTS.items():
        own = [name for name in made if name.startswith(begins)]
        assert own
        kept = [torch.equal(made[name], first[name]) for name in own]
        assert all(kept) if part in frozen else not all(kept), part
    assert read_recipe(tmp_path / "run").training.freeze == frozen


def test_the_next_trainer_of_a_model_trains_all_of_it() -> None:
    model = Transformer(
        TransformerConfig(**SHAPE | {"positions": "learned"})
    )
    _freeze(model, ["embeddings"])
    left = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert left == {
        "embeddings.target", "src_positions.table", "tgt_positions.table",
    }  # fmt: skip
    Trainer(model, copy_corpus(9, vocab=12), RunConfig())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("embeddings", "encoder", "decoder"), "nothing to train"),
        (("head",), "freeze may only name"),
    ],
)
def test_a_freeze_that_cannot_be_is_refused(
    parts: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        RunConfig(freeze=parts)


# --- the recipe --------------------------------------------------------------


def test_it_is_gentle() -> None:
    def speed(_: Recipe) -> float:
        return 10.0

    anew = fitted(RECIPES["pair"], 29_000, 450_000, speed)
    recipe = RECIPES["pair"].changed(
        init="RUN", d_model=anew.model.d_model, d_ff=anew.model.d_ff,
        num_encoder_layers=3, num_decoder_layers=3,
    )  # fmt: skip
    again = fitted(recipe, 29_000, 450_000, speed)
    assert again.model.d_model == anew.model.d_model

    def peak(made: Recipe) -> float:
        how = made.training
        return how.rate / (made.model.d_model * how.warmup) ** 0.5

    assert peak(again) == pytest.approx(peak(anew) / 10, rel=0.02)
    assert again.training.warmup < anew.training.warmup / 3
    assert again.training.max_steps * 1500 <= 10 * 450_000


# --- from the shell ------------------------------------------------------------


def shell(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["annotated", *words])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_one_that_could_not_write_its_first_checkpoint_begins_again(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its best weights are then those that it began with."""
    recipe, place = tuned(other), tmp_path / "run"

    def full(*args: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", full)
        with pytest.raises(RunError, match="could not be written"):
            train_recipe(recipe, place, device="cpu")
    assert (place / "best.safetensors").exists()
    summary = train_recipe(recipe, place, resume=True, device="cpu")
    assert summary["steps"] == recipe.training.max_steps


def test_a_shell_says_little(
    other: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(other.parent)
    out = tmp_path / "run"
    words = ["train", "reverse", "--init", other.name, "--out", str(out)]
    dispatch(
        [*words, "--max-steps", "10", "--freeze", "encoder", "embeddings"]
    )
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 10
    assert {"valid", "before"} <= told.keys()
    made = read_recipe(out)
    assert made.training.freeze == ("encoder", "embeddings")
    assert made.training.warmup < 20  # fitted, gently
    assert made.model == TINY.model or made.model.d_model == 16
    # and goes on, told the same or, elsewhere, nothing
    assert made.init == str(other.resolve())
    dispatch([*words, "--resume", "--max-steps", "12"])
    assert json.loads(capsys.readouterr().out)["steps"] == 12


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--d-model", "32"), "has d_model 16"),
        (("--tie", "none"), "has tie all"),
        (("--num-encoder-layers", "2"), "has num_encoder_layers 1"),
        (("--init", "nowhere"), "nowhere is not a run folder"),
        (("--old-data", "nowhere"), "unknown data set 'nowhere'"),
        (("--freeze", "encoder", "decoder", "embeddings"), "nothing"),
    ],
)
def test_what_cannot_fit_is_one_line_and_nothing_is_written(
    words: tuple[str, ...],
    said: str,
    other: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    given = ("train", "reverse", "--out", str(out), "--device", "cpu")
    first = () if "--init" in words else ("--init", str(other))
    before = content(other)
    assert shell(monkeypatch, *given, *first, *words) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert said in told[-1]
    assert len(told) == 1
    assert not out.exists()
    assert content(other) == before


def test_data_with_other_tokens_are_refused_and_can_be_prepared(
    other: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ["a b c", "d e f g", "h a", "b b c d"] * 50
    for side in ("src", "tgt"):
        text = "".join(f"{line} {i % 7}\n" for i, line in enumerate(lines))
        (tmp_path / f"text.{side}").write_text(text, "utf-8")
    files = ["--src", str(tmp_path / "text.src")]
    files += ["--tgt", str(tmp_path / "text.tgt"), "--hold-out", "5"]
    prepare = ["data", "prepare", "pair", *files, "--out"]
    dispatch([*prepare, str(tmp_path / "own"), "--vocab", "300"])
    tokens = ["--tokens", str(other)]
    dispatch([*prepare, str(tmp_path / "fits"), *tokens])
    for side in ("source", "target"):
        name = f"{side}.json"
        taken = (tmp_path / "fits" / name).read_bytes()
        assert taken == (other / name).read_bytes()
    capsys.readouterr()
    train = ["train", "pair", "--init", str(other), "--device", "cpu"]
    train += ["--max-steps", "2", "--out", str(tmp_path / "run"), "--data"]
    assert shell(monkeypatch, *train, str(tmp_path / "own")) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "prepared with other tokens" in said[-1]
    assert len(said) == 1
    assert not (tmp_path / "run").exists()
    assert shell(monkeypatch, *train, str(tmp_path / "fits")) == 0
    assert read_recipe(tmp_path / "run").tokenizer == "word"
    # and a vocabulary is taken or learned, not both
    both = [*prepare, str(tmp_path / "no"), *tokens, "--vocab", "300"]
    assert shell(monkeypatch, *both) == 2
    assert "omit --vocab" in capsys.readouterr().err
    assert (
        shell(
            monkeypatch,
            *prepare,
            str(tmp_path / "no"),
            "--tokens",
            str(tmp_path),
        )
        == 2
    )
    assert "has no vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_its_own_data_is_looked_back_at_where_it_is_still_there(
    other: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid"):
        for language in ("de", "en"):
            text = "a b c\nc b a\nb a\n" * 30
            (folder / f"{split}.{language}").write_text(text)
    small = {"max_steps": 2, "vocab": 300, "fit": (), **TINY_SHAPE}
    recipe = RECIPES["pair"].changed(
        data=str(folder),
        source="de",
        target="en",
        precision="float32",
        **small,
    )
    train_recipe(recipe, tmp_path / "run", device="cpu")
    later = fine_tuning(RECIPES["pair"], tmp_path / "run")
    assert later.old_data == str(folder)
    assert (later.source, later.target) == ("de", "en")
    shutil.rmtree(folder)
    assert fine_tuning(RECIPES["pair"], tmp_path / "run").old_data is None


TINY_SHAPE = {
    name: getattr(TINY.model, name)
    for name in (
        "num_encoder_layers",
        "num_decoder_layers",
        "d_model",
        "d_ff",
    )
}


@pytest.mark.parametrize("side", [0, 1])
def test_either_side_of_prepared_data_has_the_tokens_of_the_run(
    side: int, tmp_path: Path
) -> None:
    for name, word in (("de", "Hund"), ("en", "dog")):
        lines = "".join(f"{word} {i}\n" for i in range(30))
        (tmp_path / f"text.{name}").write_text(lines)
    files = tmp_path / "text.de", tmp_path / "text.en"
    folder = tmp_path / "ready"
    made = prepare(
        Preparation.of_files(*files, vocab=280, hold_out=9), folder
    )
    recipe = RECIPES["pair"].changed(data=str(folder))
    tokenizers = list(made.tokenizers())
    open_data(recipe, (tokenizers[0], tokenizers[1]))
    tokenizers[side] = Tokenizer.of_words(["Hund", "dog"])
    with pytest.raises(DataError, match="prepared with other tokens"):
        open_data(recipe, (tokenizers[0], tokenizers[1]))


ANOTHER = {  # for each field of a model's shape, another value
    "num_encoder_layers": 5, "num_decoder_layers": 5, "d_model": 48,
    "d_ff": 99, "num_heads": 4, "d_k": 7, "d_v": 7, "dropout": 0.7,
    "attention_dropout": 0.7, "activation_dropout": 0.7,
    "activation": "gelu", "norm": "pre", "positions": "learned",
    "tie": "none", "output_bias": True, "window": 5, "max_len": 99,
}  # fmt: skip


@pytest.mark.parametrize("field", ModelShape.__dataclass_fields__)
def test_every_field_of_the_shape_is_the_first_runs_but_its_noise(
    field: str, other: Path, tmp_path: Path
) -> None:
    recipe = tuned(other).changed(max_steps=1, **{field: ANOTHER[field]})
    if field.endswith("dropout"):
        assert begin_run(recipe, tmp_path / "run", "cpu")
        return
    with pytest.raises(
        RunError, match=f"has {field} .*the same: it cannot"
    ):
        begin_run(recipe, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()
