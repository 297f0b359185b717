"""The ledger of deviations: every row has its effect, measured or tested."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev

import pytest
import torch

from annotated.batches import Batch
from annotated.book.example import reversal_model
from annotated.book.results import ledger
from annotated.engine.data import open_data
from annotated.engine.recipes import RECIPES
from annotated.engine.runs import Run
from annotated.evaluation import score
from annotated.loss import smoothed_loss, smoothed_targets
from annotated.model import Transformer
from annotated.schedule import make_optimizer
from annotated.search import SearchConfig, log_p_after, plain_beam_search
from annotated.tokens import EOS, PAD
from press.chapters import read_chapter
from tests.helpers import ROOT, benchmark

PAGE = ROOT / "book" / "A3-deviations.md"
TEXT = PAGE.read_text(encoding="utf-8")
CODE = "\n".join(cell.source for cell in read_chapter(PAGE).code)


def rows() -> list[tuple[str, str]]:
    """The name and the effect of every row of the ledger."""
    found, inside = [], False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| what | paper"):
            assert cells[-2:] == ["switch", "effect"]
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            assert len(cells) == 7, line
            found.append((cells[0], cells[-1]))
    return found


@pytest.mark.parametrize(("row", "effect"), rows())
def test_a_row_has_an_effect(row, effect):
    if "below" in effect:
        assert f'("{row}", ' in CODE
    elif name := re.search(r"none: tested, `(\w+)`", effect):
        tests = [*(ROOT / "tests").rglob("test_*.py")]
        wanted = f"def {name[1]}("
        assert any(wanted in path.read_text("utf-8") for path in tests)
    else:
        assert effect.startswith(("not measured: ", "none: "))
        assert len(effect) > 20


def test_the_page_names_no_row_that_is_not_there():
    names = {row for row, _ in rows()}
    assert set(re.findall(r'^    \("([^"]+)", ', CODE, re.M)) <= names


def test_the_page_shows_every_run_of_the_script():
    with benchmark("deviations") as script:
        for name in [*script.CHANGES, *script.RULES]:
            assert name == "ours" or f'"{name}"' in CODE, name


@pytest.mark.parametrize("file", ["deviations", "deviations-chapter"])
@pytest.mark.parametrize(
    ("study", "key"), [("trainings", "nll"), ("searches", "bleu")]
)
def test_the_effects_are_those_of_the_runs(file, study, key):
    found = ledger()[file]["metrics"][study]
    value = {(run["name"], run["seed"]): run[key] for run in found["runs"]}
    assert found["effects"]
    for name, effect in found["effects"].items():
        differences = [
            value[name, seed] - value[effect["beside"], seed]
            for other, seed in value
            if other == name
        ]
        assert len(differences) == effect["seeds"] >= 2
        assert effect["mean"] == pytest.approx(mean(differences), abs=1e-4)
        spread = stdev(differences)
        assert effect["spread"] == pytest.approx(spread, abs=1e-4)


def test_every_change_was_trained_early_and_to_the_end():
    with benchmark("deviations") as script:
        wanted = set(script.CHANGES)
    for file, seeds in (("deviations", 3), ("deviations-chapter", 2)):
        runs = ledger()[file]["metrics"]["trainings"]["runs"]
        made = [(run["name"], run["seed"]) for run in runs]
        assert {name for name, _ in made} == wanted
        assert len(made) == len(set(made)) == seeds * len(wanted)


def test_what_starts_faster_does_not_end_better():
    early, late = (
        ledger()[name]["metrics"]["trainings"]["effects"]
        for name in ("deviations", "deviations-chapter")
    )
    runs = ledger()["deviations-chapter"]["metrics"]["trainings"]["runs"]
    own = [run["nll"] for run in runs if run["name"] == "ours"]
    right = {
        name: [r["sentences_right"] for r in runs if r["name"] == name]
        for name in ("ours", "no cool-down")
    }
    assert [round(share, 2) for share in right["ours"]] == [0.96, 0.97]
    assert [round(share, 2) for share in right["no cool-down"]] == [
        0.89,
        0.92,
    ]
    for name in ("three matrices", "q, k, v stacked", "at random"):
        assert early[name]["mean"] < -0.2
    for name in (
        "three matrices",
        "q, k, v stacked",
        "at random",
        "dropout",
    ):
        assert abs(late[name]["mean"]) < max(own) - min(own)
    assert early["dropout"]["mean"] > 0.4
    usual = median(one["spread"] for one in late.values())

    def larger(effect):
        reach = 2 * max(effect["spread"], usual) / effect["seeds"] ** 0.5
        return abs(effect["mean"]) >= reach

    worse = {name for name, one in late.items() if larger(one)}
    assert worse == {
        "no cool-down",
        "v2's schedule",
        "later β₂",
        "smoothing",
    }
    for name in worse - {"smoothing"}:  # "three turn round"
        assert early[name]["mean"] < 0 < late[name]["mean"]
    factor = [
        run["nll"] / own[run["seed"]]
        for run in runs
        if run["name"] == "no cool-down"
    ]
    assert min(factor) > 3 and max(factor) < 4.5


def test_the_rules_of_search_were_tried_on_captions():
    found = ledger()["deviations-captions"]
    runs = found["metrics"]["searches"]["runs"]
    with benchmark("deviations") as script:
        assert [run["name"] for run in runs] == list(script.RULES)
    assert found["settings"] == {"sentences": 1000}
    ours = runs[0]["bleu"]
    for run in runs:
        assert run["data"] == "multi30k"
        shift = run["bleu"] - ours
        assert run["difference"] == pytest.approx(shift, abs=0.02)
        assert run["low"] <= run["difference"] <= run["high"]
    assert max(run["longer"] for run in runs[:1]) < 50  # no limit mattered
    sure = {
        run["name"] for run in runs if run["high"] < 0 or run["low"] > 0
    }
    assert sure == {"α = 0", "k ended"}
    by_name = {run["name"]: run for run in runs}
    assert by_name["k ended"]["difference"] < -0.6
    assert -0.4 < by_name["α = 0"]["difference"] < -0.25
    for name, run in by_name.items():
        if name in sure:
            assert run["tokens"] < runs[0]["tokens"]
        elif name != "ours":
            assert run["changed"] < 0.05


def test_adam_does_not_notice_a_gradient_times_four():
    """Summed gradients in place of averaged ones; up to Adam's epsilon."""
    ends = []
    for factor in (1, 4):
        weight = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
        optimizer = make_optimizer([weight])
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        draw = torch.Generator().manual_seed(0)
        for _ in range(20):
            noise = torch.randn(50, generator=draw, dtype=torch.float64)
            weight.grad = factor * (weight.detach() - 1 + noise)
            optimizer.step()
        ends.append(weight.detach())
    assert ends[0].abs().max() > 0.05
    torch.testing.assert_close(ends[0], ends[1], atol=1e-7, rtol=1e-6)


