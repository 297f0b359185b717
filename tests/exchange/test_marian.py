"""Page E25: a published model, in our form, says what it said before."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import pickle
import random
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from annotated.cli import main, obey
from annotated.corpora.data import open_data
from annotated.corpora.fetch import file_hash
from annotated.corpora.pieces import (
    SentencePieces,
    load_tokenizer,
    same_tokens,
)
from annotated.corpora.prepare import of_files, prepare
from annotated.engine.errors import RunError
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run, first_model
from annotated.engine.search import beam_search
from annotated.engine.start import fine_tuning
from annotated.exchange import marian
from annotated.exchange.export import export_run
from annotated.exchange.marian import (
    Rows,
    find_published,
    import_marian,
    interleaved,
    our_weights,
    read_published,
    rows_of,
    shape_of,
)
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import pocket_pairs
from annotated.search import SearchConfig, beam, greedy, plain_beam_search
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK
from tests.helpers import TINY, benchmark, content, environment

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


@pytest.fixture(scope="session")
def models() -> tuple[bytes, bytes]:
    return spm(GERMAN, 110), spm(ENGLISH, 90)


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


def theirs(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def original(
    tmp_path_factory: pytest.TempPathFactory, models: tuple[bytes, bytes]
) -> Path:
    """A folder as it is published. Do not touch."""
    place = tmp_path_factory.mktemp("hub") / "opus-mt-de-en"
    publish(place, models)
    return place


@pytest.fixture
def folder(tmp_path: Path, original: Path) -> Path:
    """A copy of it, to do things to."""
    return Path(shutil.copytree(original, tmp_path / original.name))


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; None removes one."""
    values = json.loads(path.read_text()) | changes
    kept = {n: v for n, v in values.items() if v is not None}
    path.write_text(json.dumps(kept))


def double(found: marian.Published) -> Transformer:
    model = Transformer(found.config).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(found.weights[name])
    for positions in (model.src_positions, model.tgt_positions):
        positions.dtype = torch.float64  # theirs come from float32
    return model


def there(ids: Any, rows: Rows) -> Any:
    """Our ids, as Marian's; both of our first two are its padding."""
    pad = (
        rows.order[PAD] if rows.order[PAD] is not None else rows.order[BOS]
    )
    places = torch.tensor([pad if i is None else i for i in rows.order])
    return places[ids]


def both_logits(
    model: Any,
    found: marian.Published,
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
    rows: Rows, shape: tuple[int, int], end: int = 0
) -> torch.Tensor:
    ids = torch.randint(UNK, len(rows.order), shape)
    if end:
        ids[1:, -end:] = PAD
    return ids


# --- the model --------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_the_published_models(
    kind: str, tmp_path: Path, models: Any
) -> None:
    model = publish(tmp_path / "m", models, **KINDS[kind])
    language = "deu" if "codes" in KINDS[kind] else None
    found = read_published(tmp_path / "m", language)
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
    act=st.sampled_from(["relu", "swish", "gelu"]), seed=st.integers(0, 99),
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
    shape = shape_of(
        json.loads(config.to_json_string(use_diff=False)), where
    )
    rows = rows_of(table, vocab, where, table["</s>"], first)
    sizes: Any = dict.fromkeys(("src_vocab", "tgt_vocab"), len(rows.order))
    made = TransformerConfig(**sizes, **vars(shape))
    weights = our_weights(
        model.state_dict(), made, rows, rows, shared, where
    )
    found = marian.Published({}, made, None, None, weights, (rows, rows))
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


# --- search -----------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [30, pytest.param(200, marks=pytest.mark.exhaustive)]
)
def test_the_search_finds_what_it_finds_in_the_published_model(
    count: int, folder: Path
) -> None:
    model = (
        transformers.MarianMTModel.from_pretrained(folder).double().eval()
    )
    found = read_published(folder)
    ours, rows = double(found), found.rows[1]
    columns = torch.tensor([0 if i is None else i for i in rows.order])

    def after(src: list[int], ids: list[int]) -> torch.Tensor:
        """What chapter 16's search asks, answered by transformers."""
        with torch.no_grad():
            logits = model(
                input_ids=there([*src, EOS], rows)[None],
                decoder_input_ids=there(ids, rows)[None],
            ).logits[0, -1]
        log_p = logits.log_softmax(dim=-1)[columns]
        log_p[[PAD, BOS]] = -torch.inf
        return log_p

    for line in found.source.encode(GERMAN[:count]):
        for width in (1, 4):
            config = SearchConfig(beam=width, limit=12)
            mine = plain_beam_search(ours, line, config)[0]
            limit = min(len(line) + config.extra, 12)
            ask = partial(after, line)
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
    found, tokens = read_published(folder), theirs(folder)
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


# --- tokens -----------------------------------------------------------------

ODD = [
    "", " ", "  Der   Hund ", "Ünïcödé 漢字 😀", "der\tHund", "a" * 300,
    "ein </s", ">>deu Hund", "▁der▁Hund", "\u00a0x\u200b", "ﬁnden",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["as most", "two vocabularies", "codes"])
