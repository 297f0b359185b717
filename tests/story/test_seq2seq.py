"""Chapter 01: what waits for what in the networks before attention."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from annotated import seq2seq
from annotated.attention import MultiHeadAttention
from annotated.book.example import (
    VOCAB,
    exact,
    reversal_batch,
    reversal_model,
    train_reversal,
)
from annotated.book.results import ledger
from annotated.seq2seq import (
    LSTM,
    RNN,
    AdditiveAttention,
    Convolutions,
    EncoderDecoder,
    sequential_products,
)
from press.chapters import read_chapter
from tests.helpers import ROOT, benchmark

WIDTH = 16


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def felt(layer, length, place=0):
    """The gradient at an input from the last output."""
    x = torch.randn(1, length, WIDTH, requires_grad=True)
    layer(x)[:, -1].sum().backward()
    return x.grad[0, place].norm().item()


# --- the layers are what they are called


@pytest.mark.parametrize(
    ("ours", "theirs"), [(RNN, nn.RNN), (LSTM, nn.LSTM)]
)
def test_recurrent_layers_agree_with_torch(ours, theirs):
    layer = ours(5, 7).double()
    other = theirs(5, 7, batch_first=True).double()
    matrices = other.weight_ih_l0, other.weight_hh_l0
    layer.linear.weight.data = torch.cat(matrices, dim=1)
    layer.linear.bias.data = other.bias_ih_l0 + other.bias_hh_l0
    x = torch.randn(3, 11, 5, dtype=torch.float64, requires_grad=True)
    results = []
    for out in (layer(x), other(x)[0]):
        (gradient,) = torch.autograd.grad(out.sin().sum(), x)
        results.append((out, gradient))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_an_lstm_with_its_gates_set_keeps_what_it_was_told():
    layer = LSTM(1, 1).double()
    # i and o open, g = tanh(x); forget nothing
    layer.linear.weight.data = torch.zeros(4, 2, dtype=torch.float64)
    layer.linear.weight.data[2, 0] = 1.0
    layer.linear.bias.data = torch.tensor([50.0, 50.0, 0.0, 50.0]).double()
    x = torch.tensor([[[0.5], [0.0], [-0.2]]], dtype=torch.float64)
    total = math.tanh(0.5) + math.tanh(0.0) + math.tanh(-0.2)
    assert layer(x)[0, -1, 0].item() == pytest.approx(math.tanh(total))


def test_a_recurrent_state_knows_the_past_alone():
    x = torch.randn(1, 6, WIDTH)
    changed = x.clone()
    changed[:, 4] += 1.0
    for layer in (RNN(WIDTH, WIDTH), LSTM(WIDTH, WIDTH)):
        same = (layer(x) == layer(changed)).all(dim=-1)[0]
        assert same.tolist() == [True] * 4 + [False] * 2


def test_additive_weights_are_the_formula_and_sum_to_one():
    part = AdditiveAttention(4).double()
    query = torch.randn(1, 4, dtype=torch.float64)
    memory = torch.randn(1, 3, 4, dtype=torch.float64)
    w_q, w_k, w = (
        part.w_q.weight,
        part.w_k.weight,
        part.w.weight[0],
    )
    scores = [w @ torch.tanh(w_q @ query[0] + w_k @ m) for m in memory[0]]
    wanted = torch.stack(scores).softmax(dim=0)
    assert torch.allclose(part.weights(query, memory)[0], wanted)
    assert torch.allclose(part(query, memory)[0], wanted @ memory[0])


def test_a_memory_of_one_entry_is_what_is_attended_to():
    part = AdditiveAttention(4)
    assert sum(p.numel() for p in part.parameters()) == 2 * 4**2 + 4
    for batch in (1, 2):
        query, memory = torch.randn(batch, 4), torch.randn(batch, 1, 4)
        assert part.weights(query, memory).tolist() == [[1.0]] * batch
        assert torch.equal(part(query, memory), memory[:, 0])


def test_many_cells_may_step_at_once():
    layer = RNN(3, 5)
    x, h = torch.randn(2, 4, 3), torch.randn(2, 4, 5)
    rows = [layer.step(x[i, j], h[i, j]) for i in (0, 1) for j in range(4)]
    torch.testing.assert_close(
        layer.step(x, h).flatten(0, 1), torch.stack(rows)
    )


@pytest.mark.parametrize(
    ("kernel", "dilated"), [(1, True), (5, True), (5, False)]
)
def test_a_stack_adds_to_each_position_what_its_windows_say(
    kernel, dilated
):
    stack = Convolutions(3, 2, kernel, dilated).double()
    expected = x = torch.randn(2, 7, 3, dtype=torch.float64)
    half = kernel // 2
    for layer, gap in zip(stack.layers, (1, 2 if dilated else 1)):
        heard = layer.bias.repeat(2, 7, 1)
        for t in range(7):
            for i in range(kernel):
                place = t + (i - half) * gap
                if 0 <= place < 7:
                    heard[:, t] += (
                        expected[:, place] @ layer.weight[:, :, i].T
                    )
        expected = expected + heard.clamp(min=0)
    torch.testing.assert_close(stack(x), expected)


def test_a_window_has_a_middle():
    with pytest.raises(ValueError, match="kernel must be odd, not 4"):
        Convolutions(WIDTH, layers=1, kernel=4)


# --- what waits, and how far a letter travels


@pytest.mark.parametrize("length", [1, 9, 400])
def test_a_recurrent_layer_waits_once_for_every_letter(length):
    x = torch.randn(1, length, WIDTH)
    for layer in (RNN(WIDTH, WIDTH), LSTM(WIDTH, WIDTH)):
        assert sequential_products(layer(x)) == length


@pytest.mark.parametrize("length", [1, 9, 400])
def test_self_attention_waits_for_four_products_at_any_length(length):
    layer = MultiHeadAttention(WIDTH, 2)
    assert sequential_products(layer(torch.randn(1, length, WIDTH))) == 4


@pytest.mark.parametrize("length", [9, 400])
def test_convolutions_wait_for_their_layers_alone(length):
    layer = Convolutions(WIDTH, layers=5)
    assert sequential_products(layer(torch.randn(1, length, WIDTH))) == 5


def test_products_side_by_side_do_not_wait():
    a, b = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    assert sequential_products(a @ b + b @ a) == 1
    assert sequential_products((a @ b) @ (b @ a)) == 2
    assert sequential_products(a + b) == 0


class Node:
    """A node of the autograd graph, by its name."""

    def __init__(self, name, *below):
        self.called = name
        self.next_functions = [(node, 0) for node in below]

    def name(self):
        return self.called


def test_products_go_by_several_names_on_several_devices():
    names = "AddmmBackward0 BmmBackward0 LinearBackward0 MulBackward0"
    graph = None
    for name in ["ConvolutionBackward0", *names.split()]:
        graph = Node(name, graph, Node("torch::autograd::AccumulateGrad"))
    assert sequential_products(SimpleNamespace(grad_fn=graph)) == 4
    assert sequential_products(torch.ones(2) @ torch.ones(2)) == 0


def test_hops_of_a_memory_wait_and_its_entries_do_not(capsys):
    """In the cell of the page, which takes three hops."""
    page = read_chapter(ROOT / "book" / "01-before-attention.md")
    [cell] = [c.source for c in page.code if "for hop in" in c.source]
    assert cell.count("range(3)") == 1
    names = {"torch": torch, "sequential_products": sequential_products}
    for hops in (3, 6):
        exec(cell.replace("range(3)", f"range({hops})"), dict(names))
        assert capsys.readouterr().out == (
            f"10 entries: {2 * hops}\n1000 entries: {2 * hops}\n"
        )


def test_attention_beside_recurrence_makes_the_chain_longer():
    src, tgt, _ = reversal_batch(9, words=1)

    def chain(model):
        return sequential_products(model(src, tgt))

    without = EncoderDecoder(LSTM(64, 64), VOCAB, attention=False)
    beside = EncoderDecoder(LSTM(64, 64), VOCAB)
    # ten letters with the end are read and ten written, then the output
    assert chain(without) == 21
    assert chain(beside) > chain(without) > 2 * 9
    assert chain(reversal_model()) == chain_of_transformer(90)


def chain_of_transformer(length):
    src, tgt, _ = reversal_batch(length, words=1)
    return sequential_products(reversal_model()(src, tgt))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_convolution_carries_a_letter_one_place_per_layer(layers):
    stack = Convolutions(WIDTH, layers)
    assert felt(stack, layers + 1) > 0
    assert felt(stack, layers + 2) == 0


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_dilated_a_layer_carries_twice_as_far(layers):
    stack = Convolutions(WIDTH, layers, dilated=True)
    reach = 2**layers - 1
    assert felt(stack, reach + 1) > 0
    assert felt(stack, reach + 2) == 0


def test_what_the_first_letter_does_fades_faster_than_by_attention():
    near, far = 4, 32
    for layer in (RNN(WIDTH, WIDTH), LSTM(WIDTH, WIDTH)):
        assert felt(layer, far) < felt(layer, near) / 100
    attention = MultiHeadAttention(WIDTH, 2)
    shares = [
        sum(felt(attention, length) for _ in range(20))
        for length in (near, far)
    ]
    assert shares[0] / shares[1] == pytest.approx(far / near, rel=0.4)


# --- what is learned


def test_the_context_is_what_is_attended_to_or_the_last_vector():
    src, tgt, _ = reversal_batch(5, words=2)
    torch.manual_seed(0)
    without = EncoderDecoder(RNN(64, 64), VOCAB, attention=False)
    changed = src.clone()
    changed[:, 0] = 4 + (src[:, 0] - 3) % 26
    before, after = (
        memory[:, -1]
        for memory in (
            without.encoder(without.embedding(ids))
            for ids in (src, changed)
        )
    )
    assert not torch.equal(before, after)
    without.encoder = Last(before)
    assert torch.equal(without(src, tgt), without(changed, tgt))


@pytest.mark.parametrize("attention", [False, True])
def test_each_step_reads_the_last_word_and_a_context(attention):
    """Against torch's cell: it begins in the encoder's last state, and
    asks the memory before it moves on.
    """
    model = EncoderDecoder(RNN(6, 6), 9, 6, attention=attention).double()
    cell = nn.LSTMCell(12, 6).double()
    cell.weight_ih.data, cell.weight_hh.data = (
        model.decoder.linear.weight.split([12, 6], dim=1)
    )
    cell.bias_ih.data = model.decoder.linear.bias
    nn.init.zeros_(cell.bias_hh)
    src, tgt = (
        torch.tensor([[3, 1, 4], [1, 5, 8]]),
        torch.tensor([[2], [7]]),
    )
    tgt = torch.cat([tgt, src[:, :2]], dim=1)
    memory = model.encoder(model.embedding(src))
    h, c = memory[:, -1], torch.zeros(2, 6, dtype=torch.float64)
    logits = model(src, tgt)
    assert logits.shape == (2, 3, 9)
    for place in range(3):
        context = memory[:, -1]
        if attention:
            weights = model.attention.weights(h, memory)
            context = (weights[..., None] * memory).sum(dim=1)
        word = model.embedding(tgt[:, place])
        h, c = cell(torch.cat([word, context], dim=1), (h, c))
        expected = model.output(torch.cat([h, context], dim=1))
        torch.testing.assert_close(logits[:, place], expected)


class Last(nn.Module):
    """An encoder whose last vector is given, and the others are not."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def forward(self, x):
        return torch.cat([x[:, :-1], self.last[:, None]], dim=1)


