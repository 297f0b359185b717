"""What figures of the model have to compute, by the package."""

from __future__ import annotations

import base64
import itertools
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from annotated.attention import attention, attention_weights
from annotated.book.example import (
    LETTERS,
    letter_ids,
    reversal_model,
    write,
)
from annotated.book.figures import half_weights
from annotated.complexity import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SelfAttention,
    _one_step,
    path_length,
)
from annotated.corpora.sentencepieces import vocabulary
from annotated.embeddings import SinusoidalPositions, sinusoids
from annotated.engine.parts import PartsConfig, build
from annotated.engine.recipes import RECIPES
from annotated.heads import knocked_out
from annotated.masks import causal_mask, padding_mask, window_mask
from annotated.model import (
    Transformer,
    TransformerConfig,
    count_parameters,
)
from annotated.search import (
    SearchConfig,
    plain_beam_search,
)
from annotated.seq2seq import sequential_products
from annotated.tokens import (
    BOS,
    EOS,
    SPECIALS,
    Tokenizer,
)


def lookup() -> list[dict[str, Any]]:
    """Equation 1 on the chapter's three tokens, and on random ones."""
    torch.manual_seed(0)
    cases = []
    for sharpness in (0.0, 1.0, 3.5):
        for d_k in (2, 5):
            q, k, v = (
                torch.randn(3, size, dtype=torch.float64)
                for size in (d_k, d_k, 2)
            )
            cases.append(
                {
                    "q": q.tolist(),
                    "k": k.tolist(),
                    "v": v.tolist(),
                    "sharpness": sharpness,
                    "weights": attention_weights(sharpness * q, k).tolist(),
                    "output": attention(sharpness * q, k, v).tolist(),
                }
            )
    return cases


def small_model(
    norm: str, tie: str, positions: str = "sinusoidal"
) -> tuple[Transformer, Any, bytes]:
    """A model whose parameters are what half precision leaves of them."""
    torch.manual_seed(0)
    model = build(
        PartsConfig(
            src_vocab=12,
            tgt_vocab=12 if tie == "all" else 9,
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=16,
            d_ff=24,
            num_heads=4,
            dropout=0.0,
            norm=norm,
            tie=tie,
            positions=positions,
        )
    ).eval()
    for one in model.parameters():  # sharper than as drawn
        one.data += 0.3 * torch.randn_like(one)
    layout, halves = half_weights(model)
    model.half().double()
    for part in model.modules():
        if isinstance(part, SinusoidalPositions):
            part.table = sinusoids(256, part.table.size(1), torch.float64)
    return model, layout, halves


def translations(
    model: Transformer, sentences: list[list[int]], beams: int
) -> list[dict[str, Any]]:
    """Greedy for each, and beam search for the first of them."""
    found = []
    for number, src in enumerate(sentences):
        one = SearchConfig(beam=1, extra=8)
        case: dict[str, Any] = {
            "src": src,
            "greedy": plain_beam_search(model, src, one)[0].ids,
        }
        if number < beams:
            four = plain_beam_search(model, src, SearchConfig(extra=8))[0]
            case |= {"beam": four.ids, "score": four.score}
        found.append(case)
    return found


def engine() -> list[dict[str, Any]]:
    """Logits, maps and searches of small models, in float64."""
    cases = []
    for kind in (
        ("post", "decoder"),
        ("pre", "all"),
        ("post", "none"),
        ("pre", "all", "rotary"),
    ):
        model, layout, halves = small_model(*kind)
        src, tgt = [4, 7, 5, 11, 3], [6, 4, 8]
        both = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
        sentences = [
            [4 + (7 * n + 3 * i) % 8 for i in range(1 + n % 7)]
            for n in range(70)
        ]
        with torch.no_grad():
            maps = model.attention_maps(*both)
            with knocked_out(model, [("cross.1", 2)]):
                muted = model(*both)[0].tolist()
            branch = model.get_submodule("decoder.layers.1.cross_attention")
            hook = branch.register_forward_hook(
                lambda part, inputs, result: torch.zeros_like(result)
            )
            without = model(*both)[0].tolist()
            hook.remove()
            case = {
                "config": asdict(model.config),
                "layout": layout,
                "bytes": base64.b64encode(halves).decode(),
                "src": src,
                "tgt": tgt,
                "logits": model(*both)[0].tolist(),
                "maps": {
                    name: one[0].tolist() for name, one in maps.items()
                },
                "silent": "cross.1.2",
                "muted": muted,
                "off": "decoder.layers.1.norm2",
                "without": without,
                "sentences": translations(model, sentences, 6),
                "most": 1e-4,
            }
        cases.append(case)
    words = [*SPECIALS, "Der", "Hund"]
    text = " Der Esel  </s> Hund\n"
    tokenizer = Tokenizer.of_words(words[4:])
    encoded = tokenizer.encode([text])[0]
    assert vocabulary(tokenizer) == words
    cases[0] |= {"words": words, "text": text, "encoded": encoded}
    return cases


