"""Recipes and runs: engine.recipes, corpora.data, engine.runs, from E9."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from annotated.checkpoints import average_weights
from annotated.corpora.registry import registry
from annotated.engine import checkpoints as checkpoints_module
from annotated.engine import files, runner, runs, trainer
from annotated.engine.checkpoints import FILES, checkpoints
from annotated.engine.data import open_data
from annotated.engine.errors import (
    DataError,
    RunError,
    Stopped,
    TrainingError,
)
from annotated.engine.machine import pick_device
from annotated.engine.recipes import (
    FITTED,
    PAIR,
    RECIPES,
    ModelShape,
    Recipe,
    described,
    fitted,
    recipe_of,
)
from annotated.engine.runner import train_recipe
from annotated.engine.runs import (
    Run,
    begin_run,
    one_line,
    read_metrics,
    read_recipe,
)
from annotated.engine.tensors import load_weights
from annotated.engine.trainer import Trainer
from annotated.model import (
    Transformer,
    TransformerConfig,
    count_parameters,
)
from annotated.search import SearchConfig
from annotated.tokens import Tokenizer
from tests import helpers
from tests.helpers import Killed, at_step, content

TINY = helpers.TINY.changed(dropout=0.1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went from beginning to end. Look, do not touch."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train_recipe(TINY, folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to do things to."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


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


# --- recipes --------------------------------------------------------------


def test_every_recipe_is_told_apart_by_name_and_purpose() -> None:
    assert {"copy", "reverse", "pocket", "multi30k"} <= RECIPES.keys()
    assert len({r.about for r in RECIPES.values()}) == len(RECIPES)


def test_the_wmt_recipes_are_the_papers() -> None:
    for pair, vocab, kind in (
        ("de", 37_000, "bpe"),
        ("fr", 32_000, "wordpiece"),
    ):
        base, big = (
            RECIPES[f"wmt14-en-{pair}-{size}"] for size in ("base", "big")
        )
        for recipe in (base, big):
            assert recipe.data == f"wmt14-en-{pair}"
            assert (recipe.source, recipe.target) == ("en", pair)
            assert (recipe.vocab, recipe.tokenizer) == (vocab, kind)
            model, training = recipe.model, recipe.training
            assert (model.tie, model.norm) == ("all", "post")
            assert training.batch_tokens == 25_000
            assert (training.warmup, training.rate) == (4000, 1.0)
            assert training.label_smoothing == 0.1
            search = recipe.search
            assert (search.beam, search.alpha, search.extra) == (4, 0.6, 50)
        shapes = [
            (r.model.d_model, r.model.d_ff, r.model.num_heads)
            for r in (base, big)
        ]
        assert shapes == [(512, 2048, 8), (1024, 4096, 16)]
        one, other = base.training, big.training
        assert (one.max_steps, other.max_steps) == (100_000, 300_000)
        assert (one.keep, other.keep) == (5, 20)
        # ten minutes of the paper's machine, at 0.4 and 1.0 s per step
        assert one.save_every * 0.4 == other.save_every * 1.0 == 600
    assert RECIPES["wmt14-en-de-big"].model.dropout == 0.3
    assert RECIPES["wmt14-en-fr-big"].model.dropout == 0.1


TABLE3 = {
    "base": {},
    "A-h1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A-h4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A-h16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A-h32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    "C-N2": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "C-N4": {"num_encoder_layers": 4, "num_decoder_layers": 4},
    "C-N8": {"num_encoder_layers": 8, "num_decoder_layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-drop0.0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "D-eps0.0": {"label_smoothing": 0.0},
    "D-eps0.2": {"label_smoothing": 0.2},
    "E-learned": {"positions": "learned"},
    "big": {
        "d_model": 1024,
        "d_ff": 4096,
        "num_heads": 16,
        "dropout": 0.3,
        "max_steps": 300_000,
        "save_every": 600,
    },
}


def test_there_is_a_recipe_for_every_row_of_table_3() -> None:
    found = {
        name.removeprefix("table3-"): recipe
        for name, recipe in RECIPES.items()
        if name.startswith("table3-")
    }
    assert found.keys() == TABLE3.keys()
    base = RECIPES["wmt14-en-de-base"]
    for row, changes in TABLE3.items():
        about = f"row {row} of Table 3"
        expected: dict[str, Any] = changes | {"about": about, "keep": 1}
        # d_model / h is the default: written out in the table
        config = found[row].config()
        sizes = {"d_k": config.key_size, "d_v": config.value_size}
        wanted = base.changed(**{"d_k": 64, "d_v": 64} | expected)
        assert found[row].changed(**sizes) == wanted, row


def test_a_data_set_is_prepared_as_its_recipes_want_it() -> None:
    for recipe in RECIPES.values():
        if entry := registry().get(recipe.data):
            assert recipe.vocab == entry["vocab"]
            assert recipe.tokenizer == entry.get("tokenizer", "bpe")
            assert recipe.source == entry["source"]
            assert recipe.target == entry["target"]


def test_a_recipe_without_changes_is_the_papers_base_model() -> None:
    recipe = Recipe(about="", data="wmt")
    model = recipe.config(37_000, 37_000)
    training, search = recipe.training, recipe.search
    assert (model.d_model, model.d_ff, model.num_heads) == (512, 2048, 8)
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    assert (model.dropout, training.label_smoothing) == (0.1, 0.1)
    assert (training.batch_tokens, training.max_steps) == (25_000, 100_000)
    assert (training.warmup, training.rate, training.keep) == (4000, 1.0, 5)
    assert (search.beam, search.alpha, search.extra) == (4, 0.6, 50)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_pairs", 0),
        ("valid_pairs", 0),
        ("fit", ("d_model", "beam")),
        ("vocab", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("d_model", 250),
        ("dropout", 1.0),
        ("norm", "mid"),
        ("batch_tokens", 0),
        ("max_minutes", -1.0),
        ("rate", float("nan")),
        ("beam", 0),
        ("alpha", -0.1),
        ("precision", "float8"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    field: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=field):
        Recipe(about="", data="copy").changed(**{field: value})


def test_a_shape_is_a_config_without_vocabularies() -> None:
    shape = {f.name: f.default for f in dataclasses.fields(ModelShape)}
    whole = TransformerConfig(src_vocab=9, tgt_vocab=9)
    config = dataclasses.asdict(whole)
    absent = {"src_vocab", "tgt_vocab", "bias"}
    assert shape == {k: v for k, v in config.items() if k not in absent}
    recipe = Recipe(about="", data="copy")
    assert recipe.config(9, 9) == whole


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_being_written(name: str) -> None:
    text = json.dumps(dataclasses.asdict(RECIPES[name]))
    assert recipe_of(json.loads(text)) == RECIPES[name]


def test_a_recipe_from_before_a_field_existed_is_still_read() -> None:
    values = dataclasses.asdict(RECIPES["multi30k"])
    del values["model"]["activation"], values["model"]["output_bias"]
    assert recipe_of(values) == RECIPES["multi30k"]
    config = RECIPES["multi30k"].config()
    assert (config.activation, config.output_bias) == ("relu", False)
    assert not any(
        "embeddings.bias" in n for n in Transformer(config).state_dict()
    )


def test_any_field_can_be_changed_by_its_name() -> None:
    before = RECIPES["copy"]
    after = before.changed(data="reverse", d_ff=8, warmup=9, beam=2)
    changed = after.unlike(before)
    assert changed == {"data": "reverse", "d_ff": 8, "warmup": 9, "beam": 2}
    with pytest.raises(TypeError, match="speed"):
        before.changed(speed=3)


# --- fitted to a corpus ---------------------------------------------------

Speed = Callable[[Recipe], float]


def trains_with(operations: float) -> Speed:
    """The steps per second of a machine that makes so many operations: 6
    for each parameter and token.
    """

    def speed(made: Recipe) -> float:
        per_token = 6 * count_parameters(made.config())
        return operations / per_token / made.training.batch_tokens

    return speed


LAPTOP, GPU = trains_with(7e10), trains_with(2e13)


@pytest.mark.parametrize("speed", [trains_with(2e10), LAPTOP, GPU])
@pytest.mark.parametrize("pairs", [100, 2_000, 29_000, 400_000, 5_000_000])
def test_whatever_the_corpus_the_choice_is_one_that_learns(
    pairs: int, speed: Speed
) -> None:
    made = fitted(PAIR, pairs, 15 * pairs, speed)
    model, training = made.model, made.training
    assert not made.fit and model.norm == "pre"
    steps = training.max_steps
    assert 0 < training.warmup < steps - training.cooldown < steps
    assert training.save_every <= steps // 2
    peak = training.rate / math.sqrt(model.d_model * training.warmup)
    assert 0.0009 < peak < 0.0031
    # it fits into the minutes, and uses most of them unless the corpus
    # is small
    spent = steps / speed(made) / (60 * 20)
    seen = steps * training.batch_tokens / (15 * pairs)
    assert spent < 0.91
    assert spent > 0.81 or seen > 29
    assert steps <= 1000 or seen <= 30
    assert steps <= 20_000 or training.batch_tokens == 24_000


def test_more_text_and_more_time_make_a_larger_model() -> None:
    def width(pairs: int, minutes: float, speed: Speed) -> int:
        recipe = PAIR.changed(max_minutes=minutes)
        return fitted(recipe, pairs, 20 * pairs, speed).model.d_model

    assert width(2_000, 600, GPU) == 128
    assert width(29_000, 5, LAPTOP) == 128
    assert width(29_000, 40, LAPTOP) == 192
    assert width(29_000, 600, GPU) == 192
    assert width(400_000, 20, LAPTOP) == 128
    assert width(400_000, 60, LAPTOP) == 192
    assert width(400_000, 120, LAPTOP) == 256
    assert width(4_000_000, 60, GPU) == 512


def test_dropout_is_for_pairs_that_are_seen_often() -> None:
    found = [
        fitted(PAIR, n, 20 * n, LAPTOP).model.dropout
        for n in (2_000_000, 29_000, 1_000)
    ]
    assert found == [0.0, 0.1, 0.2]


def test_the_batch_that_is_measured_is_the_one_that_is_chosen() -> None:
    asked: list[tuple[int, int]] = []

    def speed(made: Recipe) -> float:  # whatever the batch
        asked.append((made.model.d_model, made.training.batch_tokens))
        return 1000.0

    made = fitted(PAIR, 5_000_000, 10**8, speed)
    assert made.training.batch_tokens == 24_000
    # and nothing is measured twice
    assert asked == [(512, 1500 * 2**i) for i in range(5)]
    asked.clear()
    made = fitted(PAIR.changed(batch_tokens=3000), 10**7, 10**8, speed)
    assert made.training.batch_tokens == 3000
    assert asked == [(512, 3000)]


def test_short_sentences_come_first_where_pairs_are_seen_once() -> None:
    long = fitted(PAIR, 2_000_000, 40_000_000, LAPTOP).training
    assert long.curriculum == long.max_steps // 2
    assert fitted(PAIR, 29_000, 400_000, LAPTOP).training.curriculum == 0


def test_what_was_given_is_kept() -> None:
    given = PAIR.changed(d_model=64, norm="post", max_steps=500, rate=0.7)
    made = fitted(given, 29_000, 400_000, LAPTOP)
    assert made.model.d_model == 64 and made.model.norm == "post"
    assert made.training.max_steps == 500 and made.training.rate == 0.7
    assert made.training.warmup == 83 and made.training.cooldown == 200
    # even what is as it was before
    for name, value in (
        ("d_model", 512),
        ("dropout", 0.1),
        ("warmup", 4000),
    ):
        given = PAIR.changed(**{name: value})
        made = fitted(given, 10**6, 10**8, LAPTOP)
        assert made.flat()[name] == value


def test_a_choice_is_said_in_a_line() -> None:
    made = fitted(PAIR, 29_000, 400_000, LAPTOP)
    said = described(made, PAIR)
    assert "d_model 128, d_ff 512" in said and "\n" not in said
    assert "norm" not in said  # which PAIR has decided


def test_the_same_command_fits_the_same_model_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANNOTATED_MEASURED", str(tmp_path / "measured"))
    recipe = own_corpus(tmp_path / "own").changed(fit=FITTED)
    coming = iter([(0.1, True), (0.2, False), (9.0, False)])
    monkeypatch.setattr(runs, "training_speed", lambda *_: next(coming))
    steps = [
        begin_run(recipe, tmp_path / f"run{i}")[0].recipe.training.max_steps
        for i in range(3)
    ]
    # a busy moment is told, and not kept
    assert capsys.readouterr().err.count("keep this machine busy") == 1
    assert steps[0] < steps[1] == steps[2]
    assert len(list((tmp_path / "measured").iterdir())) == 1


def test_a_fitted_run_begins_and_resumes_as_it_was_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_corpus(tmp_path / "own").changed(fit=FITTED)
    run, _, _ = begin_run(recipe, tmp_path / "run")
    assert "fitted to the corpus: " in capsys.readouterr().err
    assert not run.recipe.fit
    again, _, _ = runs.resume_run(recipe, tmp_path / "run")
    assert again.recipe == run.recipe == read_recipe(tmp_path / "run")


def test_where_all_was_given_nothing_is_said_to_be_fitted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_open(recipe: Recipe, *_: object) -> Recipe:
        return recipe.changed(fit=())

    monkeypatch.setattr(runs, "fitted", nothing_open)
    recipe = own_corpus(tmp_path / "own").changed(fit=FITTED)
    begin_run(recipe, tmp_path / "run")
    assert "fitted" not in capsys.readouterr().err


# --- text -----------------------------------------------------------------


def test_pocket_goes_in_both_directions() -> None:
    there = RECIPES["pocket"].changed(train_pairs=5)
    back = there.changed(source="en", target="de")
    assert (
        open_data(there).text("train")
        == open_data(back).text("train")[::-1]
    )


def test_a_language_that_synthetic_data_has_not_is_refused() -> None:
    wrong = RECIPES["pocket"].changed(source="fr")
    with pytest.raises(DataError, match="languages de and en, not fr"):
        open_data(wrong).text("train")


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


def test_train_pairs_takes_the_first_of_a_real_corpus(
    tmp_path: Path,
) -> None:
    recipe = own_corpus(tmp_path / "own")
    some = recipe.changed(train_pairs=3)
    assert len(open_data(recipe).text("train")[0]) == 40
    assert open_data(some).text("train")[0] == ["a b c", "b b c", "c b c"]
    assert len(open_data(some).text("valid")[0]) == 40


def test_a_run_may_validate_on_the_first_of_its_pairs(
    tmp_path: Path,
) -> None:
    recipe = own_corpus(tmp_path / "own").changed(valid_pairs=7)
    _, train, valid = begin_run(recipe, tmp_path / "run")
    assert (len(train), len(valid)) == (40, 7)
    _, _, again = runs.resume_run(recipe, tmp_path / "run")
    assert len(again) == 7
    assert len(open_data(recipe).text("valid")[0]) == 40


def test_pairs_with_a_blank_side_are_not_trained_on(tmp_path: Path) -> None:
    recipe = own_corpus(
        tmp_path / "own",
        train_en=b"a b\n\n  \na\n",
        train_de=b"a b\na\nb\n\n",
    )
    _, corpus, _ = begin_run(recipe, tmp_path / "run")
    assert len(corpus) == 1


BROKEN = {
    "lines": ({"train_de": b"a\n"}, "40 lines but .*has 1"),
    "valid lines": ({"valid_en": b"a\n"}, "has 1 lines but .*has 40"),
    "empty": ({"train_en": b""}, "train.en is empty"),
    "utf-8": ({"valid_de": b"a\n\xff\n"}, "valid.de, line 2, byte 1"),
    "nul": ({"train_de": b"a\0\n"}, "train.de, line 1, byte 2: a NUL byte"),
    "blank": (
        {"train_en": b"\n\n", "train_de": b"a\nb\n"},
        "train: no pair has words on both sides",
    ),
    "blank valid": (
        {"valid_en": b"a\nb\n", "valid_de": b"\n \n"},
        "valid: no pair has words on both sides",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_corpus_begins_no_run(tmp_path: Path, name: str) -> None:
    files, complaint = BROKEN[name]
    recipe = own_corpus(tmp_path / "own", **files)
    with pytest.raises(DataError, match=complaint):
        train_recipe(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sentences_beyond_learned_positions_begin_no_run(
    tmp_path: Path,
) -> None:
    recipe = TINY.changed(positions="learned", max_len=8)
    with pytest.raises(RunError, match="max_len must be .* not 8"):
        train_recipe(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "file", ["train_en", "train_de", "valid_en", "valid_de"]
)
def test_one_long_sentence_on_any_side_is_enough_for_that(
    tmp_path: Path, file: str
) -> None:
    lines = b"a b c\n" * 39
    files = {file: lines + b"a b c a b c a b c\n"}
    recipe = own_corpus(tmp_path / "own", **files)
    recipe = recipe.changed(positions="learned", max_len=9, max_steps=1)
    with pytest.raises(RunError, match="of 10 tokens: .* not 9"):
        train_recipe(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- training -------------------------------------------------------------


def test_a_finished_run_has_all_its_files(finished: Path) -> None:
    assert set(content(finished)) == {
        "recipe.json",
        "source.json",
        "target.json",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
        "best.safetensors",
        "checkpoints/00000015/checksums.json",
        "checkpoints/00000015/model.safetensors",
        "checkpoints/00000015/optimizer.safetensors",
        "checkpoints/00000015/state.json",
        "checkpoints/00000020/checksums.json",
        "checkpoints/00000020/model.safetensors",
        "checkpoints/00000020/optimizer.safetensors",
        "checkpoints/00000020/state.json",
    }
    assert read_recipe(finished) == TINY


@pytest.mark.parametrize("better", ["the mean", "the last"])
def test_the_model_is_the_mean_unless_the_last_is_better(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    better: str,
) -> None:
    at_the_end = [1.0, 1.1] if better == "the mean" else [1.1, 1.0]
    scores = iter([3.0, 2.0, 2.0, 1.1, *at_the_end])

    def found(*_: Any) -> dict[str, float]:
        return {"loss": 0.0, "nll": next(scores), "perplexity": 0.0}

    monkeypatch.setattr(Trainer, "validate", found)
    summary = train_recipe(TINY, tmp_path / "run")
    model = load_file(tmp_path / "run" / "model.safetensors")
    places = checkpoints(tmp_path / "run" / "checkpoints")
    count = len(places) if better == "the mean" else 1
    files = [p / "model.safetensors" for p in places[-count:]]
    expected = average_weights(files)
    assert all(torch.equal(expected[name], model[name]) for name in model)
    assert summary["averaged"] == count
    assert summary["valid"]["nll"] == 1.0
    said = "better than the mean of 2" in capsys.readouterr().err
    assert said == (better == "the last")


def test_the_summary_says_what_was_done(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["steps"] == 20
    files = [
        p / "model.safetensors"
        for p in checkpoints(finished / "checkpoints")
    ]
    mean = average_weights(files[-summary["averaged"] :])
    model = load_file(finished / "model.safetensors")
    assert all(torch.equal(mean[name], model[name]) for name in model)
    assert 1 < summary["epochs"] < 20
    steps = [e for e in read_metrics(finished) if "loss" in e]
    assert summary["tokens"] == steps[-1]["tokens"]
    assert summary["valid"].keys() == {"loss", "nll", "perplexity"}


def test_the_best_checkpoint_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation finds step 10 the best; it is dropped, and stays."""
    scores = iter([3.0, 1.0, 2.0, 1.5, 1.2, 1.3])

    def found(*_: Any) -> dict[str, float]:
        return {"loss": 0.0, "nll": next(scores), "perplexity": 0.0}

    kept: dict[str, bytes] = {}

    def keep() -> None:
        place = tmp_path / "run" / "checkpoints" / "00000010"
        kept["10"] = (place / "model.safetensors").read_bytes()

    monkeypatch.setattr(Trainer, "validate", found)
    at_step(monkeypatch, 11, keep)
    summary = train_recipe(TINY, tmp_path / "run")
    assert summary["best"] == 10
    best = tmp_path / "run" / "best.safetensors"
    assert best.read_bytes() == kept["10"]
    places = checkpoints(tmp_path / "run" / "checkpoints")
    assert [p.name for p in places] == ["00000015", "00000020"]