def test_attention_takes_the_bottleneck_away():
    found = {}
    for attention in (False, True):
        torch.manual_seed(0)
        model = EncoderDecoder(LSTM(64, 64), VOCAB, attention=attention)
        train_reversal(model, steps=250)
        found[attention] = exact(model)
    assert found[True] > 0.9 and found[False] < 0.5


# --- the five readers, from five seeds


def test_the_script_trains_the_readers_of_the_page():
    page = read_chapter(ROOT / "book" / "01-before-attention.md")
    [cell] = [c.source for c in page.code if "def build(name)" in c.source]
    names = vars(seq2seq) | {
        "torch": torch,
        "reversal_model": reversal_model,
    }
    exec(cell, names | {"VOCAB": VOCAB}, here := {})
    with benchmark("readers") as script:
        for name in (*script.READERS, script.TRANSFORMER):
            ours = here["build"](name)
            train_reversal(ours, steps=2, lengths=range(4, 10))
            theirs = script.train(name, 0, 2)
            for one, other in zip(
                ours.parameters(), theirs.parameters(), strict=True
            ):
                assert torch.equal(one, other), name


def by_length(reader: str) -> list[dict[int, float]]:
    runs = ledger()["readers"]["metrics"]["runs"]
    return [
        {int(n): share for n, share in run["exact"].items()}
        for run in runs
        if run["reader"] == reader
    ]


