"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated.corpora.fetch import file_hash
from annotated.corpora.sentencepieces import (
    SentencePieces,
    codes_of,
    kind_of,
    load_tokenizer,
    vocabulary,
)
from annotated.engine.errors import RunError
from annotated.engine.files import check_new, new_folder, write_json
from annotated.engine.parts import PartsConfig, PartsShape
from annotated.engine.recipes import Recipe
from annotated.engine.runs import Run, read_recipe
from annotated.engine.tensors import read_tensors, write_tensors
from annotated.exchange.marian import (
    IDS,
    SETTINGS,
    SHARDS,
    TARGET_VOCAB,
    TEXTS,
    WEIGHTS,
    Rows,
    our_weights,
    pieces_of,
    rows_of,
    shape_of,
)
from annotated.model import Transformer
from annotated.search import SearchConfig
from annotated.tokens import BOS, SPECIALS, Tokenizer

__all__ = ["Published", "read_published", "import_marian"]


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
    rows: tuple[Rows, Rows]


def _check_files(folder: Path) -> None:
    """RunError unless folder has the files of a model that we can read."""
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder")
    names = {path.name for path in folder.iterdir()}
    texts = {*TEXTS[:1], *_OWN} if {*_OWN} <= names else {*TEXTS}
    raw = sorted(n for n in names if n.endswith(".npz"))
    if raw and "source.spm" in texts - names:
        raise RunError(
            f"{folder} has Marian's own file, {raw[0]}: get the form that "
            "is published for transformers, with model.safetensors"
        )
    missing = [name for name in TEXTS if name in texts - names]
    if not names & {*WEIGHTS, *SHARDS}:
        missing.append(" or ".join(WEIGHTS))
    if missing:
        raise RunError(f"{folder} lacks {', '.join(missing)}")
    pieces = {piece for piece in _weight_files(folder).values() if piece}
    if absent := sorted(pieces - names):
        raise RunError(f"{folder} lacks {', '.join(absent)}")
    for name in sorted(names & {*TEXTS, *WEIGHTS, *pieces}):
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
    for whole, index in zip(WEIGHTS, SHARDS):
        if (folder / whole).is_file():
            return {whole: whole}
        if (folder / index).is_file():
            files: Any = _json(folder / index).get("weight_map")
            if not pieces_of(files):
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
    if len(files) == 1 and files.keys() <= {*WEIGHTS}:
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
    index = next(n for n in SHARDS if (folder / n).is_file())
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
    return {
        name: x if x.dtype == torch.float64 else x.float()
        for name, x in weights.items()
    }


def read_published(folder: Path, language: str | None = None) -> Published:
    """A folder with a published model. RunError if it cannot be used, or
    if language is not one of those that it can translate into.
    """
    _check_files(folder)
    where = folder / "config.json"
    config = _json(where)
    about = dict(config)
    for name in SETTINGS:
        if (folder / name).is_file():
            about |= _json(folder / name)
    _check_search(about, folder)
    forced = {"forced_bos_token_id": about.get("forced_bos_token_id")}
    shape = shape_of(config | forced, where)
    shared = bool(config.get("share_encoder_decoder_embeddings", True))
    if all((folder / name).is_file() for name in _OWN):
        source, target, rows = _exported(folder, config)
    else:
        rows = _vocabularies(folder, config, shared)
        source, target = _tokenizers(folder, rows, language)
    read, write = (len(side.order) for side in rows)
    model = PartsConfig(src_vocab=read, tgt_vocab=write, **vars(shape))
    weights, file = _read_weights(folder)
    ours = our_weights(weights, model, *rows, shared, file)
    if not ours["embeddings.bias"].any():
        del ours["embeddings.bias"]
        model = dataclasses.replace(model, output_bias=False)
    return Published(about, model, source, target, ours, rows)


def _json(path: Path) -> dict[str, Any]:
    """An object from a JSON file. RunError if it is damaged."""
    try:
        values = json.loads(path.read_text("utf-8"))
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
    pad, bad = about.get("pad_token_id"), about.get("bad_words_ids") or []
    start = about.get("decoder_start_token_id")
    if bad not in ([], [[pad]], [[pad], [start]]):
        raise RunError(
            f"{folder}: bad_words_ids forbids more than padding, which "
            "cannot be imported"
        )


def _exported(
    folder: Path, config: Mapping[str, Any]
) -> tuple[Tokenizer, Tokenizer, tuple[Rows, Rows]]:
    """The tokenizers of an exported run; their rows are in order."""
    names = "pad_token_id", "decoder_start_token_id", "eos_token_id"
    if any(config.get(name) != IDS[name] for name in names):
        where = folder / "config.json"
        raise RunError(f"{where} does not fit {' and '.join(_OWN)}")
    try:
        source, target = (load_tokenizer(folder / name) for name in _OWN)
    except ValueError as error:
        raise RunError(str(error)) from None
    read, write = (
        Rows(list(range(len(side))), vocabulary(side))
        for side in (source, target)
    )
    return source, target, (read, write)


def _vocabularies(
    folder: Path, config: Mapping[str, Any], shared: bool
) -> tuple[Rows, Rows]:
    """The rows of source and target, which share a table or not."""
    size = config["vocab_size"]
    tgt_size = config.get("decoder_vocab_size") or size
    eos, start = config["eos_token_id"], config["decoder_start_token_id"]
    path = folder / "vocab.json"
    if (folder / TARGET_VOCAB).is_file() and not shared:
        vocab = _json(path)
        begins = start if vocab.get(SPECIALS[BOS]) == start else None
        source = rows_of(vocab, size, path, eos, begins)
        path = folder / TARGET_VOCAB
        target = rows_of(_json(path), tgt_size, path, eos, start)
        return source, target
    if tgt_size != size:
        raise RunError(
            f"{folder / 'config.json'}: decoder_vocab_size is {tgt_size} "
            f"and vocab_size {size}, but there is one vocabulary, "
            f"{path.name}"
        )
    rows = rows_of(_json(path), size, path, eos, start)
    return rows, rows


def _tokenizers(
    folder: Path, rows: tuple[Rows, Rows], language: str | None
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

    language is the target of a model that has several; names are those of
    source and target where the folder does not say; origin is where it is
    from. RunError if out is not empty or the model cannot be imported.
    """
    check_new(out)
    published = read_published(folder, language)
    origin = origin or str(folder)
    try:
        recipe = _recipe(published, origin, language, names)
        if (folder / "recipe.json").is_file():  # of a run of ours
            recipe = read_recipe(folder)
    except ValueError as error:
        raise RunError(f"{folder}: {error}") from None
    model = Transformer(published.config)
    run = Run(recipe, published.source, published.target, model)
    weights = {n: x.float() for n, x in published.weights.items()}
    kept = {*TEXTS, *WEIGHTS, *SHARDS, *SETTINGS, TARGET_VOCAB}
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
            alpha=1.0,  # Marian divides by the length itself
            limit=(about.get("max_length") or 512) - 1,  # less the start
        ),
    )