def test_the_chapters_model_is_chapter_19s():
    with benchmark("deviations") as script:
        data = script.prepare(script.Settings(pairs=60, valid=2))
        settings = script.Settings(model="chapter")
        ours, v2 = (
            script.trainer_of(script.CHANGES[name], data, settings, 0)
            for name in ("ours", "v2's schedule")
        )
    pocket = RECIPES["pocket"]
    for name in ("d_model", "num_heads", "num_encoder_layers", "d_ff"):
        assert getattr(ours.model.config, name) == getattr(
            pocket.model, name
        )
    for name in ("batch_tokens", "warmup", "rate", "cooldown", "max_steps"):
        assert getattr(ours.config, name) == getattr(pocket.training, name)
    assert (v2.config.warmup, v2.config.rate) == (800, 1.6)


# --- the script measures what it says


def test_a_run_is_made_once(tmp_path: Path, monkeypatch):
    with benchmark("deviations") as script:
        tiny = script.Settings(
            seeds=1, steps=3, pairs=40, valid=5, sentences=1,
            only="trainings",
        )  # fmt: skip
        few = {name: script.CHANGES[name] for name in ("ours", "places")}
        monkeypatch.setattr(script, "CHANGES", few)
        work = tmp_path / "runs.jsonl"
        script.run(tiny, work)
        before = work.read_text()
        assert len(script.read(work)) == 2
        script.run(tiny, work)
        assert work.read_text() == before
        script.run(replace(tiny, first=1, only=None), work)
        made = script.result(tiny, script.read(work))
    text = json.dumps(made)
    assert json.loads(text)["metrics"]["searches"]["runs"]
    effect = made["metrics"]["trainings"]["effects"]["places"]
    assert effect["seeds"] == 2 and effect["beside"] == "ours"
    assert len(made["metrics"]["searches"]["runs"]) == len(script.RULES)
    assert made["metrics"]["searches"]["effects"] == {}  # of one seed


