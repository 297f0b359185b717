"""Page E6: many sentences, in batches, by several processes."""

import os
import pickle
import signal
import sys
import time
from multiprocessing import active_children, parent_process

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated.batches import Sentences
from annotated.engine import search as decoding
from annotated.engine.errors import RunError
from annotated.engine.parsing import OnlyTrees
from annotated.engine.search import beam_search, search_in_order
from annotated.model import Transformer
from annotated.search import SearchConfig
from annotated.tokens import SPECIALS
from tests.searching import (
    MODEL,
    VOCAB,
    assert_equal,
    random_model,
    random_sentences,
)

lines = st.lists(
    st.lists(st.integers(len(SPECIALS), VOCAB - 1), max_size=9),
    min_size=1,
    max_size=8,
)


@settings(max_examples=8, deadline=None)
@given(sentences=lines, beam=st.integers(1, 4), data=st.data())
def test_a_sentence_does_not_feel_its_neighbours(sentences, beam, data):
    """Whatever their order, their number and their length."""
    config = SearchConfig(beam=beam, extra=4, nbest=beam)
    together = beam_search(MODEL, sentences, config)
    order = data.draw(st.permutations(range(len(sentences))))
    shuffled = beam_search(MODEL, [sentences[i] for i in order], config)
    size = data.draw(st.integers(1, 30))
    batched = search_in_order(MODEL, sentences, config, batch_tokens=size)
    for place, i in enumerate(order):
        alone = beam_search(MODEL, [sentences[i]], config)[0]
        assert_equal(together[i], alone)
        assert_equal(shuffled[place], alone)
        assert_equal(batched[i], alone)


def test_results_come_back_in_the_order_given():
    sentences = random_sentences(20, 8, longest=20)
    config = SearchConfig(beam=2, extra=3)
    found = search_in_order(MODEL, sentences, config, batch_tokens=50)
    expected = [beam_search(MODEL, [s], config)[0] for s in sentences]
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


@pytest.fixture
def two_cores(monkeypatch):
    """Wherever the test runs."""
    monkeypatch.setattr(decoding, "cores", lambda: 2)


def test_it_does_not_matter_who_searches(two_cores):
    sentences = random_sentences(90, 8, longest=20)
    config = SearchConfig(beam=2, extra=3, nbest=2)
    wish = [[4]] * len(sentences)
    expected = search_in_order(MODEL, sentences, config, prefixes=wish)
    before = torch.get_rng_state(), torch.get_num_threads()
    found = search_in_order(
        MODEL, sentences, config, prefixes=wish, workers=2
    )
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


class Mortal(Transformer):
    """Works where it was made, and dies elsewhere."""

    def encode(self, src):
        if parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(src)


class Sleeper(Transformer):
    """Works where it was made, and hangs elsewhere."""

    def encode(self, src):
        if parent_process() is not None:
            time.sleep(600)
        return super().encode(src)


def test_a_worker_that_dies_is_noticed(two_cores):
    model = Mortal(MODEL.config).eval()
    few = random_sentences(5, 8)
    search_in_order(model, few, workers=2)  # not worth a process
    many = few * 40
    with pytest.raises(RunError, match="process died with exit code -9"):
        search_in_order(model, many, workers=2)


def test_a_worker_that_is_dead_before_its_first_batch_is_noticed(
    two_cores, monkeypatch
):
    """Not taken for a reader of the output who has left."""
    real = decoding.get_context

    class Context:
        def __init__(self, method):
            self.Pipe = real(method).Pipe
            self.method = method

        def Process(self, *, args, **how):
            process = real(self.method).Process(target=os._exit, args=(9,))
            start = process.start

            def dead():
                start()
                args[1].close()
                process.join()

            process.start = dead
            return process

    monkeypatch.setattr(decoding, "get_context", Context)
    with pytest.raises(RunError, match="process died with exit code 9"):
        search_in_order(MODEL, random_sentences(200, 8), workers=2)


def test_a_worker_that_hangs_is_noticed(two_cores, monkeypatch):
    monkeypatch.setattr(decoding, "_TIMEOUT", 0.5)
    model = Sleeper(MODEL.config).eval()
    before = active_children()  # torch.compile keeps some of its own
    with pytest.raises(RunError, match="no answer in"):
        search_in_order(model, random_sentences(200, 8), workers=2)
    assert set(active_children()) <= set(before)


class Complains(Transformer):
    """Works where it was made, and fails elsewhere."""

    def encode(self, src):
        if parent_process() is not None:
            raise MemoryError("all of it is full")
        return super().encode(src)


def test_why_a_worker_failed_is_told(two_cores):
    model = Complains(MODEL.config).eval()
    with pytest.raises(MemoryError, match="all of it is full") as told:
        search_in_order(model, random_sentences(200, 8), workers=2)
    # where it happened
    assert "in encode" in str(told.value.__cause__)


@pytest.mark.slow
def test_processes_may_be_spawned(two_cores, monkeypatch):
    """As on macOS and Windows, where nothing is inherited."""
    monkeypatch.setattr(sys, "platform", "darwin")
    names = [*SPECIALS, "(S", ")S", "DT", "NN", *"abc"]
    model = Transformer(MODEL.config).eval()
    sentences = random_sentences(90, 8, longest=8)
    search = SearchConfig(beam=2, extra=4)
    guide = OnlyTrees(names)
    expected = search_in_order(model, sentences, search, guide=guide)
    found = search_in_order(
        model, sentences, search, guide=guide, workers=2
    )
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def test_what_cannot_be_sent_to_a_process_is_told(two_cores, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        (AttributeError, pickle.PicklingError), match="pickle"
    ):
        search_in_order(
            Transformer(MODEL.config),
            random_sentences(200, 8),
            workers=2,
            guide=lambda *_: None,
        )


