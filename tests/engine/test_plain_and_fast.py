"""Each plain form and its fast twin, on the same hostile inputs.

A pair is what PAIRS names. Both sides get each input: they agree, or both
refuse it. What an output is worth beyond that is tested where each is.
"""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from annotated import attention as attending
from annotated import layers as layers_module
from annotated import model as models
from annotated import search, since, training
from annotated.attention import attention, attention_weights
from annotated.batches import Corpus, Sentences, pad_rows
from annotated.engine import packing, trainer
from annotated.engine.errors import RunError
from annotated.engine.packing import FastDropout, chunked_loss, packed
from annotated.engine.search import beam_search
from annotated.engine.trainer import RunConfig
from annotated.loss import smoothed_loss
from annotated.model import Transformer, TransformerConfig
from annotated.search import (
    SearchConfig,
    _CachedCrossAttention,
    cached_beam_search,
    plain_beam_search,
)
from annotated.since import (
    GroupedQueryAttention,
    RotaryAttention,
    _CachedGroups,
)
from annotated.tokens import _BYTES, EOS, BytePairs, Tokenizer
from tests.helpers import SHAPE

NOWHERE = -math.inf


def outcome(call: Any, *args: Any) -> Any:
    """What a call returns; of an error, its class."""
    try:
        return call(*args)
    except Exception as error:
        return type(error)


# --- text


LINES = ["the lower the newer the wider", "der Fluss ist größer"] * 3
PLAIN, FAST = BytePairs.train(LINES, 300), Tokenizer.train(LINES, 300)
TEXTS = {
    "nothing": "",
    "half of a character": "\ud800",
    "half of a character in a word": "wi\ud800der",
    "its other half alone": "a\udc00",
    "both halves": "\ud83d\ude00",
    "both halves of a letter": "x\ud835\udc00y",
    "halves that a quotation mark parts": "\ud800's\udc00",
    "what surrogateescape makes of Latin-1": "gr\udcf6\udcdfer",
    "a NUL": "a\0b",
    "a byte order mark": "\ufeffder",
    "spaces alone": " \t\u2028\u3000 ",
    "the name of a special": "</s><pad>",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_both_tokenizers_read_any_string(text: str) -> None:
    ids = PLAIN.encode(text)
    assert ids == FAST.encode([text])[0]
    assert PLAIN.decode(ids) == FAST.decode([ids])[0]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_both_tokenizers_learn_from_any_string(text: str) -> None:
    lines = [*LINES, *[text] * 9]
    plain, fast = BytePairs.train(lines, 290), Tokenizer.train(lines, 290)
    ids = [plain.encode(line) for line in [*lines, "the river"]]
    assert ids == fast.encode([*lines, "the river"])


def test_both_tokenizers_learn_from_no_lines() -> None:
    plain, fast = BytePairs.train([], 300), Tokenizer.train([], 300)
    assert len(fast) == 260 and plain.merges == {}
    assert plain.encode("a b") == fast.encode(["a b"])[0]


def bytes_of(data: bytes) -> list[int]:
    return [4 + _BYTES.index(byte) for byte in data]


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [0, 1, 2, 3],  # specials alone
        bytes_of("größer".encode()[:3]),  # half of an umlaut
        bytes_of("😀".encode()[1:]),  # a character without its beginning
        bytes_of("😀".encode()[:3] + b"a\xe2\x82\xff \xc3"),
        [2, *bytes_of(b" a"), 2, *bytes_of(b"\xc3"), 0],
    ],
)
def test_both_tokenizers_write_any_tokens(ids: list[int]) -> None:
    assert PLAIN.decode(ids) == FAST.decode([ids])[0]


# --- three searches


def model(*biases: tuple[Any, float]) -> Transformer:
    """A small random model; biases are added to these logits."""
    torch.manual_seed(0)
    shape = SHAPE | {"tie": "none", "output_bias": True}
    made = Transformer(TransformerConfig(**shape)).eval()
    with torch.no_grad():
        for ids, value in biases:
            made.embeddings.bias[ids] = value
    return made


