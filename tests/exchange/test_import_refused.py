"""Page E25: what cannot be imported is refused by name."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from annotated.engine.errors import RunError
from annotated.exchange.marian import import_marian
from tests.exchange.published import edit, in_pieces, spm
from tests.helpers import content


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


INDEX = "model.safetensors.index.json"


FC1 = "model.encoder.layers.0.fc1.weight"


HOSTILE: dict[str, tuple[Any, str]] = {
    "bart": (config(model_type="bart"), 'model_type is "bart", but only "marian"'),
    "t5": (config(model_type="t5"), 'model_type is "t5", but only "marian"'),
    "no type": (config(model_type=None), "model_type is null"),
    "pre-norm": (config(normalize_before=True), "normalize_before is true"),
    "a norm more": (config(normalize_embedding=True), "normalize_embedding is true"),
    "a last norm": (config(add_final_layer_norm=True), "add_final_layer_norm is true"),
    "unscaled": (config(scale_embedding=None), "scale_embedding is null, but only true"),
    "forced": (config(forced_bos_token_id=7), "forced_bos_token_id is 7"),
    "mish": (config(activation_function="mish"), 'activation_function is "mish", but only relu or silu'),
    "a size in words": (config(vocab_size="many"), 'vocab_size is "many", but only a whole number'),
    "a size of tokens written": (config(decoder_vocab_size=[50]), "decoder_vocab_size is .50., but only a whole number"),
    "several starts": (config(decoder_start_token_id=[0, 1]), "decoder_start_token_id is .0, 1., but only a whole number"),
    "several activations": (config(activation_function=["relu"]), 'activation_function is ."relu"., but only relu'),
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
        "has no model.encoder.layers.2",
    ),
    "fewer layers": (config(encoder_layers=1), "a weight too many"),
    "words that are bad": (
        lambda f: edit(f / "generation_config.json", bad_words_ids=[[5, 6]]),
        "bad_words_ids forbids more than padding",
    ),
    "no length": (lambda f: edit(f / "generation_config.json", max_length="long"), 'max_length is "long", which is no whole number'),
    "no beams": (lambda f: edit(f / "generation_config.json", num_beams=0), "num_beams is 0, which is no whole number from 1"),
    "a penalty for repeating": (
        lambda f: edit(f / "generation_config.json", repetition_penalty=1.2),
        "repetition_penalty is 1.2, which no search here can do; with 1.0,",
    ),
    "a word for a penalty": (
        lambda f: edit(f / "generation_config.json", length_penalty="short"),
        "alpha must be a number",
    ),
    "raw": (write("model.npz", b"x", "source.spm", "model.safetensors"), "Marian's own file, model.npz"),
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
    "no number": (weights(lambda w: w[FC1].view(-1)[3:4].fill_(float("nan"))), "fc1.weight has numbers that are not finite"),
    "beyond 16 bits": (weights(lambda w: w[FC1].view(-1)[3:4].fill_(float("inf"))), "fc1.weight has numbers that are not finite"),
    "in 8 bits": (weights(lambda w: w.update({FC1: (9 * w[FC1]).to(torch.int8)})), "fc1.weight is in int8"),
    "two tables": (
        weights(lambda w: w.update({"lm_head.weight": w["model.shared.weight"] + 1})),
        "lm_head.weight differ, but by config.json they are one",
    ),
    "a piece missing": (
        lambda f: (f / in_pieces(f)[1]).unlink(),
        "lacks model-00002-of-00003.safetensors",
    ),
    "a piece cut": (
        lambda f: cut(in_pieces(f)[1], 0.5)(f),
        "model-00002-of-00003.safetensors cannot be read",
    ),
    "two pieces changed": (
        lambda f: shutil.copy(f / in_pieces(f)[0], f / "model-00002-of-00003.safetensors"),
        "model-00002-of-00003.safetensors does not fit the list of weights",
    ),
    "pieces elsewhere": (
        lambda f: [in_pieces(f), edit(f / INDEX, weight_map={"x": "../model.safetensors"})],
        "model.safetensors.index.json cannot be used: its weight_map",
    ),
    "no list of pieces": (
        lambda f: [in_pieces(f), edit(f / INDEX, weight_map=None)],
        "model.safetensors.index.json cannot be used: its weight_map",
    ),
    "half a list": (
        lambda f: [in_pieces(f), cut(INDEX, 0.5)(f)],
        "model.safetensors.index.json cannot be read",
    ),
    "a pointer to a piece": (
        lambda f: (f / in_pieces(f)[2]).write_bytes(POINTER),
        "model-00003-of-00003.safetensors is only a pointer",
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
