"""Exported from the book; edit the chapter, then run `make export`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from annotated.corpora.fetch import file_hash
from annotated.corpora.sentencepieces import (
    SentencePieces,
    codes_of,
    kind_of,
    load_tokenizer,
    optional_import,
    same_tokens,
    vocabulary,
)
from annotated.embeddings import sinusoids
from annotated.engine.errors import RunError
from annotated.engine.files import (
    check_new,
    new_folder,
    write_json,
    write_text,
)
from annotated.engine.packing import check_paper
from annotated.engine.parts import PartsConfig, PartsShape
from annotated.engine.recipes import Recipe
from annotated.engine.runs import Run, read_recipe
from annotated.engine.tensors import read_tensors, write_tensors
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.search import SearchConfig
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer

__all__ = [
    "interleaved", "weight_names", "Published", "import_marian",
    "find_published", "write_transformers",
]  # fmt: skip


# E25-published-weights.md: The configuration
_TEXTS = "config.json", "source.spm", "target.spm", "vocab.json"
_SETTINGS = "generation_config.json", "tokenizer_config.json"
_UNUSED = {  # settings of a search, where they change nothing
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0,
}  # fmt: skip
_TARGET_VOCAB = "target_vocab.json"  # if each side has a vocabulary
_WEIGHTS = "model.safetensors", "pytorch_model.bin"
_SHARDS = tuple(f"{name}.index.json" for name in _WEIGHTS)  # if in pieces
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
_IDS = {  # of our own exports
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "decoder_start_token_id": BOS,
    "eos_token_id": EOS,
    "forced_eos_token_id": EOS,
}


def _pieces_of(files: Any) -> list[str]:
    """The files of a weight_map, all beside it; none if it is not one."""
    if not isinstance(files, dict):
        return []
    names = [name for name in files.values() if isinstance(name, str)]
    fine = all(re.fullmatch(r"\w[\w.-]*", name) for name in names)
    return sorted({*names}) if fine and len(names) == len(files) else []


def _shape_of(config: Mapping[str, Any], where: Path) -> PartsShape:
    """The shape of the model that config describes; where is its file.
    RunError if a field is missing or has no counterpart.
    """
    pre = config.get("model_type") == _PRE_NORM["model_type"]
    for name, value in (_FIXED | _PRE_NORM if pre else _FIXED).items():
        given = config.get(name, None if name in _NEEDED else value)
        if given is not value and given != value:
            raise _refused(where, name, given, json.dumps(value))
    start = "decoder_start_token_id"
    others = "activation_function", "eos_token_id", start
    for name in ("vocab_size", *others, *_FIELDS):
        if name not in config and name not in _DROPOUTS:
            raise RunError(f"{where} has no field {name}")
    for name in ("vocab_size", "decoder_vocab_size", start):
        value = config.get(name)
        unset = value is None and name != "vocab_size"
        if not unset and type(value) is not int:
            raise _refused(where, name, value, "a whole number")
    activation = config["activation_function"]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
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
class _Rows:
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


def _rows_of(
    vocab: Mapping[str, Any],
    size: int,
    where: Path,
    eos: int,
    start: int | None,
) -> _Rows:
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
    return _Rows([*first, *rest], [*SPECIALS, *texts])


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


def _our_weights(
    weights: Mapping[str, Tensor],
    config: TransformerConfig,
    source: _Rows,
    target: _Rows,
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


# E25-published-weights.md: A folder becomes a run
_OWN = "source.json", "target.json"  # of a run that was exported
_POINTER = b"version https://git-lfs"  # what a clone without LFS has


@dataclass(frozen=True)
class Published:
    """A published model in our terms; about is what its folder says, rows
    where each side's tokens stand in its tables.
    """

    about: dict[str, Any]
    config: PartsConfig
    source: Tokenizer
    target: Tokenizer
    weights: dict[str, Tensor]
    rows: tuple[_Rows, _Rows]

    @classmethod
    def read(cls, folder: Path, language: str | None = None) -> Published:
        """A folder with a published model. RunError if it cannot be used,
        or if language is not one of those that it can translate into.
        """
        _check_files(folder)
        where = folder / "config.json"
        config = _json(where)
        about = dict(config)
        for name in _SETTINGS:
            if (folder / name).is_file():
                about |= _json(folder / name)
        _check_search(about, folder)
        forced = {"forced_bos_token_id": about.get("forced_bos_token_id")}
        shape = _shape_of(config | forced, where)
        shared = bool(config.get("share_encoder_decoder_embeddings", True))
        if all((folder / name).is_file() for name in _OWN):
            source, target, rows = _exported(folder, config, language)
        else:
            rows = _vocabularies(folder, config, shared)
            source, target = _tokenizers(folder, rows, language)
        read, write = (len(side.order) for side in rows)
        model = PartsConfig(src_vocab=read, tgt_vocab=write, **vars(shape))
        weights, file = _read_weights(folder)
        ours = _our_weights(weights, model, *rows, shared, file)
        if not ours["embeddings.bias"].any():
            del ours["embeddings.bias"]
            model = dataclasses.replace(model, output_bias=False)
        return cls(about, model, source, target, ours, rows)


def _check_files(folder: Path) -> None:
    """RunError unless folder has the files of a model that we can read."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder")
    names = {path.name for path in folder.iterdir()}
    texts = {*_TEXTS[:1], *_OWN} if {*_OWN} <= names else {*_TEXTS}
    raw = sorted(n for n in names if n.endswith(".npz"))
    if raw and "source.spm" in texts - names:
        raise RunError(
            f"{folder} has Marian's own file, {raw[0]}: get the form that "
            "is published for transformers, with model.safetensors"
        )
    missing = [name for name in _TEXTS if name in texts - names]
    if not names & {*_WEIGHTS, *_SHARDS}:
        missing.append(" or ".join(_WEIGHTS))
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}")
    pieces = {piece for piece in _weight_files(folder).values() if piece}
    if absent := sorted(pieces - names):
        raise RunError(f"{folder} lacks {', '.join(absent)}")
    for name in sorted(names & {*_TEXTS, *_WEIGHTS, *pieces}):
        with (folder / name).open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise RunError(
                    f"{folder / name} is only a pointer to the file: run "
                    "`git lfs pull` there, or download the file itself"
                )


