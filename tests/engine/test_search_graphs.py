"""The search of a GPU, in which nothing moves, finds what the others find.

Its graphs are recordings of a step. Here a recording is a stand-in that
calls the step again, and sees that the step's tensors are where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from annotated.engine import search as engine
from annotated.engine.machine import evaluating
from annotated.engine.search import (
    Sampling,
    _gpu_batches,
    _StillSearch,
    beam_search,
    search_in_order,
)
from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig

SENTENCES = [
    [5 + (7 * i + 3 * j) % 30 for j in range(1 + (5 * i) % 13)]
    for i in range(11)
]


def model_of(seed: int = 0, **options: Any) -> Transformer:
    """A small model, sure enough of itself to end at different lengths."""
    torch.manual_seed(seed)
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 4,
    }
    config = TransformerConfig(
        src_vocab=40, tgt_vocab=40, **sizes | options
    )
    model = Transformer(config).double().eval()
    model.embeddings.output.data *= 3
    return model


class Recorder:
    """Captures like a graph: nothing runs before the first replay."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self.search: Any = None

    def places(self) -> list[int]:
        caches = [x for c in self.search.caches for x in c.tensors()]
        state = [*vars(self.search.beams).values(), self.search.time]
        return [x.data_ptr() for x in [*state, *caches]]

    def __call__(
        self, step: Callable[[], None], memory: Any
    ) -> Callable[[], None]:
        self.captured += 1
        before = self.places()

        def replay() -> None:
            assert self.places() == before
            self.replayed += 1
            step()

        return replay


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A search on a CPU goes the way of a GPU."""
    found, begin = Recorder(), _StillSearch.__init__

    def init(self: Any, *args: Any) -> None:
        begin(self, *args, capture=found)
        found.search = self

    monkeypatch.setattr(_StillSearch, "__init__", init)
    return found


def recorded(
    searches: Any, models: Any, sentences: Any, config: Any, prefixes: Any
) -> Any:
    models = models if isinstance(models, list) else [models]
    for model in models:
        assert not model.training
    prefixes = prefixes or [()] * len(sentences)
    with evaluating(models[0]):
        return engine._recorded(
            searches, models, sentences, config, prefixes
        )


def same(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert [h.ids for h in mine] == [h.ids for h in other]
        assert [h.score for h in mine] == pytest.approx(
            [h.score for h in other], rel=1e-12
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 5},
        {"norm": "pre", "positions": "learned", "max_len": 60},
    ],
)
@pytest.mark.parametrize(
    "config",
    [
        SearchConfig(beam=1, extra=9),
        SearchConfig(beam=4, nbest=2, extra=40),
        SearchConfig(beam=3, limit=7),
    ],
)
def test_what_does_not_move_finds_what_the_slots_find(
    recorder: Recorder, config: SearchConfig, options: Any
) -> None:
    model = model_of(**options)
    begun = [[], [5, 6], [7], *[[]] * 8]
    for prefixes in (None, begun):
        searches: Any = {}
        found = recorded(searches, model, SENTENCES, config, prefixes)
        same(found, beam_search(model, SENTENCES, config, prefixes))
        # a second batch, other inputs: the same graphs
        count = recorder.captured
        turned = SENTENCES[::-1]
        also = prefixes and prefixes[::-1]
        found = recorded(searches, model, turned, config, also)
        same(found, beam_search(model, turned, config, also))
        assert len(searches) == 1
        assert recorder.captured <= count + 3
    assert recorder.replayed > recorder.captured > 0


def test_models_vote_in_it(recorder: Recorder) -> None:
    models, config = [model_of(0), model_of(1)], SearchConfig(extra=9)
    found = recorded({}, models, SENTENCES, config, None)
    same(found, beam_search(models, SENTENCES, config))


def test_a_smaller_vocabulary_than_the_beam_is_no_trouble(
    recorder: Recorder,
) -> None:
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            src_vocab=40,
            tgt_vocab=6,
            tie="decoder",
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            d_ff=16,
            num_heads=2,
        )
    ).eval()
    config = SearchConfig(beam=8, nbest=3, extra=3)
    found = recorded({}, model, SENTENCES, config, None)
    wanted = beam_search(model, SENTENCES, config)
    for mine, other in zip(found, wanted, strict=True):
        assert [h.score for h in mine] == pytest.approx(
            [h.score for h in other], rel=1e-4
        )


def test_the_rows_are_halved_when_half_are_done(recorder: Recorder) -> None:
    model, searches = model_of(), {}
    config = SearchConfig(beam=2, extra=40)
    recorded(searches, model, SENTENCES, config, None)
    (search,) = searches.values()
    rows = {rows for rows, _ in search.replays}
    assert max(rows) == 16 and len(rows) > 1


def test_numbers_that_are_none_are_told(recorder: Recorder) -> None:
    model = model_of()
    model.embeddings.output.data[7] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        recorded({}, model, SENTENCES, SearchConfig(), None)


def test_a_step_asks_the_device_for_nothing(recorder: Recorder) -> None:
    """On tensors without numbers, whatever asked for one would fail."""
    model = model_of().to("meta")
    config = SearchConfig(beam=3)
    search = _StillSearch.__new__(_StillSearch)
    with torch.device("meta"), torch.no_grad():
        search.__init__([model], 4, 16, 32, config)  # type: ignore[misc]
        search.step(4, 96)
        search.step(2, 96)


def test_a_gpus_batches_are_of_one_size_and_fit() -> None:
    model, config = model_of(), SearchConfig()
    sentences = [[5] * n for n in (*[3] * 100, *[20] * 9, *[70] * 3)]
    batches = _gpu_batches([model], sentences, config, 1e12, 1000)
    assert sorted(i for batch in batches for i in batch) == [*range(112)]
    for batch in batches:
        sizes = {engine._source_size(len(sentences[i])) for i in batch}
        assert len(sizes) == 1
        assert len(batch) * sizes.pop() <= 1000
    assert max(map(len, batches)) == 32
    small = _gpu_batches([model], sentences, config, 1.0, 1000)
    assert max(map(len, small)) == 1 and len(small) == 112


def test_any_number_of_sentences_keep_their_graphs(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = model_of(), SearchConfig(extra=9)
    many = SENTENCES * 5
    wanted = search_in_order(model, many, config)
    monkeypatch.setattr(
        engine, "_may_be_recorded", lambda models, guide: True
    )
    monkeypatch.setattr(engine, "_room", lambda model: 1e9)
    found = search_in_order(model, many, config, batch_tokens=256)
    same(found, wanted)
    first = recorder.search.rows, recorder.search.positions
    assert first == (8, 32)  # the last batch has 55 - 3 · 16 sentences


def test_draws_on_a_gpu_share_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each draw takes a sentence's place; nothing is recorded."""
    model, config = model_of(), Sampling(nbest=8, extra=9)
    plain, many = SearchConfig(beam=8), SENTENCES * 5
    few = _gpu_batches([model], many, config, 1e12, 512)
    more = _gpu_batches([model], many, plain, 1e12, 512)
    assert max(map(len, few)) * 8 == max(map(len, more)) == 32
    wanted = search_in_order(model, many, config)
    asked: list[int] = []
    real = engine.beam_search

    def noted(models: Any, some: Any, *about: Any) -> Any:
        asked.append(len(some))
        assert about[3] is None  # no graphs
        return real(models, some, *about)

    monkeypatch.setattr(engine, "beam_search", noted)
    monkeypatch.setattr(engine, "_room", lambda model: 1e9)
    found = search_in_order(model, many, config)
    assert [[h.ids for h in each] for each in found] == [
        [h.ids for h in each] for each in wanted
    ]
    assert len(asked) <= 2 * len({len(s) for s in SENTENCES})


def test_a_guide_or_a_turning_head_is_searched_by_steps() -> None:
    models = [model_of()]
    assert not engine._may_be_recorded(models, None)  # on a CPU
