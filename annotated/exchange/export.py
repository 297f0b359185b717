"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from annotated.attention import MultiHeadAttention
from annotated.corpora.sentencepieces import optional_import, vocabulary
from annotated.embeddings import SinusoidalPositions
from annotated.engine.errors import RunError, unknown
from annotated.engine.files import new_folder, write_json
from annotated.engine.packing import check_paper
from annotated.engine.parts import ComposedAttention, PartsShape
from annotated.engine.runs import Run
from annotated.engine.tensors import write_tensors
from annotated.exchange.marian import write_transformers
from annotated.model import ModelShape, Transformer
from annotated.search import (
    Hypothesis,
    SearchConfig,
    length_penalty,
    output_limit,
)
from annotated.since import NoPositions, RMSNorm, SwiGLU
from annotated.tokens import BOS, EOS, PAD, SPECIALS, UNK

__all__ = [
    "FORMATS", "unsupported", "check_installed", "write_ctranslate2",
    "with_ctranslate2", "export_run",
]  # fmt: skip


# E11-export.md: What all formats share
FORMATS = "safetensors", "onnx", "ctranslate2", "transformers"


def unsupported(shape: ModelShape) -> dict[str, str]:
    """What of a shape a format cannot express, by format; those that
    express all of it are left out.
    """
    odd, other = [], []  # for both engines; for transformers alone
    if shape.window is not None:
        odd.append("a window")
    if shape.key_size != shape.value_size:
        odd.append("a d_k other than d_v")
    elif shape.key_size != shape.d_model // shape.num_heads:
        other.append("a d_k other than d_model / num_heads")
    for part in _later(shape):
        (other if part in _COMMON else odd).append(part)
    if shape.positions == "learned":
        other.append("learned positions")
    if shape.norm == "pre" and shape.tie != "all":
        other.append(f"norm pre with tie {shape.tie}")
    own = [f"parts of your own ({name})" for name in _parts(shape)]
    odd += own
    reasons = {"onnx": own, "ctranslate2": odd, "transformers": odd + other}
    return {to: " and ".join(why) for to, why in reasons.items() if why}


def _parts(shape: ModelShape) -> tuple[str, ...]:
    return getattr(shape, "parts", ())


def _later(shape: ModelShape) -> list[str]:
    """The parts that came after the paper, by name (page E32)."""
    if not isinstance(shape, PartsShape):
        return []
    named = {
        "RMSNorm": shape.norm_kind == "rms",
        f"{shape.positions} positions": shape.positions in _IN_ATTENTION,
        "heads that share keys and values": shape.num_kv_heads is not None,
        "norms of queries and keys": shape.qk_norm,
        "gated networks": shape.gated,
        "windows by layer": bool(shape.windows),
    }
    return [name for name, has in named.items() if has]


_IN_ATTENTION = "rotary", "relative", "alibi", "none"
_COMMON = (  # of the later parts, those that CTranslate2 has, too
    "RMSNorm", "rotary positions", "none positions",
    "heads that share keys and values", "gated networks",
)  # fmt: skip


def check_installed(to: str) -> None:
    """RunError if a package that a format needs is missing."""
    needed = {"onnx": ["onnx"], "ctranslate2": ["ctranslate2"]}.get(to, [])
    if to == "onnx" and _by_dynamo():
        needed.append("onnxscript")
    for package in needed:
        optional_import(package, package)


def _by_dynamo() -> bool:
    """Whether torch writes ONNX with onnxscript."""
    options = inspect.signature(torch.onnx.export).parameters
    return "dynamic_shapes" in options


def _check_supported(shape: ModelShape, to: str) -> None:
    """RunError where a format cannot express something of a shape."""
    if why := unsupported(shape).get(to):
        raise RunError(f"{to} does not support {why}")


