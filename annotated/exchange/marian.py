"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from annotated.corpora.fetch import file_hash
from annotated.corpora.pieces import (
    SentencePieces,
    codes_of,
    imported,
    load_tokenizer,
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
from annotated.engine.packing import PAPER_PARTS, check_paper
from annotated.engine.recipes import Recipe
from annotated.engine.runs import Run, read_recipe
from annotated.engine.tensors import check_fit, read_tensors, write_tensors
from annotated.model import ModelShape, Transformer, TransformerConfig
from annotated.search import SearchConfig
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer

__all__ = [
    "STACKS", "FIXED", "PRE", "NEEDED", "ACTIVATIONS", "TWICE", "shape_of",
    "DROPOUTS", "UNSAID", "Rows", "rows_of", "interleaved", "permuted",
    "weight_names", "our_weights", "read_weights", "TEXTS", "WEIGHTS",
    "EXTRAS", "OWN", "POINTER", "TARGETS", "Published", "check_files",
    "read_published", "import_marian", "OWNER", "PUBLISHED",
    "find_published", "CALLED", "LONGEST", "cannot_leave", "check_leaves",
    "write_transformers", "published_weights", "CARD", "DECODE", "told",
    "SCORES",
]  # fmt: skip


# E25-published-weights.md: The configuration
STACKS = "encoder", "decoder"
FIXED: dict[str, Any] = {  # fields, and the only value that we can use
    "model_type": "marian",
    "scale_embedding": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "forced_bos_token_id": None,
}
PRE = {  # where the norms come first, as in our own exports
    "model_type": "pegasus",
    "normalize_before": True,
    "add_final_layer_norm": True,
}
NEEDED = "model_type", "scale_embedding"  # the others may be left out
ACTIVATIONS: dict[str, Any] = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
}
TWICE = {  # sizes that are the same in both stacks of our model
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
}


def shape_of(config: Mapping[str, Any], where: Path) -> ModelShape:
    """The shape of the model that config describes; where is its file.
    RunError if a field is missing or has no counterpart.
    """
    pre = config.get("model_type") == PRE["model_type"]
    for name, value in (FIXED | PRE if pre else FIXED).items():
        found = config.get(name, None if name in NEEDED else value)
        if found is not value and found != value:
            raise _Refused(where, name, found, json.dumps(value))
    activation = _field(config, "activation_function", where)
    if activation not in ACTIVATIONS:
        wanted = " or ".join(ACTIVATIONS)
        raise _Refused(where, "activation_function", activation, wanted)
    sizes = {}
    for name, (first, second) in TWICE.items():
        sizes[name] = _field(config, first, where)
        if (other := _field(config, second, where)) != sizes[name]:
            raise _Refused(where, second, other, f"{sizes[name]}")
    tied = config.get("tie_word_embeddings", True)
    shared = config.get("share_encoder_decoder_embeddings", True)
    for stack in STACKS:
        own = _field(config, f"{stack}_layers", where)
        sizes[f"num_{stack}_layers"] = own
    try:
        shape = ModelShape(
            **sizes,
            d_model=_field(config, "d_model", where),
            activation=ACTIVATIONS[activation],
            norm="pre" if pre else "post",
            tie=("all" if shared else "decoder") if tied else "none",
            output_bias=True,
            **{n: config[n] for n in DROPOUTS if n in config},
        )
        TransformerConfig(src_vocab=1, tgt_vocab=1, **vars(shape))
    except (TypeError, ValueError) as error:
        raise RunError(f"{where}: {error}") from None
    return shape


DROPOUTS = "dropout", "attention_dropout", "activation_dropout"


class _Refused(RunError):
    """A field of the configuration that has no counterpart."""

    def __init__(self, where: Path, name: str, found: Any, wanted: str):
        super().__init__(
            f"{where}: {name} is {json.dumps(found)}, but only {wanted} "
            "can be imported"
        )


def _field(config: Mapping[str, Any], name: str, where: Path) -> Any:
    """A field of the configuration. RunError if it is missing."""
    if name not in config:
        raise RunError(f"{where} has no field {name}")
    return config[name]


