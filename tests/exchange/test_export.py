"""Page E11: a run in other programs' forms says the same."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from annotated import cli
from annotated.batches import pad_rows
from annotated.corpora.sentencepieces import vocabulary
from annotated.engine.errors import DataError, RunError
from annotated.engine.parts import PartsConfig
from annotated.engine.recipes import RECIPES
from annotated.engine.runner import train_recipe
from annotated.engine.runs import Run
from annotated.engine.search import beam_search
from annotated.exchange.export import (
    FORMATS,
    _write_onnx,
    export_run,
    unsupported,
    write_ctranslate2,
)
from annotated.model import ModelShape, Transformer
from annotated.pocket import pocket_pairs
from annotated.search import SearchConfig
from annotated.since import RMSNorm
from annotated.tokens import BOS, EOS, PAD, SPECIALS
from tests.helpers import TINY, environment

VOCAB = 20
KINDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "learned": {"positions": "learned", "max_len": 40},
    "untied": {"tie": "none"},
    "no bias": {"bias": False},
    "silu and bias": {"activation": "silu", "output_bias": True},
    "gelu": {"activation": "gelu", "tie": "decoder"},
    "gelu by tanh": {"activation": "gelu", "approximate": "tanh"},
    "uneven": {"num_encoder_layers": 1, "num_decoder_layers": 3},
    "small heads": {"d_k": 3, "d_v": 3},
}
LATER: dict[str, dict[str, Any]] = {
    "RMSNorm": {"norm_kind": "rms"},
    "rotary": {"positions": "rotary"},
    "none": {"positions": "none"},
    "groups": {"num_kv_heads": 1, "num_heads": 4},
    "gated": {"gated": True, "activation": "gelu"},
    "all": {
        "norm_kind": "rms", "norm": "pre", "positions": "rotary",
        "num_kv_heads": 2, "num_heads": 4, "gated": True, "d_k": 6, "d_v": 6,
        "activation": "silu", "bias": False,
    },
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "sizes": {"d_k": 3, "d_v": 7},
}


def random_model(**changes: object) -> Transformer:
    torch.manual_seed(0)
    shape = {
        "src_vocab": VOCAB, "tgt_vocab": VOCAB, "num_encoder_layers": 2,
        "num_decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2,
    }  # fmt: skip
    model = Transformer(PartsConfig(**(shape | changes))).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "gain" in name:
                p += 0.1 * torch.randn_like(p)
    return model


SENTENCES = [[5, 6, 7, 8, 9], [4], [19, 4, 4, 12, 5, 6, 11, 10]]
WORDS = [*SPECIALS, *map(str, range(len(SPECIALS), VOCAB))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("served") / "run"
    train_recipe(TINY, folder)
    return Run.open(folder)


LINES = ["a b c", "", "d e f g a", "b"]


def texts(run: Run, search: SearchConfig | None = None) -> list[str]:
    return [best[0].text for best in run.translate(LINES, search)]


# --- safetensors ----------------------------------------------------------


def test_what_safetensors_writes_is_a_run(run: Run, tmp_path: Path) -> None:
    export_run(run, "safetensors", tmp_path / "small")
    assert {path.name for path in (tmp_path / "small").iterdir()} == {
        "model.safetensors", "config.json", "recipe.json", "source.json",
        "target.json",
    }  # fmt: skip
    assert texts(Run.open(tmp_path / "small")) == texts(run)


def test_a_format_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="unknown format 'gguf': use safe"):
        export_run(Run.open(Path("pocket")), "gguf", tmp_path / "out")
    assert not any(tmp_path.iterdir())


# --- CTranslate2 ----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS | LATER)
def test_ctranslate2_gives_the_same_probabilities(
    kind: str, tmp_path: Path
) -> None:
    engine = pytest.importorskip("ctranslate2")
    model = random_model(**(KINDS | LATER)[kind])
    write_ctranslate2(model, WORDS, WORDS, tmp_path)
    translator = engine.Translator(str(tmp_path), intra_threads=1)
    outputs = [[7, 5, 5], [11, 12, 13, 14, 4], []]
    scored = translator.score_batch(
        [[WORDS[i] for i in ids] for ids in SENTENCES],
        [[WORDS[i] for i in ids] for ids in outputs],
    )
    for src, ids, one in zip(SENTENCES, outputs, scored, strict=True):
        logits = model(
            torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *ids]])
        )
        log_p = logits[0].log_softmax(-1)
        log_p = log_p.gather(1, torch.tensor([*ids, EOS])[:, None])[:, 0]
        assert one.log_probs == pytest.approx(log_p.tolist(), abs=1e-4)


def test_an_older_ctranslate2_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stack(layers: int, heads: int, pre_norm: bool, **_: bool) -> None:
        if "rotary_dim" in _:
            raise TypeError("unexpected keyword argument 'rotary_dim'")

    package = ModuleType("ctranslate2")
    specs: Any = ModuleType("ctranslate2.specs.transformer_spec")
    kinds: Any = ModuleType("ctranslate2.specs.common_spec")
    specs.TransformerEncoderSpec = specs.TransformerDecoderSpec = stack
    kinds.Activation = SimpleNamespace(RELU=0)
    for module in (package, specs, kinds):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", package)
    model = random_model(positions="rotary")
    with pytest.raises(
        RunError, match=r"too old for the model .*'rotary_d"
    ):
        write_ctranslate2(model, WORDS, WORDS, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_ctranslate2_translates_as_we_do(run: Run, tmp_path: Path) -> None:
    engine = pytest.importorskip("ctranslate2")
    model = copy.deepcopy(run.model)
    with torch.no_grad():  # so young a model ends at once
        model.embeddings.output[EOS] = 0.0
    run = dataclasses.replace(run, model=model)
    export_run(run, "ctranslate2", tmp_path / "engine")
    translator = engine.Translator(
        str(tmp_path / "engine"), intra_threads=1
    )
    words, names = vocabulary(run.source), vocabulary(run.target)
    lines = [line for line in LINES if line]
    sources = [[words[i] for i in s] for s in run.source.encode(lines)]
    found = translator.translate_batch(
        sources,
        beam_size=1,
        max_decoding_length=30,
        min_decoding_length=0,  # 1 unless given: no empty output
        suppress_sequences=[[SPECIALS[PAD]], [SPECIALS[BOS]]],
    )
    ids = [[names.index(w) for w in one.hypotheses[0]] for one in found]
    ours = beam_search(
        run.model, run.source.encode(lines), SearchConfig(1, 0.0, limit=31)
    )
    assert ids == [best[0].ids for best in ours]
    assert any(ids)


@pytest.mark.parametrize("kind", OWN)
def test_what_ctranslate2_does_not_know_is_refused(
    kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    with pytest.raises(RunError, match="ctranslate2 does not support a"):
        write_ctranslate2(
            random_model(**OWN[kind]), WORDS, WORDS, tmp_path / "new"
        )
    assert not (tmp_path / "new").exists()


# --- ONNX -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS | OWN)
def test_onnx_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    """At sizes other than those that the graphs were traced with."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = random_model(**(KINDS | OWN)[kind])
    _write_onnx(model, tmp_path)
    encoder, decoder = (
        runtime.InferenceSession(str(tmp_path / f"{name}.onnx"))
        for name in ("encoder", "decoder")
    )
    src = torch.tensor(
        [
            [5, 6, 7, 8, 9, 4, EOS],
            [4, EOS, *[PAD] * 5],
            [9, 9, EOS, *[PAD] * 4],
        ]
    )
    tgt = torch.tensor([[BOS, 9, 8, 7, 4]] * 3)
    memory = encoder.run(None, {"src": src.numpy()})[0]
    feed = {"tgt": tgt.numpy(), "memory": memory, "src": src.numpy()}
    logits = torch.from_numpy(decoder.run(None, feed)[0])
    expected = model(src, tgt)[:, -1]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