def one_by_one(made: Transformer, sentences: Any, config: Any) -> Any:
    return [plain_beam_search(made, s, config) for s in sentences]


SEARCHES = {
    "plain": one_by_one, "cached": cached_beam_search, "fast": beam_search
}  # fmt: skip
EVERY = slice(None)
MODELS: dict[str, list[tuple[Any, float]]] = {
    "any": [],
    "a word ruled out": [(7, NOWHERE)],
    "the end alone": [(EVERY, NOWHERE), (EOS, 0.0)],
    "no end": [(EOS, NOWHERE)],
    "one word and no end": [(EVERY, NOWHERE), (7, 0.0)],
    "no number": [(EVERY, math.nan)],
}
SOURCES: dict[str, list[list[int]]] = {
    "no sentences": [],
    "an empty one": [[]],
    "an empty one among others": [[5, 6, 7], [], [8]],
    "padding": [[0, 0], [5]],
    "specials": [[1, 2, 3]],
    "beyond the vocabulary": [[5], [6, 12]],
    "below it": [[5, -1]],
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("biases", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("beam", "limit"), [(1, 3), (3, 3), (20, 1)])
def test_three_searches_find_the_same(
    biases: Any, source: Any, beam: int, limit: int
) -> None:
    made = model(*biases)
    config = SearchConfig(beam=beam, nbest=beam, limit=limit)
    plain, *others = (
        outcome(find, made, source, config) for find in SEARCHES.values()
    )
    if isinstance(plain, type):
        # of two faults one search meets the one first, one the other
        assert {plain, *others} in ({plain}, {IndexError, RunError})
        return
    for found in others:
        assert len(found) == len(plain) == len(source)
        for ours, theirs in zip(found, plain, strict=True):
            assert [h.ids for h in ours] == [h.ids for h in theirs]
            assert [h.score for h in ours] == pytest.approx(
                [h.score for h in theirs], abs=1e-5
            )


@pytest.mark.parametrize("find", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("unknown", [12, -1])
def test_a_source_id_beyond_the_vocabulary_is_named(
    find: Any, unknown: int
) -> None:
    complaint = f"source id {unknown} is not in the vocabulary of 12"
    with pytest.raises(IndexError, match=complaint):
        find(model(), [[5, 6], [7, unknown]], SearchConfig())


# --- the model, the loss, dropout


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        (torch.zeros(0, 3), torch.zeros(0, 2)),  # no sentences
        (torch.zeros(2, 3), torch.ones(2, 2)),  # padding alone
        (torch.zeros(2, 0), torch.ones(2, 2)),  # not even that
        (torch.tensor([[0, 5, 0], [5, 0, 0]]), torch.ones(2, 1)),
        (torch.tensor([[5, 2], [2, 0]]), torch.tensor([[1, 5], [1, 0]])),
    ],
)
def test_both_models_agree_on_any_batch(
    src: torch.Tensor, tgt: torch.Tensor, norm: str
) -> None:
    torch.manual_seed(0)
    config = TransformerConfig(**SHAPE, norm=norm, dropout=0.0)
    plain = Transformer(config)
    fast = packed(copy.deepcopy(plain))
    src, tgt = src.long(), tgt.long()
    for each in (plain, fast):
        (each(src, tgt) * (tgt > 0)[:, :, None]).square().sum().backward()
    real = tgt > 0
    torch.testing.assert_close(fast(src, tgt)[real], plain(src, tgt)[real])
    theirs = dict(plain.named_parameters())
    for name, weight in fast.named_parameters():
        torch.testing.assert_close(weight.grad, theirs[name].grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "labels",
    [[1, 2, 4, 6], [5, 5, 5, 5], [0, 0, 0, 0], [0, 3, 0, 3], []],
)
@pytest.mark.parametrize("ruled_out", [None, 3])
def test_both_losses_agree_with_torch(
    labels: list[int], smoothing: float, ruled_out: int | None
) -> None:
    """Also where a word has no probability at all."""
    torch.manual_seed(0)
    x, weight = torch.randn(len(labels), 6), torch.randn(7, 6)
    bias, label = torch.zeros(7), torch.tensor(labels, dtype=torch.long)
    if ruled_out is not None:
        bias[ruled_out] = NOWHERE
    real = label != 0

    def by_torch(x: Any, weight: Any) -> Any:
        return nn.functional.cross_entropy(
            x @ weight.T + bias,
            label,
            reduction="sum",
            ignore_index=0,
            label_smoothing=smoothing,
        )

    def plain(x: Any, weight: Any) -> Any:
        return smoothed_loss(x @ weight.T + bias, label, smoothing)[0]

    def fast(x: Any, weight: Any) -> Any:
        rows = x[real], weight, label[real], smoothing
        return chunked_loss(*rows, rows=2, bias=bias)[0]

    found = []
    for loss in (by_torch, plain, fast):
        sides = [t.clone().requires_grad_() for t in (x, weight)]
        total = loss(*sides)
        total.backward()
        found.append([total.detach(), *(t.grad for t in sides)])
    for ours in found[1:]:
        torch.testing.assert_close(ours[0], found[0][0])
        if found[0][0].isfinite():  # else torch's gradient is NaN
            torch.testing.assert_close(ours[1:], found[0][1:])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (1,), (5, 1, 3)])