def test_what_chapter_01_says_of_five_seeds() -> None:
    plain, attending = by_length("LSTM"), by_length("LSTM, attention")
    convolutions = by_length("convolutions, attention")
    transformer = by_length("Transformer")
    assert len(plain) == len(transformer) == 5
    for n in range(6, 12):  # "with every seed"
        top, floor = max(x[n] for x in plain), min(x[n] for x in attending)
        assert top < floor, n
    assert all(x[4] > 0.9 and x[9] < 0.1 for x in plain)

    def least_and_most(runs: list[dict[int, float]], n: int) -> list[float]:
        return [round(f(x[n] for x in runs), 2) for f in (min, max)]

    assert least_and_most(transformer, 9) in ([0.51, 0.89], [0.52, 0.89])
    assert least_and_most(attending, 9)[0] >= 0.66
    assert least_and_most(convolutions, 9)[0] >= 0.83
    behind = [
        t[9] < min(one[9], other[9])
        for t, one, other in zip(
            transformer, attending, convolutions, strict=True
        )
    ]
    assert sum(behind) == 4 and len(behind) == 5
    assert least_and_most(transformer, 10)[1] <= 0.13
    assert least_and_most(transformer, 11) == [0, 0]
    assert least_and_most(transformer, 3)[1] <= 0.76
    assert all(0.4 < x[12] < 0.6 for x in convolutions)