# --- a run ----------------------------------------------------------------


def test_the_model_stays_where_and_as_it_was(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(run.model.named_parameters())
    run.model.train()
    moved = []
    to_cpu = torch.nn.Module.cpu

    def noted(module: torch.nn.Module) -> torch.nn.Module:
        moved.append(module)
        return to_cpu(module)

    monkeypatch.setattr(torch.nn.Module, "cpu", noted)
    export_run(run, "safetensors", tmp_path / "small")
    assert run.model.training
    run.model.eval()
    assert moved and all(model is not run.model for model in moved)
    after = dict(run.model.named_parameters())
    assert all(after[name] is p for name, p in before.items())


def test_nothing_is_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(RunError, match="is not empty"):
        export_run(run, "safetensors", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("to", "package"),
    [("onnx", "onnx"), ("ctranslate2", "ctranslate2")],
)
def test_a_missing_package_is_named_and_nothing_is_left(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    package: str,
) -> None:
    for name in [*sys.modules, package]:
        if name.split(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RunError, match=f"pip install {package}"):
        export_run(run, to, tmp_path / "new")
    assert not list(tmp_path.iterdir())


ALONE = """
import subprocess
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "sentencepiece"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
from annotated.cli import main
main()
"""


def test_transformers_is_not_needed_to_write_its_form(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "export", "--run", "pocket"]
        + ["--to", "transformers", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "README.md",
    }


LOADS = """
import sys, transformers
place, line, side = sys.argv[1:]
tokens = transformers.AutoTokenizer.from_pretrained(place, subfolder=side)
model = transformers.AutoModelForSeq2SeqLM.from_pretrained(place)
ids = model.generate(
    **tokens([line], return_tensors="pt"), num_beams=1, do_sample=False
)
target = transformers.AutoTokenizer.from_pretrained(
    place, subfolder=side.replace("source", "target")
)
print(target.decode(ids[0], skip_special_tokens=True))
print([name for name in sys.modules if name.startswith("annotated")])
"""


def test_our_package_is_not_needed_to_read_it(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run, line = Run.open(Path("pocket")), "Die Frau ruft den Jungen an ."
    export_run(run, "transformers", tmp_path / "out")
    side = "source" if (tmp_path / "out" / "source").is_dir() else ""
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "out"), line, side],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    said, ours = done.stdout.splitlines()
    [best] = run.translate([line], SearchConfig(beam=1))
    assert said.split() == best[0].text.split()
    assert ours == "[]"