def _json(path: Path) -> dict[str, Any]:
    """An object from a JSON file. RunError if it is damaged."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{path} cannot be read: it holds no JSON object")
    return found


# E25-published-weights.md: Ids
UNSAID = -100.0  # the output bias of a row that the original lacks


@dataclass(frozen=True)
class Rows:
    """The place of our tokens in a published table: order has, for each of
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
        places = [len(table) if i is None else i for i in self.order]
        return torch.cat([table, new])[torch.tensor(places)]


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
    """For each of our components of the stream, its place in Marian's:
    0, d/2, 1, d/2 + 1, …
    """
    order = torch.empty(d_model, dtype=torch.long)
    sines = (d_model + 1) // 2
    order[0::2] = torch.arange(sines)
    order[1::2] = torch.arange(sines, d_model)
    return order


def permuted(x: Tensor, how: str, order: Tensor) -> Tensor:
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
    for stack in ("encoder", "decoder"):
        norms = {"self_attn_layer_norm": "norm1"}
        blocks = {"self_attn": "attention"}
        if stack == "decoder":
            norms["encoder_attn_layer_norm"] = "norm2"
            blocks["encoder_attn"] = "cross_attention"
        norms["final_layer_norm"] = f"norm{len(norms) + 1}"
        pairs = {
            norm: (ours, "writes", "writes") for norm, ours in norms.items()
        }
        for block, ours in blocks.items():
            for x in "qkv":
                pairs[f"{block}.{x}_proj"] = (
                    f"{ours}.w_{x}",
                    "reads",
                    "inside",
                )
            pairs[f"{block}.out_proj"] = f"{ours}.w_o", "writes", "writes"
        pairs["fc1"] = "feed_forward.inner", "reads", "inside"
        pairs["fc2"] = "feed_forward.outer", "writes", "writes"
        for i in range(getattr(shape, f"num_{stack}_layers")):
            for theirs, (ours, weight, bias) in pairs.items():
                there, here = (
                    f"{stack}.layers.{i}.{n}" for n in (theirs, ours)
                )
                yield f"model.{there}.weight", f"{here}.weight", weight
                yield f"model.{there}.bias", f"{here}.bias", bias
        if shape.norm == "pre":
            for kind in ("weight", "bias"):
                last = f"model.{stack}.layer_norm.{kind}"
                yield last, f"{stack}.norm.{kind}", "writes"