def _weight_files(folder: Path) -> dict[str, str]:
    """The file of each weight, if they are in pieces; otherwise the one
    file that they are in, under its own name.
    """
    for whole, index in zip(_WEIGHTS, _SHARDS):
        if (folder / whole).is_file():
            return {whole: whole}
        if (folder / index).is_file():
            files: Any = _json(folder / index).get("weight_map")
            if not _pieces_of(files):
                raise RunError(
                    f"{folder / index} cannot be used: its weight_map does "
                    "not say in which file of its folder each weight is"
                )
            return dict(files)
    return {}


def _read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The weights of a published folder, in float32 or float64, and their
    file, or the one that lists their files. RunError if one is damaged,
    or holds anything but tensors.
    """
    files = _weight_files(folder)
    if len(files) == 1 and files.keys() <= {*_WEIGHTS}:
        path = folder / next(iter(files))
        return _read_tensors(path), path
    weights: dict[str, Tensor] = {}
    for piece in sorted({*files.values()}):
        own = _read_tensors(folder / piece)
        here = {name for name, file in files.items() if file == piece}
        if own.keys() != here:
            raise RunError(
                f"{folder / piece} does not fit the list of weights: one "
                f"of them has {min(own.keys() ^ here)}, the other has not"
            )
        weights |= own
    index = next(n for n in _SHARDS if (folder / n).is_file())
    return weights, folder / index


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; for RunError see _read_weights."""
    if path.suffix == ".safetensors":
        weights: Any = read_tensors(path)
    else:
        old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)
        if old:  # its loader could be made to run code: CVE-2025-32434
            raise RunError(
                f"{path} is read with torch 2.6 or newer only: get "
                "model.safetensors instead"
            )
        try:
            weights = torch.load(path, "cpu", weights_only=True)
        except Exception as error:  # of the archive, or of the pickle
            reason = str(error).split(".")[0].strip() or repr(error)
            raise RunError(
                f"{path} cannot be used, and nothing in it was run: it is "
                f"damaged, or holds more than tensors ({reason[:100]})"
            ) from None
    tensors = isinstance(weights, dict) and all(
        isinstance(k, str) and isinstance(v, Tensor)
        for k, v in weights.items()
    )
    if not tensors:
        raise RunError(
            f"{path} cannot be used: it holds no table of tensors"
        )
    for name, x in weights.items():
        _check_kind(path, name, x)
    return {
        name: x if x.dtype == torch.float64 else x.float()
        for name, x in weights.items()
    }


