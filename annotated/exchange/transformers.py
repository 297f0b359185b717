"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from annotated.corpora.sentencepieces import (
    SentencePieces,
    same_tokens,
    vocabulary,
)
from annotated.engine.errors import RunError
from annotated.engine.files import write_json, write_text
from annotated.engine.packing import PAPER_PARTS, check_paper
from annotated.engine.runs import Run
from annotated.engine.tensors import write_tensors
from annotated.exchange.marian import (
    IDS,
    TARGET_VOCAB,
    config_of,
    marian_weights,
)
from annotated.model import Transformer
from annotated.tokens import BOS, EOS, PAD, SPECIALS, Tokenizer

__all__ = ["write_transformers"]


# E25-published-weights.md: The way back
def write_transformers(
    run: Run,
    model: Transformer,
    folder: Path,
    results: Mapping[str, Any] | None = None,
) -> None:
    """Write a run, with the weights of model, as a folder that the library
    transformers loads; results are scores for the model card, by split.
    RunError if the model has parts of its own, or if its one table has two
    vocabularies.
    """
    check_paper(model, PAPER_PARTS)
    config = model.config
    sides = vocabulary(run.source), vocabulary(run.target)
    if config.tie == "all" and sides[0] != sides[1]:
        raise RunError("tie all needs one vocabulary for both sides")
    path = folder / "model.safetensors"
    write_tensors(marian_weights(model), path, {"format": "pt"})
    write_json(folder / "config.json", config_of(config))
    write_json(folder / "generation_config.json", _generation(run))
    _write_tokenizer(run, folder)
    card = _model_card(run, results or {})
    (folder / "README.md").write_text(card, "utf-8")


def _generation(run: Run) -> dict[str, Any]:
    """generation_config.json: the run's search, as far as it is the same.
    transformers divides by the length to a power, not by the paper's
    penalty.
    """
    search = run.recipe.search
    return {
        "num_beams": search.beam,
        "length_penalty": search.alpha,
        "max_length": (search.limit or 511) + 1,  # and the start
        "bad_words_ids": [[PAD], [BOS]],
        **IDS,
    }


def _write_tokenizer(run: Run, folder: Path) -> None:
    """Write the tokenizers for transformers. Where the two sides differ
    and are not sentencepiece, there is a folder for each.
    """
    source, target = run.source, run.target
    one = same_tokens(source, target)
    if isinstance(source, SentencePieces) and isinstance(
        target, SentencePieces
    ):
        one = source.pieces == target.pieces
        files = {"vocab.json": source.pieces, TARGET_VOCAB: target.pieces}
        for name, pieces in list(files.items())[: 1 if one else 2]:
            ids = {piece: i for i, piece in enumerate(pieces)}
            write_json(folder / name, ids)
        (folder / "source.spm").write_bytes(source.model)
        (folder / "target.spm").write_bytes(target.model)
        settings: dict[str, Any] = {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": not one,
            "source_lang": run.recipe.source,
            "target_lang": run.recipe.target,
            "model_max_length": 512,
        }
        write_json(folder / "tokenizer_config.json", settings)
        return
    sides = {"source": source, "target": target}
    for name, tokenizer in {"": source}.items() if one else sides.items():
        (folder / name).mkdir(exist_ok=True)
        _write_fast(tokenizer, folder / name)


def _write_fast(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json, which ends each sentence with EOS."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    end = SPECIALS[EOS]
    inner.post_processor = TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, EOS)]
    )
    write_text(folder / "tokenizer.json", inner.to_str())
    named = zip(("pad", "bos", "eos", "unk"), SPECIALS)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": token for name, token in named},
    }
    write_json(folder / "tokenizer_config.json", settings)


_CARD = """---
library_name: transformers
pipeline_tag: translation
---
# {about}

A Transformer of {parameters:,} parameters that translates {source} to
{target}, {origin} with `annotated`, the package of *Attention,
Annotated*. Its licence is for whoever publishes it to decide, and the data
may have a say.

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(FOLDER{subfolder})
    model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER)
    ids = model.generate(**tokenizer(["{example}"], return_tensors="pt"))
{decode}

The logits are those of the run. The search is not quite: the run divides a
log-probability by ((5 + n) / 6)^{alpha} for n tokens, transformers by
n^{alpha}, and only the run limits an output to {extra} tokens more than its
source has. `annotated import marian FOLDER --out RUN` gives the run back.
The task "translation" of pipeline() is gone from transformers 5: use the
lines above.

## Scores

{scores}
"""

_DECODE = {  # by whether one folder has the tokens of both sides
    True: """\
    print(tokenizer.batch_decode(ids, skip_special_tokens=True))""",
    False: """\
    target = AutoTokenizer.from_pretrained(FOLDER, subfolder="target")
    print(target.batch_decode(ids, skip_special_tokens=True))""",
}


def _score_lines(results: Mapping[str, Any]) -> str:
    """A run's scores by split, as lines of a model card."""
    lines = []
    for split, scores in results.items():
        values = [
            f"{name} {value:.4g}"
            for name, value in scores.items()
            if name in _SCORES
        ]
        signature = scores.get("signature")
        end = f" (`{signature}`)" if signature else ""
        lines.append(f"- {split}: {', '.join(values)}{end}")
    return "\n".join(lines) or "The run has none."


_SCORES = "perplexity", "nll", "bleu", "chrf", "exact_match"


def _model_card(run: Run, results: Mapping[str, Any]) -> str:
    recipe = run.recipe
    code = getattr(run.source, "code", "")
    pieces = isinstance(run.source, SentencePieces)
    one = pieces or same_tokens(run.source, run.target)
    return _CARD.format(
        about=recipe.about,
        parameters=sum(p.numel() for p in run.model.parameters()),
        source=recipe.source,
        target=recipe.target,
        origin=(
            "imported"
            if recipe.data == "imported"
            else f"trained on the data set {Path(recipe.data).name}"
        ),
        decode=_DECODE[one],
        subfolder="" if one else ', subfolder="source"',
        example=f"{code} A sentence.".strip(),
        alpha=recipe.search.alpha,
        extra=recipe.search.extra,
        scores=_score_lines(results),
    )
