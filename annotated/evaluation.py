"""annotated.evaluation.

Exported from the book; edit the chapter, then run `make export`.

- 16-bleu-and-averaging.md: BLEU, and averaging
"""

import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors.torch
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from torch import Tensor

__all__ = ["score", "split_hyphens", "average_weights", "ledger"]


# 16-bleu-and-averaging.md: A number needs a signature
def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    split_compounds: bool = False,
) -> dict[str, Any]:
    """sacreBLEU (cased, 13a) and its signature, chrF, and the share of
    hypotheses that equal their reference, all in percent.

    With split_compounds, BLEU is counted on words split at hyphens, as
    the paper's was; the signature says so, and it compares with no other.
    Raises ValueError where the sides differ in number or are empty.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses, {len(references)} references"
        )
    if not references:
        raise ValueError("there is nothing to score")
    bleu, signature = _bleu(hypotheses, references, split_compounds)
    chrf = CHRF().corpus_score(hypotheses, [references])
    pairs = zip(hypotheses, references, strict=True)
    equal = sum(one == other for one, other in pairs)
    return {
        "bleu": round(bleu, 2),
        "signature": signature,
        "chrf": round(chrf.score, 2),
        "exact_match": round(100 * equal / len(references), 2),
        "sentences": len(references),
    }


def _bleu(
    hypotheses: Sequence[str], references: Sequence[str], split: bool
) -> tuple[float, str]:
    """BLEU, unrounded, and its signature."""
    if not split:
        bleu = BLEU()
        found = bleu.corpus_score(hypotheses, [references])
        return found.score, str(bleu.get_signature())
    bleu = BLEU(tokenize="none")
    sides = [
        [split_hyphens(x) for x in y] for y in (hypotheses, references)
    ]
    found = bleu.corpus_score(sides[0], [sides[1]])
    signature = str(bleu.get_signature())
    return found.score, signature.replace("tok:none", "tok:13a+hyphens")


def split_hyphens(line: str) -> str:
    """line in 13a's tokens, and those split at inner hyphens: a-b becomes
    a ##AT##-##AT## b, the form in which the paper's BLEU was counted.
    """
    tokens = Tokenizer13a()(line)
    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", tokens)


# 16-bleu-and-averaging.md: Averaging checkpoints
def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (§6.1).

    Raises ValueError where there are none, where one cannot be read, or
    where they differ in names or shapes.
    """
    if not paths:
        raise ValueError("there are no checkpoints to average")
    total: dict[str, Tensor] = {}
    first = _read_weights(paths[0])
    for path in paths:
        weights = _read_weights(path)
        for name in sorted(first.keys() | weights.keys()):
            one, other = first.get(name), weights.get(name)
            if one is None or other is None or one.shape != other.shape:
                raise ValueError(
                    f"{path} and {paths[0]} are no checkpoints of one "
                    f"model: they differ in {name}"
                )
            total[name] = total.get(name, 0) + other.double()
    return {
        n: (t / len(paths)).to(first[n].dtype) for n, t in total.items()
    }


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


# 16-bleu-and-averaging.md: The ledger
def ledger() -> dict[str, dict[str, Any]]:
    """The runs that someone made, by name, as book/results has them."""
    file = resources.files("annotated") / "results.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
