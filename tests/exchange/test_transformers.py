"""Page E25: a run of ours in the form that transformers loads."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.cli import dispatch
from annotated.engine.errors import RunError
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, first_model
from annotated.exchange.export import export_run
from annotated.exchange.marian import import_marian
from annotated.model import Transformer
from annotated.search import SearchConfig
from annotated.tokens import EOS, PAD, UNK
from tests.exchange.published import GERMAN, theirs, transformers
from tests.helpers import TINY


def loaded(folder: Path) -> Any:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    names = "MarianMTModel", "PegasusForConditionalGeneration"
    assert type(model).__name__ in names
    return model.eval()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours, of twenty steps. Do not touch."""
    folder = tmp_path_factory.mktemp("own") / "run"
    recipe = TINY.changed(tokenizer="bpe", vocab=280, activation="gelu")
    train_recipe(recipe, folder)
    return folder


SHAPES: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "silu and bias": {"activation": "silu", "output_bias": True},
    "two tables": {"tie": "decoder"},
    "three tables": {"tie": "none"},
    "no biases": {"bias": False},
    "gelu by tanh": {"activation": "gelu", "approximate": "tanh"},
    "odd": {"d_model": 9, "num_heads": 3},
    "pre-norm": {"norm": "pre"},
    "odd and pre-norm": {"d_model": 9, "num_heads": 3, "norm": "pre"},
    "pre-norm, other parts": {
        "norm": "pre",
        "bias": False,
        "output_bias": True,
        "activation": "silu",
    },
}


@pytest.mark.parametrize("kind", SHAPES)
def test_what_transformers_loads_has_the_same_logits(
    kind: str, own: Path, tmp_path: Path
) -> None:
    run = Run.open(own)
    config = dataclasses.replace(run.model.config, **SHAPES[kind])
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    run = dataclasses.replace(run, model=model)
    export_run(run, "transformers", tmp_path / "theirs")
    src = torch.randint(UNK, len(run.source), (3, 8))
    src[1:, 6:] = PAD
    tgt = torch.randint(UNK, len(run.target), (3, 5))
    with torch.no_grad():
        given = loaded(tmp_path / "theirs")(
            input_ids=src, attention_mask=(src != PAD).long(),
            decoder_input_ids=tgt,
        ).logits  # fmt: skip
        torch.testing.assert_close(
            given, model(src, tgt), rtol=0, atol=1e-5
        )


def test_our_own_run_translates_in_transformers(
    own: Path, tmp_path: Path
) -> None:
    run = Run.open(own)
    export_run(run, "transformers", tmp_path / "theirs")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    lines = ["a b c", "d  e", "", "f g Ünï a b"]
    ids = tokens(lines).input_ids
    assert ids == [[*row, EOS] for row in run.source.encode(lines)]
    given = loaded(tmp_path / "theirs").generate(
        **tokens(lines, return_tensors="pt", padding=True),
        num_beams=1, do_sample=False, max_length=12,
    )  # fmt: skip
    mine = run.translate(lines, SearchConfig(beam=1, limit=11))
    said = tokens.batch_decode(given, skip_special_tokens=True)
    assert [
        " ".join(s.split()) for s, line in zip(said, lines) if line
    ] == [
        " ".join(best[0].text.split())
        for best, line in zip(mine, lines)
        if line
    ]
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert run.recipe.about in card and "{" not in card.split("---")[
        2
    ].replace("{tokenizer", "")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_import_gives_an_exported_run_back(
    own: Path, tmp_path: Path, norm: Any
) -> None:
    run = Run.open(own)
    if norm == "pre":
        recipe = run.recipe.changed(norm="pre")
        model: Any = first_model(recipe, run.source, run.target)
        run = dataclasses.replace(run, recipe=recipe, model=model)
    export_run(run, "transformers", tmp_path / "theirs")
    again = import_marian(tmp_path / "theirs", tmp_path / "again")
    assert again.recipe == run.recipe
    assert again.model.config == run.model.config
    before, after = run.model.state_dict(), again.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
    for name in ("source.json", "target.json"):
        assert (own / name).read_bytes() == (
            tmp_path / "again" / name
        ).read_bytes()