# E11-export.md: CTranslate2
def write_ctranslate2(
    model: Transformer,
    source: Sequence[str],
    target: Sequence[str],
    folder: Path,
) -> None:
    """Write the model as a folder for ctranslate2.Translator; source and
    target are the vocabularies, one token per id.

    RunError if CTranslate2 is missing or does not support the model.
    """
    more = ComposedAttention, RMSNorm, SwiGLU, NoPositions
    check_paper(model, strict=True, more=more)
    config = model.config
    _check_supported(config, "ctranslate2")
    spec = _empty_spec(config)
    _fill_stack(spec.encoder, model, "encoder")
    _fill_stack(spec.decoder, model, "decoder")
    output = spec.decoder.projection
    _fill(output, model.embeddings.output, model.embeddings.bias)
    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(target))
    spec.config.unk_token = SPECIALS[UNK]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIALS[BOS]
    spec.config.eos_token = SPECIALS[EOS]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _empty_spec(shape: ModelShape) -> Any:
    """A TransformerSpec without numbers. RunError if CTranslate2 is
    missing, or older than a part of this shape.
    """
    package, where = "ctranslate2", "ctranslate2.specs"
    specs = optional_import(f"{where}.transformer_spec", package)
    kinds = optional_import(f"{where}.common_spec", package).Activation
    tanh = getattr(shape, "approximate", "none") == "tanh"
    activation = _ACTIVATIONS["tanh" if tanh else shape.activation]
    how: dict[str, Any] = {
        "pre_norm": shape.norm == "pre",
        "activation": getattr(kinds, activation),
    }
    if shape.key_size != shape.d_model // shape.num_heads:
        how["head_dim"] = shape.key_size
    if isinstance(shape, PartsShape):
        how["rms_norm"] = shape.norm_kind == "rms"
        how["ffn_glu"] = shape.gated
        if shape.num_kv_heads:
            how["num_heads_kv"] = shape.num_kv_heads
        if shape.positions == "rotary":  # turned as in chapter 26: in pairs
            how["rotary_dim"] = shape.key_size
    heads = shape.num_heads
    make = specs.TransformerEncoderSpec, specs.TransformerDecoderSpec
    layers = shape.num_encoder_layers, shape.num_decoder_layers
    try:
        stacks = [of(n, heads, **how) for of, n in zip(make, layers)]
    except TypeError as error:
        raise RunError(
            f"this CTranslate2 is too old for the model ({error}): "
            "pip install --upgrade ctranslate2"
        ) from None
    return specs.TransformerSpec(*stacks)


_ACTIVATIONS = {
    "relu": "RELU", "silu": "SWISH", "gelu": "GELU", "tanh": "GELUTanh",
}  # fmt: skip
_POSITIONS = 1024  # of source and output; the table doubles as it grows


def _array(x: Tensor) -> Any:
    return x.detach().float().cpu().contiguous().numpy()


def _fill(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):  # RMSNorm has no bias
        spec.beta = _array(norm.bias)


def _fill_attention(
    spec: Any, attention: MultiHeadAttention, together: bool
) -> None:
    """Fill in q, k, v (in one matrix, or q and (k, v)) and the output."""
    q, k, v = attention.w_q, attention.w_k, attention.w_v
    groups = [[q, k, v]] if together else [[q], [k, v]]
    for out, group in zip(spec.linear, groups):
        weight = torch.cat(tuple(linear.weight for linear in group))
        biases: Any = [x.bias for x in group if x.bias is not None]
        _fill(out, weight, torch.cat(biases) if biases else None)
    _fill(spec.linear[-1], attention.w_o.weight, attention.w_o.bias)


def _fill_stack(spec: Any, model: Transformer, name: str) -> None:
    """Fill in the embeddings, positions and layers of one of the stacks."""
    table, embeddings = model.embeddings.target, spec.embeddings
    positions: Any = model.tgt_positions
    if name == "encoder":  # which has a list of embeddings
        table, embeddings = model.embeddings.source, embeddings[0]
        positions = model.src_positions
    embeddings.weight = _array(table)
    if isinstance(positions, SinusoidalPositions):
        positions(_POSITIONS)  # an exported table cannot grow
    if model.config.positions != "rotary":
        # given no table, CTranslate2 adds sinusoids
        zeros = torch.zeros(_POSITIONS, model.config.d_model)
        added = getattr(positions, "table", zeros)
        spec.position_encodings.encodings = _array(added)
    stack: Any = getattr(model, name)
    if model.config.norm == "pre":
        _fill_norm(spec.layer_norm, stack.norm)
    for out, layer in zip(spec.layer, stack.layers, strict=True):
        inner, last = out.self_attention, layer.norm2
        _fill_attention(inner, layer.attention, together=True)
        _fill_norm(inner.layer_norm, layer.norm1)
        if name == "decoder":
            cross, last = out.attention, layer.norm3
            _fill_attention(cross, layer.cross_attention, together=False)
            _fill_norm(cross.layer_norm, layer.norm2)
        ffn, net = out.ffn, layer.feed_forward
        first = net.inner
        if getattr(model.config, "gated", False):
            _fill(ffn.linear_0_noact, first.weight, first.bias)
            first = net.gate
        _fill(ffn.linear_0, first.weight, first.bias)
        _fill(ffn.linear_1, net.outer.weight, net.outer.bias)
        _fill_norm(ffn.layer_norm, last)