class _Taken:
    """Published weights, taken one by one. RunError if one is missing, or
    has another shape than it should.
    """

    def __init__(self, weights: Mapping[str, Tensor], where: Path):
        self.left, self.where = dict(weights), where

    def take(self, shape: tuple[int, ...], *names: str) -> Tensor:
        """The weight that has these names, of which one may be enough."""
        found = [self.left.pop(name) for name in names if name in self.left]
        if not found:
            raise RunError(f"{self.where} has no {names[0]}")
        for weight in found:
            if tuple(weight.shape) != shape:
                raise RunError(
                    f"{self.where} does not fit config.json: {names[0]} is "
                    f"{tuple(weight.shape)}, not {shape}"
                )
            if not torch.equal(weight, found[0]):
                raise RunError(
                    f"{self.where}: {' and '.join(names)} differ, but by "
                    "config.json they are one"
                )
        return found[0]

    def check_layers(self, shape: ModelShape) -> None:
        """RunError if a last layer is missing, before any is built."""
        for stack in STACKS:
            last = getattr(shape, f"num_{stack}_layers") - 1
            name = f"model.{stack}.layers.{last}.fc1.weight"
            if name not in self.left:
                raise RunError(f"{self.where} has no {name}")

    def drop_positions(self, d_model: int) -> None:
        """Take out the tables of positions, which must be sinusoids."""
        for stack in STACKS:
            name = f"model.{stack}.embed_positions.weight"
            if (table := self.left.pop(name, None)) is None:
                continue
            fits = table.dim() == 2 and table.size(1) == d_model
            waves = sinusoids(len(table), d_model) if fits else table
            ours = table[:, interleaved(d_model)] if fits else table
            gap = (ours - waves).abs().max() if fits else 1.0
            if not gap < 0.01:  # they may be in 16 bits
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
    taken, d = _Taken(weights, where), config.d_model
    taken.drop_positions(d)
    read, write = (f"model.{stack}.embed_tokens.weight" for stack in STACKS)
    last = ["lm_head.weight"] * (config.tie != "none")
    tables: dict[str, Tensor] = {}
    table: Any = None
    if config.tie == "all":
        names = ["model.shared.weight", read, write, *last]
        table = taken.take((target.size, d), *names)
    else:
        whole = taken.left.pop("model.shared.weight", table)
        if shared and whole is not None:  # it stands for those left out
            taken.left = {read: whole, write: whole} | taken.left
        table = taken.take((source.size, d), read)
        tables["source"] = source.take(table)
        table = taken.take((target.size, d), write, *last)
    tables["target"] = target.take(table)
    if config.tie == "none":
        table = taken.take((target.size, d), "lm_head.weight")
        tables["output"] = target.take(table)
    order = interleaved(d)
    made = {f"embeddings.{n}": x[:, order] for n, x in tables.items()}
    bias = torch.zeros(1, target.size, dtype=table.dtype)
    if "final_logits_bias" in weights:
        bias = taken.take((1, target.size), "final_logits_bias")
    made["embeddings.bias"] = target.take(bias[0], UNSAID)
    taken.check_layers(config)
    with torch.device("meta"):  # shapes without memory
        like = dict(Transformer(config).named_parameters())
    for name, ours, how in weight_names(config):
        weight = taken.take(tuple(like[ours].shape), name)
        made[ours] = permuted(weight, how, order)
    if taken.left:
        raise RunError(f"{where} has a weight too many: {min(taken.left)}")
    return made


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The weights of a published folder, in float32 or float64, and their
    file. RunError if it is damaged, or holds anything but tensors.
    """
    path = folder / "model.safetensors"
    if path.is_file():
        found: Any = read_tensors(path)
    else:
        path = folder / "pytorch_model.bin"
        old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)
        if old:  # its loader could be made to run code: CVE-2025-32434
            raise RunError(
                f"{path} is read with torch 2.6 or newer only: get "
                "model.safetensors instead"
            )
        try:
            found = torch.load(path, "cpu", weights_only=True)
        except Exception as error:  # of the archive, or of the pickle
            reason = str(error).split(".")[0].strip() or repr(error)
            raise RunError(
                f"{path} cannot be used, and nothing in it was run: it is "
                f"damaged, or holds more than tensors ({reason[:100]})"
            ) from None
    tensors = isinstance(found, dict) and all(
        isinstance(k, str) and isinstance(v, Tensor)
        for k, v in found.items()
    )
    if not tensors:
        raise RunError(
            f"{path} cannot be used: it holds no table of tensors"
        )
    return {
        name: x if x.dtype == torch.float64 else x.float()
        for name, x in found.items()
    }, path


# E25-published-weights.md: A folder becomes a run
TEXTS = "config.json", "source.spm", "target.spm", "vocab.json"
WEIGHTS = "model.safetensors", "pytorch_model.bin"
EXTRAS = "generation_config.json", "tokenizer_config.json"
OWN = "source.json", "target.json"  # of a run that was exported
POINTER = b"version https://git-lfs"  # what a clone without LFS has
TARGETS = "target_vocab.json"  # where each side has its own vocabulary


@dataclass(frozen=True)
class Published:
    """A published model in our terms; about is what its folder says."""

    about: dict[str, Any]
    config: TransformerConfig
    source: Tokenizer
    target: Tokenizer
    weights: dict[str, Tensor]
    rows: tuple[Rows, Rows]


def check_files(folder: Path) -> None:
    """RunError unless folder has the files of a model that we can read."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder")
    names = {path.name for path in folder.iterdir()}
    texts = {*TEXTS[:1], *OWN} if {*OWN} <= names else {*TEXTS}
    if "source.spm" in texts - names:
        if bpe := sorted(n for n in names if re.search(r"\bbpe\b", n)):
            raise RunError(
                f"{folder} was published with BPE ({bpe[0]}): only those "
                "with sentencepiece (source.spm, target.spm) are read"
            )
        if raw := sorted(n for n in names if n.endswith(".npz")):
            raise RunError(
                f"{folder} has Marian's own file, {raw[0]}: get the form "
                "that is published for transformers, with model.safetensors"
            )
    missing = [name for name in TEXTS if name in texts - names]
    shards = sorted(n for n in names if n.endswith(".index.json"))
    if shards and not names & {*WEIGHTS}:
        raise RunError(
            f"{folder} has its weights in several files ({shards[0]}), "
            "which are not read: have transformers save it in one, with "
            'save_pretrained(FOLDER, max_shard_size="100GB")'
        )
    if not names & {*WEIGHTS}:
        missing.append(" or ".join(WEIGHTS))
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}")
    for name in sorted(names & {*TEXTS, *WEIGHTS}):
        with (folder / name).open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise RunError(
                    f"{folder / name} is only a pointer to the file: run "
                    "`git lfs pull` there, or download the file itself"
                )