def test_a_trained_model_is_searched_alike_by_generate(
    tmp_path: Path,
) -> None:
    """With random weights the two beam searches part on near ties; with
    trained ones they find the same, where neither rewards length.
    """
    transformers = pytest.importorskip("transformers")
    run = Run.open(Path("pocket"))
    export_run(run, "transformers", tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "out"
    )
    ids = run.source.encode([p.source for p in pocket_pairs(200, "test")])
    src = pad_rows([np.array(one) for one in ids], after=EOS)
    given = theirs.double().generate(
        input_ids=src, attention_mask=(src != PAD).long(),
        num_beams=4, length_penalty=0.0, do_sample=False, max_length=42,
    )  # fmt: skip
    config = SearchConfig(beam=4, alpha=0.0, limit=40)
    found = beam_search(run.model.double(), ids, config)
    for row, best in zip(given.tolist(), found, strict=True):
        assert row[1 : row.index(EOS)] == best[0].ids


# --- a model that is not the paper's --------------------------------------


def with_field(path: str, name: str, value: object) -> Any:
    def change(model: Transformer) -> None:
        setattr(model.get_submodule(path), name, value)

    return change


def untied(model: Transformer) -> None:
    e = model.embeddings
    e.output = torch.nn.Parameter(e.target.detach() + 1)


def other_table(model: Transformer) -> None:
    model.tgt_positions.table = torch.zeros(1024, 16)


def own_forward(model: Transformer) -> None:
    model.forward = lambda src, tgt: src


def hook(model: Transformer) -> None:
    model.encoder.register_forward_hook(lambda *_: None)


def norm(model: Transformer) -> None:
    model.decoder.layers[0].norm2 = RMSNorm(16)


def nothing_finite(model: Transformer) -> None:
    with torch.no_grad():
        model.encoder.layers[0].norm1.weight[3] = torch.inf


ALONE_CHANGED = {  # one object, whose class and configuration say less
    "encoder.layers.0.norm1 has eps": with_field(
        "encoder.layers.0.norm1", "eps", 1e-3
    ),
    "decoder.layers.1 has pre_norm": with_field(
        "decoder.layers.1", "pre_norm", True
    ),
    "feed_forward has activation": with_field(
        "encoder.layers.0.feed_forward", "activation", torch.tanh
    ),
    "embeddings has scale": with_field("embeddings", "scale", 1.0),
    "attention has num_heads": with_field(
        "encoder.layers.0.attention", "num_heads", 4
    ),
    "embeddings are not one matrix": untied,
    "tgt_positions has another table": other_table,
    "the model is Transformer with another forward": own_forward,
    "encoder is Encoder with a hook": hook,
    "norm2 is RMSNorm": norm,
    "norm1.weight has numbers that are not finite": nothing_finite,
}


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("told", ALONE_CHANGED)
def test_no_form_leaves_without_a_change_of_one_object(
    run: Run, told: str, to: str, tmp_path: Path
) -> None:
    model = random_model()
    ALONE_CHANGED[told](model)
    changed = dataclasses.replace(run, model=model)
    with pytest.raises(RunError, match=told):
        export_run(changed, to, tmp_path / "new")
    assert not list(tmp_path.iterdir())