def test_minutes_write_a_checkpoint_that_is_not_averaged(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = TINY.changed(save_minutes=1e-9)
    seen: list[list[str]] = []
    places = tmp_path / "run" / "checkpoints"

    def look() -> None:
        seen.append([p.name[-2:] for p in checkpoints(places)])

    averaged: list[list[str]] = []

    def mean(files: list[Path]) -> dict[str, Any]:
        averaged.append([file.parent.name[-2:] for file in files])
        return average_weights(files)

    at_step(monkeypatch, 18, look)
    monkeypatch.setattr(runner, "average_weights", mean)
    train_recipe(always, tmp_path / "run")
    assert seen == [["10", "15", "17"]]
    assert averaged == [["15", "20"], ["20"]]
    same_training(finished, tmp_path / "run")


def test_steps_and_validations_are_noted(finished: Path) -> None:
    notes = read_metrics(finished)
    assert [e["step"] for e in notes if "loss" in e] == [1, 10, 20]
    assert [e["step"] for e in notes if "valid" in e] == [5, 10, 15, 20]


def test_a_folder_with_anything_in_it_is_left_alone(run: Path) -> None:
    before = content(run)
    with pytest.raises(RunError, match="is not empty.*--resume"):
        train_recipe(TINY, run)
    assert content(run) == before


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for place in ("file", "file/run"):
        with pytest.raises(RunError, match="is a file: choose another"):
            train_recipe(TINY, tmp_path / place)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        train_recipe(TINY, tmp_path / "locked" / "run")


def test_opening_a_run_does_not_disturb_the_dice_of_others(
    run: Path,
) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    Run.open(run)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta", "mps"])
def test_a_device_that_is_not_there_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(RunError, match=f"no '{name}' device"):
        train_recipe(TINY, tmp_path / "run", device=name)
    assert not (tmp_path / "run").exists()


def test_the_processor_is_there() -> None:
    assert pick_device("cpu") == "cpu"
    assert pick_device() in ("cpu", "cuda")


# --- stop, and go on ------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (signal.SIGTERM, 7),
        (signal.SIGINT, 10),
        (signal.SIGTERM, 3),
        (signal.SIGTERM, 17),
    ],
    ids=["between", "at a checkpoint", "before the first", "near the end"],
)
def test_a_run_taken_up_again_is_the_run_that_never_stopped(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    step: int,
) -> None:
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(patch, step, send(number))
        with pytest.raises(Stopped, match=f"at step {step}; continue"):
            train_recipe(TINY, tmp_path / "run")
    assert signal.getsignal(number) is handler
    train_recipe(TINY, tmp_path / "run", resume=True)
    same_training(finished, tmp_path / "run")


