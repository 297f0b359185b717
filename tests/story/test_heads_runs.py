"""Chapter 25: the large runs, and what the page says of them."""

from __future__ import annotations

import json
import math

import pytest

from annotated.book.results import ledger
from tests.helpers import benchmark

# --- the large run ---------------------------------------------------------


def test_the_benchmark_runs_in_small(tmp_path, monkeypatch) -> None:
    file = tmp_path / "heads.json"
    with benchmark("heads") as script:
        monkeypatch.setattr(script, "SAMPLES", ("Anna schläft .",))
        words = "--seeds 3 --steps 30 --pairs 400 --test 30 --d-model 16"
        assert script.main([*words.split(), "--json", str(file)]) == 0
    found = json.loads(file.read_text("utf-8"))["metrics"]
    [run] = found["runs"]
    assert len(run["heads"]) == 24
    assert [p["step"] for p in run["curve"]][-1] == 30
    assert len(run["teams"]) == len(found["jobs"])
    for team in run["teams"]:
        least, median, most = team["any"]  # three heads, whichever
        assert least <= median <= most and 0 <= team["cheaper"] < 1
        assert least <= min(team["loss"][1], team["least"])
        assert most >= max(team["loss"][1], team["least"])
    assert len(run["removed"]["least first"]) == 13
    rows = run["samples"][0]["weights"]["encoder"][0][0]
    assert [len(row.split()) for row in rows] == [4] * 4


def test_bleu_without_each_head_is_measured_in_small(tmp_path) -> None:
    file = tmp_path / "bleu.json"
    with benchmark("heads") as script:
        words = "--only bleu --seeds 3 --steps 2 --pairs 200 --test 5"
        line = [*words.split(), "--d-model", "16", "--json", str(file)]
        assert script.main(line) == 0
    made = json.loads(file.read_text("utf-8"))
    assert "--only bleu" in made["command"]
    [run] = made["metrics"]["runs"]
    assert run["seed"] == 3 and "tok:13a" in run["signature"]
    found = {(h["block"], h["head"]) for h in run["heads"]}
    assert len(found) == 24
    assert all(0 <= h["bleu"] <= 100 for h in (run, *run["heads"]))


def test_what_the_chapter_says_of_the_ledger() -> None:
    found = ledger()["heads"]["metrics"]
    where = {
        (j["place"], j["name"]): n for n, j in enumerate(found["jobs"])
    }

    def numbered(place: str, name: str) -> tuple[int, float]:
        n = where[place, name]
        return n, found["jobs"][n]["distance"]

    def own(run: dict, place: str) -> list[dict]:
        return [h for h in run["heads"] if h["block"].startswith(place)]

    def best(run: dict, place: str, n: int) -> tuple[dict, float]:
        head = max(own(run, place), key=lambda h: h["scores"][n])
        return head, head["scores"][n]

    sie, sie_base = numbered("encoder", "sie → its verb")
    whom, whom_base = numbered("encoder", "pronoun → whom it means")
    modifier, next_word = numbered("encoder", "article or adjective → noun")
    relative, relative_base = numbered("encoder", "relative pronoun → noun")
    end, _ = numbered("encoder", "the end")
    halves, _ = numbered("encoder", "verb → its other half")
    writing, _ = numbered("cross", "writing any word")
    assert [run["seed"] for run in found["runs"]] == [0, 1, 2]
    coin = []
    for run in found["runs"]:
        head, score = best(run, "encoder", sie)
        assert score > sie_base + 0.2
        alone, three = head["loss"]["words"][sie], run["teams"][sie]["loss"]
        assert three[1] > 0.5 and three[1] > 5 * alone
        coin.append(three[1] > math.log(2))
        team = run["teams"][sie]  # the control
        assert team["least"] < 0.03 and team["any"][2] == three[1]
        assert best(run, "encoder", whom)[1] < whom_base / 2
        assert best(run, "encoder", modifier)[1] < next_word + 0.005
        head, score = best(run, "encoder", relative)
        assert score < relative_base / 2
        encoder = own(run, "encoder")
        dearest = max(encoder, key=lambda h: h["loss"]["words"][relative])
        assert dearest["loss"]["words"][relative] > 0.05
        assert dearest is not head
        team = run["teams"][relative]
        cheaper = (36, 36, 44)[run["seed"]]
        assert team["cheaper"] == pytest.approx(cheaper / 56, abs=0.001)
        assert team["any"][2] > 1.2 * team["loss"][1]
        head, score = best(run, "encoder", end)
        assert score > 0.5 and head["loss"]["words"][end] < 0.02
        team = run["teams"][end]
        assert team["least"] > team["any"][1] > team["loss"][1]
        first = [h["scores"][end] for h in own(run, "encoder.0")]
        assert sum(first) / 4 > 0.49
        aligning = own(run, "cross.1")
        assert min(h["scores"][writing] for h in aligning) > 0.5
        others = encoder + own(run, "decoder")
        dear = max(others, key=lambda h: h["loss"]["exact"])
        assert dear["skill"] > 0.6 and dear["block"].startswith("decoder")
        sample = run["samples"][0]
        verb, particle = (
            sample["source"].index(w) for w in ("macht", "zu")
        )
        first = [h["scores"][halves] for h in own(run, "encoder.0")]
        assert run["seed"] or max(first) < 0.031
        looks = [
            int(head[verb].split()[particle])
            for head in sample["weights"]["encoder"][0]
        ]
        assert (max(looks) > 95) if run["seed"] == 0 else (max(looks) < 50)
    assert sum(coin) == 2


