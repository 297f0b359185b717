"""Models as they are published, with random weights, for the tests."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from annotated.exchange.marian import Published, _Rows
from annotated.model import Transformer
from annotated.pocket import pocket_pairs
from annotated.tokens import BOS, PAD, UNK

sentencepiece = pytest.importorskip("sentencepiece")


transformers = pytest.importorskip("transformers")


PAIRS = pocket_pairs(700)


GERMAN = [pair.source for pair in PAIRS]


ENGLISH = [pair.target for pair in PAIRS]


CODES = [">>deu<<", ">>fra<<"]


# what is published under this name
KINDS: dict[str, dict[str, Any]] = {
    "as most": {},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "gelu by tanh": {"activation_function": "gelu_new"},
    "positions said to be learned": {"static_position_embeddings": False},
    "no bias": {"bias": False},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1},
    "two vocabularies": {"share_encoder_decoder_embeddings": False},
    "one vocabulary, two tables": {
        "share_encoder_decoder_embeddings": False, "one": True,
    },
    "an output of its own": {"tie_word_embeddings": False},
    "codes": {"codes": CODES},
}  # fmt: skip


def spm(lines: list[str], size: int) -> bytes:
    """A sentencepiece model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=size,
        minloglevel=2,
    )  # fmt: skip
    return out.getvalue()


def pieces(model: bytes) -> list[str]:
    read = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [read.id_to_piece(i) for i in range(3, read.get_piece_size())]


def vocab_of(pieces: list[str]) -> dict[str, int]:
    names = dict.fromkeys(["</s>", "<unk>", *pieces, "<pad>"])
    return {name: i for i, name in enumerate(names)}


def marian_model(config: Any, bias: bool = True) -> Any:
    """transformers' model with random weights, none of them zero by
    chance, but the row of padding, as in what is published.
    """
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                norm = name.endswith("norm.weight")
                p.copy_(0.5 * torch.randn_like(p) + 1.0 * norm)
        for table in (model.get_input_embeddings(), model.lm_head):
            if len(table.weight) > config.pad_token_id:
                table.weight[config.pad_token_id] = 0
        if bias:
            model.final_logits_bias.normal_()
    return model


def publish(
    folder: Path, models: tuple[bytes, bytes], **changes: Any
) -> Any:
    """Write a folder as it is published; returns the model."""
    bias, one = changes.pop("bias", True), changes.pop("one", False)
    codes = changes.pop("codes", [])
    shared = changes.get("share_encoder_decoder_embeddings", True) or one
    folder.mkdir()
    (folder / "source.spm").write_bytes(models[0])
    (folder / "target.spm").write_bytes(models[1])
    own = [pieces(models[0]), pieces(models[1])]
    vocabs = [vocab_of([*codes, *own[0], *own[1]])] * 2
    if not shared:
        # padding has one id in both
        vocabs = [vocab_of(["<pad>", *side]) for side in own]
        (folder / "target_vocab.json").write_text(json.dumps(vocabs[1]))
    (folder / "vocab.json").write_text(json.dumps(vocabs[0]))
    said: Any = {"source_lang": "de", "target_lang": "en"}
    if not shared:
        said["separate_vocabs"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    pad = vocabs[0]["<pad>"]
    usual = {
        "vocab_size": len(vocabs[0]), "decoder_vocab_size": len(vocabs[1]),
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "activation_function": "swish", "scale_embedding": True,
        "pad_token_id": pad, "decoder_start_token_id": pad,
        "eos_token_id": 0, "forced_eos_token_id": 0, "static_position_embeddings": True,
        "normalize_before": False, "normalize_embedding": False,
        "add_final_layer_norm": False,
    }  # fmt: skip
    config = transformers.MarianConfig(**usual | changes)
    model = marian_model(config, bias)
    model.generation_config = transformers.GenerationConfig(
        num_beams=3, max_length=40, bad_words_ids=[[pad]], pad_token_id=pad,
        decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0,
    )  # fmt: skip
    model.save_pretrained(folder)
    return model


def in_pieces(folder: Path, form: str = "model.safetensors") -> list[str]:
    """Put the weights of a folder into several files; their names."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    path.unlink()
    stem, _, end = form.partition(".")
    names = [f"{stem}-0000{i + 1}-of-00003.{end}" for i in range(3)]
    where = {}
    for i, name in enumerate(names):
        piece = {n: weights[n] for n in sorted(weights)[i::3]}
        where |= dict.fromkeys(piece, name)
        if end == "bin":
            torch.save(piece, folder / name)
        else:
            save_file(piece, folder / name)
    index = {"metadata": {}, "weight_map": where}
    (folder / f"{form}.index.json").write_text(json.dumps(index))
    return names


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        return transformers.MarianTokenizer.from_pretrained(folder)


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    kept = {n: v for n, v in values.items() if v is not None}
    path.write_text(json.dumps(kept))


def double(found: Published) -> Transformer:
    model = Transformer(found.config).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(found.weights[name])
    for positions in (model.src_positions, model.tgt_positions):
        positions.dtype = torch.float64  # theirs come from float32
    return model


def there(ids: Any, rows: _Rows) -> Any:
    """Our ids, as Marian's; both of our first two are its padding."""
    pad = (
        rows.order[PAD] if rows.order[PAD] is not None else rows.order[BOS]
    )
    places = torch.tensor([pad if i is None else i for i in rows.order])
    return places[ids]


def both_logits(
    model: Any,
    found: Published,
    src: torch.Tensor,
    tgt: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours and theirs, (batch, length, vocab), in the order of theirs."""
    rows = found.rows[1]
    with torch.no_grad():
        given = model.double()(
            input_ids=there(src, found.rows[0]),
            attention_mask=(src != PAD).long(),
            decoder_input_ids=there(tgt, rows),
        ).logits
        own = double(found)(src, tgt)
    ours = [i for i, row in enumerate(rows.order) if row is not None]
    return own[..., ours], given[..., [rows.order[i] for i in ours]]


def random_ids(
    rows: _Rows, shape: tuple[int, int], end: int = 0
) -> torch.Tensor:
    ids = torch.randint(UNK, len(rows.order), shape)
    if end:
        ids[1:, -end:] = PAD
    return ids