@pytest.mark.parametrize("p", [0.0, 0.4, 0.95])
def test_both_dropouts_take_any_shape(shape: Any, p: float) -> None:
    for drop in (nn.Dropout(p), FastDropout(p)):
        dropped = drop(torch.ones(shape))
        assert dropped.shape == shape
        kept = dropped[dropped != 0]
        torch.testing.assert_close(
            kept, torch.full_like(kept, 1 / (1 - p)), rtol=1e-3, atol=0
        )


def test_no_pairs_are_an_empty_batch() -> None:
    assert pad_rows([]).shape == (0, 0)
    corpus = Corpus(Sentences.of([[5]]), Sentences.of([[6]]))
    batch = corpus.batch(np.array([], dtype=int))
    assert [len(side) for side in (batch.src, batch.tgt)] == [0, 0]
    assert batch.tokens == 0


# --- masks


def takers() -> dict[str, Any]:
    """Every function and part that takes a mask, as functions of one."""
    made = model()
    x, layers = torch.randn(2, 3, 16), made.decoder.layers
    q = torch.randn(2, 2, 1, 8)
    first, block = made.encoder.layers[0], made.encoder.layers[0].attention
    fast = packed(made).encoder.layers[0].attention
    rotary, grouped = (
        RotaryAttention(16, 2),
        GroupedQueryAttention(16, 2, 1),
    )
    cached, new = _CachedCrossAttention(block, x), x[:, :1]
    return {
        "attention_weights mask": lambda m: attention_weights(x, x, m),
        "attention mask": lambda m: attention(x, x, x, m),
        "MultiHeadAttention.weights mask": lambda m: block.weights(x, x, m),
        "MultiHeadAttention.forward mask": lambda m: block(x, mask=m),
        "PackedAttention.forward mask": lambda m: fast(x, mask=m),
        "EncoderLayer.forward mask": lambda m: first(x, m),
        "Encoder.forward mask": lambda m: made.encoder(x, m),
        "DecoderLayer.forward mask": lambda m: layers[0](x, x, m),
        "DecoderLayer.forward memory_mask": lambda m: layers[0](
            x, x, None, m
        ),
        "Decoder.forward mask": lambda m: made.decoder(x, x, m),
        "Decoder.forward memory_mask": lambda m: made.decoder(
            x, x, None, m
        ),
        "RotaryAttention.weights mask": lambda m: rotary(x, mask=m),
        "_CachedAttention.attend mask": lambda m: cached.attend(q, m[:1]),
        "_CachedCrossAttention.forward mask": lambda m: cached(
            new, x, m[:1]
        ),
        "CachedSelfAttention.forward mask": None,  # it needs none
        "attend mask": None,  # a PackedMask
        "_CachedGroups.attend mask": lambda m: _CachedGroups(
            grouped, x
        ).attend(q, m[:1]),
    }


