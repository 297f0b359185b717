"""Chapter 11: a corpus as numbers, and its batches."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from annotated.batches import (
    Batch,
    Corpus,
    Sentences,
    pad_rows,
    plan_batches,
)
from annotated.corpora.pairs import load_pairs
from annotated.tokens import BOS, EOS, PAD

ROWS = [[4, 5, 6], [], [7], [8, 9]]
calm = settings(deadline=None)  # a busy machine is no failure
SENTENCES = st.lists(
    st.lists(st.integers(4, 40_000), max_size=9), max_size=9
)


def as_lists(sentences):
    return [sentences[i].tolist() for i in range(len(sentences))]


def realistic_lengths(count, seed=0):
    """Like WMT: log-normal, about 28 tokens, the sides correlated."""
    draw = np.random.default_rng(seed)
    src = draw.lognormal(3.1, 0.65, count)
    tgt = src * draw.lognormal(0.05, 0.18, count)
    return tuple(x.clip(1, 250).astype(np.int64) for x in (src, tgt))


def padding(lengths, batches):
    """The share of places in the padded batches that is padding."""
    places = sum((lengths[b].max() + 1) * len(b) for b in batches)
    return 1 - (lengths + 1).sum() / places


# --- sentences ---


@calm
@given(SENTENCES)
def test_sentences_come_back_one_by_one(rows):
    sentences = Sentences.of(rows)
    assert len(sentences) == len(rows)
    assert as_lists(sentences) == rows
    assert sentences.lengths.tolist() == [len(row) for row in rows]


def test_sentences_count_from_the_end_and_come_in_slices():
    sentences = Sentences.of(ROWS)
    assert sentences[-1].tolist() == ROWS[-1]
    with pytest.raises(IndexError):
        sentences[len(ROWS)]


@pytest.mark.parametrize("rows", [ROWS, [[]], []])
def test_saved_sentences_are_mapped_not_read(rows, tmp_path):
    Sentences.of(rows).save(tmp_path / "train.de")
    again = Sentences.load(tmp_path / "train.de")
    assert as_lists(again) == rows
    assert isinstance(again.ids, np.memmap)
    assert isinstance(again.starts, np.memmap)


def test_a_corpus_of_mapped_sentences_makes_batches(tmp_path):
    Sentences.of(ROWS).save(tmp_path / "side")
    side = Sentences.load(tmp_path / "side")
    batch = Corpus(side, side).batch([3, 0])
    assert batch.src.tolist() == [[8, 9, EOS, PAD], [4, 5, 6, EOS]]


def test_ids_and_starts_of_different_corpora_are_refused(tmp_path):
    Sentences.of(ROWS).save(tmp_path / "train")
    Sentences.of(ROWS[1:]).save(tmp_path / "other")
    (tmp_path / "other.ids.npy").rename(tmp_path / "train.ids.npy")
    with pytest.raises(
        ValueError, match="train: ids and starts do not match"
    ):
        Sentences.load(tmp_path / "train")


@pytest.mark.parametrize("starts", [[], [1, 9], [0, 8]])
def test_starts_that_do_not_span_the_ids_are_refused(starts, tmp_path):
    np.save(tmp_path / "x.ids.npy", np.arange(9, dtype=np.int32))
    np.save(tmp_path / "x.starts.npy", np.array(starts, dtype=np.int64))
    with pytest.raises(ValueError, match="do not match"):
        Sentences.load(tmp_path / "x")


@pytest.mark.parametrize("part", ["ids", "starts"])
@pytest.mark.parametrize("size", [0, 40, -4])
def test_a_damaged_file_is_named(part, size, tmp_path):
    Sentences.of(ROWS).save(tmp_path / "train")
    path = tmp_path / f"train.{part}.npy"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="train is damaged"):
        Sentences.load(tmp_path / "train")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ids\.npy"):
        Sentences.load(tmp_path / "none")


def test_a_corpus_is_saved_and_mapped(tmp_path):
    corpus = Corpus(Sentences.of(ROWS), Sentences.of(ROWS[::-1]))
    corpus.save(tmp_path / "train")
    again = Corpus.load(tmp_path / "train")
    assert as_lists(again.tgt) == ROWS[::-1]
    for count, sizes in ((1, (3, 2)), (3, (4, 3))):
        first = again.first(count)
        assert as_lists(first.src) == ROWS[:count]
        assert as_lists(first.tgt) == ROWS[::-1][:count]
        assert (first.src.ids.size, first.tgt.ids.size) == sizes
    assert len(again.first(99)) == 4
    assert isinstance(again.src.ids, np.memmap)


def test_ids_have_the_type_asked_for_or_32_bits():
    assert Sentences.of(ROWS).ids.dtype == np.int32
    assert Sentences.of(ROWS, np.uint16).ids.dtype == np.uint16


# --- planning ---


@pytest.mark.parametrize("lengths", [(4, 4), (4, 2), (2, 4)])
def test_a_batch_is_filled_to_the_last_token_of_its_budget(lengths):
    src, tgt = (np.full(6, n) for n in lengths)
    plan = plan_batches(src, tgt, 10)  # two times 4 tokens and an end
    assert [len(pairs) for pairs in plan] == [2, 2, 2]


def test_a_plan_is_that_of_the_first_epoch_with_seed_0_unless_told():
    src, tgt = realistic_lengths(60)
    untold, told = (
        plan_batches(src, tgt, 300),
        plan_batches(src, tgt, 300, 0, 0),
    )
    for a, b in zip(untold, told, strict=True):
        assert a.tolist() == b.tolist()


LENGTHS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40
)


@calm
@given(LENGTHS, st.integers(1, 60), st.integers(0, 3), st.integers(0, 3))
def test_each_pair_comes_once_and_no_batch_is_too_large(
    pairs, limit, seed, epoch
):
    src, tgt = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    batches = plan_batches(src, tgt, limit, seed, epoch)
    together = [i for batch in batches for i in batch.tolist()]
    assert sorted(together) == list(range(len(pairs)))
    for batch in batches:
        fits = all((x[batch] + 1).sum() <= limit for x in (src, tgt))
        assert fits or len(batch) == 1


@calm
@given(LENGTHS, st.integers(1, 60))
def test_there_are_not_many_more_batches_than_needed(pairs, limit):
    src, tgt = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    batches = plan_batches(src, tgt, limit)
    # two batches in a row are too much for one, on one side at least
    assert (
        len(batches) <= 1 + 2 * ((src + 1).sum() + (tgt + 1).sum()) / limit
    )


def test_a_plan_is_a_function_of_seed_and_epoch():
    src, tgt = realistic_lengths(2_000)

    def plan(seed, epoch):
        plan = plan_batches(src, tgt, 1_000, seed, epoch)
        return [batch.tolist() for batch in plan]

    first = plan(1, 0)
    np.random.default_rng(7).permutation(9)  # other draws change nothing
    assert plan(1, 0) == first
    plans = [first, plan(1, 1), plan(2, 0), plan(0, 1)]
    for i, one in enumerate(plans):
        for other in plans[:i]:
            assert one != other
            # not the order alone: the batches themselves differ
            assert set(map(tuple, one)) != set(map(tuple, other))


def by_python(src, tgt, batch_tokens, seed, epoch):
    """The order of the plan, by Python's stable sort."""
    draw = np.random.default_rng([seed, epoch])
    src, tgt = (src + 1).tolist(), (tgt + 1).tolist()
    order = draw.permutation(len(src)).tolist()
    order.sort(key=lambda i: (tgt[i], src[i]))
    bands = math.ceil(2 * math.sqrt(max(sum(src), sum(tgt)) / batch_tokens))
    so_far, band = 0, {}
    for i in order:
        so_far += tgt[i]
        band[i] = so_far * bands // (sum(tgt) + 1)
    order.sort(key=lambda i: (band[i], src[i] * (-1) ** (band[i] + 1)))
    return order, draw


