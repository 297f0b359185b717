"""benchmarks/gpu.py runs everywhere, in small, and survives a failure."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from annotated.engine.errors import RunError
from annotated.engine.packing import PackedTransformer
from annotated.model import Transformer
from annotated.tokens import PAD
from tests.helpers import ROOT, benchmark


@pytest.fixture(scope="module")
def gpu() -> Iterator[ModuleType]:
    with benchmark("gpu") as script:
        yield script


@pytest.fixture
def bench(gpu: ModuleType, tmp_path: Path) -> Any:
    end = time.time() + 3600  # enough for a busy machine
    return gpu.Bench(gpu.TINY, "cpu", tmp_path, "copy", end)


def test_the_sections_fit_into_fourteen_minutes(gpu: ModuleType) -> None:
    usual = gpu.parse(["--out=x", "--tiny"]).names
    assert set(usual) == gpu.SECTIONS.keys() - {"captions", "clock"}
    budgets = [gpu.SECTIONS[name][1] for name in usual]
    assert sum(budgets) + gpu.GRACE * len(budgets) <= 14 * 60


def test_a_peak_is_measured(gpu: ModuleType, bench: Any) -> None:
    found = gpu.peak(bench)
    assert found["fp32_best_flops"] >= found["fp32_flops"] > 0
    assert found["bf16_best_flops"] >= found["bf16_flops"] > 0


def test_gpu_tests_are_counted(gpu: ModuleType, bench: Any) -> None:
    counts = gpu.tests(bench)
    assert counts["ended"] and counts["which"] == []
    assert counts["failed"] == counts["error"] == 0
    done = (
        counts["passed"] if torch.cuda.is_available() else counts["skipped"]
    )
    assert done > 10


def test_gpu_tests_that_are_stopped_are_counted_so_far(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["a.py::one PASSED [ 9%]", "a.py::two[x] FAILED [ 9%]",
            "FAILED a.py::two[x] - no"]  # fmt: skip

    def run(*_: Any, stdout: Any, **more: Any) -> None:
        stdout.write("\n".join(said))
        raise subprocess.TimeoutExpired("pytest", 1)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    assert gpu.tests(bench) == {
        "passed": 1, "failed": 1, "error": 0, "skipped": 0, "ended": False,
        "which": [said[2]],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["base", "big"])
def test_the_flops_of_a_step_are_counted_right(
    gpu: ModuleType, name: str
) -> None:
    config = gpu.shape(gpu.TINY, name, dropout=0.0)
    corpus = gpu.draw_corpus(gpu.TINY, 1, 0)
    batch = corpus.batch([0, 0, 0])  # no padding
    model = Transformer(config)
    # with the plain loss: the counter overlooks products into a buffer
    with FlopCounterMode(display=False) as counter:
        logits = model(batch.src, batch.tgt)
        F.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten()
        ).backward()
    assert counter.get_total_flops() == gpu.needed_flops(config, batch)


def test_sentences_are_as_long_as_said(gpu: ModuleType) -> None:
    corpus = gpu.draw_corpus(gpu.Sizes(), 3000, 0)
    for side in (corpus.src, corpus.tgt):
        assert side.lengths.mean() == pytest.approx(27, rel=0.1)
        assert side.lengths.max() <= 8 * 27
        assert side.ids.min() > PAD and side.ids.max() < 37_000


def test_full_size_is_the_papers(gpu: ModuleType) -> None:
    base, big = (gpu.shape(gpu.Sizes(), name) for name in ("base", "big"))
    assert (base.d_model, base.d_ff, base.num_heads) == (512, 2048, 8)
    assert (big.d_model, big.d_ff, big.num_heads) == (1024, 4096, 16)
    assert base.num_encoder_layers == big.num_decoder_layers == 6


def test_training_speed_counts_real_tokens(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # compiling for a CPU takes longer than a test may
    monkeypatch.setattr(gpu, "MODES", {"eager": gpu.MODES["eager"]})
    draw, drawn = gpu.draw_corpus, []

    def noted(*args: Any) -> Any:
        drawn.append(draw(*args))
        return drawn[-1]

    monkeypatch.setattr(gpu, "draw_corpus", noted)
    found = gpu.train_base(bench)["eager"]
    assert found["steps"] == gpu.TINY.steps == 2
    (corpus,) = drawn
    plans = [corpus.plan(gpu.TINY.batch_tokens, 0, n) for n in range(3)]
    counted = sum(plans, [])[gpu.TINY.warm :][:2]
    for name, side in (("src", corpus.src), ("tgt", corpus.tgt)):
        tokens = side.lengths[np.concatenate(counted)] + 1
        assert found[f"{name}_tokens_per_step"] == tokens.sum() / 2
    both = found["src_tokens_per_step"] + found["tgt_tokens_per_step"]
    # of two steps, the median is the mean
    seconds = found["step_ms"] / 1000
    assert found["tokens_per_second"] == pytest.approx(both / seconds)


def test_the_share_of_the_peak_is_of_the_peak_measured(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MODES", {"eager": gpu.MODES["eager"]})
    folder = bench.out / "sections"
    folder.mkdir()
    (folder / "peak.json").write_text('{"bf16_flops": 1e9}')
    found = gpu.train_big(bench)["eager"]
    share = found["needed_flops_per_second"] / 1e9
    assert found["peak_share"] == pytest.approx(share)


def test_training_is_measured_in_each_mode(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def noted(*args: Any) -> dict[str, Any]:
        asked.append(args[-1])
        return {"needed_flops_per_second": 1.0}

    monkeypatch.setattr(gpu, "speed_of", noted)
    monkeypatch.setattr(gpu, "read", lambda *_: {"bf16_flops": 2.0})
    found = gpu.train_base(bench)
    assert dict(zip(found, asked, strict=True)) == gpu.MODES
    assert found["compiled"]["peak_share"] == 0.5
    assert "peak_share" not in found["float32"]  # it is of another peak


def test_one_mode_that_fails_leaves_the_others(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: PackedTransformer) -> None:
        raise RunError("no such\n  compiler")

    monkeypatch.setattr("annotated.engine.trainer.compile_layers", fail)
    found = gpu.train_base(bench)
    assert found["eager"]["tokens_per_second"] > 0
    assert found["compiled"] == {"error": "RunError: no such compiler"}
    monkeypatch.setattr(gpu, "MODES", {"alone": gpu.MODES["compiled"]})
    with pytest.raises(RuntimeError, match="no such compiler"):
        gpu.train_base(bench)


def test_decoding_counts_the_best_hypotheses(
    gpu: ModuleType, bench: Any
) -> None:
    found = gpu.decode(bench)
    for road in ("fp32 beam 4", "bf16 beam 4", "bf16 greedy"):
        assert found[road]["tokens_per_second"] > 0
        per_sentence = (
            found[road]["tokens_per_second"]
            / found[road]["sentences_per_second"]
        )
        assert 1 <= per_sentence <= 8 * gpu.TINY.mean_length + 1


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ("cause", {"padded, cuDNN", "padded", "as chosen"}),
        ("step", {"ours", "ours, compiled", "torch.nn", "Marian"}),
        ("train", {"ready batches", "the trainer", "times as long"}),
        ("profile", {"products", "attention", "loss", "longest"}),
        ("kernels", {"attention, padded", "loss, as chosen"}),
        ("generate", {"ours", "transformers", "CTranslate2"}),
        ("translators", {"recurrent", "convolutional", "attention"}),
    ],
)
def test_a_section_measures_each_of_its_parts_in_small(
    gpu: ModuleType,
    bench: Any,
    monkeypatch: pytest.MonkeyPatch,
    section: str,
    parts: set[str],
) -> None:
    if section in ("step", "generate"):
        pytest.importorskip("transformers")
    # the compiler takes a minute on a CPU
    monkeypatch.setattr(gpu, "compile_layers", lambda model: None)
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    found = gpu.SECTIONS[section][0](bench)
    assert parts <= found.keys()
    wrong = {n: f for n, f in found.items() if "error" in str(f)}
    assert wrong.keys() <= {"attention, varlen", "loss, torch's own"}, wrong


def test_a_part_that_fails_is_noted_and_the_next_goes_on(
    gpu: ModuleType, bench: Any
) -> None:
    def fail() -> Any:
        raise RuntimeError("no room")

    found = gpu.each_of(bench, {"one": fail, "two": lambda: {"ms": 1.0}})
    assert found["one"] == {"error": "RuntimeError: no room"}
    assert found["two"] == {"ms": 1.0}
    with pytest.raises(RuntimeError, match="no room"):
        gpu.each_of(bench, {"one": fail})


def test_the_recipe_for_captions_is_judged_seed_by_seed(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many seeds as there is time for; what is there is not made again."""
    monkeypatch.chdir(bench.out)  # it goes where its files are
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    short = replace(bench, deadline=time.time() + 1, section="captions")
    found = gpu.captions(short)
    [run] = found["runs"]
    with benchmark("trials") as trials:
        assert (run["trial"], run["seed"]) == (trials.RECIPE, 0)
    assert "--max-steps 6" in run["options"] and run["nats"] > 0
    assert found["rows"][run["trial"]]["seeds"] == 1
    assert gpu.captions(replace(short, deadline=0))["runs"] == [run]
    kept = gpu.read(bench.out, "captions")["runs"]
    assert kept == gpu.rounded([run])