def read_published(folder: Path, language: str | None = None) -> Published:
    """A folder with a published model. RunError if it cannot be used, or
    if language is not one of those that it can translate into.
    """
    check_files(folder)
    where = folder / "config.json"
    config = _json(where)
    about = dict(config)
    for name in EXTRAS:
        if (folder / name).is_file():
            about |= _json(folder / name)
    _check_search(about, folder)
    shape = shape_of(
        config | {n: about[n] for n in about if n in FIXED}, where
    )
    mine = all((folder / name).is_file() for name in OWN)
    if mine:
        source, target, rows, shared = _exported(folder, config)
    else:
        rows, shared = _vocabularies(folder, config)
        source, target = _tokenizers(folder, rows, language)
    sizes: Any = {
        "src_vocab": len(rows[0].order),
        "tgt_vocab": len(rows[1].order),
    }
    made = TransformerConfig(**sizes, **vars(shape))
    weights, file = read_weights(folder)
    ours = our_weights(weights, made, *rows, shared, file)
    if not ours["embeddings.bias"].any():
        del ours["embeddings.bias"]
        made = dataclasses.replace(made, output_bias=False)
    return Published(about, made, source, target, ours, rows)


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
    pad, bad = about.get("pad_token_id"), about.get("bad_words_ids") or []
    if bad not in (
        [],
        [[pad]],
        [[pad], [about.get("decoder_start_token_id")]],
    ):
        raise RunError(
            f"{folder}: bad_words_ids forbids more than padding, which "
            "cannot be imported"
        )


def _exported(
    folder: Path, config: Mapping[str, Any]
) -> tuple[Tokenizer, Tokenizer, tuple[Rows, Rows], bool]:
    """The tokenizers of a run that was exported, whose rows are in order,
    and whether they are one table.
    """
    where, ids = folder / "config.json", (PAD, BOS, EOS)
    names = "pad_token_id", "decoder_start_token_id", "eos_token_id"
    if tuple(config.get(name) for name in names) != ids:
        raise RunError(f"{where} does not fit {' and '.join(OWN)}")
    try:
        source, target = (load_tokenizer(folder / name) for name in OWN)
    except ValueError as error:
        raise RunError(str(error)) from None
    rows = [
        Rows(list(range(len(side))), vocabulary(side))
        for side in (source, target)
    ]
    shared = bool(config.get("share_encoder_decoder_embeddings", True))
    return source, target, (rows[0], rows[1]), shared


def _vocabularies(
    folder: Path, config: Mapping[str, Any]
) -> tuple[tuple[Rows, Rows], bool]:
    """The rows of source and target, and whether they are one table."""
    where = folder / "config.json"
    shared = bool(config.get("share_encoder_decoder_embeddings", True))
    size = _field(config, "vocab_size", where)
    sizes = size, config.get("decoder_vocab_size") or size
    eos = _field(config, "eos_token_id", where)
    start = _field(config, "decoder_start_token_id", where)
    own = (folder / TARGETS).is_file() and not shared
    files = (
        folder / "vocab.json",
        folder / (TARGETS if own else "vocab.json"),
    )
    if not own and sizes[0] != sizes[1]:
        raise RunError(
            f"{where}: decoder_vocab_size is {sizes[1]} and vocab_size "
            f"{sizes[0]}, but there is one vocabulary, {files[0].name}"
        )
    target = rows_of(_json(files[1]), sizes[1], files[1], eos, start)
    if not own:
        return (target, target), shared
    vocab = _json(files[0])
    begins = start if vocab.get(SPECIALS[BOS]) == start else None
    source = rows_of(vocab, sizes[0], files[0], eos, begins)
    return (source, target), False