def masks() -> list[dict[str, Any]]:
    """Masks, and by autograd who depends on whom after some layers."""
    rows = torch.arange(6)
    kinds = {
        "none": torch.ones(6, 6, dtype=torch.bool),
        "causal": causal_mask(6),
        "ahead": causal_mask(6).roll(-1, 0) | (rows == 5)[:, None],
        "window": window_mask(6, 3),
        "both": causal_mask(6) & window_mask(6, 3),
    }
    cases = []
    for number, (kind, how, layers, real) in enumerate(
        itertools.product(
            kinds, ("before", "finite", "after"), (1, 2, 4), (4, 6)
        )
    ):
        ids = (rows < real).long()[None]
        allowed = kinds[kind] & padding_mask(ids)[0, 0]
        flipped = [["15"], ["00", "35"], []][number % 3]
        for cell in flipped:
            allowed[int(cell[0]), int(cell[1])] ^= True
        torch.manual_seed(number)
        x = 0.1 * torch.randn(6, 4, dtype=torch.float64)

        def stack(
            x: torch.Tensor,
            allowed: torch.Tensor = allowed,
            how: str = how,
            layers: int = layers,
        ) -> torch.Tensor:
            for _ in range(layers):
                if how == "before":
                    out = attention(x, x, x, allowed)
                else:
                    scores = x @ x.T
                    if how == "finite":
                        scores = scores.masked_fill(~allowed, -10.0)
                    weights = scores.softmax(dim=-1)
                    out = (
                        weights * allowed if how == "after" else weights
                    ) @ x
                x = x + out
            return x

        slopes = torch.autograd.functional.jacobian(stack, x)
        cases.append(
            {
                "kind": kind,
                "how": how,
                "layers": layers,
                "real": real,
                "flipped": flipped,
                "mask": allowed.tolist(),
                "influence": (slopes.abs().sum(dim=(1, 3)) > 0).tolist(),
            }
        )
    return cases


def scale() -> list[dict[str, Any]]:
    """A softmax and its Jacobian, by autograd."""
    torch.manual_seed(0)
    cases = []
    for width, factor in itertools.product((1, 16, 1024), (True, False)):
        products = width**0.5 * torch.randn(8, dtype=torch.float64)
        scores = products / width**0.5 if factor else products
        p = scores.softmax(dim=-1)
        slopes = torch.autograd.functional.jacobian(
            lambda s: s.softmax(dim=-1), scores
        )
        cases.append(
            {
                "products": products.tolist(),
                "width": width,
                "factor": factor,
                "weights": p.tolist(),
                "nats": -(p * p.clamp_min(1e-300).log()).sum().item(),
                "norm": slopes.norm().item(),
            }
        )
    return cases


PAPER_COUNTS = {
    "base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50,
    "C-N8": 80, "C-d256": 28, "C-d1024": 168, "C-ff1024": 53,
    "C-ff4096": 90, "big": 213,
}  # fmt: skip


def shape_of(config: TransformerConfig) -> dict[str, int]:
    """A configuration by the names of the figure."""
    shape = {
        "N": config.num_encoder_layers,
        "d": config.d_model,
        "h": config.num_heads,
        "ff": config.d_ff,
        "V": config.src_vocab,
    }
    both = {"dk": config.d_k, "dv": config.d_v}
    return shape | {k: v for k, v in both.items() if v is not None}