_NEAR = 8  # tokens, by fewer of which the sources of one call differ
_BATCH = 2000  # source tokens, with padding


@dataclasses.dataclass(frozen=True)
class _Translator:
    """A search by CTranslate2, as an Engine of engine.translate."""

    inner: Any
    model: Transformer
    names: Sequence[str]  # of source tokens
    words: Mapping[str, int]  # ids of target tokens

    def __call__(
        self, pieces: list[list[int]], search: SearchConfig
    ) -> list[list[Hypothesis]]:
        calls = defaultdict[int, list[int]](list)
        for i, piece in enumerate(pieces):
            calls[len(piece) // _NEAR].append(i)
        waiting: dict[int, Any] = {}  # all calls begin before one ends
        for _, some in sorted(calls.items(), reverse=True):
            begun = self._begin([pieces[i] for i in some], search)
            waiting |= zip(some, begun, strict=True)
        return [
            self._hypotheses(waiting[i].result(), search)
            for i in range(len(pieces))
        ]

    def _begin(
        self, pieces: list[list[int]], search: SearchConfig
    ) -> list[Any]:
        limit = output_limit(self.model, min(map(len, pieces)), search)
        begun: list[Any] = self.inner.translate_batch(
            [[self.names[i] for i in piece] for piece in pieces],
            max_batch_size=_BATCH,
            batch_type="tokens",
            beam_size=search.beam,
            num_hypotheses=search.beam,
            length_penalty=0.0,
            return_scores=True,
            min_decoding_length=0,
            max_decoding_length=max(limit - 1, 1),  # without EOS
            suppress_sequences=[[SPECIALS[PAD]], [SPECIALS[BOS]]],
            asynchronous=True,
        )
        return begun

    def _hypotheses(
        self, result: Any, search: SearchConfig
    ) -> list[Hypothesis]:
        found = []
        for tokens, total in zip(result.hypotheses, result.scores):
            penalty = length_penalty(len(tokens) + 1, search.alpha)
            ids = [self.words[token] for token in tokens]
            found.append(Hypothesis(ids, total, total / penalty))
        found.sort(key=lambda one: one.score, reverse=True)
        return found[: search.nbest]


def with_ctranslate2(
    run: Run, kind: str = "float32", threads: int = 1
) -> Run:
    """The run, to be searched by CTranslate2 with weights of this kind, in
    as many threads, each with batches of its own; on a GPU if it is there.

    RunError if CTranslate2 is missing, or does not support the model, the
    device or the kind; or an ensemble, for it searches with one model.
    """
    package = optional_import("ctranslate2", "ctranslate2")
    if run.others:
        raise RunError("CTranslate2 searches with one run: no --ensemble")
    device = next(run.model.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise RunError(f"CTranslate2 does not run on {device.type}")
    names, words = vocabulary(run.source), vocabulary(run.target)
    model = deepcopy(run.model).cpu().eval()
    with TemporaryDirectory() as folder:
        write_ctranslate2(model, names, words, Path(folder))
        try:
            inner = package.Translator(
                folder,
                device=device.type,
                device_index=device.index or 0,
                compute_type=kind,
                inter_threads=threads,
                intra_threads=1,
            )
        except (RuntimeError, ValueError) as error:
            raise RunError(f"CTranslate2: {error}") from None
    ids = {word: i for i, word in enumerate(words)}
    engine = _Translator(inner, model, names, ids)
    return dataclasses.replace(run, engine=engine)


# E11-export.md: ONNX
_AXES = {  # the axes of each array that vary in length
    "src": {0: "batch", 1: "src_len"},
    "tgt": {0: "batch", 1: "tgt_len"},
    "memory": {0: "batch", 1: "src_len"},
    "logits": {0: "batch"},  # of the token after tgt
}


def _write_onnx(model: Transformer, folder: Path) -> None:
    """Write encoder.onnx and decoder.onnx. RunError if onnx is missing,
    or if the model has a part that its config does not say.
    """
    check_installed("onnx")
    check_paper(model)
    folder.mkdir(parents=True, exist_ok=True)
    plain = Transformer(model.config)  # operators that all runtimes have
    plain.load_state_dict(model.state_dict())
    for positions in plain.modules():
        if isinstance(positions, SinusoidalPositions):
            positions(_POSITIONS)  # the table in a graph cannot grow
    tgt = torch.tensor([[BOS, 4, 4, 4], [BOS, 5, 5, 5]])
    memory = torch.zeros(2, 3, model.config.d_model)
    src = torch.tensor([[4, 5, EOS], [4, EOS, PAD]])

    def last(tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        x = plain.decode(tgt, memory, src)[:, -1]
        return plain.embeddings.logits(x)

    inputs = {"tgt": tgt, "memory": memory, "src": src}
    encode, decode = _Graph(plain, plain.encode), _Graph(plain, last)
    _write(encode, {"src": src}, "memory", folder / "encoder.onnx")
    _write(decode, inputs, "logits", folder / "decoder.onnx")


class _Graph(nn.Module):
    """A function of the model, as a module."""

    def __init__(self, model: Transformer, call: Callable[..., Tensor]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs)


def _write(
    graph: _Graph, inputs: dict[str, Tensor], output: str, path: Path
) -> None:
    how: dict[str, Any] = {}
    if _by_dynamo():
        most = {"batch": None, "src_len": _POSITIONS, "tgt_len": _POSITIONS}
        sizes = {n: torch.export.Dim(n, max=m) for n, m in most.items()}
        shapes = tuple(
            {i: sizes[axis] for i, axis in _AXES[name].items()}
            for name in inputs
        )
        large = sum(p.numel() for p in graph.parameters()) > 2**28
        how |= {"dynamo": True, "dynamic_shapes": (shapes,)}
        how |= {"external_data": large, "verbose": False}
    else:  # torch before 2.6 has only the older exporter
        names = (*inputs, output)
        how |= {"dynamic_axes": {name: _AXES[name] for name in names}}
        how |= {"opset_version": 17}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own parts
        torch.onnx.export(
            graph.eval(),
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=[output],
            **how,
        )


# E11-export.md: A run
def export_run(
    run: Run,
    to: str,
    folder: Path,
    results: Mapping[str, Any] | None = None,
) -> None:
    """Write run to a new folder as "safetensors", "onnx", "ctranslate2" or
    "transformers"; results are scores for a model card, by split.

    RunError if the folder already holds something, if a package is
    missing, or if the format is none of these, or does not support the
    model.
    """
    if to not in FORMATS:
        raise RunError(unknown("format", to, FORMATS))
    check_paper(run.model)
    for name, weight in run.model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise RunError(f"{name} has numbers that are not finite")
    _check_supported(run.model.config, to)
    model = deepcopy(run.model).cpu().eval()  # the caller's stays unchanged
    with new_folder(folder) as fresh:
        if to == "onnx":
            _write_onnx(model, fresh)
        elif to == "ctranslate2":
            src, tgt = vocabulary(run.source), vocabulary(run.target)
            write_ctranslate2(model, src, tgt, fresh)
        elif to == "transformers":
            write_transformers(run, model, fresh, results)
        else:
            weights = dict(model.named_parameters())
            write_tensors(weights, fresh / "model.safetensors")
        if to in ("safetensors", "transformers"):
            # where it trained, and from what, stays with the run
            bare = dataclasses.replace(run, fingerprints={}, first="")
            bare.write_recipe(fresh)
        if to in ("safetensors", "onnx"):  # the others have their own
            config = dataclasses.asdict(model.config)
            write_json(fresh / "config.json", config)
        run.source.save(fresh / "source.json")
        run.target.save(fresh / "target.json")