def test_what_is_asked_for_holds_for_an_exported_run_too(
    own: Path, published: Any, tmp_path: Path
) -> None:
    run = import_marian(published("codes")[0], tmp_path / "run", "deu")
    export_run(run, "transformers", tmp_path / "theirs")
    names = "Deutsch", None
    again = import_marian(
        tmp_path / "theirs", tmp_path / "again", ">>fra<<", names
    )
    assert again.source.encode(["a"]) != run.source.encode(["a"])
    assert again.source.encode(["a"]) == run.source.encode([">>fra<< a"])
    assert (again.recipe.source, again.recipe.target) == ("Deutsch", "fra")
    with pytest.raises(RunError, match="there is no such language"):
        import_marian(tmp_path / "theirs", tmp_path / "no", "spa")
    export_run(Run.open(own), "transformers", tmp_path / "one")
    with pytest.raises(
        RunError, match="into one language: omit --language"
    ):
        import_marian(tmp_path / "one", tmp_path / "no", "deu")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "kind", ["as most", "two vocabularies", "codes", "no bias"]
)
def test_so_does_one_that_was_imported(
    kind: str, tmp_path: Path, published: Any
) -> None:
    language = "fra" if kind == "codes" else None
    run = import_marian(published(kind)[0], tmp_path / "run", language)
    export_run(run, "transformers", tmp_path / "theirs")
    tokens, start = (
        theirs(tmp_path / "theirs"),
        ">>fra<<" if language else "",
    )
    given = tokens([start + line for line in GERMAN[:20]]).input_ids
    assert given == [[*row, EOS] for row in run.source.encode(GERMAN[:20])]
    given = loaded(tmp_path / "theirs").double().generate(
        **tokens([start + line for line in GERMAN[:20]], return_tensors="pt", padding=True),
        num_beams=1, do_sample=False, max_length=13,
    )  # fmt: skip
    mine = run.translate(GERMAN[:20], SearchConfig(beam=1, limit=12))
    assert [best[0].text for best in mine] == tokens.batch_decode(
        given, skip_special_tokens=True
    )
    # and without our own files, as it would be published elsewhere
    again = import_marian(tmp_path / "theirs", tmp_path / "again", language)
    for name in ("source.json", "target.json", "recipe.json"):
        (tmp_path / "theirs" / name).unlink()
    third = import_marian(tmp_path / "theirs", tmp_path / "third", language)
    for other in (again, third):
        assert other.model.config == run.model.config
        before, after = run.model.state_dict(), other.model.state_dict()
        assert all(torch.equal(before[n], after[n]) for n in before)
        assert other.source.encode(GERMAN) == run.source.encode(GERMAN)


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "pre", "tie": "decoder"},
        {"positions": "learned"},
        {"window": 3},
        {"d_k": 3},
    ],
)
def test_what_marian_has_not_is_not_exported(
    change: dict[str, Any], own: Path, tmp_path: Path
) -> None:
    run = Run.open(own)
    config = dataclasses.replace(run.model.config, **change)
    run = dataclasses.replace(run, model=Transformer(config))
    with pytest.raises(RunError, match="transformers does not support"):
        export_run(run, "transformers", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_the_model_card_has_the_runs_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_recipe(TINY, tmp_path / "run", device="cpu")
    words = ["evaluate", "--run", str(tmp_path / "run"), "--json"]
    dispatch([*words, "--split", "test", "--keep", "--workers", "1"])
    scores = json.loads(capsys.readouterr().out)
    out = ["--to", "transformers", "--out", str(tmp_path / "out")]
    dispatch(["export", "--run", str(tmp_path / "run"), *out])
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"perplexity {summary['valid']['perplexity']:.4g}" in card
    assert f"- test: bleu {scores['bleu']:.4g}" in card
    assert f"(`{scores['signature']}`)" in card


@pytest.mark.parametrize("kind", ["pocket", "imported"])
def test_the_model_cards_lines_translate(
    kind: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are run as they stand, but for the folder and the sentence."""
    run = Run.open(Path("pocket"))
    if kind == "imported":
        run = import_marian(folder, tmp_path / "run")
    export_run(run, "transformers", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    origin = (
        "imported with" if kind == "imported" else "trained on the data"
    )
    assert origin in card
    lines = [line[4:] for line in card.splitlines() if line[:4] == "    "]
    code = "\n".join(lines).replace("A sentence.", GERMAN[0])
    code = code.replace("FOLDER", repr(str(tmp_path / "out")))
    code = code.replace('pt"))', 'pt"), num_beams=1)')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        exec(code, {})
    limit = run.recipe.search.limit or 511
    [best] = run.translate([GERMAN[0]], SearchConfig(beam=1, limit=limit))
    assert f"{[best[0].text]}" in capsys.readouterr().out


def test_a_pipeline_is_there_or_told_to_be_gone(tmp_path: Path) -> None:
    """What the card says of pipeline() is so in this version."""
    train_recipe(TINY, tmp_path / "run", device="cpu")
    run = Run.open(tmp_path / "run")
    export_run(run, "transformers", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "gone from transformers 5" in " ".join(card.split())
    if int(transformers.__version__.split(".")[0]) >= 5:
        with pytest.raises(KeyError, match="has been removed"):
            transformers.pipeline("translation", str(tmp_path / "out"))
    else:
        pipe = transformers.pipeline("translation", str(tmp_path / "out"))
        assert pipe("a b c")[0]["translation_text"]