def test_tokens_are_those_of_their_tokenizer(
    kind: str, tmp_path: Path, models: Any
) -> None:
    publish(tmp_path / "m", models, **KINDS[kind])
    coded = "codes" in KINDS[kind]
    found = read_published(tmp_path / "m", "deu" if coded else None)
    tokens, start = theirs(tmp_path / "m"), ">>deu<<" if coded else ""
    lines = [*GERMAN[:50], *ODD]
    given = tokens([start + line for line in lines]).input_ids
    for mine, other in zip(found.source.encode(lines), given):
        assert [*there(mine, found.rows[0]).tolist(), 0] == other
    lines = [*ENGLISH[:50], *ODD]
    given = tokens(text_target=lines).input_ids
    ids = found.target.encode(lines)
    for mine, other in zip(ids, given):
        assert [*there(mine, found.rows[1]).tolist(), 0] == other
    back = tokens.batch_decode(
        given, skip_special_tokens=True, use_source_tokenizer=False
    )
    assert found.target.decode(ids) == back
    assert found.target.decode(ids)[:50] == ENGLISH[:50]


def test_a_special_in_a_text_is_text(folder: Path) -> None:
    tokens = read_published(folder).source
    [ids] = tokens.encode(["der </s> Hund <pad>"])
    assert not {PAD, BOS, EOS} & set(ids)
    tokens.encode(["\ud800"])  # half of a character, which has no UTF-8


@given(st.text(max_size=30))
@settings(deadline=None, max_examples=60)
def test_any_text_has_ids(models: tuple[bytes, bytes], text: str) -> None:
    tokens = SentencePieces(models[0], [*SPECIALS, *pieces(models[0])])
    [ids] = tokens.encode([text])
    assert all(UNK <= i < len(tokens) for i in ids)
    assert isinstance(tokens.decode([ids])[0], str)


def test_a_tokenizer_survives_being_written(
    folder: Path, tmp_path: Path
) -> None:
    tokens = read_published(folder).source
    tokens.save(tmp_path / "source.json")
    again = load_tokenizer(tmp_path / "source.json")
    assert isinstance(again, SentencePieces)
    assert isinstance(tokens, SentencePieces)
    assert again.text() == tokens.text()
    assert again.encode(GERMAN) == tokens.encode(GERMAN)
    text = (tmp_path / "source.json").read_text()
    for damaged in (text[:-40], text.replace('"code"', '"cod"')):
        (tmp_path / "source.json").write_text(damaged)
        with pytest.raises(
            ValueError, match=r"source\.json is no tokenizer"
        ):
            load_tokenizer(tmp_path / "source.json")


# --- several languages ------------------------------------------------------


def test_each_line_says_its_language(tmp_path: Path, models: Any) -> None:
    publish(tmp_path / "m", models, codes=CODES)
    tokens = read_published(tmp_path / "m", "fra").source
    assert isinstance(tokens, SentencePieces)
    code, other = (tokens.pieces.index(c) for c in (">>fra<<", ">>deu<<"))
    plain, own, text = tokens.encode(
        ["Hund", ">>deu<< Hund", ">>xyz<< Hund"]
    )
    assert plain[0] == code and own[0] == other and plain[1:] == own[1:]
    assert text[0] == code and len(text) > 3  # of no language that it has


def test_each_part_of_a_long_line_says_its_language(
    tmp_path: Path, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from annotated.engine import translate

    publish(tmp_path / "m", models, codes=CODES)
    run = import_marian(tmp_path / "m", tmp_path / "run", "fra")
    monkeypatch.setattr(translate, "MAX_SOURCE", 5)
    seen: list[list[int]] = []

    def search(
        models: Any, sentences: Any, *others: Any, **more: Any
    ) -> Any:
        seen.extend(sentences)
        return [[] for _ in sentences]

    monkeypatch.setattr(translate, "search_in_order", search)
    [ids] = run.source.encode([GERMAN[0]])
    run.translate([GERMAN[0], "", " "])
    assert len(seen) > 1 and all(len(part) <= 5 for part in seen)
    assert [part[0] for part in seen] == [ids[0]] * len(seen)
    assert [i for part in seen for i in part[1:]] == ids[1:]


@pytest.mark.parametrize(
    ("codes", "language", "reason"),
    [
        (
            CODES,
            None,
            "several languages: give --language; it has deu, fra",
        ),
        (CODES, "eng", "no such language; it has deu, fra"),
        ([], "deu", "translates into one language: omit --language"),
    ],
)
def test_a_language_is_checked(
    codes: list[str],
    language: str | None,
    reason: str,
    tmp_path: Path,
    models: Any,
) -> None:
    publish(tmp_path / "m", models, codes=codes)
    with pytest.raises(RunError, match=reason):
        import_marian(tmp_path / "m", tmp_path / "run", language)
    assert not (tmp_path / "run").exists()


# --- a run like any other ---------------------------------------------------


def test_what_is_imported_is_a_run(folder: Path, tmp_path: Path) -> None:
    run = import_marian(folder, tmp_path / "run")
    recipe = run.recipe
    assert (recipe.source, recipe.target) == ("de", "en")
    assert (recipe.search.beam, recipe.search.limit) == (3, 39)
    said = [best[0].text for best in run.translate(GERMAN[:20])]
    assert len(set(said)) > 3
    # averaging, ensembles and export take it as they take any run
    twice = Run.open(tmp_path / "run", tmp_path / "run")
    assert [best[0].text for best in twice.translate(GERMAN[:20])] == said
    export_run(run, "safetensors", tmp_path / "small")
    again = Run.open(tmp_path / "small")
    assert [best[0].text for best in again.translate(GERMAN[:20])] == said
    maps = run.model.attention_maps(
        torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS, 6]])
    )
    assert maps["cross.1"].shape == (1, 4, 2, 3)
    card = json.loads((tmp_path / "run" / "imported.json").read_text())
    assert set(card["sha256"]) >= {
        "config.json",
        "model.safetensors",
        "source.spm",
    }


