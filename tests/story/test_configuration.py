"""Chapter 08: the configuration, and how many parameters it asks for."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from annotated.attention import MultiHeadAttention
from annotated.engine.recipes import RECIPES
from annotated.layers import DecoderLayer, EncoderLayer, FeedForward
from annotated.model import Transformer, TransformerConfig, count_parameters
from tests.pages.cards import literal
from tests.story.models import small

# --- configurations


def test_the_presets_are_the_rows_of_table_3():
    base = TransformerConfig.base(src_vocab=9, tgt_vocab=9)
    big = TransformerConfig.big(src_vocab=9, tgt_vocab=9)
    fields = (
        "num_encoder_layers",
        "num_decoder_layers",
        "d_model",
        "d_ff",
        "num_heads",
        "key_size",
        "value_size",
        "dropout",
    )
    shape = [[getattr(c, f) for f in fields] for c in (base, big)]
    assert shape[0] == [6, 6, 512, 2048, 8, 64, 64, 0.1]
    assert shape[1] == [6, 6, 1024, 4096, 16, 64, 64, 0.3]
    # "64", and not "64.0": as a size, torch refuses a fraction
    assert str(shape[0][-3:]) == "[64, 64, 0.1]"
    for c in (base, big):
        assert (c.norm, c.positions, c.tie) == ("post", "sinusoidal", "all")
        assert c.attention_dropout == c.activation_dropout == 0.0


def test_presets_take_changes():
    config = TransformerConfig.big(src_vocab=9, tgt_vocab=9, dropout=0.1)
    assert (config.dropout, config.d_model) == (0.1, 1024)


def test_a_configuration_cannot_be_changed_only_replaced_and_checked():
    config = small()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 6
    assert dataclasses.replace(config, d_ff=9).d_ff == 9
    with pytest.raises(ValueError, match="d_ff"):
        dataclasses.replace(config, d_ff=0)


COUNTS = [
    "src_vocab", "tgt_vocab", "num_encoder_layers", "num_decoder_layers",
    "d_model", "d_ff", "num_heads", "d_k", "d_v", "window", "max_len",
]  # fmt: skip


WRONG = [
    (name, value) for name in COUNTS for value in (0, -1, 1.5, "8", True)
]


WRONG += [
    (name, value)
    for name in ("dropout", "attention_dropout", "activation_dropout")
    for value in (-0.1, 1.0, 2, math.nan, "0.1", None, True)
]


WRONG += [
    ("src_vocab", None),
    ("norm", "middle"),
    ("norm", None),
    ("positions", "rotary"),
    ("tie", "both"),
    ("tie", True),
    ("activation", "swish"),
    ("activation", None),
    ("output_bias", 1),
    ("bias", 1),
    ("bias", "no"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(ValueError, match=rf"^{field}\b"):
        small(**{field: value})


def test_every_field_is_checked():
    checked = {field for field, _ in WRONG}
    fields = {f.name for f in dataclasses.fields(TransformerConfig)}
    assert fields == checked


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="num_heads 5 .* d_model 12"):
        small(num_heads=5)
    with pytest.raises(ValueError, match="give d_k and d_v"):
        small(num_heads=5, d_k=3)


def test_one_matrix_for_two_vocabularies_is_refused():
    with pytest.raises(ValueError, match='tie "all" .* src_vocab is 20'):
        small(src_vocab=20)


# --- Table 3

PAPER = literal("08-transformer", "PAPER")  # as the page prints it


BIG = {"big": PAPER.pop("big")}


def table3(vocab):
    """Every row of Table 3 that changes the model, by name."""
    return {
        name.removeprefix("table3-"): recipe.config(vocab, vocab)
        for name, recipe in RECIPES.items()
        if name.startswith("table3-") and "eps" not in name
    }


def millions(vocab, names):
    rows = table3(vocab)
    return {
        name: round(count_parameters(rows[name]) / 1e6) for name in names
    }


def test_one_vocabulary_gives_every_count_of_the_base_family():
    assert millions(41_000, PAPER) == PAPER


def test_the_vocabulary_of_the_text_gives_none_of_them():
    counts = millions(37_000, PAPER)
    assert not any(counts[name] == PAPER[name] for name in PAPER)


def test_the_big_model_wants_another_vocabulary():
    assert millions(36_000, BIG) == BIG


def test_table_3_has_every_row_that_changes_the_model():
    rows = table3(100)
    assert len(rows) == 18
    shapes = {
        name: (c.num_encoder_layers, c.d_model, c.d_ff, c.num_heads)
        + (c.key_size, c.value_size, c.dropout, c.positions)
        for name, c in rows.items()
    }
    base = (6, 512, 2048, 8, 64, 64, 0.1, "sinusoidal")
    assert shapes["base"] == base
    assert shapes["A-h1"] == (6, 512, 2048, 1, 512, 512, *base[6:])
    assert shapes["A-h32"] == (6, 512, 2048, 32, 16, 16, *base[6:])
    assert shapes["B-dk16"] == (6, 512, 2048, 8, 16, 64, *base[6:])
    assert shapes["C-N8"] == (8, *base[1:])
    assert shapes["C-d256"] == (6, 256, 2048, 8, 32, 32, *base[6:])
    assert shapes["C-d1024"] == (6, 1024, 2048, 8, 128, 128, *base[6:])
    assert shapes["C-ff4096"] == (6, 512, 4096, *base[3:])
    assert shapes["D-drop0.2"] == (*base[:6], 0.2, "sinusoidal")
    assert shapes["E-learned"] == (*base[:7], "learned")
    assert shapes["big"] == (6, 1024, 4096, 16, 64, 64, 0.3, "sinusoidal")
    assert len(set(shapes.values())) == len(rows)


def test_rows_a_keep_the_number_of_parameters():
    rows = table3(1000)
    counts = {count_parameters(rows[f"A-h{h}"]) for h in (1, 4, 16, 32)}
    assert counts == {count_parameters(rows["base"])}


def test_counting_needs_no_memory_and_counts_what_is_built():
    config = small(tie="decoder", norm="pre", positions="learned")
    built = sum(p.numel() for p in Transformer(config).parameters())
    assert count_parameters(config) == built
    huge = TransformerConfig.big(src_vocab=10**6, tgt_vocab=10**6)
    assert count_parameters(huge) > 10**9


def test_every_field_of_a_configuration_reaches_its_parts():
    model = Transformer(
        small(
            dropout=0.1,
            attention_dropout=0.2,
            activation_dropout=0.3,
            activation="silu",
            output_bias=True,
            bias=False,
            d_k=3,
            d_v=5,
        )
    )
    x = torch.randn(4, 12)
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            assert (part.dropout.p, part.d_k, part.d_v) == (0.2, 3, 5)
            assert part.w_o.bias is None
        if isinstance(part, FeedForward):
            assert part.dropout.p == 0.3 and part.outer.bias is None
            silu = part.outer(F.silu(part.inner(x)))
            assert torch.equal(part.eval()(x), silu)
        if isinstance(part, EncoderLayer | DecoderLayer | Transformer):
            assert part.dropout.p == 0.1
    bias = model.embeddings.bias
    bias.data += 1
    logits = F.linear(x, model.embeddings.output)
    torch.testing.assert_close(model.embeddings.logits(x), logits + bias)


@pytest.mark.parametrize("window", [None, 3])
def test_a_model_computes_where_its_weights_are(window):
    model = Transformer(small(window=window)).to("meta")
    ids = torch.ones(2, 5, dtype=torch.long, device="meta")
    assert model(ids, ids).device.type == "meta"


def test_a_configuration_may_change_the_model_that_is_built_from_it():
    class Normed(TransformerConfig):
        def change(self, model):
            model.decoder.norm = torch.nn.LayerNorm(self.d_model)

    fields = dataclasses.asdict(small())
    model = Transformer(Normed(**fields))
    assert isinstance(model.decoder.norm, torch.nn.LayerNorm)
    assert isinstance(model.encoder.norm, torch.nn.Identity)
