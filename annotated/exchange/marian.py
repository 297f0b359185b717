"""Exported from the book; edit the chapter, then run `make export`."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated.embeddings import sinusoids
from annotated.engine.errors import RunError
from annotated.engine.parts import PartsConfig, PartsShape
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK

__all__ = [
    "TEXTS", "SETTINGS", "TARGET_VOCAB", "WEIGHTS", "SHARDS", "IDS",
    "pieces_of", "shape_of", "Rows", "rows_of", "interleaved",
    "weight_names", "our_weights", "config_of", "marian_weights",
]  # fmt: skip


# E25-published-weights.md: The configuration
TEXTS = "config.json", "source.spm", "target.spm", "vocab.json"
SETTINGS = "generation_config.json", "tokenizer_config.json"
TARGET_VOCAB = "target_vocab.json"  # if each side has a vocabulary
WEIGHTS = "model.safetensors", "pytorch_model.bin"
SHARDS = tuple(f"{name}.index.json" for name in WEIGHTS)  # if in pieces
_STACKS = "encoder", "decoder"
_FIXED: dict[str, Any] = {  # fields, and the only value that we can use
    "model_type": "marian",
    "scale_embedding": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "forced_bos_token_id": None,
}
_NEEDED = "model_type", "scale_embedding"  # the others may be left out
_PRE_NORM = {  # where the norms come first, as in our own exports
    "model_type": "pegasus",
    "normalize_before": True,
    "add_final_layer_norm": True,
}
_ACTIVATIONS: dict[str, Any] = {  # their names, and ours
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",  # as we write it
    "gelu": "gelu",
    "gelu_new": "gelu",  # by its formula with tanh
    "gelu_pytorch_tanh": "gelu",
}
_WITH_TANH = "gelu_new", "gelu_pytorch_tanh"
_DROPOUTS = "dropout", "attention_dropout", "activation_dropout"
_FIELDS = {  # their names, and ours; of two that are one here, both
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    **{name: name for name in _DROPOUTS},  # may be left out
}
IDS = {  # of our own exports
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "decoder_start_token_id": BOS,
    "eos_token_id": EOS,
    "forced_eos_token_id": EOS,
}


def pieces_of(files: Any) -> list[str]:
    """The files of a weight_map, all beside it; none if it is not one."""
    if not isinstance(files, dict):
        return []
    names = [name for name in files.values() if isinstance(name, str)]
    fine = all(re.fullmatch(r"\w[\w.-]*", name) for name in names)
    return sorted({*names}) if fine and len(names) == len(files) else []


def shape_of(config: Mapping[str, Any], where: Path) -> PartsShape:
    """The shape of the model that config describes; where is its file.
    RunError if a field is missing or has no counterpart.
    """
    pre = config.get("model_type") == _PRE_NORM["model_type"]
    for name, value in (_FIXED | _PRE_NORM if pre else _FIXED).items():
        given = config.get(name, None if name in _NEEDED else value)
        if given is not value and given != value:
            raise _refused(where, name, given, json.dumps(value))
    others = "activation_function", "eos_token_id", "decoder_start_token_id"
    for name in ("vocab_size", *others, *_FIELDS):
        if name not in config and name not in _DROPOUTS:
            raise RunError(f"{where} has no field {name}")
    activation = config["activation_function"]
    if activation not in _ACTIVATIONS:
        wanted = " or ".join(_ACTIVATIONS)
        raise _refused(where, "activation_function", activation, wanted)
    fields: dict[str, Any] = {"activation": _ACTIVATIONS[activation]}
    if activation in _WITH_TANH:
        fields["approximate"] = "tanh"
    for name, ours in _FIELDS.items():
        value = config.get(name)
        if name in config and fields.setdefault(ours, value) != value:
            raise _refused(where, name, value, fields[ours])
    tied = config.get("tie_word_embeddings", True)
    shared = config.get("share_encoder_decoder_embeddings", True)
    try:
        shape = PartsShape(
            **fields,
            norm="pre" if pre else "post",
            tie=("all" if shared else "decoder") if tied else "none",
            output_bias=True,
        )
        PartsConfig(src_vocab=1, tgt_vocab=1, **vars(shape))
    except (TypeError, ValueError) as error:
        raise RunError(f"{where}: {error}") from None
    return shape


def _refused(where: Path, name: str, given: Any, wanted: Any) -> RunError:
    """The error of a field that has no counterpart."""
    return RunError(
        f"{where}: {name} is {json.dumps(given)}, but only {wanted} can be "
        "imported"
    )


# E25-published-weights.md: Ids
_ABSENT_BIAS = -100.0  # of the output of a row that the original lacks


@dataclass(frozen=True)
class Rows:
    """Where our tokens stand in a published table: order has, for each of
    our ids, the row there, or None; pieces has its text.
    """

    order: list[int | None]
    pieces: list[str]

    @property
    def size(self) -> int:
        """The rows of the published table."""
        return len(self.order) - self.order.count(None)

    def take(self, table: Tensor, fill: float = 0.0) -> Tensor:
        """The rows of a table (vocab, …) in our order; fill is new ones."""
        new = table.new_full((1, *table.shape[1:]), fill)
        index = [len(table) if i is None else i for i in self.order]
        return torch.cat([table, new])[torch.tensor(index)]


def rows_of(
    vocab: Mapping[str, Any],
    size: int,
    where: Path,
    eos: int,
    start: int | None,
) -> Rows:
    """The order of a vocabulary with size rows and its file. start is the
    id that outputs begin with. RunError if it does not fit.
    """
    names: dict[int, str] = {}
    for piece, i in vocab.items():
        if type(i) is not int or not 0 <= i < size or i in names:
            raise RunError(
                f"{where} does not fit the model: the id of {piece!r} is "
                f"{json.dumps(i)}, with {size} rows, or that of two tokens"
            )
        names[i] = piece
    special = [vocab.get(SPECIALS[i]) for i in (PAD, EOS, UNK)]
    if len(names) != size or None in special or special[1] != eos:
        raise RunError(
            f"{where} does not fit the model: it has {len(names)} tokens "
            f"for {size} rows, or <pad>, <unk> or </s> (id {eos}) is not "
            "where it should be"
        )
    pad, _, unk = special
    if start is not None and start not in names:
        raise RunError(f"{where} has no id {start}, decoder_start_token_id")
    first = [None if pad == start else pad, start, eos, unk]
    rest = [i for i in range(size) if i not in first]
    # "<s>" may be a token of its own: no text has it
    texts = [names[i] + "*" * (names[i] in SPECIALS) for i in rest]
    return Rows([*first, *rest], [*SPECIALS, *texts])


# E25-published-weights.md: The weights
def interleaved(d_model: int) -> Tensor:
    """For each of our components of the stream, its index in Marian's:
    0, d/2, 1, d/2 + 1, … (d_model,).
    """
    order = torch.empty(d_model, dtype=torch.long)
    sines = (d_model + 1) // 2
    order[0::2] = torch.arange(sines)
    order[1::2] = torch.arange(sines, d_model)
    return order


def _permuted(x: Tensor, how: str, order: Tensor) -> Tensor:
    """A weight with the stream in another order. how is "reads" (columns),
    "writes" (rows) or "inside" (neither).
    """
    if how == "reads":
        return x[:, order]
    return x[order] if how == "writes" else x


def weight_names(shape: ModelShape) -> Iterator[tuple[str, str, str]]:
    """Marian's name of each weight in the stacks, ours, and how it touches
    the stream.
    """
    for stack in _STACKS:
        norms = {"self_attn_layer_norm": "norm1"}
        blocks = {"self_attn": "attention"}
        if stack == "decoder":
            norms["encoder_attn_layer_norm"] = "norm2"
            blocks["encoder_attn"] = "cross_attention"
        norms["final_layer_norm"] = f"norm{len(norms) + 1}"
        parts = {
            norm: (ours, "writes", "writes") for norm, ours in norms.items()
        }
        for block, ours in blocks.items():
            for x in "qkv":
                read = f"{ours}.w_{x}", "reads", "inside"
                parts[f"{block}.{x}_proj"] = read
            parts[f"{block}.out_proj"] = f"{ours}.w_o", "writes", "writes"
        parts["fc1"] = "feed_forward.inner", "reads", "inside"
        parts["fc2"] = "feed_forward.outer", "writes", "writes"
        for i in range(getattr(shape, f"num_{stack}_layers")):
            layer = f"{stack}.layers.{i}"
            for part, (ours, weight, bias) in parts.items():
                for kind, how in (("weight", weight), ("bias", bias)):
                    name = f"model.{layer}.{part}.{kind}"
                    yield name, f"{layer}.{ours}.{kind}", how
        if shape.norm == "pre":
            for kind in ("weight", "bias"):
                last = f"model.{stack}.layer_norm.{kind}"
                yield last, f"{stack}.norm.{kind}", "writes"


class _Weights:
    """Published weights, taken one by one. RunError if one is missing, or
    has another shape than it should.
    """

    def __init__(self, weights: Mapping[str, Tensor], where: Path):
        self.left, self.where = dict(weights), where

    def take(self, shape: tuple[int, ...], *names: str) -> Tensor:
        """The weight that has these names, of which one may be enough."""
        same = [self.left.pop(name) for name in names if name in self.left]
        if not same:
            raise RunError(f"{self.where} has no {names[0]}")
        for weight in same:
            if tuple(weight.shape) != shape:
                raise RunError(
                    f"{self.where} does not fit config.json: {names[0]} is "
                    f"{tuple(weight.shape)}, not {shape}"
                )
            if not torch.equal(weight, same[0]):
                raise RunError(
                    f"{self.where}: {' and '.join(names)} differ, but by "
                    "config.json they are one"
                )
        return same[0]

    def drop_positions(self, d_model: int) -> None:
        """Take out the tables of positions, which must be sinusoids."""
        for stack in _STACKS:
            name = f"model.{stack}.embed_positions.weight"
            if (table := self.left.pop(name, None)) is None:
                continue
            fits = table.dim() == 2 and table.size(1) == d_model
            if fits:  # they may be in 16 bits
                ours = table[:, interleaved(d_model)].float()
                waves = sinusoids(len(table), d_model)
                fits = torch.allclose(ours, waves, rtol=0, atol=0.01)
            if not fits:
                raise RunError(f"{self.where}: {name} has no sinusoids")


def our_weights(
    weights: Mapping[str, Tensor],
    config: TransformerConfig,
    source: Rows,
    target: Rows,
    shared: bool,
    where: Path,
) -> dict[str, Tensor]:
    """Published weights, read from where, in our order and by our names;
    shared says whether both stacks read one table. RunError if one is
    missing, left over, or of another shape.
    """
    theirs, d = _Weights(weights, where), config.d_model
    theirs.drop_positions(d)
    read, write = (f"model.{s}.embed_tokens.weight" for s in _STACKS)
    last = ["lm_head.weight"] * (config.tie != "none")
    tables: dict[str, Tensor] = {}
    if config.tie == "all":
        names = ["model.shared.weight", read, write, *last]
        table = theirs.take((target.size, d), *names)
    else:
        both = theirs.left.pop("model.shared.weight", None)
        if shared and both is not None:  # it stands for those left out
            theirs.left = {read: both, write: both} | theirs.left
        tables["source"] = source.take(theirs.take((source.size, d), read))
        table = theirs.take((target.size, d), write, *last)
    tables["target"] = target.take(table)
    if config.tie == "none":
        table = theirs.take((target.size, d), "lm_head.weight")
        tables["output"] = target.take(table)
    order = interleaved(d)
    ours = {f"embeddings.{n}": x[:, order] for n, x in tables.items()}
    bias = torch.zeros(1, target.size, dtype=table.dtype)
    if "final_logits_bias" in weights:
        bias = theirs.take((1, target.size), "final_logits_bias")
    ours["embeddings.bias"] = target.take(bias[0], _ABSENT_BIAS)
    for name, *_ in weight_names(config):  # before any layer is built
        if name not in theirs.left:
            raise RunError(f"{where} has no {name}")
    with torch.device("meta"):  # shapes without memory
        like = dict(Transformer(config).named_parameters())
    for name, our_name, how in weight_names(config):
        weight = theirs.take(tuple(like[our_name].shape), name)
        ours[our_name] = _permuted(weight, how, order)
    if theirs.left:
        raise RunError(f"{where} has a weight too many: {min(theirs.left)}")
    return ours


# E25-published-weights.md: The way back
_LONGEST = 1024  # positions that transformers' models have


def config_of(config: TransformerConfig) -> dict[str, Any]:
    """config.json of a model of ours, from which shape_of has its shape."""
    fixed, name = _FIXED, "MarianMTModel"
    if config.norm == "pre":
        fixed, name = _FIXED | _PRE_NORM, "PegasusForConditionalGeneration"
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    names["gelu"] = "gelu"
    if getattr(config, "approximate", "none") == "tanh":
        names["gelu"] = "gelu_new"
    return {
        "architectures": [name],
        **{n: value for n, value in fixed.items() if value is not None},
        "static_position_embeddings": True,
        "is_encoder_decoder": True,
        "vocab_size": config.src_vocab,
        "decoder_vocab_size": config.tgt_vocab,
        **{n: getattr(config, ours) for n, ours in _FIELDS.items()},
        "activation_function": names[config.activation],
        "max_position_embeddings": _LONGEST,
        "share_encoder_decoder_embeddings": config.tie == "all",
        "tie_word_embeddings": config.tie != "none",
        **IDS,
    }


def marian_weights(model: Transformer) -> dict[str, Tensor]:
    """A model's weights, in Marian's order and by its names."""
    config, ours = model.config, model.state_dict()
    back = interleaved(config.d_model).argsort()
    e = model.embeddings
    if config.tie == "all":
        tables = {"model.shared": e.target}
    else:
        tables = {
            "model.encoder.embed_tokens": e.source,
            "model.decoder.embed_tokens": e.target,
        }
    if config.tie == "none":
        tables["lm_head"] = e.output
    theirs = {f"{n}.weight": x.detach()[:, back] for n, x in tables.items()}
    bias = ours.get("embeddings.bias", torch.zeros(config.tgt_vocab))
    theirs["final_logits_bias"] = bias[None]
    if config.norm == "pre":
        for stack in _STACKS:
            waves = sinusoids(_LONGEST, config.d_model)[:, back]
            theirs[f"model.{stack}.embed_positions.weight"] = waves
    for name, our_name, how in weight_names(config):
        if our_name not in ours:  # Marian has a bias everywhere
            width = len(ours[our_name.replace(".bias", ".weight")])
            theirs[name] = torch.zeros(width)
        else:
            theirs[name] = _permuted(ours[our_name], how, back)
    return theirs