def test_a_model_on_another_device_gets_no_copies_of_this_process(
    two_cores, monkeypatch
):
    """A context of CUDA does not survive a fork."""
    monkeypatch.setattr(decoding, "_in_processes", None)
    model = Transformer(MODEL.config).to("meta")
    with pytest.raises(RuntimeError, match="(?i)meta tensors"):
        search_in_order(model, random_sentences(200, 8), workers=2)


def test_arrays_and_corpora_can_be_searched():
    sentences = random_sentences(5, 9)
    expected = beam_search(MODEL, sentences)
    for form in (Sentences.of(sentences), [np.array(s) for s in sentences]):
        for one, other in zip(
            beam_search(MODEL, form), expected, strict=True
        ):
            assert_equal(one, other)


# --- batches, and who searches them ---------------------------------------


@pytest.mark.parametrize(
    ("tokens", "size", "batches"),
    [
        (100, 10, [[4, 2, 0, 3, 1]]),
        (12, 10, [[4, 2], [0, 3, 1]]),  # 6 + 6, 4 + 4 + 4
        (11, 10, [[4], [2, 0], [3, 1]]),
        (100, 2, [[4, 2], [0, 3], [1]]),
        (3, 10, [[4], [2], [0], [3], [1]]),  # none is left out
    ],
)
def test_batches_are_cut_from_the_longest_on(tokens, size, batches):
    """By hand: lengths 3, 0, 4, 2, 5, and an end; padding counts."""
    sentences = [[4] * n for n in (3, 0, 4, 2, 5)]
    found = decoding.batches_by_length(sentences, tokens, size)
    assert found == batches


@pytest.fixture
def planned(two_cores, monkeypatch):
    """What search_in_order plans, where nothing is searched."""
    found = []

    def batches(sentences, tokens, size):
        found.append((tokens, size))
        return [[i] for i in range(len(sentences))]

    def processes(job, batches, workers):
        found.append(workers)
        return []

    monkeypatch.setattr(decoding, "batches_by_length", batches)
    monkeypatch.setattr(decoding, "_in_processes", processes)
    monkeypatch.setattr(
        decoding, "beam_search", lambda *args: [[] for _ in args[1]]
    )
    return found


@pytest.mark.parametrize(
    ("lengths", "options", "plan"),
    [
        ([5], {}, [(2000, 128)]),
        ([5] * 3, {"batch_tokens": 7, "batch_size": 2}, [(7, 2)]),
        # 1,200 tokens with the ends: half of them for each of two …
        ([5] * 200, {"workers": 2}, [(600, 128), 2]),
        ([5] * 201, {"workers": 9}, [(603, 128), 2]),
        ([5] * 200 + [0], {"workers": 2}, [(601, 128), 2]),
        ([5] * 200, {"workers": 2, "batch_tokens": 9}, [(9, 128), 2]),
        # … or as many as are worth a process, and one batch for one
        ([5] * 9, {"workers": 2}, [(300, 128), 2]),
        ([5], {"workers": 2}, [(300, 128)]),
        ([5] * 9, {"workers": 1}, [(2000, 128)]),
    ],
)
def test_each_process_gets_its_share(planned, lengths, options, plan):
    sentences = [[4] * n for n in lengths]
    search_in_order(MODEL, sentences, **options)
    assert planned == plan


def test_batches_are_handed_out_in_order_to_processes_that_obey(two_cores):
    """On one thread each, deaf to Ctrl-C, gone when their parent goes."""

    def job(batch):
        handler = signal.getsignal(signal.SIGINT)
        return batch, torch.get_num_threads(), handler == signal.SIG_IGN

    before = set(active_children())
    batches = [[3], [2], [1]]
    found = decoding._in_processes(job, batches, 1)
    first = next(found)
    own = set(active_children()) - before
    assert [child.daemon for child in own] == [True]
    assert [first, *found] == [
        (i, (batch, 1, True)) for i, batch in enumerate(batches)
    ]
    assert not set(active_children()) & own


class Line:
    """What a process hears and says; it is never in a hurry."""

    def __init__(self, *heard):
        self.heard, self.said = list(heard), []

    def recv(self):
        return self.heard.pop(0)

    def send(self, answer):
        self.said.append(answer)


def test_a_process_works_while_its_parent_lives(monkeypatch):
    """It ends with its parent, and tells what a job returns or raises."""
    set_to = []
    tie = lambda: set_to.append("tied")  # noqa: E731
    monkeypatch.setattr(decoding, "end_with_parent", tie)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(signal, "signal", lambda *what: set_to.append(what))
    line = Line([8], [0])
    with pytest.raises(IndexError):  # it hears nothing more
        decoding._work(lambda batch: 1 / batch[0], line)
    assert set_to == ["tied", 1, (signal.SIGINT, signal.SIG_IGN)]
    one, (nothing, error, where) = line.said
    assert one == (0.125, None, "")
    assert nothing is None and isinstance(error, ZeroDivisionError)
    assert "Traceback" in where


def test_several_models_vote_on_any_number_of_sentences():
    models, sentences = [random_model(n) for n in (1, 2)], [[4, 5], [6]]
    config = SearchConfig(extra=5)
    found = search_in_order(models, sentences, config, batch_tokens=3)
    for one, sentence in zip(found, sentences, strict=True):
        assert_equal(one, beam_search(models, [sentence], config)[0])
