"""Page E25: an imported run is trained further, and compared again."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated.corpora.prepare import Preparation, prepare
from annotated.corpora.sentencepieces import SentencePieces, same_tokens
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from annotated.engine.start import fine_tuning
from annotated.exchange import marian
from annotated.exchange.export import export_run
from annotated.exchange.marian import import_marian
from annotated.tokens import BOS
from tests.exchange.published import CODES, ENGLISH, GERMAN
from tests.helpers import benchmark, content


@pytest.mark.parametrize("kind", ["as most", "relu", "codes"])
def test_what_is_imported_goes_on_learning(
    kind: str, tmp_path: Path, published: Any
) -> None:
    """Activation, output bias, tied embeddings, the start symbol's row."""
    language = "deu" if kind == "codes" else None
    begun = import_marian(published(kind)[0], tmp_path / "begun", language)
    data = tmp_path / "text"
    data.mkdir()
    for split, part in (("train", slice(600)), ("valid", slice(600, None))):
        for name, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "".join(f"{line}\n" for line in lines[part])
            (data / f"{split}.{name}").write_text(text, "utf-8")
    recipe = fine_tuning(RECIPES["pair"], tmp_path / "begun").changed(
        data=str(data), source="de", target="en", max_steps=120, warmup=10,
        cooldown=40, rate=0.3, batch_tokens=400, save_every=60, dropout=0.0,
        precision="float32", keep=1,
    )  # fmt: skip
    summary = train_recipe(recipe, tmp_path / "run", device="cpu")
    assert summary["valid"]["nll"] < 0.7 * summary["before"]["valid"]["nll"]
    run = Run.open(tmp_path / "run")
    dry = dataclasses.replace(begun.model.config, dropout=0.0)
    assert run.model.config == dry
    assert same_tokens(run.source, begun.source)
    before, after = (r.model.embeddings for r in (begun, run))
    assert not torch.equal(before.bias, after.bias)
    # what the published model cannot say is still unsaid
    new = before.bias == -100
    assert new.sum() == 1
    assert (after.bias[new] < -90).all()
    assert not torch.equal(before.target[BOS], after.target[BOS])
    # and a batch of ours has the code of the language
    corpus = open_data(run.recipe, (run.source, run.target)).corpus("valid")
    heads = {int(corpus.src[i][0]) for i in range(len(corpus))}
    if kind == "codes":
        assert isinstance(begun.source, SentencePieces)
        assert heads == {begun.source.ids[CODES[0]]}
    # it can be handed over, and is what it was
    export_run(run, "transformers", tmp_path / "out")
    again = import_marian(tmp_path / "out", tmp_path / "again")
    said = [r.translate(GERMAN[:5])[0][0].text for r in (run, again)]
    assert said[0] == said[1]


def test_data_are_prepared_with_the_tokens_of_an_imported_run(
    folder: Path, tmp_path: Path
) -> None:
    begun = import_marian(folder, tmp_path / "begun")
    for name, lines in (("de", GERMAN), ("en", ENGLISH)):
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"text.{name}").write_text(text, "utf-8")
    made = prepare(
        Preparation.of_files(
            tmp_path / "text.de", tmp_path / "text.en", hold_out=10
        ).with_tokens(tmp_path / "begun"),
        tmp_path / "data",
    )
    assert made.settings["tokenizer"] == "sentencepiece"
    assert made.settings["shared"]
    corpus, (lines, _) = made.corpus("valid"), read_lines_of(tmp_path)
    assert [
        corpus.src[i].tolist() for i in range(3)
    ] == begun.source.encode(lines[:3])
    recipe = fine_tuning(RECIPES["pair"], tmp_path / "begun").changed(
        data=str(tmp_path / "data"),
        max_steps=2,
        fit=(),
        precision="float32",
    )
    train_recipe(recipe, tmp_path / "run", device="cpu")


def read_lines_of(place: Path) -> tuple[list[str], list[str]]:
    sides = [
        (place / "data" / f"valid.{x}").read_text("utf-8")
        for x in ("de", "en")
    ]
    return sides[0].splitlines(), sides[1].splitlines()


@pytest.mark.parametrize("kind", ["published", "random", "codes"])
def test_the_check_says_how_far_apart_they_are(
    kind: str,
    folder: Path,
    tmp_path: Path,
    published: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    language = None
    if kind == "codes":
        (folder, _), language = published("codes"), "deu"
    if kind == "random":
        (folder / "model.safetensors").unlink()
    before = content(folder)
    text, out = tmp_path / "text.de", tmp_path / "out.json"
    text.write_text("".join(f"{line}\n" for line in GERMAN[:50]), "utf-8")

    def report() -> Any:
        check.main(folder, text, language=language, json=out)
        return json.loads(out.read_text())["metrics"]

    with benchmark("published") as check, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        found = report()
        if kind == "published":  # it notices what is wrong
            monkeypatch.setattr(marian, "_permuted", lambda x, *_: x)
            assert report()["logit_gap"] > 1e-3
    assert content(folder) == before
    weights = "random" if kind == "random" else "published"
    assert found["weights"] == weights and found["lines"] == 50
    assert found["differ"] == {"source_lines": 0, "target_lines": 0}
    assert found["logit_gap"] < 1e-10
    assert found["same"] == found["searched"] == 40