def with_masks() -> set[str]:
    """What the functions, parts and caches of these modules call masks."""
    functions: dict[str, Any] = {}
    for module in (
        attending,
        layers_module,
        models,
        since,
        search,
        packing,
    ):
        for name, thing in vars(module).items():
            own = getattr(thing, "__module__", "") == module.__name__
            if own and (name[0] != "_" or name.startswith("_Cached")):
                members = vars(thing) if inspect.isclass(thing) else {}
                functions |= {f"{name}.{n}": m for n, m in members.items()}
                functions[name] = thing
    return {
        f"{name} {parameter}"
        for name, function in functions.items()
        if inspect.isfunction(function)
        for parameter in inspect.signature(function).parameters
        if "mask" in parameter
    }


def test_whatever_takes_a_mask_is_tested() -> None:
    assert with_masks() == takers().keys()


@pytest.mark.parametrize("name", takers())
@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_of_numbers_is_refused_by_that_word(
    name: str, kind: torch.dtype
) -> None:
    call, mask = takers()[name], torch.ones(3, 3).tril()
    if call is None:
        return
    call(mask.bool())  # the same as truth values is fine
    with pytest.raises(TypeError, match=f"mask has to be boolean.*{kind}"):
        call(mask.to(kind))


# --- two trainers

CORPORA: dict[str, list[tuple[list[int], list[int]]]] = {
    "no pairs": [],
    "one pair": [([5, 6], [7])],
    "an empty source": [([], [7, 8]), ([5], [6])],
    "an empty target": [([5, 6], []), ([7], [8])],
    "nothing on either side": [([], [])] * 3,
    "a pair longer than a batch": [([5] * 40, [6] * 30), ([7], [8])] * 2,
    "padding and specials": [([0, 2, 5], [1, 3, 3]), ([3], [2])],
}


@pytest.mark.parametrize("pairs", CORPORA.values(), ids=CORPORA)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_both_trainers_learn_the_same(pairs: Any, smoothing: float) -> None:
    settings: dict[str, Any] = {
        "batch_tokens": 20, "max_steps": 3, "warmup": 2,
        "label_smoothing": smoothing,
    }  # fmt: skip
    config = RunConfig(**settings, precision="float32")
    sides = zip(*pairs, strict=True) if pairs else ([], [])
    corpus = Corpus(*(Sentences.of(list(side)) for side in sides))
    torch.manual_seed(0)
    plain = Transformer(TransformerConfig(**SHAPE, dropout=0.0))
    fast = copy.deepcopy(plain)
    trainers = training.Trainer, trainer.Trainer
    if not pairs:
        for kind in trainers:
            with pytest.raises(ValueError, match="corpus is empty"):
                kind(plain, corpus, config)
        return
    steps = [
        list(kind(each, corpus, config).steps())
        for kind, each in zip(trainers, (plain, fast), strict=True)
    ]
    for ours, theirs in zip(*steps, strict=True):
        assert (ours.step, ours.tokens) == (theirs.step, theirs.tokens)
        for name in ("loss", "nll", "gradient_norm"):
            mine, yours = getattr(ours, name), getattr(theirs, name)
            assert mine == pytest.approx(yours, rel=1e-4), name
    whole = training.validate(plain, corpus, config)
    parts = trainer.Trainer(fast, corpus, config).validate(corpus)
    assert whole == pytest.approx(parts, rel=1e-4)


def test_both_validations_are_without_dropout() -> None:
    pairs = [[5, 6, 7], [8, 9]]
    corpus = Corpus(Sentences.of(pairs), Sentences.of(pairs))
    rates = "dropout", "attention_dropout", "activation_dropout"
    shape: dict[str, Any] = SHAPE | dict.fromkeys(rates, 0.5)
    config = TransformerConfig(**shape)
    plain, settings = Transformer(config).train(), RunConfig()
    fast = trainer.Trainer(copy.deepcopy(plain), corpus, settings)
    whole = training.validate(plain, corpus, settings)
    assert fast.validate(corpus) == pytest.approx(whole, rel=1e-5)
    assert plain.training and fast.model.training