def test_a_run_of_ones_own_is_searched_by_every_rule(tmp_path: Path):
    folder, work = ROOT / "data" / "runs" / "pocket", tmp_path / "r.jsonl"
    with benchmark("deviations") as script:
        few = script.Settings(folders=(folder,), sentences=3)
        script.search_with_runs(few, work)
        script.search_with_runs(few, work)  # nothing is left to do
        made = script.result(few, script.read(work))
    runs = made["metrics"]["searches"]["runs"]
    assert [run["name"] for run in runs] == list(script.RULES)
    assert "trainings" not in made["metrics"]
    assert runs[0]["difference"] == 0 and runs[0]["p"] == 1
    assert all(
        run["low"] <= run["difference"] <= run["high"] for run in runs
    )
    assert made["settings"] == {"sentences": 3}
    assert "--folders RUN" in made["command"]
    lines, wanted = open_data(Run.open(folder).recipe).text("test")
    said = Run.open(folder).translate(lines[:3], SearchConfig(alpha=0.6))
    text = [best[0].text for best in said]
    assert runs[0]["bleu"] == pytest.approx(score(text, wanted[:3])["bleu"])


def test_a_row_that_is_not_there_is_refused_before_any_run(tmp_path: Path):
    with benchmark("deviations") as script:
        asked = script.Settings(rows=("plases",))
        with pytest.raises(SystemExit, match="no row 'plases'; there are"):
            script.run(asked, tmp_path / "runs.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_our_rules_of_search_are_those_of_the_package():
    model = reversal_model().eval()
    with benchmark("deviations") as script, torch.no_grad():
        for word in ([5], [6, 9, 7], [8, 4, 12, 20, 11]):
            source = torch.tensor([[*word, EOS]])

            def after(ids, source=source):
                return log_p_after(model, source, ids)

            config = SearchConfig(beam=4, alpha=0.6, extra=6)
            [best] = plain_beam_search(model, word, config)
            ours = script.search(after, len(word) + 6, script.Rules())
            assert ours == best.ids


def told(*pairs):
    """What a model says: log-probabilities by what it has written."""
    said = dict(pairs)

    def after(ids):
        p = torch.full((12,), 1e-9)
        for token, share in said.get(tuple(ids[1:]), {EOS: 1.0}).items():
            p[token] = share
        return p.log()

    return after


def test_the_rules_differ_where_they_should():
    # a short end at once, or a long sentence that is likelier per token
    sure = {(5,) * n: {5: 0.9, EOS: 0.1} for n in range(1, 8)}
    after = told(((), {5: 0.55, EOS: 0.45}), *sure.items())
    with benchmark("deviations") as script:
        ours = script.Rules(alpha=0.0)
        assert script.search(after, 20, ours) == []
        eager = replace(script.Rules(), penalty=script.fairseq_penalty)
        assert len(script.search(after, 20, eager)) == 8
        # with k places an end that comes fifth is not counted
        four = {5: 0.3, 6: 0.25, 7: 0.2, 8: 0.15, EOS: 0.1}
        ends = {EOS: 0.001, 5: 0.999}
        late = {(word, *(5,) * n): ends for word in four for n in range(30)}
        after = told(((), four), *late.items())
        assert script.search(after, 6, ours) == []
        strict = replace(ours, ends=1)
        assert script.search(after, 6, strict) != []


def test_the_others_share_epsilon():
    torch.manual_seed(0)
    batch = Batch(
        torch.tensor([[5, 6, EOS]]),
        torch.tensor([[1, 7, 8, PAD]]),
        torch.tensor([[7, 8, EOS, PAD]]),
    )
    with benchmark("deviations") as script:
        for kind, left in (
            (script.SharedByOthers, 1),
            (script.NorPadding, 2),
        ):
            model = reversal_model()
            config = script.TrainingConfig(label_smoothing=0.1)
            trainer = kind(model, [None], config)
            loss, nll = trainer.gradient(batch).tolist()
            log_p = model(batch.src, batch.tgt).log_softmax(-1)[0, :3]
            vocab, wanted = log_p.size(-1), 0.0
            for row, label in zip(log_p, batch.labels[0], strict=False):
                q = torch.full((vocab,), 0.1 / (vocab - left))
                if left == 2:
                    q[PAD] = 0.0
                q[label] = 0.9
                assert q.sum().item() == pytest.approx(1)
                wanted -= (q * row).sum().item() / 3
            assert loss == pytest.approx(wanted, rel=1e-5)
            _, plain = smoothed_loss(log_p, batch.labels[0, :3])
            assert nll == pytest.approx(plain.item() / 3, rel=1e-5)
            assert smoothed_targets(
                batch.labels[:, :3], vocab, 0.1
            ).sum() == pytest.approx(3)


def test_the_altered_models_are_what_they_are_called():
    def altered(alter) -> Transformer:
        model = reversal_model()
        alter(model)
        return model.eval()

    ours, x = reversal_model().eval(), torch.randn(3, 64)
    src, tgt = torch.tensor([[5, 6, EOS]]), torch.tensor([[1, 7]])
    with benchmark("deviations") as script:
        norm = altered(script.harvard_norms).encoder.layers[0].norm1
        torch.testing.assert_close(
            norm(x),
            ours.encoder.layers[0].norm1(x) * math.sqrt(63 / 64),
            atol=1e-4, rtol=1e-4,
        )  # fmt: skip
        smaller = altered(script.stacked_xavier).encoder.layers[0].attention
        bound = smaller.w_q.weight.abs().max().item()
        assert 0.95 * math.sqrt(6 / 256) < bound <= math.sqrt(6 / 256)
        zero = altered(script.zero_start)
        assert not zero.embeddings.read_target(tgt)[0, 0].any()
        torch.testing.assert_close(
            zero.embeddings.read_target(tgt)[0, 1],
            ours.embeddings.read_target(tgt)[0, 1],
        )
        table = altered(script.sines_then_cosines).src_positions(9)
        angle = torch.arange(9.0)
        torch.testing.assert_close(table[:, 0], angle.sin())
        torch.testing.assert_close(table[:, 32], angle.cos())
        torch.testing.assert_close(table[:, 31], (angle / 10_000).sin())
        once = altered(script.last_norms)
        assert isinstance(once.encoder.norm, torch.nn.LayerNorm)
        torch.testing.assert_close(
            once(src, tgt), ours(src, tgt), atol=1e-3, rtol=1e-3
        )


def test_batches_are_cut_as_their_names_say():
    with benchmark("deviations") as script:
        data = script.prepare(script.Settings(pairs=300, valid=2))
        settings = script.Settings()
        for name in ("ours", "places", "at random"):
            change = script.CHANGES[name]
            trainer = script.trainer_of(change, data, settings, 0)
            plan = trainer.plan(0)
            assert sorted(i for b in plan for i in b) == list(range(300))
            for pairs in plan:
                sides = [
                    side.lengths[pairs] + 1
                    for side in (data.train.src, data.train.tgt)
                ]
                assert max(side.sum() for side in sides) <= 300
                if name == "places":
                    longest = max(side.max() for side in sides)
                    assert len(pairs) * longest <= 300
        share = {
            name: script.padding(
                script.trainer_of(script.CHANGES[name], data, settings, 0)
            )
            for name in ("ours", "at random")
        }
    assert share["ours"] < 0.15 < 0.25 < share["at random"]
