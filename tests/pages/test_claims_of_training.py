"""What the paper says of its training and of what came out (§5, §6)."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from annotated.checkpoints import average_weights
from annotated.corpora.registry import registry
from annotated.corpora.treebanks import _split_articles
from annotated.costs import _PAPER_STEPS, P100, PAPER_HOURS, paper_cost
from annotated.embeddings import sinusoids
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES, Recipe
from annotated.engine.trainer import RunConfig
from annotated.engine.trainer import Trainer as FastTrainer
from annotated.loss import smoothed_loss, smoothed_targets
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.schedule import learning_rate
from annotated.search import SearchConfig
from annotated.training import (
    Trainer,
    TrainingConfig,
    batch_loss,
    copy_corpus,
)
from annotated.variations import TABLE3
from tests.pages.cards import card, numbers
from tests.pages.small import SRC, TGT, model

# --- 5: training ----------------------------------------------------------


def test_source_and_target_share_byte_pairs() -> None:
    """5.1 p1: 4.5 million pairs, about 37,000 byte pairs for both
    languages, 25,000 tokens of each in a batch.
    """
    assert "about 4.5 million pairs" in registry()["wmt14-en-de"]["about"]
    paper = Recipe(about="", data="pocket", source="de", target="en")
    assert (paper.tokenizer, paper.vocab) == ("bpe", 37_000)
    assert paper.training.batch_tokens == 25_000
    assert paper.model.tie == "all"
    source, target = open_data(paper.changed(train_pairs=300)).tokenizers()
    assert source is target
    lines = ["the child", "das Kind"]
    tokens = source.encode(lines)
    assert source.decode(tokens) == lines
    assert max(map(len, tokens)) < 5  # it knows words of both languages


@pytest.mark.parametrize(
    ("pair", "millions", "vocab", "kind"),
    [("de", "4.5", 37_000, "bpe"), ("fr", "36", 32_000, "wordpiece")],
)
def test_the_papers_data_are_those_of_5_1(
    pair: str, millions: str, vocab: int, kind: str
) -> None:
    """5.1 p1: both corpora, their tokens, and the size of a batch."""
    name = f"wmt14-en-{pair}"
    for size in ("base", "big"):
        recipe = RECIPES[f"{name}-{size}"]
        assert recipe.data == name and recipe.train_pairs is None
        assert (recipe.source, recipe.target) == ("en", pair)
        assert (recipe.vocab, recipe.tokenizer) == (vocab, kind)
        assert recipe.model.tie == "all"
        assert recipe.training.batch_tokens == 25_000
    assert f"about {millions} million pairs" in registry()[name]["about"]
    said = numbers("10-tokens", "Paper §5.1, paragraph 1, on tokens")
    assert said == ["2014", "4.5", "37,000", "2014", "36", "32,000"]
    said = numbers("11-batches", "Paper §5.1, paragraph 1, on batches")
    assert said == ["25,000", "25,000"]
    said = numbers("20-multi30k", "Paper §5.1, the sizes")
    assert said == [
        "2014",
        "4.5",
        "37,000",
        "36",
        "32,000",
        "25,000",
        "25,000",
    ]


@pytest.mark.parametrize("kind", [Trainer, FastTrainer])
def test_adam_gets_the_rate_of_each_step(kind: Any) -> None:
    """5.3 p1: its constants, and a rate that varies by the formula."""
    torch.manual_seed(0)
    shape = {"d_model": 16, "d_ff": 16, "num_heads": 2}
    small = Transformer(
        TransformerConfig(src_vocab=20, tgt_vocab=20, **shape)
    )
    config = RunConfig(batch_tokens=60, max_steps=9, warmup=4)
    trainer = kind(small, copy_corpus(100), config)
    used = []
    for progress in trainer.steps():
        (group,) = trainer.optimizer.param_groups
        assert isinstance(trainer.optimizer, torch.optim.Adam)
        assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)
        assert group["lr"] == progress.rate
        used.append(group["lr"])
    wanted = [learning_rate(step, 16, warmup=4) for step in range(1, 10)]
    assert used == pytest.approx(wanted)
    assert max(used) == used[3] > 1.4 * used[-1]


def test_the_rate_rises_in_a_line_and_falls_with_the_root() -> None:
    """5.3 p2: over 4,000 steps, and from there on."""
    plain = TrainingConfig()
    assert (plain.warmup, plain.rate, plain.cooldown) == (4000, 1.0, 0)
    rate = partial(learning_rate, d_model=512)
    for step in (1, 1000, 2500, 4000):
        assert rate(step) == pytest.approx(step * rate(1))
    for step in (4000, 9000, 100_000):
        root = math.sqrt(4000 / step)
        assert rate(step) == pytest.approx(root * rate(4000))
    assert rate(3999) < rate(4000) > rate(4001)


def test_what_sublayers_and_embeddings_say_is_dropped_out() -> None:
    """5.4 p2: each output before it is added and normed, and both sums
    of embeddings and positions, at a rate of 0.1.
    """
    assert ModelShape().dropout == 0.1
    whole = model()
    said: list[Tensor] = []
    dropped: list[Tensor] = []
    for layer in (*whole.encoder.layers, *whole.decoder.layers):
        for part in layer.children():
            if isinstance(part, nn.Dropout):
                assert part.p == 0.1
                part.register_forward_pre_hook(
                    lambda m, args: dropped.append(args[0])
                )
            elif not isinstance(part, nn.LayerNorm):
                part.register_forward_hook(
                    lambda m, args, out: said.append(out)
                )
    sums: list[Tensor] = []
    whole.dropout.register_forward_pre_hook(
        lambda m, args: sums.append(args[0])
    )
    whole(SRC, TGT)
    assert len(said) == 2 * 2 + 3 * 3
    assert [id(x) for x in dropped] == [id(x) for x in said]
    assert [x.shape for x in sums] == [(1, 5, 12), (1, 4, 12)]
    assert whole.dropout.p == 0.1
    table = sinusoids(5, 12, torch.float64)
    read = whole.embeddings
    wanted = (
        read.read_source(SRC) + table,
        read.read_target(TGT) + table[:4],
    )
    torch.testing.assert_close(sums, [*wanted], rtol=0.0, atol=1e-6)


def test_where_all_is_dropped_the_norms_alone_are_left() -> None:
    """5.4 p2: what dropout lets through is what is added and normed."""
    whole = model()
    x, memory = torch.randn(2, 1, 4, 12).double().unbind()
    whole.train()
    whole.dropout.p = 1.0
    bottoms: list[Tensor] = []
    for stack in (whole.encoder, whole.decoder):
        stack.register_forward_pre_hook(
            lambda m, args: bottoms.append(args[0])
        )
    whole(SRC, TGT)
    assert not any(bottom.any() for bottom in bottoms)
    for layer in (*whole.encoder.layers, *whole.decoder.layers):
        layer.dropout.p = 1.0
        decoding = layer in whole.decoder.layers
        found = layer(x, memory) if decoding else layer(x)
        norms = [m for m in layer.children() if isinstance(m, nn.LayerNorm)]
        torch.testing.assert_close(found, nn.Sequential(*norms)(x))


@pytest.mark.parametrize("kind", [Trainer, FastTrainer])
def test_training_learns_from_smoothed_labels(kind: Any) -> None:
    """5.4 p3: the loss of a step is the smoothed one, by a tenth."""
    shape = {"d_model": 16, "d_ff": 16, "num_heads": 2, "dropout": 0.0}
    torch.manual_seed(0)
    small = Transformer(
        TransformerConfig(src_vocab=20, tgt_vocab=20, **shape)
    )
    trainer = kind(small, copy_corpus(50), RunConfig(max_steps=1))
    batch = trainer.corpus.batch(trainer.plan(0)[0])
    with torch.no_grad():
        for matrix in small.embeddings.parameters():
            matrix *= 5  # a model that is sure of itself
        sums = batch_loss(small, batch, 0.1)
    loss, nll = (float(x) / batch.tokens for x in sums)
    (step,) = trainer.steps()
    assert step.loss == pytest.approx(loss, rel=1e-4)
    assert step.nll == pytest.approx(nll, rel=1e-4)
    assert abs(loss - nll) > 0.01


def test_smoothing_is_a_tenth_spread_evenly() -> None:
    """5.4 p3, and reference 36."""
    assert TrainingConfig().label_smoothing == 0.1
    targets = smoothed_targets(torch.tensor([2]), 5, 0.1)
    wanted = torch.tensor([[0.02, 0.02, 0.92, 0.02, 0.02]])
    torch.testing.assert_close(targets, wanted)
    logits = torch.randn(1, 5)
    by_hand = -(wanted * logits.log_softmax(dim=-1)).sum()
    loss, _ = smoothed_loss(logits, torch.tensor([2]))
    torch.testing.assert_close(loss, by_hand)


# --- 5.2 and 6: what it took, and what came out ---------------------------


@pytest.mark.parametrize(
    ("size", "steps", "seconds", "hours"),
    [("base", 100_000, 0.4, 12), ("big", 300_000, 1.0, 3.5 * 24)],
)
def test_the_hours_are_the_steps_times_a_step(
    size: str, steps: int, seconds: float, hours: float
) -> None:
    """5.2 p1: on eight P100s; within a tenth, which is what the paper's
    rounding leaves.
    """
    assert (_PAPER_STEPS[size], PAPER_HOURS[size]) == (steps, hours)
    assert hours == pytest.approx(steps * seconds / 3600, rel=0.1)
    assert paper_cost(hours) == paper_cost(hours, gpus=8, speed=P100)
    recipe = RECIPES["table3-base" if size == "base" else "table3-big"]
    assert recipe.training.max_steps == steps


def test_a_p100_sustains_nine_and_a_half() -> None:
    """Footnote 5, with the three cards that we have no use for."""
    said = card("22-costs", "Paper §6.1, paragraph 4, and footnote 5")
    assert P100 == 9.5e12
    assert "2.8, 3.7, 6.0 and 9.5 TFLOPS for K80, K40, M40 and P100" in said


@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_checkpoints_and_search_are_those_of_6_1(pair: str) -> None:
    """6.1 p3: five checkpoints, or twenty, ten minutes apart."""
    for size, last in (("base", 5), ("big", 20)):
        values = RECIPES[f"wmt14-{pair}-{size}"].flat()
        assert (values["keep"], values["save_minutes"]) == (last, 10)
        assert (values["beam"], values["alpha"]) == (4, 0.6)
        assert values["extra"] == 50
    assert SearchConfig() == SearchConfig(beam=4, alpha=0.6, extra=50)


def test_the_last_checkpoints_of_6_1_are_averaged(tmp_path: Path) -> None:
    """6.1 p3: the model is the mean of the last five, or twenty, of those
    that are written every ten minutes.
    """
    files = [tmp_path / f"{place}.safetensors" for place in range(25)]
    for place, file in enumerate(files):
        save_file({"x": torch.tensor([float(place)])}, file)
    for size, mean in ("base", 22.0), ("big", 14.5):
        values = RECIPES[f"wmt14-en-de-{size}"].flat()
        assert values["save_minutes"] == 10
        last = average_weights(files[-values["keep"] :])
        assert last["x"].tolist() == [mean]


def test_the_parsers_are_the_base_model_but_for_what_was_tuned() -> None:
    """6.3 p1 and p3."""
    base = RECIPES["wmt14-en-de-base"].flat()
    tuned = {"dropout", "attention_dropout", "warmup", "beam"}
    said = {"num_encoder_layers", "num_decoder_layers", "d_model", "vocab"}
    said |= {"alpha", "extra"}
    task = {"about", "data", "source", "target", "tokenizer", "tie"}
    files = {"save_every", "save_minutes"}
    for name in ("parse-wsj", "parse-semi"):
        values = RECIPES[name].flat()
        other = {key for key in values if values[key] != base[key]}
        assert other <= tuned | said | task | files
        assert (values["beam"], values["alpha"]) == (21, 0.3)
        assert values["extra"] == 300


def test_the_sentences_of_6_2_hold_for_rows_a() -> None:
    """6.2 p2: one head is 0.9 BLEU behind, and too many lose as well."""
    bleu = {h: TABLE3[f"A-h{h}"].bleu for h in (1, 4, 16, 32)}
    bleu[8] = TABLE3["base"].bleu
    best = max(bleu.values())
    assert best - bleu[1] == pytest.approx(0.9)
    assert bleu[8] == best > bleu[32]


def test_the_rows_of_table_3_are_judged_as_6_2_says() -> None:
    """6.2 p1: each is the base model with one thing changed, English to
    German, on newstest2013, with the same search, without averaging.
    """
    base = RECIPES["wmt14-en-de-base"]
    groups = {
        "A-h": {"num_heads"},
        "B-dk": {"d_k"},
        "C-N": {"num_encoder_layers", "num_decoder_layers"},
        "C-d": {"d_model"},
        "C-ff": {"d_ff"},
        "D-drop": {"dropout"},
        "D-eps": {"label_smoothing"},
        "E-": {"positions"},
    }
    for row in TABLE3.keys() - {"base", "big"}:
        changed = RECIPES[f"table3-{row}"].unlike(base)
        (wanted,) = (
            groups[name] for name in groups if row.startswith(name)
        )
        assert changed.keys() == wanted | {"about", "keep"}, row
    for row in TABLE3:
        recipe = RECIPES[f"table3-{row}"]
        assert recipe.data == "wmt14-en-de" and recipe.target == "de"
        assert recipe.training.keep == 1
        assert recipe.search == SearchConfig(beam=4, alpha=0.6, extra=50)
    valid = registry()["wmt14-en-de"]["splits"]["valid"]
    assert "newstest2013" in valid["member"]


def test_the_sentences_of_6_2_hold_for_rows_b_to_e() -> None:
    """6.2 p3: short keys hurt; larger is better, in perplexity always, in
    BLEU but for eight layers; dropout helps; learned positions are about
    as good.
    """
    for ordered in (
        ("base", "B-dk32", "B-dk16"),
        ("C-N8", "base", "C-N4", "C-N2"),
        ("C-d1024", "base", "C-d256"),
        ("C-ff4096", "base", "C-ff1024"),
        ("big", "base"),
        ("base", "D-drop0.2", "D-drop0.0"),
    ):
        rows = [TABLE3[name] for name in ordered]
        lost = [row.perplexity for row in rows]
        bleu = [row.bleu for row in rows if row is not TABLE3["C-N8"]]
        assert lost == sorted(lost) and len(set(lost)) == len(lost)
        assert bleu == sorted(bleu, reverse=True)
        assert len(set(bleu)) == len(bleu)
    base, none = TABLE3["base"], TABLE3["D-drop0.0"]
    assert base.bleu - none.bleu > 1
    assert none.perplexity - base.perplexity > 0.8
    learned = TABLE3["E-learned"]
    assert learned.perplexity == base.perplexity
    assert abs(learned.bleu - base.bleu) == pytest.approx(0.1)


def test_the_parsers_data_are_those_of_6_3() -> None:
    """6.3 p2: shape, trees and vocabulary, here and on the page."""
    for name, vocab, trees in (
        ("parse-wsj", 16_000, "40,000 gold trees"),
        ("parse-semi", 32_000, "17 million silver trees"),
    ):
        recipe = RECIPES[name]
        config = recipe.config()
        layers = config.num_encoder_layers, config.num_decoder_layers
        assert (*layers, config.d_model) == (4, 4, 1024)
        assert recipe.vocab == vocab and trees in recipe.about
    names = [f"{s:02}/wsj_{s:02}01.mrg" for s in range(25)]
    split = _split_articles(names)
    assert split["train"] == names[2:22] and split["test"] == names[23:24]
    said = numbers("24-parsing", "Paper §6.3, paragraph 2")
    assert said == ["4", "1024", "40,000", "16,000", "17", "32,000"]
