"""Chapter 25: what the heads see, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from annotated.batches import Batch, Corpus, Sentences
from annotated.engine.hooks import attention_blocks
from annotated.engine.packing import packed
from annotated.heads import (
    Job,
    _gold_links,
    gold_jobs,
    head_maps,
    judge,
    knocked_out,
)
from annotated.model import Transformer, TransformerConfig
from annotated.pocket import Pair, pocket_pairs, realise
from annotated.pocket.meaning import Clause, Meaning, Phrase
from annotated.pocket.relations import antecedent, word_links
from annotated.search import SearchConfig, plain_beam_search
from annotated.tokens import EOS, PAD, Tokenizer
from tests.helpers import benchmark

PAIRS = pocket_pairs(60, "test")
GERMAN = Tokenizer.train([p.source for p in PAIRS], 2000, "word")
ENGLISH = Tokenizer.train([p.target for p in PAIRS], 2000, "word")


def batch_of(pairs: list[Pair]) -> Batch:
    corpus = Corpus(
        Sentences.of(GERMAN.encode([p.source for p in pairs])),
        Sentences.of(ENGLISH.encode([p.target for p in pairs])),
    )
    return corpus.batch(range(len(pairs)))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return batch_of(PAIRS)


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    return gold_jobs(PAIRS)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        TransformerConfig(
            src_vocab=len(GERMAN),
            tgt_vocab=len(ENGLISH),
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=16,
            d_ff=32,
            num_heads=2,
            dropout=0.0,
            tie="decoder",
        )
    ).eval()


def every_head(model: Transformer) -> list[tuple[str, int]]:
    blocks = attention_blocks(model)
    return [(n, h) for n in blocks for h in range(blocks[n].num_heads)]


def says(pair: Pair, links: set[tuple[int, int]]) -> set[tuple[str, str]]:
    words = pair.source.split()
    return {(words[a], words[b]) for a, b in links}


# --- gold ------------------------------------------------------------------


def test_words_are_linked_as_a_person_would() -> None:
    sings = Clause("singen", Phrase("Junge", "relative"), tense="will")
    boy = Phrase("Junge", relative=sings, adjectives=("klein",))
    pair = realise(
        Meaning("statement", Clause("anrufen", Phrase("Frau"), boy))
    )
    assert pair.source == (
        "Die Frau ruft den kleinen Jungen , der singen wird , an ."
    )
    found = {
        name: says(pair, links)
        for name, links in word_links(pair.source_tree.leaves()).items()
    }
    noun = {("Die", "Frau"), ("den", "Jungen"), ("kleinen", "Jungen")}
    assert found["article or adjective → noun"] == noun
    assert found["relative pronoun → noun"] == {("der", "Jungen")}
    halves = {("ruft", "an"), ("wird", "singen")}
    assert found["verb → its other half"] == halves
    assert found["other half → verb"] == {(b, a) for a, b in halves}
    assert ("Frau", "ruft") in found["subject → verb"]
    assert "sie → its verb" not in found


@pytest.mark.parametrize(
    ("who", "pronoun", "means"),
    [
        (Phrase("Frau"), "she", {("sie", "Frau")}),
        (Phrase("Frau"), "they", set()),
        (Phrase("Frau", plural=True), "they", {("sie", "Frauen")}),
        (Phrase("Mann"), "he", {("er", "Mann")}),
        (Phrase("Anna", "name"), "she", {("sie", "Anna")}),
        (Phrase("Anna", "name"), "he", set()),
        (Phrase("Buch"), "he", set()),
    ],
)
def test_a_pronoun_means_whom_gender_and_number_allow(
    who: Phrase, pronoun: str, means: set[tuple[str, str]]
) -> None:
    second = Clause("schlafen", Phrase(pronoun, "pronoun"))
    first = Clause("sein", who, predicate="alt")
    pair = realise(Meaning("statement", first, "because", second))
    assert says(pair, antecedent(pair)) == means


def test_the_same_relations_hold_in_both_languages() -> None:
    for pair in PAIRS:
        german = word_links(pair.source_tree.leaves())
        english = word_links(pair.target_tree.leaves())
        relative = "relative pronoun → noun"
        assert len(german.get(relative, ())) == len(
            english.get(relative, ())
        )
        for place, links in _gold_links(pair).items():
            n, m = pair.lengths
            queries, keys = {
                "encoder": (n, n + 1),
                "decoder": (m + 1, m + 1),
                "cross": (m + 1, n + 1),
            }[place[0]]
            assert all(0 <= q < queries and 0 <= k < keys for q, k in links)
            if place[0] == "decoder":
                assert all(k <= q for q, k in links)


def test_the_jobs_of_a_sentence_are_what_a_person_would_list() -> None:
    dog = Phrase("Hund", adjectives=("klein",))
    pair = realise(
        Meaning("statement", Clause("anrufen", Phrase("Frau"), dog))
    )
    assert pair.source == "Die Frau ruft den kleinen Hund an ."
    assert pair.target == "The woman calls the small dog ."
    each = range(8)  # and </s>, 8; the decoder has <s>, 0, and six more
    assert _gold_links(pair) == {
        ("encoder", "the word itself"): {(i, i) for i in each},
        ("encoder", "the word before"): {(i, i - 1) for i in each[1:]},
        ("encoder", "the word after"): {(i, i + 1) for i in each},
        ("encoder", "the end"): {(i, 8) for i in each},
        ("encoder", "article or adjective → noun"): {(0, 1), (3, 5), (4, 5)},
        ("encoder", "subject → verb"): {(1, 2)},
        ("encoder", "verb → subject"): {(2, 1)},
        ("encoder", "verb → its other half"): {(2, 6)},
        ("encoder", "other half → verb"): {(6, 2)},
        ("decoder", "the word just read"): {(j, j) for j in each[1:7]},
        ("decoder", "the one before"): {(j, j - 1) for j in each[2:7]},
        ("decoder", "the start"): {(j, 0) for j in each[1:7]},
        # about to write "calls", two words read, the second is "woman"
        ("decoder", "writing: verb → subject"): {(2, 2)},
        ("cross", "the same place"): {(j, j) for j in each[:7]},
        ("cross", "the end"): {(j, 8) for j in each[:7]},
        ("cross", "the word just read"): {
            (1, 0), (2, 1), (3, 2), (3, 6), (4, 3), (5, 4), (6, 5), (7, 7),
        },
        ("cross", "writing any word"): {
            (0, 0), (1, 1), (2, 2), (2, 6), (3, 3), (4, 4), (5, 5), (6, 7),
        },
        ("cross", "writing a noun"): {(1, 1), (5, 5)},
        ("cross", "writing an article or adjective"): {
            (0, 0), (3, 3), (4, 4),
        },
        ("cross", "writing a verb: finite half"): {(2, 2)},
        ("cross", "writing a verb: other half"): {(2, 6)},
    }  # fmt: skip


def test_a_pronoun_has_a_job_of_its_own() -> None:
    old = Clause("sein", Phrase("Frau"), predicate="alt")
    sleeps = Clause("schlafen", Phrase("she", "pronoun"))
    pair = realise(Meaning("statement", old, "because", sleeps))
    links = _gold_links(pair)["encoder", "pronoun → whom it means"]
    assert says(pair, links) == {("sie", "Frau")}


# --- scores ----------------------------------------------------------------


def test_a_head_that_copies_the_gold_scores_one(
    jobs: list[Job], batch: Batch
) -> None:
    for job in jobs:
        shape = max(batch.src.size(1), batch.tgt.size(1))
        weights = torch.zeros(len(PAIRS), 2, shape, shape)
        s, q, k = job.links.T
        weights[s, 0, q, k] = 1.0
        weights /= weights.sum(dim=-1, keepdim=True).clamp(min=1)
        perfect, blind = job.score(weights).tolist()
        assert perfect == pytest.approx(1.0)
        assert blind == 0.0
        assert job.skill(perfect) == pytest.approx(1.0)


def test_a_uniform_head_scores_its_baseline(
    model: Transformer, jobs: list[Job], batch: Batch
) -> None:
    with knocked_out(model, every_head(model), evenly=True):
        maps = model.attention_maps(batch.src, batch.tgt)
    for job in jobs:
        for name, weights in maps.items():
            if name.startswith(job.place):
                expected = torch.full((2,), job.uniform)
                torch.testing.assert_close(job.score(weights), expected)
        assert job.skill(job.uniform) <= 1e-6


def test_a_fixed_distance_scores_its_baseline(jobs: list[Job]) -> None:
    [job] = [j for j in jobs if j.name == "article or adjective → noun"]
    ahead = torch.eye(30).roll(1, dims=1).expand(len(PAIRS), 1, 30, 30)
    assert 0.5 < job.distance < 1
    assert job.score(ahead).item() == pytest.approx(job.distance)
    assert job.skill(job.distance) == 0.0


def test_a_head_is_compared_with_the_better_baseline() -> None:
    """With evenness alone where the job is a matter of places, else with
    a fixed distance, too.
    """
    links, words = torch.tensor([[0, 0, 1], [0, 2, 3]]), torch.zeros(0, 2)
    for name, distance, least in (
        ("the end", 0.5, 0.2),
        ("subject → verb", 0.5, 0.5),
        ("subject → verb", 0.1, 0.2),
        ("verb → subject", 1.0, 0.2),
    ):
        job = Job("encoder", name, links, words, 0.2, distance)
        assert job.positional == (least == 0.2 and distance > 0.2)
        assert job.skill(least) == 0.0
        assert job.skill(0.6) == pytest.approx((0.6 - least) / (1 - least))


def test_the_baselines_of_a_job_by_hand() -> None:
    """Two sentences, of 8 and 3 words: 9 and 4 keys in the source, and as
    many as have been read in the target.
    """
    dog = Phrase("Hund", adjectives=("klein",))
    calls = Clause("anrufen", Phrase("Frau"), dog)
    clauses = calls, Clause("schlafen", Phrase("Anna", "name"))
    pairs = [realise(Meaning("statement", one)) for one in clauses]
    assert [pair.lengths for pair in pairs] == [(8, 7), (3, 3)]
    found = {(job.place, job.name): job for job in gold_jobs(pairs)}
    end = found["encoder", "the end"]
    assert end.uniform == pytest.approx((8 / 9 + 3 / 4) / 11)
    assert end.distance == 2 / 11  # three, two and one before it: in both
    any_word = found["cross", "writing any word"]
    # ten rows, one of which has two right keys of nine
    assert any_word.uniform == pytest.approx((8 / 9 + 3 / 4) / 10)
    start = found["decoder", "the start"]
    rows = [1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7, 1 / 2, 1 / 3]
    assert start.uniform == pytest.approx(sum(rows) / 8)
    assert start.words.tolist() == [
        *([0, j] for j in range(1, 7)),
        *([1, j] for j in range(1, 3)),
    ]
    halves = found["encoder", "verb → its other half"]
    assert halves.links.tolist() == [[0, 2, 6]]
    assert halves.words.tolist() == [[0, 2]]  # "calls"


def test_helped_words_are_those_of_the_translation(jobs: list[Job]) -> None:
    [job] = [j for j in jobs if j.name == "sie → its verb"]
    said = {PAIRS[s].target.split()[j] for s, j in job.words.tolist()}
    assert said <= {"She", "she", "They", "they"}
    assert len(job.words) == len(job.links)


# --- maps ------------------------------------------------------------------


def test_the_maps_of_a_sentence_are_the_models(model: Transformer) -> None:
    pair = PAIRS[0]
    maps = head_maps(model, GERMAN, ENGLISH, pair.source, pair.target)
    assert maps.source == [*pair.source.split(), "</s>"]
    assert maps.target == ["<s>", *pair.target.split()]
    one = batch_of([pair])
    expected = model.attention_maps(one.src, one.tgt)
    n, m = len(maps.source), len(maps.target)
    sides = {"encoder": (n, n), "decoder": (m, m), "cross": (m, n)}
    for place, shape in sides.items():
        weights = maps.weights[place]
        assert weights.shape == (2, 2, *shape)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
        for layer in range(2):
            theirs = expected[f"{place}.{layer}"][0].numpy()
            np.testing.assert_array_equal(weights[layer], theirs)


def test_without_a_translation_the_models_own_is_shown(
    model: Transformer,
) -> None:
    short = min((p.source for p in PAIRS), key=len)
    maps = head_maps(model, GERMAN, ENGLISH, short)
    [ids] = GERMAN.encode([short])
    [best] = plain_beam_search(model, ids, SearchConfig(beam=1))
    assert maps.target == ["<s>", *ENGLISH.tokens(best.ids)]


def test_the_maps_are_made_where_the_model_lies(model: Transformer) -> None:
    """Not on the default device, which here is one without numbers."""
    pair = PAIRS[0]
    maps = head_maps(model, GERMAN, ENGLISH, pair.source, pair.target)
    with torch.device("meta"):
        again = head_maps(model, GERMAN, ENGLISH, pair.source, pair.target)
    for place, weights in maps.weights.items():
        np.testing.assert_array_equal(weights, again.weights[place])


def test_words_that_the_model_does_not_know_are_named(
    model: Transformer,
) -> None:
    line = f"Zebra {PAIRS[0].source} Gnu"
    with pytest.raises(ValueError, match="^unknown words: Zebra, Gnu$"):
        head_maps(model, GERMAN, ENGLISH, line)


# --- knocking out ----------------------------------------------------------


def test_nothing_of_a_head_that_is_knocked_out_matters(
    model: Transformer, batch: Batch
) -> None:
    block = model.decoder.layers[1].cross_attention
    with torch.no_grad(), knocked_out(model, [("cross.1", 1)]):
        before = model(batch.src, batch.tgt)
        for part in (block.w_q, block.w_k, block.w_v):
            part.weight[8:].normal_()
        assert torch.equal(model(batch.src, batch.tgt), before)
        block.w_v.weight[:8].normal_()  # the other head is heard
        assert not torch.allclose(model(batch.src, batch.tgt), before)


def test_knocking_out_is_leaving_out_a_message(
    model: Transformer, batch: Batch
) -> None:
    with torch.no_grad(), knocked_out(model, [("encoder.0", 0)]):
        without = model(batch.src, batch.tgt)
        model.encoder.layers[0].attention.w_o.weight[:, :8] = 0.0
    torch.testing.assert_close(model(batch.src, batch.tgt), without)


def test_all_but_one_leave_a_layer_of_one_head(model: Transformer) -> None:
    block, x = model.encoder.layers[0].attention, torch.randn(3, 5, 16)
    heads = block.weights(x) @ block.split(block.w_v(x))
    own = heads[:, 1] @ block.w_o.weight[:, 8:].T + block.w_o.bias
    with knocked_out(model, [("encoder.0", 0)]):
        torch.testing.assert_close(block(x), own)


def test_a_silent_head_learns_nothing_and_the_others_do(
    model: Transformer, batch: Batch
) -> None:
    with knocked_out(model, [("encoder.1", 0)]):
        model(batch.src, batch.tgt).sin().sum().backward()
    block = model.encoder.layers[1].attention
    for part in (block.w_q, block.w_k, block.w_v):
        assert part.weight.grad is not None
        assert not part.weight.grad[:8].any()
        assert part.weight.grad[8:].any()


def test_afterwards_the_model_is_as_before(
    model: Transformer, batch: Batch
) -> None:
    before = model(batch.src, batch.tgt)
    with pytest.raises(KeyError), knocked_out(model, every_head(model)):
        raise KeyError
    assert torch.equal(model(batch.src, batch.tgt), before)


@pytest.mark.parametrize("head", [("cross.2", 0), ("cross.0", 2), ("", 0)])
def test_a_head_that_is_not_there_is_named(
    model: Transformer, batch: Batch, head: tuple[str, int]
) -> None:
    before = model(batch.src, batch.tgt)
    with pytest.raises(ValueError, match=f"no head {head[1]} in"):
        knocked_out(model, [("cross.0", 0), head]).__enter__()
    assert torch.equal(model(batch.src, batch.tgt), before)


@pytest.mark.parametrize("evenly", [False, True])
def test_the_packed_model_loses_the_same_head(
    model: Transformer, batch: Batch, evenly: bool
) -> None:
    fast, nats = packed(model), []
    for one in (model, fast):
        with knocked_out(one, [("decoder.0", 1), ("cross.1", 0)], evenly):
            nats.append(judge(one, batch)[1])
    torch.testing.assert_close(*nats, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(nats[0], judge(model, batch)[1], atol=1e-4)


def test_a_sentence_is_exact_where_greedy_search_writes_it(
    model: Transformer,
) -> None:
    source = batch_of(PAIRS[:3])
    said = [
        plain_beam_search(model, row, SearchConfig(beam=1, extra=4))[0].ids
        for row in GERMAN.encode([p.source for p in PAIRS[:3]])
    ]
    rows = Sentences.of(said)
    own = Corpus(
        Sentences.of(GERMAN.encode([p.source for p in PAIRS[:3]])), rows
    ).batch(range(3))
    labels = own.labels.clone()
    labels[own.labels == EOS] = PAD  # search may have been cut off there
    exact, _ = judge(model, Batch(own.src, own.tgt, labels))
    assert exact.all()
    labels[1, 0] = 4 if labels[1, 0] != 4 else 5
    exact, _ = judge(model, Batch(own.src, own.tgt, labels))
    assert exact.tolist() == [True, False, True]
    exact, nats = judge(model, source)
    assert not exact.any()
    assert (nats[source.labels == PAD] == 0).all()
    assert (nats[source.labels != PAD] > 0).all()


def test_bleu_is_that_of_the_model_without_the_head(
    model: Transformer, monkeypatch
) -> None:
    with benchmark("heads") as script:
        corpus = Corpus(
            Sentences.of(GERMAN.encode([p.source for p in PAIRS])),
            Sentences.of(ENGLISH.encode([p.target for p in PAIRS])),
        )
        data = script.Data(
            GERMAN, ENGLISH, corpus, PAIRS, batch_of(PAIRS), []
        )
        judged = script.Judge(model, data)
        seen = []
        monkeypatch.setattr(
            script,
            "score",
            lambda said, right: (
                seen.append(said) or {"bleu": 0.0, "signature": ""}
            ),
        )
        gone = [("cross.1", 0), ("encoder.0", 1)]
        judged.translated(gone)
        judged.translated([])
    with knocked_out(model, gone):
        [said] = plain_beam_search(
            model, GERMAN.encode([PAIRS[0].source])[0], SearchConfig(beam=1)
        )
    assert seen[0][0] == ENGLISH.decode([said.ids])[0]
    assert seen[0] != seen[1]
