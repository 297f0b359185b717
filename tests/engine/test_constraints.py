"""Constrained decoding against the enumeration of every output."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from annotated.engine.constraints import (
    Glossary,
    Limits,
    as_phrases,
    as_prefixes,
    phrase_progress,
)
from annotated.engine.errors import DataError, RunError, UsageError
from annotated.engine.runs import Run
from annotated.engine.search import beam_search, search_in_order
from annotated.search import SearchConfig, length_penalty
from annotated.tokens import BOS, EOS, PAD, UNK, Tokenizer
from tests.searching import VOCAB, assert_equal, random_model

SOURCE = [5, 6, 7]
LIMIT = 5  # tokens, with the end


def every_output(model):
    """All outputs of at most LIMIT tokens, with their log-probabilities."""
    words = range(UNK, VOCAB)
    source = torch.tensor([[*SOURCE, EOS]])
    found = {}
    for size in range(LIMIT):
        some = [
            list(each) for each in itertools.product(words, repeat=size)
        ]
        rows = torch.tensor([[BOS, *each] for each in some])
        after = torch.tensor([[*each, EOS] for each in some])
        with torch.no_grad():
            logits = model(source.expand(len(rows), -1), rows)
        log_p = logits.log_softmax(dim=-1).gather(2, after[:, :, None])
        totals = log_p.sum(dim=(1, 2)).tolist()
        found |= zip(map(tuple, some), totals, strict=True)
    return found


def best_of(outputs, alpha, fits):
    return max(
        (total / length_penalty(len(ids) + 1, alpha), ids)
        for ids, total in outputs.items()
        if fits(list(ids))
    )


def has(ids, *spellings):
    return any(
        ids[i : i + len(one)] == one
        for one in spellings
        for i in range(len(ids))
    )


DEMANDS = {
    "a word": [[[9]]],
    "a phrase": [[[9, 4]]],
    "two": [[[8]], [[4, 10]]],
    "two that overlap": [[[8, 4]], [[4, 10]]],
    "one of two": [[[9, 9], [4]]],
}


@pytest.mark.parametrize("demand", DEMANDS)
def test_the_best_output_that_has_what_is_required(demand):
    phrases = DEMANDS[demand]
    for seed in range(2):
        model = random_model(seed).eval()
        config = SearchConfig(beam=3000, alpha=0.6, limit=LIMIT)
        score, ids = best_of(
            every_output(model),
            0.6,
            lambda ids: all(has(ids, *each) for each in phrases),
        )
        [[best]] = beam_search(model, [SOURCE], config, required=[phrases])
        assert tuple(best.ids) == ids
        assert best.score == pytest.approx(score, abs=1e-4)
        narrow = SearchConfig(beam=1, alpha=0.6, limit=LIMIT)
        [[one]] = beam_search(model, [SOURCE], narrow, required=[phrases])
        assert all(has(one.ids, *each) for each in phrases)
        assert one.score <= best.score + 1e-4


@pytest.mark.parametrize(
    ("least", "gram"), [(3, 0), (0, 1), (0, 2), (4, 2)]
)
def test_limits_bar_what_they_say_and_nothing_else(least, gram):
    def fits(ids):
        grams = [
            tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)
        ]
        unique = not gram or len(grams) == len(set(grams))
        return len(ids) >= least and unique

    model = random_model(5, end=1.0).eval()
    config = SearchConfig(beam=3000, alpha=1.0, limit=LIMIT)
    # at the limit the end is forced, so a minimum of 4 still has room
    _, ids = best_of(every_output(model), 1.0, fits)
    guide = Limits(VOCAB, least, gram)
    [[best]] = beam_search(model, [SOURCE], config, guide=guide)
    assert tuple(best.ids) == ids


def test_a_prefix_a_demand_and_a_guide_together():
    model = random_model(2).eval()
    config = SearchConfig(beam=3000, alpha=0.6, limit=LIMIT)
    _, ids = best_of(
        every_output(model),
        0.6,
        lambda ids: ids[:1] == [7] and has(ids, [9]) and len(ids) == 4,
    )
    [[best]] = beam_search(
        model, [SOURCE], config, [[7]], Limits(VOCAB, 4), required=[[[[9]]]]
    )
    assert tuple(best.ids) == ids


def test_a_batch_is_searched_as_its_sentences_are():
    models = [random_model(seed).eval() for seed in (0, 1)]
    sentences = [[5, 6], [7, 8, 9, 10, 4], [4], [6, 6, 6], [5, 6]]
    required = [
        [[[9]]], [[[8, 4]], [[10]]], [[[5], [6, 7]]], [[[4, 4]]],
        [[[9, 8, 7, 6]], [[10, 5, 4]]],  # needs a wider beam than the rest
    ]  # fmt: skip
    config = SearchConfig(beam=4, nbest=3)
    alone = [
        beam_search(models, [one], config, required=[each])[0]
        for one, each in zip(sentences, required, strict=True)
    ]
    for workers in (1, 2):
        together = search_in_order(
            models, sentences, config, 8, workers=workers, required=required
        )
        for ours, theirs in zip(together, alone, strict=True):
            assert_equal(ours, theirs)


def test_progress_is_lost_where_a_phrase_breaks_off():
    phrases = [[[5, 6, 7]], [[8], [9, 10]]]
    assert phrase_progress([], phrases) == (0, {5, 8, 9})
    assert phrase_progress([5, 6], phrases) == (2, {5, 7, 8, 9})
    assert phrase_progress([5, 6, 4], phrases) == (0, {5, 8, 9})
    assert phrase_progress([5, 5, 6, 7, 9], phrases) == (3, {8, 9, 10})
    assert phrase_progress([9, 10, 5, 6, 7], phrases) == (4, set())


def test_what_leaves_no_room_is_refused():
    config = SearchConfig(limit=4)
    with pytest.raises(ValueError, match="of 4 tokens leave no room"):
        beam_search(
            random_model(), [SOURCE], config, required=[[[[4, 5, 6, 7]]]]
        )


def test_a_prefix_takes_room_unless_it_has_the_phrase_already():
    model, config = random_model(), SearchConfig(limit=4)
    words = {"prefixes": [[8, 5]], "required": [[[[5, 6, 7]]]]}
    with pytest.raises(
        ValueError, match="2 tokens after a prefix of 2 leave"
    ):
        beam_search(model, [SOURCE], config, **words)
    words["required"] = [[[[5, 6]]]]
    [[best, *_]] = beam_search(model, [SOURCE], config, **words)
    assert [*best.ids[:3]] == [8, 5, 6]


def test_nothing_that_is_no_number_is_hidden():
    model = random_model()
    with torch.no_grad():
        model.embeddings.output.fill_(math.nan)
    with pytest.raises(RunError, match="not finite"):
        beam_search(model, [SOURCE], required=[[[[9]]]])


@pytest.fixture(scope="module")
def pocket():
    return Run.open(Path("pocket"))


LINE = "Heute kauft diese junge Ärztin nicht ein ."


def test_lines_of_which_nothing_is_required_stay_as_they_were(pocket):
    lines = [LINE, "Anna schläft .", "", "Die Hunde schlafen ."]
    free = pocket.translate(lines)
    wishes = [["woman"], [], ["dog"], []]
    bound = pocket.translate(lines, required=wishes)
    assert bound[1:] == free[1:]
    assert "woman" in bound[0][0].text.split()
    begun = pocket.translate(lines, prefixes=["This", "", "", ""])
    assert begun[0][0].text.startswith("This ")
    assert begun[1:] == free[1:]


def test_a_word_that_comes_anyway_changes_nothing(pocket):
    """Nor does the one that stands in the best of several."""
    [free] = pocket.translate([LINE], SearchConfig(beam=4, nbest=4))
    word = next(
        word for word in free[0].text.split()
        if not all(word in one.text.split() for one in free[1:])
    )  # fmt: skip
    for nbest in (1, 4):
        search = SearchConfig(beam=4, nbest=nbest)
        [bound] = pocket.translate([LINE], search, required=[[word]])
        assert bound[0] == free[0]
        assert len({one.text for one in bound}) == nbest
        assert all(word in one.text.split() for one in bound)


def test_a_beginning_may_end_in_a_space(pocket):
    [plain], [typed] = (
        pocket.translate([LINE], prefixes=[text])
        for text in ("This young", "This young ")
    )
    assert plain == typed
    tokenizer = Tokenizer.train(["ab cd ab"] * 3, 260, "bpe")
    assert as_prefixes(["ab "], tokenizer) == tokenizer.encode(["ab"])


def test_required_words_are_known_ones(pocket):
    tokenizer = pocket.target
    assert as_phrases(["dog | dogs", "dog | dogs"], tokenizer) == [
        tokenizer.encode(["dog", "dogs"])
    ]
    with pytest.raises(UsageError, match="'zebra' cannot be written"):
        as_phrases(["dog|zebra"], tokenizer)
    with pytest.raises(UsageError, match="one is empty"):
        as_phrases(["dog||dogs"], tokenizer)


def test_a_glossary_asks_where_a_term_stands(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text(
        "car\tWagen\nUS\tUSA\n\ncar park\tParkplatz\ncar\tAuto\n"
    )
    terms = Glossary(file)
    assert terms.required("The Car park near the car.") == [
        "Parkplatz", "Wagen|Auto",
    ]  # fmt: skip
    assert terms.required("Tell us about scars and carpets.") == []
    assert terms.required("In the US.") == ["USA"]
    # letters that another case makes longer, or that it loses a dot of
    file.write_text("istanbul\tIstanbul\nus\twir\nUS\tUSA\n")
    terms = Glossary(file)
    assert terms.required("İstanbul, ıstanbul") == ["Istanbul"] * 2
    assert terms.required("us in the US") == ["wir", "USA"]
    file.write_text("car\tWagen\ncar Wagen\n")
    with pytest.raises(DataError, match="terms.tsv, line 2"):
        Glossary(file)
    file.write_text("\n \n")
    with pytest.raises(DataError, match="has no terms"):
        Glossary(file)


def test_the_guide_never_lets_padding_through():
    ids = torch.tensor([[[BOS, 4, 5, 4]]])
    allowed = Limits(VOCAB, 0, 2)([SOURCE], torch.device("cpu"))
    may = allowed(ids, torch.tensor([0]))
    barred = set((~may[0, 0]).nonzero()[:, 0].tolist())
    assert barred == {PAD, 5}