def _check_kind(path: Path, name: str, x: Tensor) -> None:
    """RunError unless x has finite numbers, with a point. Integers are
    weights that were made small, and their scales stand elsewhere.
    """
    if not x.is_floating_point():
        kind = f"{x.dtype}".removeprefix("torch.")
        raise RunError(
            f"{path}: {name} is in {kind}: get the weights in float32 or "
            "float16"
        )
    if not bool(x.float().isfinite().all()):
        raise RunError(
            f"{path}: {name} has numbers that are not finite: the file is "
            "damaged"
        )


def _json(path: Path) -> dict[str, Any]:
    """An object from a JSON file. RunError if it is damaged."""
    try:
        values = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} cannot be read: it holds no JSON object")
    return values


def _check_search(about: Mapping[str, Any], folder: Path) -> None:
    """RunError if outputs are held to more than that they end, or the
    search's settings are none.
    """
    for name, least in (("num_beams", 1), ("max_length", 2)):
        if (value := about.get(name)) is None:
            continue
        if type(value) is not int or value < least:
            raise RunError(
                f"{folder}: {name} is {json.dumps(value)}, which is no "
                f"whole number from {least}"
            )
    for name, none in _UNUSED.items():
        if about.get(name) not in (None, none):
            raise RunError(
                f"{folder}: {name} is {json.dumps(about[name])}, which no "
                f"search here can do; with {none}, it can be imported"
            )
    pad, bad = about.get("pad_token_id"), about.get("bad_words_ids") or []
    start = about.get("decoder_start_token_id")
    if bad not in ([], [[pad]], [[pad], [start]]):
        raise RunError(
            f"{folder}: bad_words_ids forbids more than padding, which "
            "cannot be imported"
        )


def _exported(
    folder: Path, config: Mapping[str, Any], language: str | None = None
) -> tuple[Tokenizer, Tokenizer, tuple[_Rows, _Rows]]:
    """The tokenizers of an exported run; their rows are in order. Unless
    language is given, it translates into the one that the run did.
    """
    names = "pad_token_id", "decoder_start_token_id", "eos_token_id"
    if any(config.get(name) != _IDS[name] for name in names):
        where = folder / "config.json"
        raise RunError(f"{where} does not fit {' and '.join(_OWN)}")
    try:
        source, target = (load_tokenizer(folder / name) for name in _OWN)
    except ValueError as error:
        raise RunError(str(error)) from None
    if isinstance(source, SentencePieces) and language:
        code = _code(folder, source.pieces, language)
        source = SentencePieces(source.model, source.pieces, code)
    elif language:
        _code(folder, [], language)  # refuses it: there is but one
    read, write = (
        _Rows(list(range(len(side))), vocabulary(side))
        for side in (source, target)
    )
    return source, target, (read, write)


def _vocabularies(
    folder: Path, config: Mapping[str, Any], shared: bool
) -> tuple[_Rows, _Rows]:
    """The rows of source and target, which share a table or not."""
    size = config["vocab_size"]
    tgt_size = config.get("decoder_vocab_size") or size
    eos, start = config["eos_token_id"], config["decoder_start_token_id"]
    path = folder / "vocab.json"
    if (folder / _TARGET_VOCAB).is_file() and not shared:
        vocab = _json(path)
        begins = start if vocab.get(SPECIALS[BOS]) == start else None
        source = _rows_of(vocab, size, path, eos, begins)
        path = folder / _TARGET_VOCAB
        target = _rows_of(_json(path), tgt_size, path, eos, start)
        return source, target
    if tgt_size != size:
        raise RunError(
            f"{folder / 'config.json'}: decoder_vocab_size is {tgt_size} "
            f"and vocab_size {size}, but there is one vocabulary, "
            f"{path.name}"
        )
    rows = _rows_of(_json(path), size, path, eos, start)
    return rows, rows


def _tokenizers(
    folder: Path, rows: tuple[_Rows, _Rows], language: str | None
) -> tuple[SentencePieces, SentencePieces]:
    """The tokenizers of source and target. RunError if they do not fit the
    vocabularies, or if there is no such language.
    """
    code = _code(folder, rows[0].pieces, language)
    both = []
    for side, row, begins in zip(("source", "target"), rows, (code, "")):
        path = folder / f"{side}.spm"
        try:
            model = path.read_bytes()
            tokenizer = SentencePieces(model, row.pieces, begins)
        except ValueError as error:
            raise RunError(f"{path} cannot be used: {error}") from None
        inner = tokenizer.processor
        pieces = [
            inner.id_to_piece(i)
            for i in range(inner.get_piece_size())
            if not (inner.is_control(i) or inner.is_unknown(i))
        ]
        known = sum(piece in tokenizer.ids for piece in pieces)
        if known < len(pieces) / 2:
            raise RunError(
                f"{path} does not fit the vocabulary: {known} of its "
                f"{len(pieces)} pieces are in it"
            )
        both.append(tokenizer)
    return both[0], both[1]