def test_models_with_other_tokens_cannot_vote(
    tmp_path: Path, models: Any
) -> None:
    publish(tmp_path / "m", models)
    publish(tmp_path / "n", (models[0], spm(ENGLISH, 80)))
    for name in "mn":
        import_marian(tmp_path / name, tmp_path / f"run-{name}")
    with pytest.raises(RunError, match="cannot vote together"):
        Run.open(tmp_path / "run-m", tmp_path / "run-n")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_is_read_as_well(
    zipped: bool, folder: Path
) -> None:
    """Files of 2020 have the form that torch had before it used archives."""
    weights = load_file(folder / "model.safetensors")
    before = read_published(folder).weights
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    assert path.read_bytes().startswith(b"PK") == zipped
    after = read_published(folder).weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_weights_in_16_bits_become_float32(
    folder: Path, tmp_path: Path
) -> None:
    weights = load_file(folder / "model.safetensors")
    half = {n: x.half() for n, x in weights.items()}
    save_file(half, folder / "model.safetensors")
    run = import_marian(folder, tmp_path / "run")
    assert run.model.embeddings.target.dtype == torch.float32


def test_positions_in_the_file_have_to_be_sinusoids(folder: Path) -> None:
    path, name = (
        folder / "model.safetensors",
        "model.encoder.embed_positions.weight",
    )
    weights = load_file(path)
    model = transformers.MarianMTModel.from_pretrained(folder)
    waves = model.model.encoder.embed_positions.weight.detach()[:64].clone()
    save_file(weights | {name: waves}, path)
    read_published(folder)
    waves[3, 5] += 0.1
    save_file(weights | {name: waves}, path)
    with pytest.raises(RunError, match=f"{name} has no sinusoids"):
        read_published(folder)


# --- the command line -------------------------------------------------------


