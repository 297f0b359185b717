"""BPE-dropout in a run: pages E5 and E9."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from annotated.batches import Corpus, Sentences
from annotated.corpora.segmentation import SegmentedCorpus
from annotated.engine import fit, micro
from annotated.engine.data import open_data
from annotated.engine.errors import UsageError
from annotated.engine.micro import micro_batches
from annotated.engine.recipes import RECIPES
from annotated.engine.start import begin_run, resume_run
from annotated.engine.trainer import RunConfig, Trainer
from annotated.model import Transformer, TransformerConfig
from annotated.tokens import EOS, PAD, Tokenizer
from tests.engine.folders import own_corpus
from tests.engine.trainings import assert_same
from tests.helpers import SHAPE

LINES = [
    f"{a} {b}" for a in ("slow", "lower", "lowest") for b in
    ("crowds", "crowded", "widest", "wider", "roads", "loads", "lows")
] * 2  # fmt: skip
TOKENIZER = Tokenizer.train(LINES, 300)
ROWS = Sentences.of(TOKENIZER.encode(LINES))
CORPUS = SegmentedCorpus.of(Corpus(ROWS, ROWS), (TOKENIZER, TOKENIZER))
CONFIG = RunConfig(batch_tokens=60, warmup=10, max_steps=9, bpe_dropout=0.2)


def trainer(**changes: Any) -> Trainer:
    torch.manual_seed(0)
    sizes = dict.fromkeys(("src_vocab", "tgt_vocab"), len(TOKENIZER))
    shape = SHAPE | sizes | {"dropout": 0.2}
    model = Transformer(TransformerConfig(**shape))
    return Trainer(model, CORPUS, replace(CONFIG, **changes))


def read(each: Trainer, count: int) -> list[list[list[int]]]:
    """The source sides of the next batches, without padding and EOS."""
    batches = []
    for (work, _), _ in zip(each.batches(), range(count)):
        rows = [row for batch, _ in work.micro for row in batch.src]
        batches.append([[i for i in r.tolist() if i > EOS] for r in rows])
    return batches


def text(batches: list[list[list[int]]]) -> list[list[str]]:
    return [TOKENIZER.decode(batch) for batch in batches]


def test_each_epoch_reads_the_same_text_in_other_tokens() -> None:
    each = trainer(max_steps=100)
    epoch = len(each.plan(0))
    first, plain = read(each, 3 * epoch), trainer(bpe_dropout=0.0)
    assert text(first[:epoch]) == text(read(plain, epoch))
    tokens = [
        sorted(row for batch in first[i : i + epoch] for row in batch)
        for i in (0, epoch, 2 * epoch)
    ]
    assert tokens[0] != tokens[1] != tokens[2]
    lines = [sorted(TOKENIZER.decode(rows)) for rows in tokens]
    assert lines[0] == lines[1] == lines[2] == sorted(LINES)


def test_a_run_that_is_taken_up_reads_what_it_would_have_read() -> None:
    whole = trainer()
    for _ in whole.steps():
        pass
    begun = trainer()
    for progress in begun.steps():
        if progress.step == 4:
            break
    assert begun.batch_index  # in the middle of an epoch
    later = trainer()
    later.load(begun.weights(), begun.moments(), begun.state())
    for _ in later.steps():
        pass
    assert (later.step, later.tokens) == (whole.step, whole.tokens)
    assert_same(later.weights(), whole.weights())


def test_several_processes_share_the_tokens_that_one_would_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = read(trainer(), 5)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(micro, "world_size", lambda: 2)
        monkeypatch.setattr(micro, "rank", lambda rank=rank: rank)
        parts.append(read(trainer(), 5))
    assert [a + b for a, b in zip(*parts)] == whole


def test_the_tokens_that_are_counted_are_those_that_are_learned() -> None:
    [(work, _), *_] = list(trainer().batches())
    labels = sum(int((b.labels != PAD).sum()) for b, _ in work.micro)
    assert work.tokens == labels
    [(plain, _), *_] = list(trainer(bpe_dropout=0.0).batches())
    assert work.tokens > plain.tokens


def test_micro_batches_are_cut_by_the_tokens_drawn() -> None:
    works = [work for work, _ in trainer(micro_tokens=20).batches()]
    micro = [batch for work in works for batch, _ in work.micro]
    assert all(batch.source.real.sum() <= 20 for batch in micro)
    plan = trainer().plan(0)[: len(works)]
    usual = [part for p in plan for part in micro_batches(CORPUS, p, 20)]
    assert len(micro) > len(usual)


def test_it_is_validated_on_the_usual_tokens() -> None:
    each = trainer()
    assert each.validate(CORPUS) == trainer(bpe_dropout=0.0).validate(
        CORPUS
    )


def test_a_trainer_needs_a_corpus_that_can_be_cut() -> None:
    each = trainer()
    plain = Corpus(CORPUS.src, CORPUS.tgt)
    with pytest.raises(ValueError, match="needs a SegmentedCorpus"):
        Trainer(each.model, plain, CONFIG)


# --- in a recipe ----------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_of_byte_pairs_has_it_and_no_other(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.training.bpe_dropout == 0.0
    if recipe.tokenizer != "bpe":
        with pytest.raises(UsageError, match=recipe.tokenizer):
            recipe.changed(bpe_dropout=0.1)
    elif recipe.model.positions == "learned":
        with pytest.raises(UsageError, match="sinusoidal"):
            recipe.changed(bpe_dropout=0.1)
    else:
        assert recipe.changed(bpe_dropout=0.1).training.bpe_dropout == 0.1


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_a_share_that_is_none_is_refused(p: float) -> None:
    with pytest.raises(UsageError, match="bpe_dropout must be a number"):
        RECIPES["multi30k"].changed(bpe_dropout=p)


def test_a_run_begins_and_resumes_with_it(tmp_path: Path) -> None:
    recipe = own_corpus(tmp_path / "data").changed(
        tokenizer="bpe", vocab=270, bpe_dropout=0.1
    )
    _, train, valid = begin_run(recipe, tmp_path / "run")
    assert isinstance(train, SegmentedCorpus)
    assert type(valid["valid"]) is Corpus
    _, again, _ = resume_run(recipe, tmp_path / "run")
    assert isinstance(again, SegmentedCorpus)
    pairs = np.arange(9)
    one, two = (c.redrawn(pairs, 0.5, (0, 0, 0)) for c in (train, again))
    assert np.array_equal(one.src.ids, two.src.ids)
    plain = recipe.changed(bpe_dropout=0.0)
    run, corpus, _ = resume_run(plain, tmp_path / "run")
    assert run.recipe.training.bpe_dropout == 0.0
    assert type(corpus) is Corpus
    usual = open_data(plain).corpus("train")
    assert np.array_equal(corpus.tgt.ids, usual.tgt.ids)


def test_micro_tokens_leave_room_for_longer_sentences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "memory_bytes", lambda device: 2**28)
    recipe = RECIPES["multi30k"].changed(precision="float32")
    sizes = [
        fit.with_micro_tokens(recipe.changed(batch_tokens=n, **more), "cpu")
        for n in range(600, 2400, 200)
        for more in ({}, {"bpe_dropout": 0.1})
    ]
    cut = [r.training.micro_tokens is not None for r in sizes]
    usual, dropped = cut[::2], cut[1::2]
    assert 0 < sum(usual) < sum(dropped) < len(dropped)