def _tokenizers(
    folder: Path, rows: tuple[Rows, Rows], language: str | None
) -> tuple[SentencePieces, SentencePieces]:
    """The tokenizers of source and target. RunError if they do not fit the
    vocabularies, or if there is no such language.
    """
    code = _code(folder, rows[0].pieces, language)
    made = []
    for side, own, begins in zip(("source", "target"), rows, (code, "")):
        path = folder / f"{side}.spm"
        try:
            tokenizer = SentencePieces(
                path.read_bytes(), own.pieces, begins
            )
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
        made.append(tokenizer)
    return made[0], made[1]


def _code(folder: Path, pieces: list[str], language: str | None) -> str:
    """The code of the language to translate into; "" if there is one."""
    codes = codes_of(pieces)
    if language is None and not codes:
        return ""
    code = f">>{(language or '').strip('<>')}<<"
    if code in codes:
        return code
    names = ", ".join(c.strip("<>") for c in codes[:12])
    more = f" and {len(codes) - 12} more" if len(codes) > 12 else ""
    if not codes:
        raise RunError(
            f"{folder} translates into one language: omit --language"
        )
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

    language is the target of a model that has several; names are those of
    source and target where the folder does not say; origin is where it is
    from. RunError if out is not empty or the model cannot be imported.
    """
    check_new(out)
    found = read_published(folder, language)
    origin = origin or str(folder)
    try:
        recipe = _recipe(found, origin, language, names)
        if (folder / "recipe.json").is_file():  # of a run of ours
            recipe = read_recipe(folder)
    except ValueError as error:
        raise RunError(f"{folder}: {error}") from None
    run = Run(recipe, found.source, found.target, Transformer(found.config))
    like = dict(run.model.named_parameters())
    check_fit(folder, found.weights, like)
    with new_folder(out) as fresh:
        write_tensors(
            {name: found.weights[name].float() for name in like},
            fresh / "model.safetensors",
        )
        run.write(fresh)
        write_json(fresh / "imported.json", _card(folder, origin))
    return Run.open(out)


def _recipe(
    found: Published,
    origin: str,
    language: str | None,
    names: tuple[str | None, str | None],
) -> Recipe:
    """The recipe of a run that was trained elsewhere."""
    about, config = found.about, found.config
    own = re.search(r"opus-mt-(?:tc-\w+-)?(\w+)-(\w+)$", origin)
    said = about.get("source_lang"), about.get("target_lang")
    said = said[0], language.strip("<>") if language else said[1]
    sides = zip(names, said, own.groups() if own else (None, None))
    source, target = (next(filter(None, side), None) for side in sides)
    fields = ModelShape.__dataclass_fields__
    return Recipe(
        about=f"imported from {origin}",
        data="imported",
        source=source or "source",
        target=target or "target",
        vocab=max(config.src_vocab, config.tgt_vocab),
        tokenizer=(
            "sentencepiece"
            if isinstance(found.source, SentencePieces)
            else "bpe"
        ),
        model=ModelShape(
            **{name: getattr(config, name) for name in fields}
        ),
        search=SearchConfig(
            beam=about.get("num_beams") or 4,
            alpha=1.0,  # Marian divides by the length itself
            limit=(about.get("max_length") or 512) - 1,  # less the start
        ),
    )


def _card(folder: Path, origin: str) -> dict[str, Any]:
    """Which files a run was made from."""
    sums = {
        path.name: file_hash(path)
        for path in sorted(folder.iterdir())
        if path.name in {*TEXTS, *WEIGHTS, *EXTRAS, TARGETS}
    }
    return {"from": origin, "sha256": sums}


# E25-published-weights.md: By name
OWNER = "Helsinki-NLP"  # of the names without a slash
PUBLISHED = {  # its revision, and the SHA-256 of pytorch_model.bin there
    f"{OWNER}/opus-mt-en-de": (
        "6183067f769a302e3861815543b9f312c71b0ca4",
        "",
    ),
    f"{OWNER}/opus-mt-de-en": (
        "1a922f3b32a8e809e17a47d4b32142d8105924e5",
        "e743c3070f61f477cb62fe95ef2c9be2e77f3e488cb6b8030ff8a19e8295c87d",
    ),
    f"{OWNER}/opus-mt-es-en": (
        "c96e2c5399ebfae4fc43d9669556b9afa74bb69d",
        "",
    ),
}


def find_published(
    name: str, revision: str | None = None
) -> tuple[Path, str]:
    """The folder of a published model, fetched if name is not a folder,
    and where it is from. revision is a commit or a branch; unless given,
    that of PUBLISHED, or the newest. RunError, with what to do, if it is
    not there, or is not what PUBLISHED says.
    """
    if Path(name).is_dir():
        return Path(name), str(Path(name))
    if Path(name).exists():
        raise RunError(f"{name} is a file: give the folder that it is in")
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", name) or name[0] in "./":
        raise RunError(
            f"{name} is neither a folder nor the name of a model"
        )
    full = name if "/" in name else f"{OWNER}/{name}"
    first, known = PUBLISHED.get(full, ("main", ""))
    revision = revision or first
    folder, unread = _fetched(full, revision)
    if unread:
        raise RunError(
            f"{full} could not be fetched ({unread}): download "
            f"{', '.join(TEXTS)}, {' or '.join(WEIGHTS)}, and, if they are "
            f"there, {', '.join((*EXTRAS, TARGETS))} from "
            f"https://huggingface.co/{full}/tree/{revision} into a folder "
            f"{name}, and give the command again"
        )
    weights = folder / WEIGHTS[1]
    pinned = known and revision == first and weights.is_file()
    if pinned and (found := file_hash(weights)) != known:
        raise RunError(
            f"{weights} is not the file that was published: its SHA-256 is "
            f"{found}, not {known}. Delete it to fetch it again"
        )
    return folder, f"{full} at {folder.name}"


def _fetched(name: str, revision: str) -> tuple[Path, str]:
    """The folder of a model in the cache, all of it at one revision; or
    why there is none.
    """
    hub = imported("huggingface_hub")
    folder, log = Path(), imported("huggingface_hub.utils").logging
    level = log.get_verbosity()
    log.set_verbosity_error()  # or it tells each attempt without a network
    try:
        for file in (*TEXTS, *EXTRAS, TARGETS, *WEIGHTS):
            if file == WEIGHTS[1] and (folder / WEIGHTS[0]).is_file():
                continue
            try:
                got = hub.hf_hub_download(name, file, revision=revision)
            except hub.errors.LocalEntryNotFoundError:
                raise  # no network, which is another matter
            except hub.errors.EntryNotFoundError:
                continue  # check_files says what is needed
            folder = Path(got).parent
            revision = folder.name  # the same for all files
    except Exception as error:  # of the network, of the server, of a name
        said = " ".join(str(error).split())[:120].rstrip(" .:")
        return folder, said or type(error).__name__
    finally:
        log.set_verbosity(level)
    return folder, "" if folder != Path() else "it has no files"


# E25-published-weights.md: The way back
CALLED = {"relu": "relu", "silu": "swish", "gelu": "gelu"}
LONGEST = 1024  # positions that transformers' models have


def cannot_leave(shape: ModelShape) -> dict[str, str]:
    """What of a shape has no place in an exported form, by form; those
    that hold all of it are left out.
    """
    usual = (shape.d_model // shape.num_heads,) * 2
    odd, other = [], []
    if shape.window is not None:
        odd.append("a window")
    if (shape.key_size, shape.value_size) != usual:
        odd.append("a d_k or d_v other than d_model / num_heads")
    if shape.positions == "learned":
        other.append("learned positions")
    if shape.norm == "pre" and shape.tie != "all":
        other.append(f"norm pre with tie {shape.tie}")
    found = {"ctranslate2": odd, "transformers": odd + other}
    return {form: " and ".join(why) for form, why in found.items() if why}


def check_leaves(shape: ModelShape, form: str) -> None:
    """RunError where something of a shape has no place in a form."""
    if why := cannot_leave(shape).get(form):
        raise RunError(f"{form} does not support {why}")


def write_transformers(
    run: Run,
    model: Transformer,
    folder: Path,
    results: Mapping[str, Any] | None = None,
) -> None:
    """Write a run, with the weights of model, as a folder that the library
    transformers loads; results are scores for the model card, by split.
    RunError if Marian's model has no such parts.
    """
    check_paper(model, PAPER_PARTS)
    config = model.config
    check_leaves(config, "transformers")
    sides = vocabulary(run.source), vocabulary(run.target)
    if config.tie == "all" and sides[0] != sides[1]:
        raise RunError("tie all needs one vocabulary for both sides")
    weights = published_weights(model)
    path = folder / "model.safetensors"
    write_tensors(weights, path, {"format": "pt"})
    write_json(folder / "config.json", _config(config))
    write_json(folder / "generation_config.json", _generation(run))
    _write_tokenizer(run, folder)
    (folder / "README.md").write_text(
        _model_card(run, results or {}), "utf-8"
    )


def published_weights(model: Transformer) -> dict[str, Tensor]:
    """A model's weights, in Marian's order and by its names."""
    config, own = model.config, model.state_dict()
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
    made = {f"{n}.weight": x.detach()[:, back] for n, x in tables.items()}
    bias = own.get("embeddings.bias", torch.zeros(config.tgt_vocab))
    made["final_logits_bias"] = bias[None]
    if config.norm == "pre":
        for stack in STACKS:
            waves = sinusoids(LONGEST, config.d_model)[:, back]
            made[f"model.{stack}.embed_positions.weight"] = waves
    for name, ours, how in weight_names(config):
        if ours not in own:  # Marian has a bias everywhere
            width = len(own[ours.replace(".bias", ".weight")])
            made[name] = torch.zeros(width)
        else:
            made[name] = permuted(own[ours], how, back)
    return made


def _config(config: TransformerConfig) -> dict[str, Any]:
    """config.json for a model of ours."""
    layers = {f"{s}_layers": f"num_{s}_layers" for s in STACKS}
    fixed, name = FIXED, "MarianMTModel"
    if config.norm == "pre":
        fixed, name = FIXED | PRE, "PegasusForConditionalGeneration"
    return {
        "architectures": [name],
        **{n: v for n, v in fixed.items() if v is not None},
        "is_encoder_decoder": True,
        "vocab_size": config.src_vocab,
        "decoder_vocab_size": config.tgt_vocab,
        "d_model": config.d_model,
        **{
            theirs: getattr(config, ours) for theirs, ours in layers.items()
        },
        **{
            n: getattr(config, ours)
            for ours, two in TWICE.items()
            for n in two
        },
        **{name: getattr(config, name) for name in DROPOUTS},
        "activation_function": CALLED[config.activation],
        "max_position_embeddings": LONGEST,
        "share_encoder_decoder_embeddings": config.tie == "all",
        "tie_word_embeddings": config.tie != "none",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
    }


def _generation(run: Run) -> dict[str, Any]:
    """generation_config.json: the run's search, as far as it is the same.
    transformers divides by the length to a power, not by the paper's
    penalty.
    """
    return {
        "num_beams": run.recipe.search.beam,
        "length_penalty": run.recipe.search.alpha,
        "max_length": (run.recipe.search.limit or 511) + 1,  # and the start
        "bad_words_ids": [[PAD], [BOS]],
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
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
        files = {"vocab.json": source.pieces, TARGETS: target.pieces}
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


CARD = """---
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