def annotated(
    line: str, monkeypatch: pytest.MonkeyPatch, stdin: str = ""
) -> int:
    """Run a command line; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["annotated", *line.split()])
    text = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    monkeypatch.setattr(sys, "stdin", text)
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_it_is_imported_used_and_scored_from_a_shell(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = partial(annotated, monkeypatch=monkeypatch)
    assert ask(f"import marian {folder} --out run") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["source"], said["target"]) == ("de", "en")
    lines = "".join(f"{line}\n" for line in GERMAN[:3])
    use = "--run run --workers 1 --precision float32"
    assert ask(f"translate {use}", stdin=lines) == 0
    texts = capfd.readouterr().out.splitlines()
    assert len(texts) == 3 and any(texts)
    (tmp_path / "src").write_text(lines)
    (tmp_path / "ref").write_text("\n".join(texts) + "\n")
    assert ask(f"evaluate {use} --src src --ref ref --json") == 0
    assert json.loads(capfd.readouterr().out)["exact_match"] == 100.0
    assert ask(f"evaluate {use} --split test") == 2
    assert "give --data" in capfd.readouterr().err


def test_a_refusal_is_one_line_and_exit_code_2(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    edit(folder / "config.json", model_type="bart")
    before = content(tmp_path)
    assert (
        annotated(
            f"import marian {folder} --out {tmp_path}/run", monkeypatch
        )
        == 2
    )
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("annotated: ") and "model_type" in said.err
    assert content(tmp_path) == before


# --- what is refused --------------------------------------------------------


def config(**changes: Any) -> Any:
    return lambda folder: edit(folder / "config.json", **changes)


def vocabulary(change: Any) -> Any:
    def act(folder: Path) -> None:
        path = folder / "vocab.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return act


def weights(change: Any) -> Any:
    def act(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        change(found)
        save_file(found, path)

    return act


def cut(name: str, keep: float) -> Any:
    def act(folder: Path) -> None:
        path = folder / name
        whole = path.read_bytes()
        path.write_bytes(whole[: int(keep * len(whole))])

    return act


def write(name: str, content: bytes, *without: str) -> Any:
    def act(folder: Path) -> None:
        for other in without:
            (folder / other).unlink()
        (folder / name).write_bytes(content)

    return act


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
)
FC1 = "model.encoder.layers.0.fc1.weight"
HOSTILE: dict[str, tuple[Any, str]] = {
    "bart": (config(model_type="bart"), 'model_type is "bart", but only "marian"'),
    "t5": (config(model_type="t5"), 'model_type is "t5", but only "marian"'),
    "no type": (config(model_type=None), "model_type is null"),
    "pre-norm": (config(normalize_before=True), "normalize_before is true"),
    "a norm more": (config(normalize_embedding=True), "normalize_embedding is true"),
    "a last norm": (config(add_final_layer_norm=True), "add_final_layer_norm is true"),
    "learned": (config(static_position_embeddings=False), "static_position_embeddings is false"),
    "unscaled": (config(scale_embedding=None), "scale_embedding is null, but only true"),
    "forced": (config(forced_bos_token_id=7), "forced_bos_token_id is 7"),
    "gelu_new": (config(activation_function="gelu_new"), 'activation_function is "gelu_new"'),
    "two widths": (config(decoder_ffn_dim=99), "decoder_ffn_dim is 99, but only 24"),
    "two heads": (config(decoder_attention_heads=2), "decoder_attention_heads is 2, but only 4"),
    "odd heads": (config(encoder_attention_heads=3, decoder_attention_heads=3), "num_heads"),
    "no width": (config(d_model=None), "config.json has no field d_model"),
    "a word": (config(d_model="sixteen"), "d_model must be an integer"),
    "another width": (config(d_model=32), "does not fit config.json"),
    "enormous": (config(d_model=2**40), "does not fit config.json"),
    "more layers": (config(encoder_layers=3), "has no model.encoder.layers.2"),
    "layers without end": (
        config(encoder_layers=10**12),
        "has no model.encoder.layers.999999999999",
    ),
    "fewer layers": (config(encoder_layers=1), "a weight too many"),
    "words that are bad": (
        lambda f: edit(f / "generation_config.json", bad_words_ids=[[5, 6]]),
        "bad_words_ids forbids more than padding",
    ),
    "no length": (lambda f: edit(f / "generation_config.json", max_length="long"), 'max_length is "long", which is no whole number'),
    "no beams": (lambda f: edit(f / "generation_config.json", num_beams=0), "num_beams is 0, which is no whole number from 1"),
    "bpe": (
        lambda f: [(f / f"{s}.spm").rename(f / f"{s}.bpe") for s in ("source", "target")],
        r"published with BPE \(source.bpe\)",
    ),
    "raw": (write("model.npz", b"x", "source.spm", "model.safetensors"), "Marian's own file, model.npz"),
    "shards": (
        write("model.safetensors.index.json", b"{}", "model.safetensors"),
        "in several files .model.safetensors.index.json., which are not",
    ),
    "missing": (
        lambda f: [(f / n).unlink() for n in ("vocab.json", "model.safetensors")],
        "lacks vocab.json, model.safetensors or pytorch_model.bin",
    ),
    "a list": (write("config.json", b"[]"), "config.json cannot be read: it holds no JSON object"),
    "half a config": (cut("config.json", 0.5), "config.json cannot be read"),
    "half a vocabulary": (cut("vocab.json", 0.5), "vocab.json cannot be read"),
    "a token less": (vocabulary(lambda v: dict(list(v.items())[:-2] + list(v.items())[-1:])), "vocab.json does not fit"),
    "an id twice": (vocabulary(lambda v: v | {"zzz": 5}), "vocab.json does not fit"),
    "an id too high": (vocabulary(lambda v: v | {"zzz": 9999}), "vocab.json does not fit"),
    "an id that is none": (vocabulary(lambda v: v | {"zzz": "5"}), "vocab.json does not fit"),
    "another end": (config(eos_token_id=3), "vocab.json does not fit"),
    "start nowhere": (config(decoder_start_token_id=9999), "has no id 9999"),
    "two sizes": (config(decoder_vocab_size=50), "decoder_vocab_size is 50"),
    "an empty spm": (write("source.spm", b""), "source.spm cannot be used"),
    "half an spm": (cut("source.spm", 0.3), "source.spm"),
    "no spm": (write("target.spm", b"not at all" * 50), "target.spm cannot be used"),
    "half the weights": (cut("model.safetensors", 0.6), "model.safetensors cannot be read"),
    "a bit of weights": (cut("model.safetensors", 0.001), "model.safetensors cannot be read"),
    "no safetensors": (write("model.safetensors", b"{}" * 99), "model.safetensors cannot be read"),
    "another shape": (weights(lambda w: w.update({FC1: w[FC1][:5]})), "fc1.weight is"),
    "another name": (weights(lambda w: w.update(x=w.pop(FC1))), "has no model.encoder.layers.0.fc1"),
    "one too many": (weights(lambda w: w.update(x=w[FC1].clone())), "a weight too many: x"),
    "two tables": (
        weights(lambda w: w.update({"lm_head.weight": w["model.shared.weight"] + 1})),
        "lm_head.weight differ, but by config.json they are one",
    ),
    "a pointer": (
        write("pytorch_model.bin", POINTER, "model.safetensors"),
        "pytorch_model.bin is only a pointer to the file: run `git lfs pull`",
    ),
    "a pointer to tokens": (write("source.spm", POINTER), "source.spm is only a pointer"),
    "half a pickle": (write("pytorch_model.bin", b"PK\3\4", "model.safetensors"), "pytorch_model.bin cannot be used"),
    "a list of tensors": (
        lambda f: [(f / "model.safetensors").unlink(), torch.save([torch.ones(1)], f / "pytorch_model.bin")],
        "pytorch_model.bin cannot be used: it holds no table of tensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_cannot_be_used_is_refused_by_name(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    change, reason = HOSTILE[kind]
    change(folder)
    before = content(tmp_path)
    with pytest.raises(RunError, match=reason) as refusal:
        import_marian(folder, tmp_path / "run")
    assert str(folder) in str(refusal.value)
    assert content(tmp_path) == before


def test_tokens_of_another_language_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    greek = ["".join(draw.choices("αβγδεζηθικ ", k=30)) for _ in range(300)]
    (folder / "source.spm").write_bytes(spm(greek, 60))
    with pytest.raises(
        RunError, match=r"source\.spm does not fit the vocabulary"
    ):
        import_marian(folder, tmp_path / "run")


class Touch:
    """A pickle that would write a file when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["torch", "torch of old", "pickle"])