def test_a_trial_that_fails_leaves_the_others(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with benchmark("trials") as trials:
        names = {trials.RECIPE: {"max_steps": 1}, "lame": {"max_steps": 1}}
        monkeypatch.setattr(trials, "TRIALS", names)

        def made(work: Path, name: str, seed: int, *_: Any) -> Any:
            if name == "lame" or seed == 1:
                raise SystemExit(2)
            row = {"nats": 1.0, "valid_bleu": 40.0, "seconds": 1.0}
            return {"trial": name, "seed": seed, "options": ""} | row

        monkeypatch.setattr(trials, "made", made)
        monkeypatch.setitem(sys.modules, "trials", trials)
        monkeypatch.chdir(bench.out)
        found = gpu.captions(bench)
    assert [run["seed"] for run in found["runs"]] == [0, *range(2, 10)]
    assert found["error"].startswith("lame, seed 0: SystemExit")
    assert found["rows"][trials.RECIPE]["seeds"] == 9


def test_a_training_ends_with_a_bleu(gpu: ModuleType, bench: Any) -> None:
    found = gpu.learn(bench)
    assert found["steps"] == 6
    assert 0 <= found["test"]["bleu"] <= 100
    assert "tok:13a|" in found["test"]["signature"]
    assert len(found["samples"]) == 5
    assert not (bench.out / "run").exists()


def test_a_section_that_fails_says_so_in_its_file(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(bench: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA error:\n an illegal memory access")

    monkeypatch.setitem(gpu.SECTIONS, "peak", (fail, 1))
    assert gpu.run_section("peak", bench) == 0
    found = gpu.read(bench.out, "peak")
    assert found["error"].endswith("CUDA error: an illegal memory access")


SLOW = """\
import sys, time
sys.path.insert(0, {benchmarks!r})
import gpu

def parts(bench):
    done = {{"one": lambda: {{"ms": 1.0}}, "two": lambda: time.sleep(60)}}
    return gpu.each_of(bench, done)

gpu.SECTIONS["decode"] = parts, 1
sys.exit(gpu.main(sys.argv[1:]))
"""


def test_a_section_that_is_stopped_keeps_the_parts_that_were_done(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, script = subprocess.Popen, tmp_path / "slow.py"
    script.write_text(SLOW.format(benchmarks=str(ROOT / "benchmarks")))

    def popen(command: list[str], **more: Any) -> Any:
        later = str(time.time() + 600)
        process = real(
            [command[0], str(script), *command[2:-1], later], **more
        )
        for _ in range(1200):  # it may take long to start
            if list(tmp_path.glob("sections/*.json")):
                break
            time.sleep(0.05)
        return process

    monkeypatch.setattr(gpu.subprocess, "Popen", popen)
    monkeypatch.setattr(gpu, "GRACE", 0)
    monkeypatch.setitem(gpu.SECTIONS, "decode", (gpu.decode, 1.5))
    assert call(gpu, tmp_path, "--only=decode") == 1
    found = metrics(tmp_path, "decode")
    assert found["one"] == {"ms": 1.0}
    assert found["error"].startswith("stopped after")


def metrics(out: Path, section: str) -> dict[str, Any]:
    path = out / f"gpu-{section}.json"
    return json.loads(path.read_text())["metrics"]


def call(gpu: ModuleType, out: Path, *options: str) -> int:
    return gpu.main(["--tiny", "--device=cpu", f"--out={out}", *options])


def test_one_crash_and_one_standstill_leave_the_others(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    code = {
        "peak": "import os; os.abort()",
        "decode": "import time; time.sleep(60)",
    }

    def popen(command: list[str], **more: Any) -> Any:
        if "--section" in command:
            name = command[command.index("--section") + 1]
            if name in code:
                command = [sys.executable, "-c", code[name]]
            else:
                place = tmp_path / "sections" / f"{name}.json"
                place.write_text('{"seconds": 1.0}')
                command = [sys.executable, "-c", "0"]
        return real(command, **more)

    monkeypatch.setattr(gpu.subprocess, "Popen", popen)
    monkeypatch.setattr(gpu, "GRACE", 0)
    budgets = {
        n: (f, 1.5 if n == "decode" else s)
        for n, (f, s) in gpu.SECTIONS.items()
    }
    monkeypatch.setattr(gpu, "SECTIONS", budgets)
    asked = ["peak", "decode", "train-base"]
    assert call(gpu, tmp_path, f"--only={','.join(asked)}") == 1
    found = {name: metrics(tmp_path, name) for name in asked}
    assert found["peak"] == {"error": "ended with exit code -6"}
    assert found["decode"]["error"].startswith("stopped after")
    assert found["train-base"] == {"seconds": 1.0}


def test_what_is_left_out_for_lack_of_time_is_named(
    gpu: ModuleType, tmp_path: Path
) -> None:
    assert call(gpu, tmp_path, "--only=peak", "--minutes=0.01") == 1
    assert "minutes were used up" in metrics(tmp_path, "peak")["error"]


def test_minutes_for_some_sections_are_used_up(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {}

    def run(name: str, seconds: float, *_: Any) -> str:
        given[name] = seconds
        return "no"

    monkeypatch.setattr(gpu, "supervise", run)
    call(gpu, tmp_path, "--only=learn", "--minutes=8")
    assert given["learn"] == pytest.approx(8 * 60 - gpu.GRACE, abs=1)
    call(gpu, tmp_path, "--only=learn,peak", "--minutes=2")
    assert given["learn"] + given["peak"] == pytest.approx(
        2 * 60 - 2 * gpu.GRACE, abs=1
    )
    call(gpu, tmp_path, "--only=learn")
    assert given["learn"] == gpu.SECTIONS["learn"][1]


def test_a_kernel_of_ours_is_attention_and_torchs_gradients_are_not(
    gpu: ModuleType,
) -> None:
    assert (
        gpu.kind_of("_backward") == gpu.kind_of("_forward") == "attention"
    )
    assert gpu.kind_of("aten::embedding_dense_backward") != "attention"
    assert gpu.kind_of("_rows") == "loss"


def test_a_corpus_of_ones_own_gets_the_papers_model(
    gpu: ModuleType, bench: Any
) -> None:
    bench = replace(bench, sizes=gpu.Sizes(), data="some folder")
    name, recipe = gpu.recipe_of(bench, base=False)
    assert name == recipe.data == "some folder"
    for data in ("some folder", "multi30k"):
        bench = replace(bench, data=data)
        whole = gpu.recipe_of(bench, base=True)[1]
        assert whole.fit == () and whole.training.batch_tokens == 25_000
        assert (whole.model.d_model, whole.model.num_decoder_layers) == (
            512,
            6,
        )
    own = gpu.recipe_of(bench, base=False)[1]
    assert (own.model.d_model, own.training.max_steps) == (128, 12_300)


def test_quality_by_the_clock_is_shared_by_several_calls(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings on the same pairs; the third has no time left, and the
    next call does it alone.
    """
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    real, done = gpu.judged, []

    def judged(bench: Any, *others: Any) -> Any:
        done.append(others)
        found = real(bench, *others)
        if len(done) == 2:
            object.__setattr__(first, "deadline", 0)
        return found

    monkeypatch.setattr(gpu, "judged", judged)
    first = replace(bench, section="clock")
    found = gpu.clock(first)
    assert found["Marian"] == {"skipped": "no time was left: call again"}
    for name in ("ours", "Marian, compiled"):
        assert found[name]["steps"] == 6 and found[name]["tokens"] > 0
        assert 0 <= found[name]["test"]["bleu"] <= 100
        assert len(found[name]["samples"]) == gpu.TINY.judged
    assert found["ours"]["tokens"] == found["Marian, compiled"]["tokens"]
    again = gpu.clock(replace(bench, section="clock"))
    assert len(done) == 3  # only the third was trained
    assert again["ours"] == gpu.rounded(found["ours"])
    assert again["Marian"]["steps"] == 6
    assert gpu.read(bench.out, "clock") == gpu.rounded(again)


def test_a_peer_whose_loss_is_not_finite_is_said_to_have_none(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(gpu, "MARIAN_RATE", math.inf)
    _, recipe = gpu.recipe_of(bench, base=True)
    recipe = recipe.changed(max_steps=12, max_minutes=10.0)
    with pytest.raises(RuntimeError, match="not finite at step 10"):
        gpu.marian_by_the_clock(bench, recipe, False)


def test_a_section_is_written_before_the_next_begins(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[set[str]] = []

    def run(name: str, *_: Any) -> None:
        before.append({path.name for path in tmp_path.glob("*.json")})
        folder = tmp_path / "sections"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text('{"seconds": 2.5}')

    monkeypatch.setattr(gpu, "supervise", run)
    assert call(gpu, tmp_path, "--only=peak,decode") == 0
    assert before == [set(), {"gpu-peak.json"}]
    entry = json.loads((tmp_path / "gpu-decode.json").read_text())
    assert entry["command"].endswith("gpu.py --tiny --only decode")
    assert entry["wall_seconds"] == 2.5


def test_ctranslate2_stands_beside_where_it_is_installed(
    gpu: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same batches, a beam of 4 and a token more than the source;
    where it is not, a word says so.
    """
    given: list[Any] = []
    monkeypatch.setattr(gpu, "each_of", lambda _, of: of["CTranslate2"]())

    class Translator:
        def __init__(self, folder: str, **how: Any):
            assert (Path(folder) / "model.bin").is_file()
            assert how == {"device": "cpu", "compute_type": "float32"}

        def translate_batch(self, rows: list[Any], **how: Any) -> None:
            given.append((rows, how))

    def export(model: Transformer, src: Any, tgt: Any, to: Path) -> None:
        assert len(src) == len(tgt) == gpu.TINY.vocab
        to.mkdir()
        (to / "model.bin").touch()

    name = "annotated.exchange.export.write_ctranslate2"
    monkeypatch.setattr(name, export)
    fake = SimpleNamespace(Translator=Translator)
    monkeypatch.setitem(sys.modules, "ctranslate2", fake)
    found = gpu.generate(bench)
    assert found["sentences_per_second"] > 0
    for rows, how in given:
        assert how["max_decoding_length"] == max(map(len, rows)) + 1
        assert how["beam_size"] == 4
    assert sum(len(rows) for rows, _ in given) >= gpu.TINY.sentences
    assert not (bench.out / "ctranslate2").exists()
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    found = gpu.generate(bench)
    assert found == {"skipped": "ctranslate2 is not installed here"}


@pytest.mark.slow
def test_the_call_writes_ledger_files(
    gpu: ModuleType, tmp_path: Path
) -> None:
    options = ["--only=peak,learn", "--data=copy"]
    assert call(gpu, tmp_path, *options) == 0
    keys = {
        "recipe", "command", "commit", "date", "hardware", "versions",
        "seed", "wall_seconds", "settings", "metrics",
    }  # fmt: skip
    entry = json.loads((tmp_path / "gpu-peak.json").read_text())
    assert set(entry) == keys
    assert entry["metrics"]["fp32_flops"] > 0
    learned = json.loads((tmp_path / "gpu-learn.json").read_text())
    assert set(learned) == keys | {"samples"}
    assert learned["metrics"]["test"]["signature"]
    assert learned["recipe"] == "copy"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--tiny", "--only=peak,speed"],
            "no section speed; there are peak, tests",
        ),
        (["--tiny", "--device=cuda"], "there is no CUDA device here"),
        ([], "there is no CUDA device here; --tiny runs anywhere"),
    ],
)
def test_a_call_that_cannot_be_is_refused(
    gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    complaint: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stop:
        gpu.main([f"--out={tmp_path / 'out'}", *options])
    assert stop.value.code == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