def _code(folder: Path, pieces: list[str], language: str | None) -> str:
    """The code of the language to translate into; "" if there is one."""
    codes, asked = codes_of(pieces), (language or "").strip("<>")
    code = f">>{asked}<<" if asked else ""
    if code in (codes or [""]):
        return code
    if not codes:
        raise RunError(
            f"{folder} translates into one language: omit --language"
        )
    names = ", ".join(c.strip("<>") for c in codes[:12])
    more = f" and {len(codes) - 12} more" if len(codes) > 12 else ""
    what = "there is no such language" if language else "give --language"
    raise RunError(
        f"{folder} translates into several languages: {what}; it has "
        f"{names}{more}"
    )


def import_marian(
    folder: Path,
    out: Path,
    language: str | None = None,
    names: tuple[str | None, str | None] = (None, None),
    origin: str = "",
) -> Run:
    """Make a published folder into a run folder, and open it.

    language is the target of a model that has several; names are what to
    call source and target, unless as the folder does; origin is where it
    is from. RunError if out is not empty or the model cannot be imported.
    """
    check_new(out)
    published = Published.read(folder, language)
    origin = origin or str(folder)
    try:
        recipe = _recipe(published, origin, language, names)
        if (folder / "recipe.json").is_file():  # of a run of ours
            called = names[0], names[1] or (language or "").strip("<>")
            sides = zip(("source", "target"), called)
            changes = {side: name for side, name in sides if name}
            recipe = read_recipe(folder).changed(**changes)
    except ValueError as error:
        raise RunError(f"{folder}: {error}") from None
    model = Transformer(published.config)
    run = Run(recipe, published.source, published.target, model)
    weights = {n: x.float() for n, x in published.weights.items()}
    kept = {*_TEXTS, *_WEIGHTS, *_SHARDS, *_SETTINGS, _TARGET_VOCAB}
    kept |= {*_weight_files(folder).values()}
    sums = {  # of the files that it is made from
        path.name: file_hash(path)
        for path in sorted(folder.iterdir())
        if path.name in kept
    }
    with new_folder(out) as fresh:
        write_tensors(weights, fresh / "model.safetensors")
        run.write(fresh)
        card = {"from": origin, "sha256": sums}
        write_json(fresh / "imported.json", card)
    return Run.open(out)


def _recipe(
    published: Published,
    origin: str,
    language: str | None,
    names: tuple[str | None, str | None],
) -> Recipe:
    """The recipe of a run that was trained elsewhere."""
    about, config = published.about, published.config
    pair = re.search(r"opus-mt-(?:tc-\w+-)?(\w+)-(\w+)$", origin)
    asked = language.strip("<>") if language else about.get("target_lang")
    sides = zip(
        names,
        (about.get("source_lang"), asked),
        pair.groups() if pair else (None, None),
    )
    source, target = (next(filter(None, side), None) for side in sides)
    fields = PartsShape.__dataclass_fields__
    return Recipe(
        about=f"imported from {origin}",
        data="imported",
        source=source or "source",
        target=target or "target",
        vocab=max(config.src_vocab, config.tgt_vocab),
        tokenizer=kind_of(published.source),
        model=PartsShape(
            **{name: getattr(config, name) for name in fields}
        ),
        search=SearchConfig(
            beam=about.get("num_beams") or 4,
            # transformers divides by the length itself, to this power
            alpha=about.get("length_penalty", 1.0),
            limit=(about.get("max_length") or 512) - 1,  # less the start
        ),
    )


# E25-published-weights.md: By name
_OWNER = "Helsinki-NLP"  # of the names without a slash
_PUBLISHED = {  # its revision, and the SHA-256 of pytorch_model.bin there
    f"{_OWNER}/opus-mt-en-de": (
        "6183067f769a302e3861815543b9f312c71b0ca4",
        "",
    ),
    f"{_OWNER}/opus-mt-de-en": (
        "1a922f3b32a8e809e17a47d4b32142d8105924e5",
        "e743c3070f61f477cb62fe95ef2c9be2e77f3e488cb6b8030ff8a19e8295c87d",
    ),
    f"{_OWNER}/opus-mt-es-en": (
        "c96e2c5399ebfae4fc43d9669556b9afa74bb69d",
        "",
    ),
}


