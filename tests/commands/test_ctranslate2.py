"""Page E11: CTranslate2 in our search's place. Where it is not installed, a
stand-in with our own search answers its calls.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from annotated.corpora.sentencepieces import vocabulary
from annotated.engine.errors import RunError
from annotated.engine.runs import Run, run_folder
from annotated.engine.search import beam_search
from annotated.exchange import export
from annotated.exchange.export import with_ctranslate2
from annotated.search import SearchConfig, length_penalty, output_limit
from tests.commands.conftest import Call

LINES = [
    "Heute kauft diese junge Ärztin nicht ein .",
    "",
    "Anna ist müde .",
    "Heute kauft diese junge Ärztin nicht ein , obwohl Anna nicht müde war .",
    "Der Hund schläft .",
]
SEARCH = SearchConfig(beam=4, alpha=0.0, nbest=2)


@pytest.fixture(scope="module")
def pocket() -> Run:
    return Run.open(run_folder(Path("pocket")))


class StandIn:
    """ctranslate2.Translator, as far as it is asked."""

    def __init__(self, run: Run):
        self.run, self.calls = run, list[dict[str, Any]]()
        self.names = vocabulary(run.source)
        self.words = vocabulary(run.target)

    def __call__(self, folder: str, **options: Any) -> StandIn:
        self.options = options
        return self

    def translate_batch(
        self, sources: list[list[str]], **asked: Any
    ) -> list[Any]:
        self.calls.append({"sources": sources, **asked})
        ids = [[self.names.index(word) for word in s] for s in sources]
        search = SearchConfig(
            asked["beam_size"], 0.0, nbest=asked["num_hypotheses"],
            extra=10_000, limit=asked["max_decoding_length"] + 1,
        )  # fmt: skip
        found = beam_search(self.run.model, ids, search)
        return [
            SimpleNamespace(result=lambda n=n: self.told(n)) for n in found
        ]

    def told(self, nbest: list[Any]) -> Any:
        return SimpleNamespace(
            hypotheses=[[self.words[i] for i in one.ids] for one in nbest],
            scores=[one.log_probability for one in nbest],
        )


@pytest.fixture
def stand_in(pocket: Run, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    package: Any = ModuleType("ctranslate2")
    package.Translator = found = StandIn(pocket)
    monkeypatch.setitem(sys.modules, "ctranslate2", package)
    monkeypatch.setattr(export, "write_ctranslate2", lambda *_: None)
    return found


def test_the_engine_s_translations_come_back_in_order(
    pocket: Run, stand_in: StandIn
) -> None:
    fast = with_ctranslate2(pocket, "int8", threads=3)
    assert stand_in.options["compute_type"] == "int8"
    assert stand_in.options["inter_threads"] == 3
    ours, theirs = (
        pocket.translate(LINES, SEARCH),
        fast.translate(LINES, SEARCH),
    )
    texts = [[one.text for one in nbest] for nbest in ours]
    assert texts == [[one.text for one in nbest] for nbest in theirs]
    assert len({text for text, *_ in texts}) > 3 and texts[1][0] == ""
    for one, other in zip(sum(ours, []), sum(theirs, []), strict=True):
        assert one.score == pytest.approx(other.score)


def test_its_log_probabilities_get_the_paper_s_penalty(
    pocket: Run, stand_in: StandIn
) -> None:
    search = dataclasses.replace(SEARCH, alpha=2.0, nbest=4)
    for nbest in with_ctranslate2(pocket).translate(LINES, search):
        scores = [one.score for one in nbest]
        assert scores == sorted(scores, reverse=True)
        for one in nbest:
            if one.text:
                length = len(pocket.target.encode([one.text])[0]) + 1
                assert one.score == pytest.approx(
                    one.log_probability / length_penalty(length, 2.0)
                )


def test_no_output_is_longer_than_ours_may_be(
    pocket: Run, stand_in: StandIn
) -> None:
    with_ctranslate2(pocket).translate(LINES, SEARCH)
    assert len(stand_in.calls) > 1
    for call in stand_in.calls:
        lengths = [len(source) for source in call["sources"]]
        assert max(lengths) - min(lengths) < 8
        limits = [output_limit(pocket.model, n, SEARCH) for n in lengths]
        assert call["max_decoding_length"] == min(limits) - 1
        assert call["min_decoding_length"] == 0


def test_what_it_cannot_do_is_refused(
    pocket: Run, stand_in: StandIn
) -> None:
    both = dataclasses.replace(pocket, others=(pocket.model,))
    with pytest.raises(RunError, match="no --ensemble"):
        with_ctranslate2(both)
    guide: Any = object()
    with pytest.raises(RunError, match="takes no guide"):
        with_ctranslate2(pocket).translate(LINES, guide=guide)


@pytest.mark.parametrize(
    "line",
    [
        "translate --run pocket --ctranslate2 --precision int8",
        "evaluate --run pocket --ctranslate2 --src {0} --ref {0} "
        "--against pocket --json",
    ],
)
def test_a_flag_asks_for_it(
    call: Call, stand_in: StandIn, tmp_path: Path, line: str
) -> None:
    text = tmp_path / "text"
    text.write_text("\n".join(LINES), "utf-8")
    done = call(line.format(text), text.read_bytes())
    assert done.code == 0 and done.out
    asked = sum(len(one["sources"]) for one in stand_in.calls)
    assert asked == 4 * (1 + ("against" in line))


def test_where_it_is_missing_a_line_says_what_to_install(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    done = call("translate --run pocket --ctranslate2 a")
    assert "pip install ctranslate2" in done.complaint


def test_the_engine_itself_says_what_our_search_says(pocket: Run) -> None:
    """With one hypothesis, where neither has a reason to stop earlier."""
    pytest.importorskip("ctranslate2")
    greedy = SearchConfig(beam=1, alpha=0.6, extra=50)
    ours = pocket.translate(LINES, greedy)
    theirs = with_ctranslate2(pocket, threads=2).translate(LINES, greedy)
    for [one], [other] in zip(ours, theirs, strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-3)
