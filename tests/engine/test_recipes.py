"""Recipes and their data: engine.recipes and corpora.data, from page E9."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from annotated.corpora.registry import registry
from annotated.engine.data import open_data
from annotated.engine.errors import (
    DataError,
    RunError,
)
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.runner import train_recipe
from annotated.engine.start import begin_run, resume_run
from annotated.model import (
    ModelShape,
    Transformer,
    TransformerConfig,
)
from tests.engine.folders import (
    TINY,
    own_corpus,
)

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
    assert dataclasses.asdict(recipe.config(9, 9)).items() >= config.items()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_being_written(name: str) -> None:
    text = json.dumps(dataclasses.asdict(RECIPES[name]))
    assert Recipe.of(json.loads(text)) == RECIPES[name]


def test_a_recipe_from_before_a_field_existed_is_still_read() -> None:
    values = dataclasses.asdict(RECIPES["multi30k"])
    del values["model"]["activation"], values["model"]["output_bias"]
    assert Recipe.of(values) == RECIPES["multi30k"]
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
    _, train, sets = begin_run(recipe, tmp_path / "run")
    assert (len(train), len(sets["valid"])) == (40, 7)
    _, _, again = resume_run(recipe, tmp_path / "run")
    assert len(again["valid"]) == 7
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
