"""Page E25: a published model, in our form, says what it said before."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.engine.parts import PartsConfig
from annotated.engine.search import beam_search
from annotated.exchange.marian import (
    Published,
    _our_weights,
    _rows_of,
    _shape_of,
    interleaved,
)
from annotated.search import SearchConfig, beam, greedy, plain_beam_search
from annotated.tokens import BOS, EOS, PAD
from tests.exchange.published import (
    GERMAN,
    KINDS,
    both_logits,
    double,
    marian_model,
    random_ids,
    theirs,
    there,
    transformers,
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_the_published_models(
    kind: str, published: Any
) -> None:
    place, model = published(kind)
    language = "deu" if "codes" in KINDS[kind] else None
    found = Published.read(place, language)
    src = random_ids(found.rows[0], (3, 9), end=3)
    tgt = random_ids(found.rows[1], (3, 7))
    tgt[:, 0] = BOS
    own, given = both_logits(model, found, src, tgt)
    assert given.std() > 0.5
    torch.testing.assert_close(own, given, rtol=0, atol=1e-10)
    # and the row that was added takes no probability away
    order = found.rows[1].order
    with torch.no_grad():
        share = double(found)(src, tgt).softmax(dim=-1)
    assert share[..., order.index(None)].max() < 1e-30


@settings(deadline=None, max_examples=20)
@given(
    heads=st.integers(1, 3), size=st.integers(1, 4),
    layers=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ffn=st.integers(1, 9), vocab=st.integers(4, 30),
    start=st.booleans(), shared=st.booleans(), tied=st.booleans(),
    act=st.sampled_from(["relu", "swish", "gelu", "gelu_new"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_so_they_are_in_any_shape(
    heads: int, size: int, layers: tuple[int, int], ffn: int, vocab: int,
    start: bool, shared: bool, tied: bool, act: str, seed: int,
) -> None:  # fmt: skip
    draw = random.Random(seed)
    names = ["<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(vocab - 3))]
    draw.shuffle(names)
    table = {name: i for i, name in enumerate(names)}
    pad = table["<pad>"]
    first = pad if start or vocab == 3 else table["w0"]
    config = transformers.MarianConfig(
        vocab_size=vocab, d_model=heads * size, encoder_layers=layers[0],
        decoder_layers=layers[1], encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn, activation_function=act, scale_embedding=True,
        pad_token_id=pad, eos_token_id=table["</s>"],
        decoder_start_token_id=first, forced_eos_token_id=None,
        tie_word_embeddings=tied, share_encoder_decoder_embeddings=shared,
    )  # fmt: skip
    model = marian_model(config)
    where = Path("config.json")
    shape = _shape_of(
        json.loads(config.to_json_string(use_diff=False)), where
    )
    rows = _rows_of(table, vocab, where, table["</s>"], first)
    sizes: Any = dict.fromkeys(("src_vocab", "tgt_vocab"), len(rows.order))
    made = PartsConfig(**sizes, **vars(shape))
    weights = _our_weights(
        model.state_dict(), made, rows, rows, shared, where
    )
    found = Published({}, made, None, None, weights, (rows, rows))
    torch.manual_seed(seed)
    tgt = random_ids(rows, (2, 4))
    tgt[:, 0] = BOS
    own, given = both_logits(
        model, found, random_ids(rows, (2, 5), end=1), tgt
    )
    torch.testing.assert_close(own, given, rtol=0, atol=1e-10)


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_the_order_of_the_stream_is_a_permutation(d_model: int) -> None:
    order = interleaved(d_model)
    assert sorted(order.tolist()) == list(range(d_model))
    assert order.tolist()[:2] == [0, (d_model + 1) // 2][:d_model]


@pytest.mark.parametrize(
    "count", [15, pytest.param(200, marks=pytest.mark.exhaustive)]
)
def test_the_search_finds_what_it_finds_in_the_published_model(
    count: int, folder: Path
) -> None:
    model = (
        transformers.MarianMTModel.from_pretrained(folder).double().eval()
    )
    found = Published.read(folder)
    ours, rows = double(found), found.rows[1]
    columns = torch.tensor([0 if i is None else i for i in rows.order])

    def asking(src: list[int]) -> Any:
        """What chapter 16's search asks, answered by transformers: the log
        p of the token after some; each question is put to it once.
        """
        memory = model.get_encoder()(there([*src, EOS], rows)[None])

        @cache
        def answer(*ids: int) -> torch.Tensor:
            logits = model(
                encoder_outputs=memory,
                decoder_input_ids=there(list(ids), rows)[None],
            ).logits[0, -1]
            log_p = logits.log_softmax(dim=-1)[columns]
            log_p[[PAD, BOS]] = -torch.inf
            return log_p

        return lambda ids: answer(*ids)

    for line in found.source.encode(GERMAN[:count]):
        with torch.no_grad():
            ask = asking(line)
        for width in (1, 4):
            config = SearchConfig(beam=width, limit=12)
            mine = plain_beam_search(ours, line, config)[0]
            limit = min(len(line) + config.extra, 12)
            with torch.no_grad():
                other = (
                    beam(ask, limit, config)[0]
                    if width > 1
                    else greedy(ask, limit, config)
                )
            assert mine.ids == other.ids
            assert (
                abs(mine.score - other.score) < 1e-5
            )  # it adds in float32


def test_greedy_search_writes_what_generate_writes(folder: Path) -> None:
    model = (
        transformers.MarianMTModel.from_pretrained(folder).double().eval()
    )
    found, tokens = Published.read(folder), theirs(folder)
    given = model.generate(
        **tokens(GERMAN[:200], return_tensors="pt", padding=True),
        num_beams=1, do_sample=False, max_length=13,
    )  # fmt: skip
    config = SearchConfig(beam=1, limit=12)
    mine = beam_search(
        double(found), found.source.encode(GERMAN[:200]), config
    )
    for best, row in zip(mine, given.tolist()):
        row = row[1:]
        row = row[: row.index(0)]  # their end
        assert there(best[0].ids, found.rows[1]).tolist() == row
    said = found.target.decode([best[0].ids for best in mine])
    assert said == tokens.batch_decode(given, skip_special_tokens=True)
    assert len(set(said)) > 20