@pytest.mark.parametrize("moment", ["validate", "_keep_best"])
def test_killed_after_a_checkpoint_a_run_has_nothing_less_to_say(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Between a checkpoint and its validation, or before the best of them
    has its second name.
    """
    folder, owner = tmp_path / "run", (Trainer, runner)[moment[0] == "_"]
    real = getattr(owner, moment)

    def act(*args: Any) -> Any:
        places = checkpoints(folder / "checkpoints")
        if [p.name for p in places] == ["00000005", "00000010"]:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, act)
        with pytest.raises(Killed):
            train_recipe(TINY, folder)
    train_recipe(TINY, folder, resume=True)
    same_training(finished, folder)
    best = [load_file(f / "best.safetensors") for f in (finished, folder)]
    assert all(torch.equal(best[0][n], best[1][n]) for n in best[0])


def test_another_trouble_than_the_disks_is_not_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a checkpoint of another process is not taken away, either."""

    def lost(*_: Any) -> None:
        raise TrainingError("another process of this run has gone")

    half = tmp_path / "run" / "checkpoints" / ".00000003"

    def begin() -> None:
        half.mkdir(parents=True)

    monkeypatch.setattr(Trainer, "weights", lost)
    at_step(monkeypatch, 3, begin)
    with pytest.raises(TrainingError, match="has gone"):
        train_recipe(TINY, tmp_path / "run")
    assert half.exists()


def test_a_second_signal_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 7, send(signal.SIGINT, signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_recipe(TINY, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler
    places = checkpoints(tmp_path / "run" / "checkpoints")
    assert [p.name for p in places] == ["00000005"]


def killed() -> None:
    raise Killed


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 11, killed)
        with pytest.raises(Killed):
            train_recipe(TINY, folder)
    # the marks of a kill: a line cut off, a checkpoint half written
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "loss": 9.9}\n{"step": 2')
    begun = folder / "checkpoints" / ".abcdefgh.00000015.part"
    begun.mkdir()
    (begun / "model.safetensors").write_bytes(b"half")
    train_recipe(TINY, folder, resume=True)
    same_training(finished, folder)
    assert not begun.exists()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("size", [0, 100, None])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    finished: Path,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    size: int | None,
) -> None:
    path = run / "checkpoints" / "00000020" / file
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    train_recipe(TINY, run, resume=True)
    said = capsys.readouterr().err
    assert f"00000020/{file} cannot be read" in said
    assert "set aside as damaged-00000020" in said
    assert "resuming at step 15" in said
    same_training(finished, run)


def test_a_checkpoint_of_something_else_gives_way_too(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = run / "checkpoints" / "00000020" / "state.json"
    state.write_text('{"step": 20}')
    train_recipe(TINY, run, resume=True)
    assert "resuming at step 15" in capsys.readouterr().err


def test_with_no_checkpoint_whole_nothing_is_pretended(run: Path) -> None:
    """Neither the first time nor, when they are set aside, the second."""
    for place in checkpoints(run / "checkpoints"):
        (place / "state.json").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(RunError, match="no intact checkpoint"):
            train_recipe(TINY, run, resume=True)
        for name in (
            "model.safetensors",
            "best.safetensors",
            "summary.json",
        ):
            (run / name).unlink(missing_ok=True)


@pytest.mark.parametrize("left", ["all else", "the log", "the model"])
def test_a_run_whose_checkpoints_are_gone_is_not_trained_over(
    run: Path, left: str
) -> None:
    if left == "the log":
        for path in run.glob("*.safetensors"):
            path.unlink()
        (run / "summary.json").unlink()
    if left == "the model":
        (run / "metrics.jsonl").unlink()
    for keep_the_folder in (True, False):
        shutil.rmtree(run / "checkpoints")
        if keep_the_folder:
            (run / "checkpoints").mkdir()
        before = content(run)
        with pytest.raises(RunError, match="no intact.*left as it is"):
            train_recipe(TINY, run, resume=True)
        assert content(run) == before


def test_a_run_that_never_had_a_checkpoint_begins_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a launcher does that starts a killed run again."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 4, killed)
        with pytest.raises(Killed):
            train_recipe(TINY, folder)
    assert [e["step"] for e in read_metrics(folder)] == [1]
    train_recipe(TINY, folder, resume=True)
    same_training(finished, folder)


@pytest.mark.parametrize(
    "trouble", [OSError(errno.EIO, "Input/output error"), MemoryError()]
)
def test_a_passing_trouble_leaves_the_checkpoint_alone(
    finished: Path, run: Path, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    before = content(run)

    def fails(*_: Any) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "read_tensors", fails)
        with pytest.raises(type(trouble)):
            train_recipe(TINY, run, resume=True)
    assert content(run) == before
    train_recipe(TINY, run, resume=True)
    same_training(finished, run)


def test_a_checkpoint_that_does_not_fit_is_left_alone(run: Path) -> None:
    replaced("model", d_ff=8)(run)
    before = content(run)
    with pytest.raises(RunError, match="does not fit the model"):
        train_recipe(TINY.changed(d_ff=8), run, resume=True)
    assert content(run) == before


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "checkpoints" / "00000020" / "state.json").write_bytes(b"")
    at_step(monkeypatch, 17, send(signal.SIGTERM))
    with pytest.raises(Stopped):
        train_recipe(TINY, run, resume=True)
    places = checkpoints(run / "checkpoints")
    assert [p.name for p in places] == ["00000015", "00000017"]


def test_to_resume_a_finished_run_changes_nothing(
    finished: Path, run: Path
) -> None:
    train_recipe(TINY, run, resume=True)
    same_training(finished, run)


def test_a_finished_run_can_be_made_longer(
    run: Path, tmp_path: Path
) -> None:
    longer = TINY.changed(max_steps=30)
    train_recipe(longer, run, resume=True)
    train_recipe(longer, tmp_path / "at once")
    a, b = (
        load_file(folder / "model.safetensors")
        for folder in (run, tmp_path / "at once")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert read_recipe(run) == longer


@pytest.mark.parametrize(
    ("field", "value"),
    [("d_model", 32), ("seed", 1), ("train_pairs", 100), ("keep", 3)],
)
def test_a_resumed_run_must_be_the_same_run(
    run: Path, field: str, value: int
) -> None:
    before = content(run)
    other = TINY.changed(**{field: value})
    old = TINY.flat()[field]
    complaint = f"started with {field} {old}: .*; {value} needs"
    with pytest.raises(RunError, match=complaint):
        train_recipe(other, run, resume=True)
    assert content(run) == before


def own_run(tmp_path: Path) -> tuple[Recipe, Path]:
    """A run on files of its own, of ten steps."""
    recipe = own_corpus(tmp_path / "own").changed(max_steps=10)
    train_recipe(recipe, tmp_path / "run")
    return recipe, tmp_path / "run"


def test_a_resume_that_fails_has_changed_nothing(tmp_path: Path) -> None:
    """Its data are gone, or others, or its checkpoint is of other data."""
    recipe, run = own_run(tmp_path)
    before, longer = content(run), recipe.changed(max_steps=12)
    (tmp_path / "own").rename(tmp_path / "moved")
    with pytest.raises(DataError, match="there is no folder .*--data"):
        train_recipe(
            read_recipe(run).changed(max_steps=12), run, resume=True
        )
    assert content(run) == before
    shutil.copytree(tmp_path / "moved", tmp_path / "own")
    (tmp_path / "own" / "train.en").write_bytes(b"b a c\n" * 40)
    with pytest.raises(
        RunError, match="pairs of train in .* are not those"
    ):
        train_recipe(longer, run, resume=True)
    (tmp_path / "own" / "train.en").unlink()
    with pytest.raises(DataError, match="has none of train.en"):
        train_recipe(longer, run, resume=True)
    assert content(run) == before


def test_steps_that_are_done_are_not_taken_back(tmp_path: Path) -> None:
    recipe, run = own_run(tmp_path)
    before = content(run)
    with pytest.raises(RunError, match="for 10 steps already, more than"):
        train_recipe(recipe.changed(max_steps=9), run, resume=True)
    assert content(run) == before
    train_recipe(recipe, run, resume=True)
    assert content(run) == before


def test_other_pairs_to_validate_on_are_noticed_too(tmp_path: Path) -> None:
    recipe, run = own_run(tmp_path)
    (tmp_path / "own" / "valid.de").write_bytes(b"c b a\n" * 40)
    with pytest.raises(RunError, match="pairs of valid in"):
        train_recipe(recipe, run, resume=True)


def test_data_may_be_moved_and_the_command_given_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = own_corpus(Path("own")).changed(max_steps=6)
    train_recipe(recipe, Path("run"))
    begun = read_recipe(Path("run"))
    assert begun.data == str(tmp_path / "own")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    folder, longer = Path("..", "run"), begun.changed(max_steps=8)
    train_recipe(longer, folder, resume=True)
    (tmp_path / "own").rename(tmp_path / "moved")
    moved = longer.changed(data="../moved", max_steps=10)
    train_recipe(moved, folder, resume=True)
    assert read_recipe(folder).data == str(tmp_path / "moved")
    whole = begun.changed(data="../moved", max_steps=10)
    train_recipe(whole, Path("whole"))
    same = [
        load_file(f / "best.safetensors") for f in (folder, Path("whole"))
    ]
    assert all(torch.equal(same[0][n], same[1][n]) for n in same[0])


def test_a_resume_never_writes_the_tokenizers(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them the weights mean nothing."""

    def fails(*_: Any) -> None:
        raise AssertionError("a tokenizer was written")

    monkeypatch.setattr(Tokenizer, "save", fails)
    train_recipe(TINY.changed(max_steps=22), run, resume=True)
    assert read_recipe(run).training.max_steps == 22


def test_a_full_disk_in_a_resume_costs_nothing(
    finished: Path, run: Path
) -> None:
    """No file can grow beyond 100 bytes, the tokenizers' too."""
    before = content(run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(RunError, match="recipe.json could not be"):
            train_recipe(TINY.changed(max_steps=22), run, resume=True)
        with pytest.raises((RunError, OSError)):
            train_recipe(TINY, run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(run) == before
    train_recipe(TINY, run, resume=True)
    same_training(finished, run)


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            train_recipe(TINY, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_later_format_is_refused_in_a_line(run: Path) -> None:
    assert (
        json.loads((run / "recipe.json").read_text())["format"]
        == runs.FORMAT
    )
    replaced(format=runs.FORMAT + 1)(run)
    with pytest.raises(RunError, match="has format 3, but this version"):
        Run.open(run)


def test_a_folder_of_an_earlier_format_is_used_but_not_continued(
    run: Path,
) -> None:
    replaced(format=..., fingerprints=...)(run)
    before = content(run)
    Run.open(run)
    with pytest.raises(RunError, match="made by an earlier version"):
        train_recipe(TINY, run, resume=True)
    assert content(run) == before


def test_without_a_compiler_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler\nwas found")

    monkeypatch.setattr(torch, "compile", absent)
    with pytest.raises(RunError, match=r"layers on cpu \(no compiler\)"):
        train_recipe(TINY.changed(compile=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_nothing_was_begun_nothing_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder.*recipe.json"):
        train_recipe(TINY, tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


# --- a full disk ----------------------------------------------------------


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def small_files(save: Callable[..., None]) -> Callable[..., None]:
    """save, where no file can grow beyond 1,000 bytes."""

    def limited(*args: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            save(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.mark.parametrize("kind", ["no space", "no growth"])
def test_a_full_disk_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    save = trainer.write_checkpoint
    fails = full_disk if kind == "no space" else small_files(save)

    def second_fails(*args: Any) -> None:
        how = save if args[-1].name == "00000005" else fails
        how(*args)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_checkpoint", second_fails)
        with pytest.raises(RunError, match="step 10 could not be written"):
            train_recipe(TINY, folder)
    left = [path.name for path in (folder / "checkpoints").iterdir()]
    assert left == ["00000005"]
    train_recipe(TINY, folder, resume=True)
    assert (folder / "model.safetensors").exists()


def test_a_full_disk_at_the_end_costs_no_model(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(run)
    limited = small_files(runner.write_tensors)
    monkeypatch.setattr(runner, "write_tensors", limited)
    with pytest.raises(RunError, match="the model could not be"):
        train_recipe(TINY, run, resume=True)
    assert content(run) == before


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    files.write_json(path, {"a": "ä"})
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"b": 1})
    assert content(tmp_path) == {"x.json": '{\n  "a": "ä"\n}\n'.encode()}


# --- opening a run --------------------------------------------------------


def test_what_was_trained_can_be_opened(finished: Path) -> None:
    run = Run.open(finished)
    weights = load_file(finished / "model.safetensors")
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter, weights[name])
    assert not run.model.training


def test_a_run_under_way_opens_at_its_newest_checkpoint(run: Path) -> None:
    (run / "model.safetensors").unlink()
    newest = run / "checkpoints" / "00000020" / "model.safetensors"
    model = Run.open(run).model
    expected = load_file(newest)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name])


def test_any_weights_of_the_run_can_be_opened(run: Path) -> None:
    older = run / "checkpoints" / "00000015" / "model.safetensors"
    model = Run.open(run).model
    load_weights(model, older)
    expected = load_file(older)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name])


def test_a_run_without_weights_says_so(run: Path) -> None:
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="no weights yet"):
        Run.open(run)


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


def written(name: str, text: bytes) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).write_bytes(text)

    return change


def cut(name: str, size: int) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / name
        path.write_bytes(path.read_bytes()[:size])

    return change


def another_vocabulary(run: Path) -> None:
    for name in ("source.json", "target.json"):
        tokens = json.loads((run / name).read_text())
        words = tokens["model"]["vocab"]
        words.pop(max(words, key=words.get))
        (run / name).write_text(json.dumps(tokens))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no folder": (shutil.rmtree, "is not a run folder"),
    "no recipe": (lambda r: (r / "recipe.json").unlink(), "no recipe.json"),
    "no tokens": (lambda r: (r / "target.json").unlink(), "target.json"),
    "no JSON": (written("recipe.json", b"{"), "recipe.json is damaged"),
    "empty": (written("recipe.json", b""), "recipe.json is damaged"),
    "a list": (written("recipe.json", b"[]"), "recipe.json is damaged"),
    "bytes": (
        written("recipe.json", b"\xff\xfe"),
        "recipe.json is damaged",
    ),
    "unknown field": (replaced(heads=3), "unexpected .* 'heads'"),
    "unknown in a part": (
        replaced("training", speed=3),
        "unexpected .* 'speed'",
    ),
    "missing part": (replaced(search=...), "damaged: KeyError.*search"),
    "part of no fields": (
        replaced(model=3),
        "ModelShape.* mapping, not int",
    ),
    "missing field": (replaced(data=...), "data"),
    "wrong value": (
        replaced("model", d_model=17),
        "num_heads 2 does not divide",
    ),
    "wrong type": (replaced("model", d_model="16"), "d_model must be"),
    "wrong kind": (replaced("model", dropout="much"), "is damaged"),
    "no tokenizer": (written("source.json", b"{}"), "source.json is no"),
    "half a tokenizer": (cut("source.json", 99), "source.json is no"),
    "another vocabulary": (another_vocabulary, "does not fit the model"),
    "another model": (replaced("model", d_ff=8), "does not fit the model"),
    "no weights": (cut("model.safetensors", 0), "cannot be read"),
    "half the weights": (cut("model.safetensors", 5000), "cannot be read"),
    "other weights": (
        lambda r: save_file({"w": torch.ones(1)}, r / "model.safetensors"),
        "does not fit the model",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_refused_with_the_reason(
    run: Path, name: str
) -> None:
    damage, complaint = DAMAGE[name]
    damage(run)
    with pytest.raises(RunError, match=complaint) as caught:
        Run.open(run)
    assert str(run) in str(caught.value)


# --- translating ----------------------------------------------------------


@pytest.fixture(scope="module")
def opened(finished: Path) -> Run:
    return Run.open(finished)


def test_every_line_has_its_translation(opened: Run) -> None:
    lines = ["a b", "", "c", "  \t ", "zzz", "d " * 600, "a b"]
    found = opened.translate(lines)
    assert [len(best) for best in found] == [1] * len(lines)
    assert found[1][0].text == found[3][0].text == ""
    assert found[0][0].text == found[-1][0].text
    assert found[0][0].score == pytest.approx(found[-1][0].score, abs=1e-4)


def test_no_lines_have_no_translations(opened: Run) -> None:
    assert opened.translate([]) == []
    assert opened.translate(["", " "])[1][0].score == 0.0


def test_a_long_line_is_translated_in_pieces(
    opened: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_SOURCE", 3)
    whole = opened.translate(["a b c d e f g"])[0]
    parts = opened.translate(["a b c", "d e f", "g"])
    text = " ".join(part[0].text for part in parts)
    assert [t.text for t in whole] == [text]


def test_nbest_comes_in_order_the_best_first(opened: Run) -> None:
    search = SearchConfig(beam=4, nbest=3)
    best = opened.translate(["a b c d"], search)[0]
    assert len(best) == 3
    scores = [t.score for t in best]
    assert scores == sorted(scores, reverse=True)


def test_learned_positions_bound_the_pieces(tmp_path: Path) -> None:
    recipe = TINY.changed(
        positions="learned", max_len=14, extra=3, max_steps=1
    )
    train_recipe(recipe, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert len(run.translate(["a " * 100])) == 1
    with pytest.raises(
        RunError, match="extra 14 is too big for max_len 14"
    ):
        run.translate(["a"], SearchConfig(extra=14))


@pytest.mark.parametrize(
    "end", list("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
)
def test_no_translation_is_two_lines(end: str) -> None:
    assert one_line(f"a{end}b") == "a b"
    assert one_line(f"a{end}") == "a"