def skills(found: dict, head: dict) -> dict[str, float]:
    """A head's skill in each job of its place, by the job's name."""
    place = head["block"].partition(".")[0]
    made = {}
    for job, score in zip(found["jobs"], head["scores"], strict=True):
        if job["place"] == place:
            bases = [job["uniform"]]
            bases += [job["distance"]] * (not job["positional"])
            made[job["name"]] = (score - max(bases)) / (1 - max(bases))
    return made


def looks(run: dict, number: int, word: str, layer: int) -> list[dict]:
    """Where each head of an encoder layer looks from a word, in per cent."""
    sample = run["samples"][number]
    words = sample["source"]
    assert len(set(words)) == len(words)
    return [
        dict(zip(words, map(int, head[words.index(word)].split())))
        for head in sample["weights"]["encoder"][layer]
    ]


def test_heads_have_learned_different_jobs() -> None:
    """§4 p6: by what each does best."""
    found = ledger()["heads"]["metrics"]
    for run in found["runs"]:
        jobs = set()
        for head in run["heads"]:
            own = skills(found, head)
            best = found["jobs"][head["job"]]["name"]
            assert own[best] == max(own.values())
            assert head["skill"] == pytest.approx(own[best], abs=0.01)
            jobs.add((head["block"], best))
        assert len({best for _, best in jobs}) >= 9
        assert len({best for block, best in jobs if block == "cross.1"}) > 1


def test_a_verb_looks_far_for_its_other_half_in_one_sentence() -> None:
    """Figure 3: one head of three seeds, and no head over all verbs."""
    found = ledger()["heads"]["metrics"]
    first, *others = found["runs"]
    macht, ruft = (
        looks(first, i, verb, 0) for i, verb in enumerate(("macht", "ruft"))
    )
    (far,) = (head for head in macht if head["zu"])
    assert far["zu"] > 95
    words = first["samples"][0]["source"]
    assert words.index("zu") - words.index("macht") == 5
    for head in (*ruft, *(h for h in macht if h is not far)):
        assert head["."] + head["</s>"] > 85
    assert not any(head["an"] for head in ruft)
    for run in others:
        assert max(head["zu"] for head in looks(run, 0, "macht", 0)) < 10
    for run in found["runs"]:
        for head in run["heads"]:
            if head["block"] == "encoder.0":
                assert skills(found, head)["verb → its other half"] < 0


def test_heads_look_from_sie_to_its_verb_and_not_to_the_woman() -> None:
    """Figure 4: in the picture and over all unseen sentences."""
    found = ledger()["heads"]["metrics"]
    for run in found["runs"]:
        own = [h for h in run["heads"] if h["block"].startswith("encoder")]
        best = {
            job: max(skills(found, head)[job] for head in own)
            for job in ("sie → its verb", "pronoun → whom it means")
        }
        assert best["sie → its verb"] > 0.4
        assert best["pronoun → whom it means"] < -0.5
    first = found["runs"][0]
    strong = [head["hat"] for head in looks(first, 2, "sie", 0)]
    assert max(strong) > 90 and sum(strong) > 150
    for layer in range(2):
        for head in looks(first, 2, "sie", layer):
            assert head["Frau"] <= 1


def test_one_job_of_grammar_has_a_head_and_alignment_has_many() -> None:
    """Figure 5: what follows a sentence's structure, by all heads."""
    found = ledger()["heads"]["metrics"]
    grammar = [
        job["name"]
        for job in found["jobs"]
        if job["place"] == "encoder" and not job["positional"]
    ]
    assert len(grammar) == 8
    for run in found["runs"]:
        own = [h for h in run["heads"] if h["block"].startswith("encoder")]
        best = {
            job: max(skills(found, head)[job] for head in own)
            for job in grammar
        }
        assert best.pop("sie → its verb") > 0.4 > 0.05 > max(best.values())
        aligning = [h for h in run["heads"] if h["block"] == "cross.1"]
        each = [skills(found, head) for head in aligning]
        for job in each[0]:
            if job.startswith("writing"):
                _, second, *_ = sorted((s[job] for s in each), reverse=True)
                assert second > 0.15, job  # no head has it to itself


def test_the_runs_for_bleu_are_of_the_same_models() -> None:
    found = (ledger()[name]["metrics"] for name in ("heads-bleu", "heads"))
    for run, other in zip(*(one["runs"] for one in found), strict=True):
        assert run["seed"] == other["seed"]
        whole = other["curve"][-1]["exact"]
        assert run["exact"] == pytest.approx(whole, abs=0.001)
        assert run["bleu"] >= max(h["bleu"] for h in run["heads"]) - 1
        dearest = min(run["heads"], key=lambda head: head["bleu"])
        assert dearest["block"].startswith("decoder")