CHANGED_SOURCE = """
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from torch import nn
import annotated.layers, annotated.model
changed = SimpleNamespace(**{{**vars(nn), "LayerNorm": {norm}}})
annotated.layers.nn = annotated.model.nn = changed
from annotated.engine.errors import RunError
from annotated.exchange.export import export_run
from annotated.engine.runs import Run
run = Run._drawn(Path({run!r}))
try:
    export_run(run, "transformers", Path({out!r}))
except RunError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("norm", "told"),
    [
        ("nn.RMSNorm", "norm1 is RMSNorm, which has no place in this form"),
        ("partial(nn.LayerNorm, eps=1e-6)", "norm1 has eps 1e-06, which"),
    ],
)
def test_a_changed_source_is_told_by_what_its_parts_are(
    norm: str, told: str, run: Run, tmp_path: Path
) -> None:
    """Where the configuration itself makes another norm."""
    if "RMS" in norm and torch.__version__ < "2.4":
        pytest.skip("torch has no RMSNorm yet")
    (tmp_path / "run").mkdir()
    run.write(tmp_path / "run")
    places = {"run": str(tmp_path / "run"), "out": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, "-c", CHANGED_SOURCE.format(norm=norm, **places)],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert told in done.stdout, done.stderr
    assert not (tmp_path / "out").exists()


# --- what is said before a run is trained ----------------------------------

SHAPED: dict[str, dict[str, Any]] = {
    **KINDS, **OWN,
    "pre-norm, two tables": {"norm": "pre", "tie": "decoder"},
    "pre-norm, three": {"norm": "pre", "tie": "none", "bias": False},
}  # fmt: skip


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("kind", SHAPED)
def test_what_unsupported_is_known_before(
    kind: str, to: str, run: Run, tmp_path: Path
) -> None:
    """unsupported, which train and appendix A6 ask, is what exports do."""
    if to in ("onnx", "ctranslate2"):
        pytest.importorskip(to)
    sizes = {"src_vocab": len(run.source), "tgt_vocab": len(run.target)}
    model = random_model(**sizes | SHAPED[kind])
    fields = ModelShape.__dataclass_fields__
    shape = ModelShape(**{n: getattr(model.config, n) for n in fields})
    never = unsupported(shape).get(to)
    changed = dataclasses.replace(run, model=model)
    if never is None:
        export_run(changed, to, tmp_path / "new")
    else:
        with pytest.raises(
            RunError, match=f"{to} does not support {never}"
        ):
            export_run(changed, to, tmp_path / "new")
    assert (tmp_path / "new").exists() == (never is None)


def test_training_says_so_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.dispatch(["train", "copy", "--dry-run", "--device", "cpu"])
    said = capsys.readouterr().out.splitlines()
    every = "safetensors, onnx, ctranslate2, transformers"
    assert any(line.split(None, 2)[2:] == [every] for line in said)
    learned = ["train", "copy", "--positions", "learned", "--window", "4"]
    cli.dispatch([*learned, "--dry-run", "--device", "cpu"])
    said = capsys.readouterr().out.splitlines()
    assert said[-3:] == [
        "export to       safetensors, onnx",
        "no export to    ctranslate2: a window",
        "no export to    transformers: a window and learned positions",
    ]
    small = ["--max-steps", "1", "--cooldown", "0", "--train-pairs", "50"]
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    cli.dispatch([*learned, *small, *out])
    said = capsys.readouterr().err.splitlines()
    assert "no export to ctranslate2: a window" in said
    with pytest.raises(DataError, match="nowhere"):
        cli.dispatch([*learned, *out[:1], "other", "--data", "nowhere"])
    assert "no export" not in capsys.readouterr().err


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_but_these_leaves_in_every_form(name: str) -> None:
    """Two rows of Table 3, trees, whose words are not the text's, and the
    captions, whose positions transformers' Marian does not have.
    """
    never = {"table3-B-dk16", "table3-B-dk32", "table3-E-learned"}
    never |= {"parse-small", "multi30k"}
    assert bool(unsupported(RECIPES[name].model)) == (name in never)