@pytest.mark.parametrize("longest", [250, 10**6])
def test_the_plan_is_the_slow_one(longest):
    draw = np.random.default_rng(0)
    src, tgt = (draw.integers(0, 40, 3000) for _ in range(2))
    src[7] = tgt[11] = longest
    plan = plan_batches(src, tgt, 500, seed=3, epoch=4)
    order, draw = by_python(src, tgt, 500, 3, 4)
    places = draw.permutation(len(plan))
    cut = [plan[i] for i in np.argsort(places)]
    assert np.concatenate(cut).tolist() == order


def test_batches_of_an_epoch_do_not_go_from_short_to_long():
    src, tgt = realistic_lengths(5_000)
    longest = [tgt[b].max() for b in plan_batches(src, tgt, 1_000)]
    halves = np.array_split(longest, 2)
    assert abs(np.mean(halves[0]) - np.mean(halves[1])) < 8
    assert longest != sorted(longest)


def test_a_pair_longer_than_the_limit_is_a_batch_of_its_own():
    src, tgt = np.array([3, 3, 90, 3]), np.array([3, 3, 3, 3])
    batches = plan_batches(src, tgt, 20)
    assert [2] in [batch.tolist() for batch in batches]
    assert sorted(map(len, batches)) == [1, 3]


def test_padding_is_less_than_five_percent_at_the_papers_size():
    src, tgt = realistic_lengths(500_000)
    batches = plan_batches(src, tgt, 25_000)
    assert padding(src, batches) < 0.05
    assert padding(tgt, batches) < 0.05
    # and without grouping it is most of the batch
    chunks = np.array_split(np.arange(500_000), len(batches))
    assert padding(src, chunks) > 0.5
    assert padding(tgt, chunks) > 0.5


def test_padding_is_less_than_five_percent_on_real_text():
    folder = os.environ.get("ANNOTATED_DATA")
    if not folder or not Path(folder, "tatoeba").is_dir():
        pytest.skip("$ANNOTATED_DATA has no tatoeba")
    sides = load_pairs("tatoeba", "train", "en", "de")
    src, tgt = (np.array([len(s.split()) for s in side]) for side in sides)
    batches = plan_batches(src, tgt, 3000)
    assert padding(src, batches) < 0.05
    assert padding(tgt, batches) < 0.05


