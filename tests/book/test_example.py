"""Page E15: the model that writes a word backwards."""

import pytest
import torch
from torch import nn

from annotated.book.example import (
    VOCAB,
    _greedy,
    exact,
    letter_ids,
    reversal_batch,
    reversal_model,
    train_reversal,
    write,
)
from annotated.engine.hooks import replace
from annotated.layers import FeedForward
from annotated.tokens import BOS, EOS


class Answers(nn.Module):
    """A model that knows: it writes word[::-1], then the end."""

    def __init__(self, change=lambda written: written):
        super().__init__()
        self.change = change

    def forward(self, src, tgt):
        written = self.change(src[:, :-1].flip(1))
        written = torch.cat([written, src[:, -1:]], dim=1)
        written = written[:, : tgt.size(1)]
        return nn.functional.one_hot(written, VOCAB).float()


def test_labels_are_the_word_backwards_and_one_step_ahead():
    src, tgt, labels = reversal_batch(5, words=3)
    assert torch.equal(labels[:, :-1], src[:, :-1].flip(1))
    assert torch.equal(tgt[:, 1:], labels[:, :-1])
    assert (src[:, -1] == EOS).all() and (labels[:, -1] == EOS).all()
    assert (tgt[:, 0] == BOS).all()


def test_a_model_that_knows_is_exact_and_writes_the_word():
    assert write(Answers(), "attention") == "noitnetta"
    assert exact(Answers()) == 1.0


@pytest.mark.parametrize("word", ["Cat", "straße", "two words", "日本"])
def test_a_letter_that_the_model_does_not_know_is_named(word):
    with pytest.raises(ValueError, match="in '.*' is not one of a to z"):
        write(Answers(), word)


def test_a_model_that_forgets_a_letter_is_never_exact():
    model = Answers(lambda written: written[:, 1:])
    assert write(model, "abc") == "ba"
    assert exact(model, words=20) == 0.0


def test_a_model_that_goes_on_for_ever_is_stopped():
    model = Answers(lambda written: written[:, :1].expand(-1, 40))
    assert write(model, "abc") == "cccccc"
    src = torch.tensor([[*letter_ids("ab"), EOS]])
    assert _greedy(model, src, 7).shape == (1, 7)


def test_equal_seeds_give_equal_models_and_equal_losses():
    runs = [
        train_reversal(reversal_model(seed), steps=3) for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_changes_are_fields_of_the_configuration():
    model = reversal_model(num_heads=1, num_encoder_layers=2)
    assert model.config.num_heads == 1
    assert model.config.num_encoder_layers == 2


def test_a_replaced_part_is_gone_wherever_it_was():
    model = reversal_model(num_encoder_layers=2)
    assert replace(model, FeedForward, lambda part: nn.Identity()) == 3
    assert not any(isinstance(m, FeedForward) for m in model.modules())
    assert len(train_reversal(model, steps=1)) == 1


def test_each_batch_has_one_of_the_lengths():
    seen = set()

    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(VOCAB))

        def forward(self, src, tgt):
            seen.add(src.size(1) - 1)
            return self.table.expand(*tgt.shape, -1)

    train_reversal(Watch(), steps=30, lengths=(2, 4))
    assert seen == {2, 4}


def test_watch_is_told_each_step_and_the_start():
    steps = []
    train_reversal(reversal_model(), steps=2, watch=steps.append)
    assert steps == [0, 1, 2]


@pytest.mark.parametrize("word", ["attention", "backwards"])
def test_it_learns_to_write_backwards(word, trained):
    assert write(trained, word) == word[::-1]
    assert exact(trained) > 0.95


@pytest.fixture(scope="module")
def trained():
    torch.set_num_threads(1)
    model = reversal_model()
    train_reversal(model)
    return model
