"""Does a published model say here what it says in transformers?

    pip install sentencepiece huggingface_hub transformers
    python benchmarks/published.py FOLDER LINES --json book/results/NAME.json

FOLDER is a model as it is published, LINES a text in its source language.
Tokens are compared on all lines, both ways; logits on a few, in float64;
what greedy search writes on some more. A minute or two for a large model.

A folder with all of a model but its weights can be tried as well: it gets
random ones, of the shapes that its configuration asks for, in the old form
of pytorch_model.bin. The report says so.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import tyro
from ledger import write

from annotated.book.results import entry
from annotated.embeddings import SinusoidalPositions
from annotated.engine.search import beam_search
from annotated.exchange.marian import Published, import_marian
from annotated.model import Transformer
from annotated.search import SearchConfig
from annotated.tokens import BOS, EOS, PAD

WEIGHTS = "model.safetensors", "pytorch_model.bin"
FEW, SOME, LONGEST = 8, 40, 24  # lines for logits, for search; its limit


def with_weights(folder: Path, place: Path) -> str:
    """Copy folder to place; returns what kind of weights it has there."""
    from transformers import AutoConfig, MarianMTModel

    shutil.copytree(folder, place)
    if any((place / name).is_file() for name in WEIGHTS):
        return "published"
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(place)
    config.init_std = 0.06  # its outputs should vary
    model = MarianMTModel(config)
    with torch.no_grad():
        model.get_input_embeddings().weight[config.pad_token_id] = 0
        model.final_logits_bias.normal_()
    torch.save(
        {name: x.clone() for name, x in model.state_dict().items()},
        place / WEIGHTS[1],
        _use_new_zipfile_serialization=False,
    )
    return "random"


def as_theirs(ids: list[int], found: Published, side: int) -> list[int]:
    """Our ids as those of the published vocabulary."""
    order = found.rows[side].order
    pad = order[BOS] if order[PAD] is None else order[PAD]
    return [pad if order[i] is None else order[i] for i in ids]  # type: ignore[misc]


def tokens_that_differ(
    found: Published, tokens: Any, lines: list[str]
) -> dict[str, int]:
    """On how many lines the tokens, or the text that they give, differ."""
    code = getattr(found.source, "code", "")
    given = tokens([code + line for line in lines]).input_ids
    own = found.source.encode(lines)
    ids = sum(
        [*as_theirs(row, found, 0), other[-1]] != other
        for row, other in zip(own, given, strict=True)
    )
    said = tokens(text_target=lines).input_ids
    texts = found.target.decode(found.target.encode(lines))
    back = tokens.batch_decode(
        said, skip_special_tokens=True, use_source_tokenizer=False,
        clean_up_tokenization_spaces=False,  # which makes "a 'b" into "a'b"
    )  # fmt: skip
    text = sum(a != b for a, b in zip(texts, back, strict=True))
    return {"source_lines": ids, "target_lines": text}


def double(found: Published) -> Transformer:
    """The imported model in float64, but for the positions: float32's
    numbers, as in transformers.
    """
    model = Transformer(found.config).double().eval()
    for part in model.modules():
        if isinstance(part, SinusoidalPositions):
            part.dtype = part.table.dtype  # so that it keeps its table
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(found.weights[name])
    return model


def gap(
    found: Published, ours: Any, theirs: Any, lines: list[str]
) -> float:
    """The largest difference of a logit; the targets are random."""
    order = found.rows[1].order
    kept = [i for i, row in enumerate(order) if row is not None]
    worst = 0.0
    for ids in found.source.encode(lines[:FEW]):
        src = [*ids, EOS]
        drawn = torch.randint(4, len(found.target), (len(src),)).tolist()
        tgt = [BOS, *drawn]
        with torch.no_grad():
            own = ours(torch.tensor([src]), torch.tensor([tgt]))
            given = theirs(
                input_ids=torch.tensor([as_theirs(src, found, 0)]),
                decoder_input_ids=torch.tensor([as_theirs(tgt, found, 1)]),
            ).logits
        columns = [order[i] for i in kept]
        worst = max(
            worst, (own[..., kept] - given[..., columns]).abs().max().item()
        )
    return worst


def translated_alike(
    found: Published, ours: Any, theirs: Any, lines: list[str]
) -> tuple[int, int]:
    """How many lines greedy search writes in the same tokens in both, and
    of how many different tokens they are made.
    """
    config = SearchConfig(beam=1, limit=LONGEST)
    sources = found.source.encode(lines[:SOME])
    best = beam_search(ours, sources, config)
    same, said = 0, set[int]()
    for ids, [mine, *_] in zip(sources, best, strict=True):
        src, end = (
            torch.tensor([as_theirs([*ids, EOS], found, 0)]),
            theirs.config.eos_token_id,
        )
        [row] = theirs.generate(
            input_ids=src, attention_mask=torch.ones_like(src), num_beams=1,
            do_sample=False, max_length=LONGEST + 1, forced_eos_token_id=end,
        ).tolist()  # fmt: skip
        row = row[1:]
        written = as_theirs(mine.ids, found, 1)
        same += row[: row.index(end)] == written
        said.update(written)
    return same, len(said)


def main(
    folder: tyro.conf.Positional[Path],
    lines: tyro.conf.Positional[Path],
    *, name: str = "", copy: str = "", language: str | None = None,
    json: Path | None = None,
) -> None:  # fmt: skip
    """Import, compare, report.

    Args:
        folder: a model as it is published
        lines: a text in its source language, a sentence per line
        name: of the model; the folder's, unless given
        copy: where the folder is from, if it is a copy
        language: the target, if the model has several
        json: the ledger file to write
    """
    from transformers import AutoTokenizer, MarianMTModel

    torch.set_num_threads(1)
    work, text = Path(tempfile.mkdtemp()), lines.read_text("utf-8")
    sentences = [line for line in text.splitlines() if line.strip()]
    weights = with_weights(folder, work / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a package that it does not use
        tokens = AutoTokenizer.from_pretrained(work / "model")
    started = time.perf_counter()
    run = import_marian(work / "model", work / "run", language)
    seconds = time.perf_counter() - started
    found = Published.read(work / "model", language)
    theirs = MarianMTModel.from_pretrained(
        work / "model", dtype=torch.float64
    ).eval()
    ours = double(found)
    same, said = translated_alike(found, ours, theirs, sentences)
    report = {
        "weights": weights,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "vocabulary": len(run.source),
        "import_seconds": seconds,
        "lines": len(sentences),
        "differ": tokens_that_differ(found, tokens, sentences),
        "logit_gap": gap(found, ours, theirs, sentences),
        "searched": len(sentences[:SOME]),
        "same": same,
        "written": said,
    }
    shutil.rmtree(work)
    print(report)
    if json is not None:
        given = {"model": name or folder.name, "copy": copy}
        given |= {"lines": lines.name, "language": language or ""}
        command = "python benchmarks/published.py FOLDER LINES"
        packages = ("transformers", "sentencepiece")
        content = entry(
            "published", command, report,
            settings=given, threads=1, packages=packages,
        )  # fmt: skip
        write(json, content)


if __name__ == "__main__":
    tyro.cli(main, description=(__doc__ or "").splitlines()[0])