def test_nothing_in_a_pickle_is_run(
    form: str, folder: Path, tmp_path: Path
) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    evil = {**weights, "x": Touch(tmp_path / "ran")}
    with (folder / "pytorch_model.bin").open("wb") as file:
        if form == "pickle":
            pickle.dump(evil, file)
        else:
            zipped = form == "torch"
            torch.save(evil, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(RunError, match="nothing in it was run") as refusal:
        import_marian(folder, tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert (
        not (tmp_path / "ran").exists() and not (tmp_path / "run").exists()
    )


def test_with_an_older_torch_a_pickle_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(RunError, match=r"torch 2\.6 or newer"):
        import_marian(folder, tmp_path / "run")


def test_a_full_folder_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        import_marian(folder, tmp_path / "run")
    assert content(tmp_path / "run") == {"mine.txt": b"mine"}


# --- by name ----------------------------------------------------------------


@pytest.fixture
def asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str, str]]:
    """What a hub, which has folder's files under every name, is asked for:
    name, file, revision.
    """
    hub = pytest.importorskip("huggingface_hub")
    found: list[tuple[str, str, str]] = []

    def download(name: str, file: str, revision: str) -> str:
        found.append((name, file, revision))
        if not (folder / file).exists():
            raise hub.errors.EntryNotFoundError(file)
        place = tmp_path / "cache" / revision.replace("main", "abc123")
        place.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(folder / file, place / file))

    monkeypatch.setattr(hub, "hf_hub_download", download)
    return found


