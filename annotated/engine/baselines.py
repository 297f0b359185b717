"""Exported from the book; edit the chapter, then run `make export`."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU

from annotated.batches import Corpus
from annotated.corpora.marks import MarkedTokenizer, untagged
from annotated.corpora.neighbours import nearest
from annotated.corpora.registry import folder_of, registry
from annotated.corpora.sentencepieces import tags_of
from annotated.corpora.synthetic import SYNTHETIC
from annotated.engine.data import open_data, prepared_data
from annotated.engine.errors import DataError, UsageError
from annotated.engine.runs import Run
from annotated.evaluation import score

__all__ = ["interval", "baselines"]


# E35-beside-a-score.md: The interval
def interval(
    hypotheses: Sequence[str], references: Sequence[str], draws: int = 1000
) -> dict[str, float]:
    """bleu_low and bleu_high: 95 % of the bootstrap's draws of sentences
    have a BLEU between them.
    """
    metric, draw = BLEU(force=True), np.random.default_rng(0)
    # what sacreBLEU's own bootstrap begins with
    counts = metric._extract_corpus_statistics(hypotheses, [references])
    n, rows = len(counts), np.array(counts)
    times = (draw.multinomial(n, np.full(n, 1 / n)) for _ in range(draws))
    total = metric._compute_score_from_stats
    drawn = [total((each @ rows).tolist()).score for each in times]
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return {"bleu_low": round(low, 2), "bleu_high": round(high, 2)}


# E35-beside-a-score.md: The baselines
_MEMORY = 20_000  # generated pairs to look up


def baselines(
    run: Run, src: Sequence[str], ref: Sequence[str], data: str = ""
) -> dict[str, dict[str, float]]:
    """BLEU and chrF of copying the source, and of the translation of the
    most similar training sentence, if the training set is here; data is
    where it is now, if it has been moved.
    """
    tags = tags_of(run.source)
    others = {"copied": [untagged(line, tags) for line in src]}
    if (memory := _training_set(run, data)) is not None:
        queries = run.source.encode(list(src))
        found = nearest(queries, memory.src)
        ids = [memory.tgt[int(i)].tolist() for i in found]
        others["nearest"] = run.target.decode(ids)
        if isinstance(target := run.target, MarkedTokenizer):
            pairs = zip(others["nearest"], src)
            others["nearest"] = [target.restored(*pair) for pair in pairs]
    return {
        name: {n: v for n, v in score(lines, ref).items() if n in _KEPT}
        for name, lines in others.items()
    }


_KEPT = "bleu", "chrf"


def _training_set(run: Run, data: str) -> Corpus | None:
    """What the run was trained on, if that is on this machine."""
    recipe = run.recipe.changed(data=data) if data else run.recipe
    if recipe.data in SYNTHETIC:
        few = min(recipe.train_pairs or _MEMORY, _MEMORY)
        recipe = recipe.changed(train_pairs=few)
    here = recipe.data not in registry() or (
        prepared_data(recipe) is not None or folder_of(recipe.data).is_dir()
    )
    if not here:
        return None
    try:
        tokenizers = run.source, run.target
        return open_data(recipe, tokenizers).corpus("train")
    except (DataError, UsageError, OSError):
        return None