def find_published(
    name: str, revision: str | None = None
) -> tuple[Path, str]:
    """The folder of a published model, fetched if name is not a folder,
    and where it is from. revision is a commit or a branch; unless given,
    the one listed above, or the newest. RunError, with what to do, if it is
    not there, or is not what was published.
    """
    if name and Path(name).is_dir():
        return Path(name), str(Path(name))
    if name and Path(name).exists():
        raise RunError(f"{name} is a file: give the folder that it is in")
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name) or name[0] in "./":
        raise RunError(
            f"{name!r} is neither a folder nor the name of a model"
        )
    full = name if "/" in name else f"{_OWNER}/{name}"
    pinned, known = _PUBLISHED.get(full, ("main", ""))
    revision = revision or pinned
    folder, unread = _fetched(full, revision)
    if unread:
        raise RunError(
            f"{full} could not be fetched ({unread}): download "
            f"{', '.join(_TEXTS)}, {' or '.join(_WEIGHTS)}, and, if they "
            f"are there, {', '.join((*_SETTINGS, _TARGET_VOCAB))} from "
            f"https://huggingface.co/{full}/tree/{revision} into a folder "
            f"{name}, and give the command again"
        )
    weights = folder / _WEIGHTS[1]
    check = known and revision == pinned and weights.is_file()
    if check and (actual := file_hash(weights)) != known:
        raise RunError(
            f"{weights} is not the file that was published: its SHA-256 is "
            f"{actual}, not {known}. Delete it to fetch it again"
        )
    return folder, f"{full} at {folder.name}"


def _listed(index: Path) -> list[str]:
    """The files that an index of weights names."""
    try:
        return _pieces_of(json.loads(index.read_bytes())["weight_map"])
    except (ValueError, TypeError, KeyError):
        return []  # Published.read says what is wrong


def _fetched(name: str, revision: str) -> tuple[Path, str]:
    """The folder of a model in the cache, all of it at one revision; or
    why there is none.
    """
    hub = optional_import("huggingface_hub")
    folder, log = Path(), optional_import("huggingface_hub.utils").logging
    level = log.get_verbosity()
    log.set_verbosity_error()  # or it tells each attempt without a network
    try:
        files = [*_TEXTS, *_SETTINGS, _TARGET_VOCAB]
        files += chain(*zip(_WEIGHTS, _SHARDS))
        while files:
            file = files.pop(0)
            try:
                got = hub.hf_hub_download(name, file, revision=revision)
            except hub.errors.LocalEntryNotFoundError:
                raise  # no network, which is another matter
            except hub.errors.EntryNotFoundError:
                continue  # Published.read says what is needed
            folder = Path(got).parent
            revision = folder.name  # the same for all files
            if file in _WEIGHTS + _SHARDS:  # no other form is needed
                files = _listed(Path(got)) if file in _SHARDS else []
    except Exception as error:  # of the network, of the server, of a name
        said = " ".join(str(error).split())[:120].rstrip(" .:")
        return folder, said or type(error).__name__
    finally:
        log.set_verbosity(level)
    return folder, "" if folder != Path() else "it has no files"


# E25-published-weights.md: The way back
_LONGEST = 1024  # positions that transformers' models have


def _config_of(config: TransformerConfig) -> dict[str, Any]:
    """config.json of a model of ours, read back by _shape_of."""
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
        **_IDS,
    }


def _marian_weights(model: Transformer) -> dict[str, Tensor]:
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


def write_transformers(
    run: Run,
    model: Transformer,
    folder: Path,
    results: Mapping[str, Any] | None = None,
) -> None:
    """Write a run, with the weights of model, as a folder that the library
    transformers loads; results are scores for the model card, by split.
    RunError if the model has parts of its own, or if its one table has two
    vocabularies.
    """
    check_paper(model, strict=True)
    config = model.config
    sides = vocabulary(run.source), vocabulary(run.target)
    if config.tie == "all" and sides[0] != sides[1]:
        raise RunError("tie all needs one vocabulary for both sides")
    path = folder / "model.safetensors"
    write_tensors(_marian_weights(model), path, {"format": "pt"})
    write_json(folder / "config.json", _config_of(config))
    write_json(folder / "generation_config.json", _generation(run))
    _write_tokenizer(run, folder)
    card = _model_card(run, results or {})
    (folder / "README.md").write_text(card, "utf-8")