def test_a_name_is_fetched_at_one_revision(
    asked: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    found, origin = find_published("opus-mt-fr-en")
    assert (found, origin) == (
        tmp_path / "cache" / "abc123",
        "Helsinki-NLP/opus-mt-fr-en at abc123",
    )
    assert {name for name, _, _ in asked} == {"Helsinki-NLP/opus-mt-fr-en"}
    # the branch is asked for once, and then the commit that it was
    assert [revision for _, _, revision in asked] == ["main"] + [
        "abc123"
    ] * (len(asked) - 1)
    assert "pytorch_model.bin" not in [file for _, file, _ in asked]
    run = import_marian(found, tmp_path / "run", origin=origin)
    assert (
        run.recipe.about
        == "imported from Helsinki-NLP/opus-mt-fr-en at abc123"
    )


@pytest.mark.parametrize("pair", ["en-de", "de-en", "es-en"])
def test_some_have_a_revision_of_their_own(
    pair: str, asked: list[tuple[str, str, str]]
) -> None:
    name = f"Helsinki-NLP/opus-mt-{pair}"
    revision, _ = marian.PUBLISHED[name]
    assert len(revision) == 40
    for said in (name, f"opus-mt-{pair}"):
        assert find_published(said)[1] == f"{name} at {revision}"
    assert {r for _, _, r in asked} == {revision}
    assert find_published(name, "main")[1] == f"{name} at abc123"


def test_weights_with_another_hash_are_refused(
    asked: list[tuple[str, str, str]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "Helsinki-NLP/opus-mt-de-en"
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path)
    (folder / "model.safetensors").unlink()
    assert marian.PUBLISHED[name][1]
    with pytest.raises(
        RunError, match="is not the file that was published"
    ):
        find_published(name)
    find_published(name, "main")  # of which no hash is known
    known = {name: ("abc", file_hash(path))}
    monkeypatch.setattr(marian, "PUBLISHED", known)
    find_published(name)


@pytest.mark.parametrize("pair", ["en-de", "fr-en"])
def test_without_a_network_it_says_what_to_download(
    pair: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    log = logging.getLogger("huggingface_hub.utils._http")

    def download(*args: Any, **more: Any) -> str:
        log.warning("Retrying in 8 s")  # as the library does, five times
        raise ConnectionError("no route to\nhost. ")

    monkeypatch.setattr(hub, "hf_hub_download", download)
    with pytest.raises(RunError) as refusal:
        find_published(f"opus-mt-{pair}")
    said = str(refusal.value)
    assert "(no route to host)" in said and "\n" not in said
    assert not caplog.records
    for name in (
        "config.json",
        "source.spm",
        "target.spm",
        "vocab.json",
        "model.safetensors",
        "pytorch_model.bin",
    ):
        assert name in said
    model = f"Helsinki-NLP/opus-mt-{pair}"
    revision = marian.PUBLISHED.get(model, ("main", ""))[0]
    assert f"https://huggingface.co/{model}/tree/{revision} " in said
    assert said.endswith(
        f"into a folder opus-mt-{pair}, and give the command again"
    )


def test_offline_it_is_one_line_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    pytest.importorskip("huggingface_hub")
    words = ["import", "marian", "opus-mt-en-de", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "annotated", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub")),
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("annotated: Helsinki-NLP/opus-mt-en-de")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_folder_that_it_names_is_then_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert find_published(folder.name) == (Path(folder.name), folder.name)


@pytest.mark.parametrize(
    "name", ["./nowhere", "a/b/c", "/nowhere/at/all", "x y"]
)
def test_what_is_no_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(
        RunError, match="neither a folder nor the name of a model"
    ):
        find_published(name)


def test_a_file_is_not_the_name_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("not a model")
    monkeypatch.setattr(marian, "_fetched", None)  # nothing is asked for
    with pytest.raises(RunError, match="afile is a file: give the folder"):
        find_published("afile")


# --- the way back -----------------------------------------------------------


def loaded(folder: Path) -> Any:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    names = "MarianMTModel", "PegasusForConditionalGeneration"
    assert type(model).__name__ in names
    return model.eval()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours, of twenty steps. Do not touch."""
    folder = tmp_path_factory.mktemp("own") / "run"
    recipe = TINY.changed(tokenizer="bpe", vocab=280, activation="gelu")
    train_recipe(recipe, folder)
    return folder


SHAPES: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "silu and bias": {"activation": "silu", "output_bias": True},
    "two tables": {"tie": "decoder"},
    "three tables": {"tie": "none"},
    "no biases": {"bias": False},
    "odd": {"d_model": 9, "num_heads": 3},
    "pre-norm": {"norm": "pre"},
    "odd and pre-norm": {"d_model": 9, "num_heads": 3, "norm": "pre"},
    "pre-norm, other parts": {
        "norm": "pre",
        "bias": False,
        "output_bias": True,
        "activation": "silu",
    },
}


@pytest.mark.parametrize("kind", SHAPES)
def test_what_transformers_loads_has_the_same_logits(
    kind: str, own: Path, tmp_path: Path
) -> None:
    run = Run.open(own)
    config = dataclasses.replace(run.model.config, **SHAPES[kind])
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    run = dataclasses.replace(run, model=model)
    export_run(run, "transformers", tmp_path / "theirs")
    src = torch.randint(UNK, len(run.source), (3, 8))
    src[1:, 6:] = PAD
    tgt = torch.randint(UNK, len(run.target), (3, 5))
    with torch.no_grad():
        given = loaded(tmp_path / "theirs")(
            input_ids=src, attention_mask=(src != PAD).long(),
            decoder_input_ids=tgt,
        ).logits  # fmt: skip
        torch.testing.assert_close(
            given, model(src, tgt), rtol=0, atol=1e-5
        )


def test_our_own_run_translates_in_transformers(
    own: Path, tmp_path: Path
) -> None:
    run = Run.open(own)
    export_run(run, "transformers", tmp_path / "theirs")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    lines = ["a b c", "d  e", "", "f g Ünï a b"]
    ids = tokens(lines).input_ids
    assert ids == [[*row, EOS] for row in run.source.encode(lines)]
    given = loaded(tmp_path / "theirs").generate(
        **tokens(lines, return_tensors="pt", padding=True),
        num_beams=1, do_sample=False, max_length=12,
    )  # fmt: skip
    mine = run.translate(lines, SearchConfig(beam=1, limit=11))
    said = tokens.batch_decode(given, skip_special_tokens=True)
    assert [
        " ".join(s.split()) for s, line in zip(said, lines) if line
    ] == [
        " ".join(best[0].text.split())
        for best, line in zip(mine, lines)
        if line
    ]
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert run.recipe.about in card and "{" not in card.split("---")[
        2
    ].replace("{tokenizer", "")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_import_gives_an_exported_run_back(
    own: Path, tmp_path: Path, norm: Any
) -> None:
    run = Run.open(own)
    if norm == "pre":
        recipe = run.recipe.changed(norm="pre")
        model: Any = first_model(recipe, run.source, run.target)
        run = dataclasses.replace(run, recipe=recipe, model=model)
    export_run(run, "transformers", tmp_path / "theirs")
    again = import_marian(tmp_path / "theirs", tmp_path / "again")
    assert again.recipe == run.recipe
    assert again.model.config == run.model.config
    before, after = run.model.state_dict(), again.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
    for name in ("source.json", "target.json"):
        assert (own / name).read_bytes() == (
            tmp_path / "again" / name
        ).read_bytes()


@pytest.mark.parametrize(
    "kind", ["as most", "two vocabularies", "codes", "no bias"]
)
def test_so_does_one_that_was_imported(
    kind: str, tmp_path: Path, models: Any
) -> None:
    publish(tmp_path / "m", models, **KINDS[kind])
    language = "fra" if kind == "codes" else None
    run = import_marian(tmp_path / "m", tmp_path / "run", language)
    export_run(run, "transformers", tmp_path / "theirs")
    tokens, start = (
        theirs(tmp_path / "theirs"),
        ">>fra<<" if language else "",
    )
    given = tokens([start + line for line in GERMAN[:20]]).input_ids
    assert given == [[*row, EOS] for row in run.source.encode(GERMAN[:20])]
    given = loaded(tmp_path / "theirs").double().generate(
        **tokens([start + line for line in GERMAN[:20]], return_tensors="pt", padding=True),
        num_beams=1, do_sample=False, max_length=13,
    )  # fmt: skip
    mine = run.translate(GERMAN[:20], SearchConfig(beam=1, limit=12))
    assert [best[0].text for best in mine] == tokens.batch_decode(
        given, skip_special_tokens=True
    )
    # and without our own files, as it would be published elsewhere
    again = import_marian(tmp_path / "theirs", tmp_path / "again", language)
    for name in ("source.json", "target.json", "recipe.json"):
        (tmp_path / "theirs" / name).unlink()
    third = import_marian(tmp_path / "theirs", tmp_path / "third", language)
    for other in (again, third):
        assert other.model.config == run.model.config
        before, after = run.model.state_dict(), other.model.state_dict()
        assert all(torch.equal(before[n], after[n]) for n in before)
        assert other.source.encode(GERMAN) == run.source.encode(GERMAN)


@pytest.mark.parametrize(
    "change",
    [
        {"norm": "pre", "tie": "decoder"},
        {"positions": "learned"},
        {"window": 3},
        {"d_k": 3},
    ],
)
def test_what_marian_has_not_is_not_exported(
    change: dict[str, Any], own: Path, tmp_path: Path
) -> None:
    run = Run.open(own)
    config = dataclasses.replace(run.model.config, **change)
    run = dataclasses.replace(run, model=Transformer(config))
    with pytest.raises(RunError, match="transformers does not support"):
        export_run(run, "transformers", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


# --- trained further ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["as most", "relu", "codes"])
def test_what_is_imported_goes_on_learning(
    kind: str, tmp_path: Path, models: Any
) -> None:
    """Activation, output bias, tied embeddings, the start symbol's row."""
    publish(tmp_path / "m", models, **KINDS[kind])
    language = "deu" if kind == "codes" else None
    begun = import_marian(tmp_path / "m", tmp_path / "begun", language)
    data = tmp_path / "text"
    data.mkdir()
    for split, part in (("train", slice(600)), ("valid", slice(600, None))):
        for name, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "".join(f"{line}\n" for line in lines[part])
            (data / f"{split}.{name}").write_text(text, "utf-8")
    recipe = fine_tuning(RECIPES["pair"], tmp_path / "begun").changed(
        data=str(data), source="de", target="en", max_steps=120, warmup=10,
        cooldown=40, rate=0.3, batch_tokens=400, save_every=60, dropout=0.0,
        precision="float32", keep=1,
    )  # fmt: skip
    summary = train_recipe(recipe, tmp_path / "run", device="cpu")
    assert summary["valid"]["nll"] < 0.7 * summary["before"]["valid"]["nll"]
    run = Run.open(tmp_path / "run")
    dry = dataclasses.replace(begun.model.config, dropout=0.0)
    assert run.model.config == dry
    assert same_tokens(run.source, begun.source)
    before, after = (r.model.embeddings for r in (begun, run))
    assert not torch.equal(before.bias, after.bias)
    # what the published model cannot say is still unsaid
    new = before.bias == marian.UNSAID
    assert new.sum() == 1
    assert (after.bias[new] < -90).all()
    assert not torch.equal(before.target[BOS], after.target[BOS])
    # and a batch of ours has the code of the language
    corpus = open_data(run.recipe, (run.source, run.target)).corpus("valid")
    heads = {int(corpus.src[i][0]) for i in range(len(corpus))}
    if kind == "codes":
        assert isinstance(begun.source, SentencePieces)
        assert heads == {begun.source.ids[CODES[0]]}
    # it can be handed over, and is what it was
    export_run(run, "transformers", tmp_path / "out")
    again = import_marian(tmp_path / "out", tmp_path / "again")
    said = [r.translate(GERMAN[:5])[0][0].text for r in (run, again)]
    assert said[0] == said[1]


def test_data_are_prepared_with_the_tokens_of_an_imported_run(
    folder: Path, tmp_path: Path
) -> None:
    begun = import_marian(folder, tmp_path / "begun")
    for name, lines in (("de", GERMAN), ("en", ENGLISH)):
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"text.{name}").write_text(text, "utf-8")
    made = prepare(
        of_files(
            tmp_path / "text.de", tmp_path / "text.en", hold_out=10
        ).with_tokens(tmp_path / "begun"),
        tmp_path / "data",
    )
    assert made.settings["tokenizer"] == "sentencepiece"
    assert made.settings["shared"]
    corpus, (lines, _) = made.corpus("valid"), read_lines_of(tmp_path)
    assert [
        corpus.src[i].tolist() for i in range(3)
    ] == begun.source.encode(lines[:3])
    recipe = fine_tuning(RECIPES["pair"], tmp_path / "begun").changed(
        data=str(tmp_path / "data"),
        max_steps=2,
        fit=(),
        precision="float32",
    )
    train_recipe(recipe, tmp_path / "run", device="cpu")


def read_lines_of(place: Path) -> tuple[list[str], list[str]]:
    sides = [
        (place / "data" / f"valid.{x}").read_text("utf-8")
        for x in ("de", "en")
    ]
    return sides[0].splitlines(), sides[1].splitlines()


def test_the_model_card_has_the_runs_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_recipe(TINY, tmp_path / "run", device="cpu")
    words = ["evaluate", "--run", str(tmp_path / "run"), "--json"]
    obey([*words, "--split", "test", "--keep", "--workers", "1"])
    scores = json.loads(capsys.readouterr().out)
    out = ["--to", "transformers", "--out", str(tmp_path / "out")]
    obey(["export", "--run", str(tmp_path / "run"), *out])
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"perplexity {summary['valid']['perplexity']:.4g}" in card
    assert f"- test: bleu {scores['bleu']:.4g}" in card
    assert f"(`{scores['signature']}`)" in card


@pytest.mark.parametrize("kind", ["pocket", "imported"])
def test_the_model_cards_lines_translate(
    kind: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are run as they stand, but for the folder and the sentence."""
    run = Run.open(Path("pocket"))
    if kind == "imported":
        run = import_marian(folder, tmp_path / "run")
    export_run(run, "transformers", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    origin = (
        "imported with" if kind == "imported" else "trained on the data"
    )
    assert origin in card
    lines = [line[4:] for line in card.splitlines() if line[:4] == "    "]
    code = "\n".join(lines).replace("A sentence.", GERMAN[0])
    code = code.replace("FOLDER", repr(str(tmp_path / "out")))
    code = code.replace('pt"))', 'pt"), num_beams=1)')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        exec(code, {})
    limit = run.recipe.search.limit or 511
    [best] = run.translate([GERMAN[0]], SearchConfig(beam=1, limit=limit))
    assert f"{[best[0].text]}" in capsys.readouterr().out


def test_a_pipeline_is_there_or_told_to_be_gone(tmp_path: Path) -> None:
    """What the card says of pipeline() is so in this version."""
    train_recipe(TINY, tmp_path / "run", device="cpu")
    run = Run.open(tmp_path / "run")
    export_run(run, "transformers", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "gone from transformers 5" in " ".join(card.split())
    if int(transformers.__version__.split(".")[0]) >= 5:
        with pytest.raises(KeyError, match="has been removed"):
            transformers.pipeline("translation", str(tmp_path / "out"))
    else:
        pipe = transformers.pipeline("translation", str(tmp_path / "out"))
        assert pipe("a b c")[0]["translation_text"]


# --- the check that a reader can run -----------------------------------------


@pytest.mark.parametrize("kind", ["published", "random", "codes"])
def test_the_check_says_how_far_apart_they_are(
    kind: str,
    folder: Path,
    tmp_path: Path,
    models: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    language = None
    if kind == "codes":
        folder, language = tmp_path / "m", "deu"
        publish(folder, models, codes=CODES)
    if kind == "random":
        (folder / "model.safetensors").unlink()
    before = content(folder)
    text, out = tmp_path / "text.de", tmp_path / "out.json"
    text.write_text("".join(f"{line}\n" for line in GERMAN[:50]), "utf-8")
    reports = []
    with benchmark("published") as check, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        for way in (marian.permuted, lambda x, how, order: x):  # wrong
            monkeypatch.setattr(marian, "permuted", way)
            check.main(folder, text, language=language, json=out)
            reports.append(json.loads(out.read_text())["metrics"])
    found, wrong = reports
    assert content(folder) == before
    weights = "random" if kind == "random" else "published"
    assert found["weights"] == weights and found["lines"] == 50
    assert found["differ"] == {"source_lines": 0, "target_lines": 0}
    assert found["logit_gap"] < 1e-10
    assert found["same"] == found["searched"] == 40
    assert wrong["logit_gap"] > 1e-3