def test_a_side_that_is_longer_on_average_does_not_hide_the_other():
    """The limit holds in each batch, not only in the sum so far."""
    src = np.array([5] * 40 + [90] * 10)
    tgt = np.array([60] * 40 + [70] * 10)
    for batch in plan_batches(src, tgt, 200):
        assert (src[batch] + 1).sum() <= 200
        assert (tgt[batch] + 1).sum() <= 200


def test_batches_hold_about_as_many_tokens_as_asked():
    src, tgt = realistic_lengths(60_000)
    batches = plan_batches(src, tgt, 25_000)
    larger = [max((src[b] + 1).sum(), (tgt[b] + 1).sum()) for b in batches]
    assert np.median(larger) > 0.99 * 25_000


def test_no_pairs_make_no_batches():
    none = np.zeros(0, dtype=np.int64)
    assert plan_batches(none, none, 100) == []


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="batch_tokens must be at least 1"):
        plan_batches(np.ones(1), np.ones(1), 0)


# --- a batch ---


@calm
@given(
    st.lists(st.lists(st.integers(4, 99), max_size=6), min_size=1),
    st.sampled_from([None, BOS]),
    st.sampled_from([None, EOS]),
)
def test_rows_are_padded_at_their_end_alone(rows, before, after):
    arrays = [np.array(row, dtype=np.int32) for row in rows]
    padded = pad_rows(arrays, before, after)
    assert padded.dtype == torch.int64
    whole = [
        [before] * bool(before) + r + [after] * bool(after) for r in rows
    ]
    width = max(map(len, whole))
    assert padded.tolist() == [
        row + [PAD] * (width - len(row)) for row in whole
    ]


def test_no_rows_are_as_wide_as_what_stands_around_each():
    assert pad_rows([]).shape == (0, 0)
    assert pad_rows([], BOS, EOS).shape == (0, 2)


def test_labels_are_the_target_shifted_by_one():
    corpus = Corpus(
        Sentences.of([[10, 11], [12]]), Sentences.of([[20], [21, 22, 23]])
    )
    batch = corpus.batch([0, 1])
    assert batch.src.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert batch.tgt.tolist() == [[BOS, 20, PAD, PAD], [BOS, 21, 22, 23]]
    assert batch.labels.tolist() == [[20, EOS, PAD, PAD], [21, 22, 23, EOS]]
    assert batch.tokens == 6


@calm
@given(SENTENCES.filter(len))
def test_every_label_is_the_next_input(rows):
    side = Sentences.of(rows)
    batch = Corpus(side, side).batch(range(len(rows)))
    assert batch.tgt.shape == batch.labels.shape == batch.src.shape
    after = batch.tgt[:, 1:]
    real = after != PAD
    assert torch.equal(batch.labels[:, :-1][real], after[real])
    # where one side has padding, so has the other
    assert torch.equal(batch.tgt != PAD, batch.labels != PAD)
    assert batch.tokens == sum(len(row) + 1 for row in rows)


def test_a_batch_moves_as_a_whole():
    side = Sentences.of(ROWS)
    batch = Corpus(side, side).batch([0, 1]).to("meta")
    assert isinstance(batch, Batch)
    sides = (batch.src, batch.tgt, batch.labels)
    assert [x.device.type for x in sides] == ["meta"] * 3


def test_sides_of_different_length_are_refused():
    with pytest.raises(ValueError, match="4 source sentences, 3 target"):
        Corpus(Sentences.of(ROWS), Sentences.of(ROWS[1:]))


def test_a_data_loader_gives_the_same_batches():
    corpus = Corpus(Sentences.of(ROWS), Sentences.of(ROWS[::-1]))
    plan = corpus.plan(8, seed=1, epoch=2)
    loader = DataLoader(
        range(len(ROWS)), batch_sampler=plan, collate_fn=corpus.batch
    )
    found = list(loader)
    assert len(found) == len(plan) > 1
    for batch, pairs in zip(found, plan):
        assert torch.equal(batch.src, corpus.batch(pairs).src)
        assert torch.equal(batch.labels, corpus.batch(pairs).labels)


def test_a_corpus_plans_by_its_own_lengths():
    src, tgt = Sentences.of(ROWS), Sentences.of(ROWS[::-1])
    corpus = Corpus(src, tgt)
    assert len(corpus) == 4
    plan = corpus.plan(6, seed=3, epoch=2)
    expected = plan_batches(src.lengths, tgt.lengths, 6, 3, 2)
    assert [b.tolist() for b in plan] == [b.tolist() for b in expected]


def test_validation_sees_every_pair_once_in_the_same_order():
    side = Sentences.of(ROWS * 20)
    corpus = Corpus(side, side)
    batches = [batch.src.tolist() for batch in corpus.batches(12)]
    assert batches == [batch.src.tolist() for batch in corpus.batches(12)]
    assert sum(len(batch) for batch in batches) == 80