def stream() -> dict[str, Any]:
    """Parameters and shapes of models, and the rows of Table 3 that fit."""

    def row(name: str, vocab: int) -> TransformerConfig:
        return RECIPES[f"table3-{name}"].config(vocab, vocab)

    configs = [row(name, 37_000) for name in PAPER_COUNTS]
    configs += [
        TransformerConfig(
            src_vocab=300,
            tgt_vocab=300,
            num_encoder_layers=2,
            num_decoder_layers=2,
            d_model=64,
            d_ff=256,
            num_heads=h,
            d_k=d_k,
            d_v=d_v,
        )
        for h, d_k, d_v in ((1, None, None), (32, None, None), (4, 8, 24))
    ]
    # one small model, block by block
    config = configs[-2]
    model, base = Transformer(config).eval(), shape_of(config)
    first = {"encoder": "norm1 norm2", "decoder": "norm1 norm2 norm3"}
    names = {
        "encoder.attention": "attention",
        "encoder.network": "feed_forward",
        "decoder.attention": "attention",
        "decoder.cross": "cross_attention",
        "decoder.network": "feed_forward",
    }
    modules = {
        key: model.get_submodule(f"{key[:7]}.layers.0.{name}")
        for key, name in names.items()
    }
    norms = sum(
        p.numel()
        for n, p in model.named_parameters()
        if "norm" in n and "layers.0." in n and n.startswith("encoder")
    ) // len(first["encoder"].split())
    blocks = {
        key: sum(p.numel() for p in part.parameters()) + norms
        for key, part in modules.items()
    }
    table = sum(p.numel() for p in model.embeddings.parameters())
    blocks |= {"source": table, "target": 0, "output": 0}
    outs: dict[str, dict[str, Any]] = {}

    def plain(shape: Any) -> str:
        return f"({', '.join(map(str, shape))})"

    def keep(key: str, what: str) -> Any:
        def hook(part: Any, inputs: Any, result: Any) -> None:
            shape = plain(result.shape)
            found = shape if what == "out" else [f"inside {shape}"]
            outs.setdefault(key, {})[what] = found

        return hook

    for key, part in modules.items():
        part.register_forward_hook(keep(key, "out"))
        if key.endswith("network"):
            inner = part.get_submodule("inner")
            inner.register_forward_hook(keep(key, "inside"))
    src, tgt = torch.randint(4, 300, (3, 7)), torch.randint(4, 300, (3, 5))
    maps = model.attention_maps(src, tgt)
    logits = model(src, tgt)
    for key, block in (
        ("encoder.attention", "encoder.0"),
        ("decoder.attention", "decoder.0"),
        ("decoder.cross", "cross.0"),
    ):
        outs[key]["inside"] = [f"weights {plain(maps[block].shape)}"]
    outs |= {
        "source": {"out": plain(model.encode(src).shape)},
        "target": {"out": outs["decoder.network"]["out"]},
        "output": {"out": plain(logits.shape)},
    }
    ranges = {
        name: [
            v
            for v in (36_000, 37_000, 40_000, 41_000, 41_250, 43_000)
            if round(count_parameters(row(name, v)) / 1e6) == stated
        ]
        for name, stated in PAPER_COUNTS.items()
    }
    return {
        "shapes": [
            {"shape": shape_of(c), "whole": count_parameters(c)}
            for c in configs
        ],
        "base": base,
        "blocks": blocks,
        "outs": outs,
        "sizes": {"b": 3, "s": 7, "t": 5},
        "rows": {
            name: {"stated": stated, "shape": shape_of(row(name, 1))}
            for name, stated in PAPER_COUNTS.items()
        },
        "vocabularies": [
            {"V": v, "fit": [n for n, some in ranges.items() if v in some]}
            for v in (36_000, 37_000, 40_000, 41_000, 41_250, 43_000)
        ],
    }


def branches() -> dict[str, Any]:
    """What a model of letters writes when branches add nothing."""
    model = reversal_model()
    for one in model.parameters():  # sharper than as drawn
        one.data += 0.3 * torch.randn_like(one)
    layout, halves = half_weights(model)
    model.half().double().eval()
    for positions in (model.src_positions, model.tgt_positions):
        positions.table = sinusoids(64, 64, torch.float64)
    parts = {
        "encoder.attention": ("encoder.layers.0.attention", "norm1"),
        "encoder.network": ("encoder.layers.0.feed_forward", "norm2"),
        "decoder.attention": ("decoder.layers.0.attention", "norm1"),
        "decoder.cross": ("decoder.layers.0.cross_attention", "norm2"),
        "decoder.network": ("decoder.layers.0.feed_forward", "norm3"),
    }
    cases = []
    for word, off in [
        *itertools.product(
            ("attention", "abc"), [[], *([k] for k in parts)]
        ),
        ("residuals", ["encoder.attention", "decoder.network"]),
    ]:
        hooks = [
            model.get_submodule(parts[key][0]).register_forward_hook(
                lambda part, inputs, result: torch.zeros_like(result)
            )
            for key in off
        ]
        case = {"word": word, "off": off, "text": write(model, word)}
        for hook in hooks:
            hook.remove()
        if not off:
            case["shares"] = shares_of(model, word, case["text"], parts)
        cases.append(case)
    return {
        "config": asdict(model.config),
        "layout": layout,
        "bytes": base64.b64encode(halves).decode(),
        "letters": LETTERS,
        "cases": cases,
    }