def _generation(run: Run) -> dict[str, Any]:
    """generation_config.json: the run's search, as far as it is the same.
    transformers divides by the length to a power, not by the paper's
    penalty.
    """
    search = run.recipe.search
    return {
        "num_beams": search.beam,
        "length_penalty": search.alpha,
        "max_length": (search.limit or 511) + 1,  # and the start
        "bad_words_ids": [[PAD], [BOS]],
        **_IDS,
    }


def _write_tokenizer(run: Run, folder: Path) -> None:
    """Write the tokenizers for transformers. Where the two sides differ
    and are not sentencepiece, there is a folder for each.
    """
    source, target = run.source, run.target
    one = same_tokens(source, target)
    if isinstance(source, SentencePieces) and isinstance(
        target, SentencePieces
    ):
        one = source.pieces == target.pieces
        files = {"vocab.json": source.pieces, _TARGET_VOCAB: target.pieces}
        for name, pieces in list(files.items())[: 1 if one else 2]:
            ids = {piece: i for i, piece in enumerate(pieces)}
            write_json(folder / name, ids)
        (folder / "source.spm").write_bytes(source.model)
        (folder / "target.spm").write_bytes(target.model)
        settings: dict[str, Any] = {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": not one,
            "source_lang": run.recipe.source,
            "target_lang": run.recipe.target,
            "model_max_length": 512,
        }
        write_json(folder / "tokenizer_config.json", settings)
        return
    sides = {"source": source, "target": target}
    for name, tokenizer in {"": source}.items() if one else sides.items():
        (folder / name).mkdir(exist_ok=True)
        _write_fast(tokenizer, folder / name)


def _write_fast(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, which ends each sentence with EOS."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    end = SPECIALS[EOS]
    inner.post_processor = TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, EOS)]
    )
    write_text(folder / "tokenizer.json", inner.to_str())
    named = zip(("pad", "bos", "eos", "unk"), SPECIALS)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": token for name, token in named},
    }
    write_json(folder / "tokenizer_config.json", settings)


_CARD = """---
library_name: transformers
pipeline_tag: translation
---
# {about}

A Transformer of {parameters:,} parameters that translates {source} to
{target}, {origin} with `annotated`, the package of *Attention,
Annotated*. Its licence is for whoever publishes it to decide, and the data
may have a say.

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(FOLDER{subfolder})
    model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER)
    ids = model.generate(**tokenizer(["{example}"], return_tensors="pt"))
{decode}

The logits are those of the run. The search is not quite: the run divides a
log-probability by ((5 + n) / 6)^{alpha} for n tokens, transformers by
n^{alpha}, and only the run limits an output to {extra} tokens more than its
source has. `annotated import marian FOLDER --out RUN` gives the run back.
The task "translation" of pipeline() is gone from transformers 5: use the
lines above.

## Scores

{scores}
"""

_DECODE = {  # by whether one folder has the tokens of both sides
    True: """\
    print(tokenizer.batch_decode(ids, skip_special_tokens=True))""",
    False: """\
    target = AutoTokenizer.from_pretrained(FOLDER, subfolder="target")
    print(target.batch_decode(ids, skip_special_tokens=True))""",
}


def _score_lines(results: Mapping[str, Any]) -> str:
    """A run's scores by split, as lines of a model card."""
    lines = []
    for split, scores in results.items():
        values = [
            f"{name} {value:.4g}"
            for name, value in scores.items()
            if name in _SCORES
        ]
        signature = scores.get("signature")
        end = f" (`{signature}`)" if signature else ""
        lines.append(f"- {split}: {', '.join(values)}{end}")
    return "\n".join(lines) or "The run has none."


_SCORES = "perplexity", "nll", "bleu", "chrf", "exact_match"


def _model_card(run: Run, results: Mapping[str, Any]) -> str:
    recipe = run.recipe
    code = getattr(run.source, "code", "")
    pieces = isinstance(run.source, SentencePieces)
    one = pieces or same_tokens(run.source, run.target)
    return _CARD.format(
        about=recipe.about,
        parameters=sum(p.numel() for p in run.model.parameters()),
        source=recipe.source,
        target=recipe.target,
        origin=(
            "imported"
            if recipe.data == "imported"
            else f"trained on the data set {Path(recipe.data).name}"
        ),
        decode=_DECODE[one],
        subfolder="" if one else ', subfolder="source"',
        example=f"{code} A sentence.".strip(),
        alpha=recipe.search.alpha,
        extra=recipe.search.extra,
        scores=_score_lines(results),
    )
