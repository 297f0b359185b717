"""How sure a score is: the interval beside BLEU."""

import numpy as np
import sacrebleu

from annotated.engine.baselines import interval

# a few long lines that are wrong, and many short ones that are right: the
# draws lie mostly to one side of their mean
REF = ["the dog sees the cat ."] * 11 + ["a long line of many words ."]
FOUND = REF[:11] + ["nothing like it " * 40]


def test_of_the_draws_one_in_forty_lies_beyond_each_end() -> None:
    low, high = interval(FOUND, REF).values()
    draw = np.random.default_rng(1)
    scores = []
    for _ in range(1000):
        some = draw.integers(len(REF), size=len(REF))
        sides = [[x[i] for i in some] for x in (FOUND, REF)]
        scores.append(sacrebleu.corpus_bleu(sides[0], sides[1:]).score)
    drawn = np.round(scores, 2)
    below, above = drawn < low, drawn > high
    assert below.mean() < 0.05 and above.mean() < 0.05
    assert drawn.min() <= low and high <= drawn.max()


def test_one_sentence_alone_has_no_width() -> None:
    alone = interval(FOUND[:1], REF[:1])
    assert alone == {"bleu_low": 100.0, "bleu_high": 100.0}