DECODE = {  # by whether one folder has the tokens of both sides
    True: """\
    print(tokenizer.batch_decode(ids, skip_special_tokens=True))""",
    False: """\
    target = AutoTokenizer.from_pretrained(FOLDER, subfolder="target")
    print(target.batch_decode(ids, skip_special_tokens=True))""",
}


def told(results: Mapping[str, Any]) -> str:
    """A run's scores, as lines of a model card."""
    lines = []
    for split, found in results.items():
        signature = found.get("signature")
        said = [
            f"{name} {value:.4g}"
            for name, value in found.items()
            if name in SCORES
        ]
        line = f"- {split}: {', '.join(said)}"
        lines.append(line + (f" (`{signature}`)" if signature else ""))
    return "\n".join(lines) or "The run has none."


SCORES = "perplexity", "nll", "bleu", "chrf", "exact_match"


def _model_card(run: Run, results: Mapping[str, Any]) -> str:
    recipe = run.recipe
    code = getattr(run.source, "code", "")
    pieces = isinstance(run.source, SentencePieces)
    one = pieces or same_tokens(run.source, run.target)
    return CARD.format(
        about=recipe.about,
        parameters=sum(p.numel() for p in run.model.parameters()),
        source=recipe.source,
        target=recipe.target,
        origin=(
            "imported"
            if recipe.data == "imported"
            else f"trained on the data set {Path(recipe.data).name}"
        ),
        decode=DECODE[one],
        subfolder="" if one else ', subfolder="source"',
        example=f"{code} A sentence.".strip(),
        alpha=recipe.search.alpha,
        extra=recipe.search.extra,
        scores=told(results),
    )
