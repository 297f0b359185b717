"""What the paper says of its model (§3)."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from annotated.attention import (
    MultiHeadAttention,
    attention,
    attention_weights,
)
from annotated.batches import Batch, Corpus, Sentences
from annotated.book.counters import multiplications
from annotated.embeddings import Embeddings, sinusoids
from annotated.engine.hooks import attention_blocks
from annotated.masks import causal_mask
from annotated.model import Transformer, TransformerConfig
from annotated.search import SearchConfig, greedy, log_p_after
from annotated.seq2seq import (
    AdditiveAttention,
    sequential_products,
)
from annotated.tokens import BOS, PAD
from annotated.training import (
    batch_loss,
)
from tests.pages.cards import card, cell
from tests.pages.small import SRC, TGT, model
from tests.story.test_multi_head import by_loop

# --- 3: the model ---------------------------------------------------------


def test_an_output_hears_the_whole_source_and_its_own_past() -> None:
    """3 p1 and 3.1 p2: from all of the source and the words before."""
    whole = model()
    before = whole(SRC, TGT)
    for i in range(SRC.size(1)):
        src = SRC.clone()
        src[0, i] = 11
        changed = (whole(src, TGT) - before).abs().amax(dim=-1)[0]
        assert (changed > 1e-6).all(), i
    for i in range(TGT.size(1)):
        tgt = TGT.clone()
        tgt[0, i] = 11
        changed = (whole(SRC, tgt) - before).abs().amax(dim=-1)[0]
        heard = torch.arange(TGT.size(1)) >= i
        assert torch.equal(changed > 1e-6, heard), i
        assert (changed[~heard] < 1e-12).all(), i


def test_there_is_a_vector_for_each_symbol_and_they_are_all_there_is() -> (
    None
):
    """3 p1: the encoder makes z of x, and the decoder is given z."""
    whole = model()
    for length in (1, 3, 5):
        z = whole.encode(SRC[:, :length])
        assert z.shape == (1, length, 12)
        apart = torch.cdist(z[0], z[0]) + torch.eye(length)
        assert (apart > 0.1).all()
    other = SRC.flip(1) + 1
    assert torch.equal(
        whole.decode(TGT, z, SRC), whole.decode(TGT, z, other)
    )
    changed = whole.decode(TGT, whole.encode(other), SRC)
    assert not torch.allclose(changed, whole.decode(TGT, z, SRC))


def test_symbols_are_written_one_after_another() -> None:
    """3 p1: at each step, all that was written is read; by the loop of
    the page and by that of the package.
    """
    whole = model(norm="pre", tie="none")
    read: list[list[int]] = []
    whole.register_forward_pre_hook(
        lambda m, args: read.append(args[1][0].tolist())
    )
    after = partial(log_p_after, whole, SRC)
    ids = [BOS, *greedy(after, 7, SearchConfig(beam=1)).ids]
    assert len(ids) == 7 and len(set(ids)) > 2
    assert read == [ids[:i] for i in range(1, 8)]
    likely = whole(SRC, torch.tensor([ids[:-1]]))[0]
    likely[:, [PAD, BOS]] = -math.inf
    assert ids[1:] == likely.argmax(dim=-1).tolist()
    read.clear()
    loop, _, _ = cell("08-transformer", "def greedy").partition("\n\n\n")
    exec(loop, names := {"torch": torch})
    made = names["greedy"](whole, SRC, 6, BOS)
    assert read == [made[0, :i].tolist() for i in range(1, 7)]
    likely = whole(SRC, made[:, :-1]).argmax(dim=-1)
    assert torch.equal(made[:, 1:], likely)


def one_pair(source: list[int], target: list[int]) -> Batch:
    return Corpus(Sentences.of([source]), Sentences.of([target])).batch([0])


def test_figure_1_from_its_inputs_to_its_probabilities() -> None:
    """Figure 1: what is below the stacks and above them, by hand: the
    embeddings and positions, the outputs shifted right, the linear layer
    and the softmax.
    """
    whole = model()
    batch = one_pair([4, 5, 6], [7, 8])
    assert batch.tgt.tolist() == [[BOS, 7, 8]]
    matrix = whole.embeddings.target
    table = sinusoids(4, 12, torch.float64)
    memory = whole.encoder(math.sqrt(12) * matrix[batch.src] + table)
    x = math.sqrt(12) * matrix[batch.tgt] + table[:3]
    top = whole.decoder(x, memory, causal_mask(3))[0]
    p = (top @ matrix.T).exp()
    p = p / p.sum(dim=-1, keepdim=True)
    found = log_p_after(whole, batch.src, batch.tgt[0].tolist()).exp()
    assert found[PAD] == found[BOS] == 0
    words = [i for i in range(13) if i not in (PAD, BOS)]
    close = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(found[words], p[-1, words], **close)
    right = p[range(3), batch.labels[0]]
    loss, nll = batch_loss(whole, batch, 0.0)
    torch.testing.assert_close(nll, -right.log().sum(), **close)
    torch.testing.assert_close(loss, nll)


def test_a_prediction_depends_on_the_outputs_before_it_alone() -> None:
    """3.1 p2: by the mask and the offset together."""
    whole = model()

    def predictions(outputs: list[int]) -> Tensor:
        batch = one_pair([4, 5, 6], outputs)
        assert batch.labels[0, :-1].tolist() == outputs
        return whole(batch.src, batch.tgt)[0]

    words = [5, 6, 7, 8]
    before = predictions(words)
    for i in range(4):
        other = [11 if j == i else word for j, word in enumerate(words)]
        changed = (predictions(other) - before).abs().amax(dim=-1)
        assert (changed > 1e-9).tolist() == [j > i for j in range(5)]


def test_the_base_model_is_the_papers() -> None:
    """3.1 p1 and p2, 3.2.2 p4, 3.3 p2: as it is built."""
    with torch.device("meta"):
        base = Transformer(TransformerConfig(src_vocab=9, tgt_vocab=9))
    assert len(base.encoder.layers) == len(base.decoder.layers) == 6
    for layer in (*base.encoder.layers, *base.decoder.layers):
        network = layer.feed_forward
        assert network.inner.weight.shape == (2048, 512)
        assert network.outer.weight.shape == (512, 2048)
    blocks = attention_blocks(base)
    assert len(blocks) == 6 + 2 * 6
    for block in blocks.values():
        assert block.num_heads == 8 and block.d_k == block.d_v == 64
        assert block.w_q.in_features == block.w_o.out_features == 512
    for layer in base.encoder.layers:
        assert kinds(layer) == [MultiHeadAttention, "FeedForward"]
    for layer in base.decoder.layers:
        assert kinds(layer) == [MultiHeadAttention] * 2 + ["FeedForward"]
        assert not layer.pre_norm  # LayerNorm(x + Sublayer(x))
    assert not any(layer.pre_norm for layer in base.encoder.layers)
    assert {w.shape[1] for w in base.embeddings.parameters()} == {512}


def kinds(layer: nn.Module) -> list[Any]:
    """The sub-layers of a layer, and a norm for each of them."""
    parts = list(layer.children())
    norms = [part for part in parts if isinstance(part, nn.LayerNorm)]
    own = [p for p in parts if not isinstance(p, nn.LayerNorm | nn.Dropout)]
    assert len(norms) == len(own)
    return [
        type(p) if isinstance(p, MultiHeadAttention) else type(p).__name__
        for p in own
    ]


@pytest.mark.parametrize("d_k", [4, 64, 1024])
def test_without_the_factor_the_gradients_vanish(d_k: int) -> None:
    """3.2.1 p4: the softmax is where its slope is extremely small. With
    the factor its slope is the same for keys of any size.
    """
    torch.manual_seed(0)
    q, k = torch.randn(2, 500, d_k).double()

    def slope(p: Tensor) -> float:  # of the softmax, at these weights
        return float((p * (1 - p)).sum(dim=-1).mean())

    with_factor = slope(attention_weights(q, k))
    without = slope((q @ k.T).softmax(dim=-1))
    assert with_factor == pytest.approx(0.99, abs=0.01)
    assert (without < 0.1) == (d_k == 1024)
    assert (without < 0.5) == (d_k >= 64)


@pytest.mark.parametrize("d_k", [1, 4, 64, 1024])
def test_a_product_of_random_vectors_has_variance_d_k(d_k: int) -> None:
    """Footnote 4: and mean 0. A key of zeros has the score 0, so that the
    weights tell the scores of the others.
    """
    torch.manual_seed(0)
    q = (2 * torch.rand(1000, d_k).double() - 1) * math.sqrt(3)
    k = torch.randn(1000, d_k).double()
    weights = attention_weights(q, torch.cat([k, torch.zeros(1, d_k)]))
    scores = (weights[:, :-1] / weights[:, -1:]).log()
    products = scores * math.sqrt(d_k)
    torch.testing.assert_close(products, torch.einsum("id,jd->ij", q, k))
    assert abs(products.mean()) < 0.01 * math.sqrt(d_k)
    assert products.var() == pytest.approx(d_k, rel=0.1)


def test_chapter_02_finds_the_variance_of_footnote_4(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = cell("02-attention", "products = (torch.randn(2")
    exec(code, {"torch": torch})
    lines = capsys.readouterr().out.splitlines()
    found = [re.findall(r"\d+(?:\.\d+)?", line) for line in lines]
    assert [int(d_k) for d_k, *_ in found] == [4, 16, 64, 256, 1024]
    for d_k, variance, size in found:
        assert float(variance) == pytest.approx(int(d_k), rel=0.06)
        assert int(size) == math.isqrt(int(d_k))


def test_dot_product_attention_is_ours_but_for_the_factor() -> None:
    """3.2.1 p3."""
    q, k, v = torch.randn(3, 5, 16).double()
    plain = (q @ k.T).softmax(dim=-1) @ v
    torch.testing.assert_close(attention(4 * q, k, v), plain)
    assert not torch.allclose(attention(q, k, v), plain)


def test_additive_scores_take_as_much_work_and_more_space() -> None:
    """3.2.1 p3: as many multiplications, and a vector for each pair where
    the dot product keeps a number; in the cell of the page.
    """
    code = cell("09-why-self-attention", "hidden.numel() /").splitlines()
    here: dict[str, Any] = {"torch": torch}
    exec("\n".join(code[:-1]), here)
    assert eval(code[-1], here) == 64
    q, k, w = (here[name] for name in "qkw")
    hidden, (n, d) = here["hidden"], q.shape
    assert hidden.shape == (n, n, d) and here["dot"].shape == (n, n)
    work = [
        multiplications(lambda x: x @ w[:, None], hidden),
        multiplications(lambda x: x @ k.T, q),
    ]
    assert work == [n * n * d] * 2
    part = AdditiveAttention(d)
    with torch.no_grad():  # the scores of the page are those of the class
        part.w.weight[0] = w
        for linear in (part.w_q, part.w_k):
            linear.weight.copy_(torch.eye(d))
    weights = part.weights(q, k.expand(n, n, d))
    torch.testing.assert_close(here["additive"].softmax(dim=-1), weights)


def test_the_projections_have_the_shapes_of_3_2_2() -> None:
    """3.2.2 p3: of each head, as the paper writes matrices."""
    h, d_model, d_k, d_v = 3, 12, 5, 7
    layer = MultiHeadAttention(d_model, h, d_k, d_v)
    for w, d in ((layer.w_q, d_k), (layer.w_k, d_k), (layer.w_v, d_v)):
        heads = w.weight.T.unflatten(1, (h, -1)).unbind(dim=1)
        assert [head.shape for head in heads] == [(d_model, d)] * h
    assert layer.w_o.weight.T.shape == (h * d_v, d_model)
    bare = MultiHeadAttention(d_model, h, d_k, d_v, bias=False)
    for one, count in ((layer, 8), (bare, 4)):
        matrices = dict(one.named_parameters())
        assert len(matrices) == count  # and no other matrix
        assert all(matrix.requires_grad for matrix in matrices.values())


def test_the_heads_of_a_layer_run_in_parallel() -> None:
    """3.2.2 p1: no head waits for another, and none is a step of its own."""
    x, found = torch.randn(1, 5, 12), set()
    for h in (2, 3, 6):
        y = MultiHeadAttention(12, h)(x)
        seen, todo = set(), [y.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.add(node)
                todo += [below for below, _ in node.next_functions]
        found.add((sequential_products(y), len(seen)))
    ((chain, _),) = found
    assert chain == 4  # queries, scores, weighted sum, W^O


def calls(whole: Transformer) -> dict[str, tuple[Any, ...]]:
    """What each attention of a model is called with, by its place."""
    seen: dict[str, tuple[Any, ...]] = {}

    def keep(name: str, block: Any, args: Any, kwargs: Any) -> None:
        known = dict(zip(("x", "memory", "mask"), args, strict=False))
        known |= kwargs
        seen[name] = tuple(
            known.get(key) for key in ("x", "memory", "mask")
        )

    for name, block in attention_blocks(whole).items():
        block.register_forward_pre_hook(
            partial(keep, name), with_kwargs=True
        )
    whole(SRC, TGT)
    return seen


def check(whole: Transformer, name: str, call: tuple[Any, ...]) -> None:
    """That this block computes the formula of 3.2.2 from its call."""
    x, memory, mask = call
    block = attention_blocks(whole)[name]
    source = x if memory is None else memory
    by_hand = by_loop(block, x, source, mask.squeeze(1))
    torch.testing.assert_close(block(x, memory, mask), by_hand)


def outputs(layers: nn.ModuleList) -> list[Tensor]:
    """Filled with what each layer hands to the next, when called."""
    found: list[Tensor] = []
    for layer in layers:
        layer.register_forward_hook(lambda m, args, out: found.append(out))
    return found


def test_attention_has_three_places() -> None:
    """3.2.3 p1: multi-head attention, called in three ways."""
    whole = model(num_heads=3)
    seen = calls(whole)
    places = [f"encoder.{i}" for i in range(2)]
    places += [
        f"{kind}.{i}" for kind in ("decoder", "cross") for i in (0, 1, 2)
    ]
    assert sorted(seen) == sorted(places)
    for name, (_, memory, _) in seen.items():
        assert (memory is not None) == name.startswith("cross"), name
    ways = {
        (name.partition(".")[0], memory is None, bool(mask.all()))
        for name, (_, memory, mask) in seen.items()
    }
    assert ways == {
        ("encoder", True, True),
        ("decoder", True, False),
        ("cross", False, True),
    }
    maps = whole.attention_maps(SRC, TGT)
    assert {weights.size(1) for weights in maps.values()} == {3}
    assert "in three ways." in card(
        "04-multi-head", "Paper §3.2.3, opening"
    )


def test_the_decoder_asks_the_encoders_output() -> None:
    """3.2.3 point 1: queries of the decoder, keys and values of the
    encoder; every position may attend to all of the input.
    """
    whole = model()
    decoder = outputs(whole.decoder.layers)
    norms = [layer.norm1 for layer in whole.decoder.layers]
    asked = outputs(nn.ModuleList(norms))
    encoder = outputs(whole.encoder.layers)
    seen = calls(whole)
    top = encoder[-1]
    assert len(encoder) == 2
    for i in range(3):
        x, memory, _ = seen[f"cross.{i}"]
        assert memory is top
        assert x is asked[i]
        if i:
            assert seen[f"decoder.{i}"][0] is decoder[i - 1]
        check(whole, f"cross.{i}", seen[f"cross.{i}"])
    maps = whole.attention_maps(SRC, TGT)
    assert all((maps[f"cross.{i}"] > 0).all() for i in range(3))


def test_the_encoder_asks_all_of_the_layer_below() -> None:
    """3.2.3 point 2: queries, keys and values are of one place."""
    whole = model()
    below = outputs(whole.encoder.layers)
    seen = calls(whole)
    assert seen["encoder.0"][1] is seen["encoder.1"][1] is None
    assert seen["encoder.1"][0] is below[0]
    maps = whole.attention_maps(SRC, TGT)
    for i in range(2):
        check(whole, f"encoder.{i}", seen[f"encoder.{i}"])
        assert maps[f"encoder.{i}"].shape == (1, 2, 5, 5)
        assert (maps[f"encoder.{i}"] > 0).all()


def test_the_decoder_asks_itself_about_the_past() -> None:
    """3.2.3 point 3: up to and including the position itself, and what
    is not allowed has weight 0 after the softmax.
    """
    whole = model()
    below = outputs(whole.decoder.layers)
    seen = calls(whole)
    assert seen["decoder.1"][0] is below[0] and seen["decoder.1"][1] is None
    maps = whole.attention_maps(SRC, TGT)
    past = torch.ones(4, 4).tril().bool()
    for i in range(3):
        check(whole, f"decoder.{i}", seen[f"decoder.{i}"])
        weights = maps[f"decoder.{i}"]
        torch.testing.assert_close(
            weights.sum(dim=-1), torch.ones(1, 2, 4).double()
        )
        assert (weights[..., past] > 0).all()
        assert (weights[..., ~past] == 0).all()


def test_each_layer_has_a_network_of_equation_2_to_itself() -> None:
    """Equation 2 and 3.3 p2: a ReLU and two biases in each layer of the
    model, and no parameter in two layers.
    """
    whole = model()
    layers = [*whole.encoder.layers, *whole.decoder.layers]
    parts = [p for one in layers for p in one.feed_forward.parameters()]
    assert len({p.data_ptr() for p in parts}) == len(parts) == 4 * 5
    for part in parts:
        nn.init.normal_(part)
    x = torch.randn(1, 4, 12).double()
    for layer in layers:
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        hidden = torch.clamp(x @ inner.weight.T + inner.bias, min=0)
        by_hand = hidden @ outer.weight.T + outer.bias
        torch.testing.assert_close(layer.feed_forward(x), by_hand)


def test_one_matrix_times_the_root_of_the_width() -> None:
    """3.4 p1: both embeddings and the layer before the softmax."""
    part = model(d_model=16).embeddings
    (matrix,) = part.parameters()
    assert part.source is part.target is part.output is matrix
    for read in (part.read_source, part.read_target):
        torch.testing.assert_close(read(SRC), 4.0 * matrix[SRC])
    x = torch.randn(2, 16).double()
    torch.testing.assert_close(part.logits(x), x @ matrix.T)
    assert Embeddings(9, 9, 16).read_source(SRC).std() < 3


def test_positions_are_added_at_the_bottom_of_both_stacks() -> None:
    """3.5 p1: as wide as the embeddings, to which they are added."""
    whole = model()
    bottoms: list[Tensor] = []
    for stack in (whole.encoder, whole.decoder):
        stack.register_forward_pre_hook(
            lambda m, args: bottoms.append(args[0])
        )
    whole(SRC, TGT)
    table = sinusoids(5, 12, torch.float64)
    read = whole.embeddings
    source, target = read.read_source(SRC), read.read_target(TGT)
    close = {"rtol": 0.0, "atol": 1e-6}  # the table is kept in float32
    torch.testing.assert_close(bottoms[0], source + table, **close)
    torch.testing.assert_close(bottoms[1], target + table[:4], **close)


def test_only_sinusoids_go_beyond_the_longest_sentence() -> None:
    """3.5 p3: they may extrapolate; a learned table ends somewhere."""
    ids = torch.ones(1, 300, dtype=torch.long)
    with torch.no_grad():
        assert model()(ids, ids).isfinite().all()
        whole = model(positions="learned", max_len=299)
        with pytest.raises(ValueError, match="300 tokens"):
            whole(ids, ids)
        for positions in (whole.src_positions, whole.tgt_positions):
            assert isinstance(positions.table, nn.Parameter)
    table = model().src_positions(1000)
    torch.testing.assert_close(table, sinusoids(1000, 12, table.dtype))