def heads() -> dict[str, Any]:
    """How sharp some maps are, and where each row looks."""
    torch.manual_seed(0)
    maps = [
        (3 * torch.randn(rows, columns, dtype=torch.float64)).softmax(-1)
        for rows, columns in ((3, 3), (9, 12), (12, 2))
    ]
    return {
        "maps": [
            {
                "map": one.tolist(),
                "sharp": one.amax(dim=-1).mean().item(),
                "at": one.argmax(dim=-1).tolist(),
            }
            for one in maps
        ]
    }


def shares_of(
    model: Transformer, word: str, text: str, parts: dict[str, Any]
) -> dict[str, float]:
    """The mean length of what a branch adds, as a share of its stream."""
    shares: dict[str, float] = {}
    added: dict[str, torch.Tensor] = {}
    hooks = []
    for key, (name, norm) in parts.items():
        hooks.append(
            model.get_submodule(name).register_forward_hook(
                lambda part, inputs, result, key=key: added.update(
                    {key: result}
                )
            )
        )
        layer = model.get_submodule(name.rpartition(".")[0])

        def of_sum(
            part: Any, inputs: Any, result: Any, key: str = key
        ) -> None:
            branch = added[key]
            stream = inputs[0] - branch
            lengths = branch.norm(dim=-1) / stream.norm(dim=-1)
            shares[key] = lengths.mean().item()

        hooks.append(
            layer.get_submodule(norm).register_forward_hook(of_sum)
        )
    src = torch.tensor([[*letter_ids(word), EOS]])
    signs = [*SPECIALS, *LETTERS]
    ids = [signs.index(x) for x in text]
    # it has read what it wrote, up to the last letter of a cut-off answer
    read = [BOS, *ids] if len(ids) < len(word) + 3 else [BOS, *ids[:-1]]
    with torch.no_grad():
        model(src, torch.tensor([read]))
    for hook in hooks:
        hook.remove()
    return shares


def waves() -> dict[str, Any]:
    table = sinusoids(60, 16, torch.float64).tolist()
    return {"width": 16, "table": table, "offset": 7}


def table1() -> dict[str, Any]:
    """What the layers of page 09 say of themselves, and what is measured
    of them: products in a row, and layers until all pairs are connected.
    """
    layers, paths = [], []
    for n, d, k, r in ((12, 8, 3, 5), (33, 16, 5, 9)):
        kinds = {
            "self-attention": SelfAttention(d),
            "recurrent": Recurrent(d),
            "convolutional": Convolution(d, k),
            "dilated": Convolution(d, k, dilation=k),
            "restricted": RestrictedSelfAttention(d, r),
        }
        for name, layer in kinds.items():
            x = torch.randn(1, n, d, requires_grad=True)
            layers.append(
                {
                    "name": name,
                    "at": {"n": n, "d": d, "k": k, "r": r},
                    "work": layer.operations(n),
                    "row": sequential_products(layer(x)),
                }
            )
    d, k, r = 4, 3, 9
    cells = Recurrent(d)
    stacks: dict[str, Any] = {
        "self-attention": lambda layer: SelfAttention(d),
        "recurrent": lambda layer: partial(_one_step, cells),
        "convolutional": lambda layer: Convolution(d, k),
        "dilated": lambda layer: Convolution(d, k, dilation=k**layer),
        "restricted": lambda layer: RestrictedSelfAttention(d, r),
    }
    for name, layer_at in stacks.items():
        for n in (9, 10, 27, 28):
            both = name in ("self-attention", "restricted")
            pairs = torch.ones(n, n).bool() if both else causal_mask(n)
            paths.append(
                {
                    "name": name,
                    "at": {"n": n, "d": d, "k": k, "r": r},
                    "path": path_length(layer_at, pairs, d),
                }
            )
    return {"layers": layers, "paths": paths}
