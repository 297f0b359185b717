"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from annotated.commands.options import Flag, given
from annotated.commands.translate import (
    ConstraintOptions,
    VoteOptions,
    tell_gaps,
)
from annotated.corpora.marks import missing
from annotated.corpora.pairs import TextPair, columns_of
from annotated.corpora.reading import json_of, read_lines
from annotated.corpora.sentencepieces import tag_before, tags_of
from annotated.engine.baselines import baselines, interval
from annotated.engine.data import open_data
from annotated.engine.distributed import (
    all_gather,
    process_group,
    rank,
    world_size,
)
from annotated.engine.errors import RunError, UsageError
from annotated.engine.files import write_json
from annotated.engine.parsing import tree_guide, tree_scores
from annotated.engine.runs import SCORES, Run, run_folder
from annotated.evaluation import compare, score

__all__ = ["Evaluate"]


# E12-command-line.md: Evaluate
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(ConstraintOptions, VoteOptions):
    """Translate a test set and score it against its references."""

    split: str | None = None  # a split of the recipe's data: valid or test
    # a file to translate instead; needs --ref, the same if it has both
    src: Path | None = None
    ref: Path | None = None  # its reference translations
    # where the data is now, if it has been moved (unset: as in training)
    data: str | None = None
    # another run, or a file of translations, to compare with
    against: Path | None = None
    # add BLEU as the paper counted it: words split at hyphens
    split_compounds: Flag = False
    # with --split: keep the scores in the run folder, for its model card
    keep: Flag = False
    json: Flag = False  # print JSON, one object on one line

    def act(self) -> None:
        """Translate, score, compare, print."""
        texts = [v is not None for v in (self.split, self.src, self.ref)]
        if texts not in ([True, False, False], [False, True, True]):
            raise UsageError("evaluate: give --split, or --src with --ref")
        if self.data is not None and self.split is None:
            raise UsageError("evaluate: --data goes with --split")
        if self.keep and (self.split is None or self.ensemble):
            raise UsageError(
                "evaluate: --keep goes with --split, and with a single run"
            )
        self.check_constraints()
        if self.keep:  # or the search would have been for nothing
            self._kept()
        with process_group(self.device) as own:
            scores = dataclasses.replace(self, device=own).scores()
            if rank() == 0:
                print(json.dumps(scores) if self.json else _table(scores))
                if self.keep:
                    self._keep(scores)

    def _keep(self, scores: dict[str, Any]) -> None:
        """Add the scores of the split to those of the run."""
        own = {n: v for n, v in scores.items() if n != "against"}
        kept = self._kept() | {str(self.split): own}
        write_json(run_folder(self.run) / SCORES, kept)

    def _kept(self) -> dict[str, Any]:
        """The scores that the run has. RunError if they are damaged."""
        folder = run_folder(self.run)
        if folder != self.run:
            raise UsageError(
                f"evaluate: --keep writes into the run, and {self.run} is "
                f"the package's: copy {folder}, and give the copy to --run"
            )
        path = folder / SCORES
        kept = json_of(path) if path.exists() else {}
        if not isinstance(kept, dict):
            raise RunError(f"{path} is damaged: delete it, then try again")
        return kept

    def scores(self) -> dict[str, Any]:
        """The scores of the whole test set, in every process."""
        run = self.open()
        asked = [*self.constraints(), *given(self, "mbr")]
        for name in asked if run.recipe.target == "tree" else ():
            raise UsageError(f"evaluate: {name} is nothing for trees")
        if self.src is not None and self.ref is not None:
            ways = run.recipe.source, run.recipe.target
            part = TextPair.of_files(self.src, self.ref, languages=ways)
            src, ref = columns_of(
                pair
                for pair in part.pairs()
                # in a file with both sides: what is not translated
                if part.apart or all(pair)
            )
            if not src:
                raise RunError(f"{self.src} has nothing that is translated")
        else:
            recipe = run.recipe
            if self.data is not None:
                recipe = recipe.changed(data=self.data)
            src, ref = open_data(recipe).text(str(self.split))
        rival = self._rival(run, len(src))
        started = time.perf_counter()
        found = self._translated(run, src)
        seconds = round(time.perf_counter() - started, 2)
        if rank() == 0:
            tell_gaps(src, found, missing(run.source, src, found))
        if run.recipe.target == "tree":
            scores = tree_scores(src, found, ref)
        else:
            scores = score(found, ref, self.split_compounds)
        scores |= {"seconds": seconds}
        if rank() == 0 and run.recipe.target != "tree":
            _tell_short(found, scores)
            _tell_tokenised(found)
            scores |= interval(found, ref)
            scores |= baselines(run, src, ref, self.data or "")
            scores |= _by_tag(run, src, found, ref)
            scores |= _placeholders(run, src, found)
            scores |= given(self, "mbr")
        if rival is not None:
            if isinstance(rival, Run):
                rival = self._translated(rival, src)
            tests = compare(found, rival, ref)
            scores["against"] = score(rival, ref, self.split_compounds) | {
                f"{name}_difference": test for name, test in tests.items()
            }
        return scores

    def _translated(self, run: Run, src: list[str]) -> list[str]:
        """A run's translation of src, divided among the processes."""
        own = src[rank() :: world_size()]
        asked: dict[str, Any] = {"guide": tree_guide(run)}
        asked |= self.wishes(run)(own)
        found = self.translate(run, own, self.search(run), **asked)
        parts = all_gather([best[0].text for best in found])
        whole = list(src)
        for i, part in enumerate(parts):
            whole[i :: len(parts)] = part
        return whole

    def _rival(self, run: Run, count: int) -> Run | list[str] | None:
        """The other run, or the output of another system."""
        if self.against is None:
            return None
        if run.recipe.target == "tree":
            raise UsageError("evaluate: --against needs translations")
        if not run_folder(self.against).is_dir():
            lines = read_lines(self.against)
            if len(lines) != count:
                raise UsageError(
                    f"{self.against} has {len(lines)} lines, but the test "
                    f"set has {count}"
                )
            return lines
        # searched like ours, but alone, and with the tag where it has it
        known = tags_of(Run.open(self.against).source)
        tag = self.tag if self.tag in known else None
        likewise = dataclasses.replace(
            self, run=self.against, ensemble=(), tag=tag
        )
        other = likewise.open()
        ours, theirs = (
            f"{r.recipe.source} to {r.recipe.target}" for r in (run, other)
        )
        if ours != theirs:
            raise RunError(
                f"{self.against} translates {theirs}, {self.run} {ours}"
            )
        return other


def _tell_short(found: list[str], scores: dict[str, Any]) -> None:
    cut = Tokenizer13a()  # as BLEU counts tokens
    short = all(len(cut(text).split()) < 4 for text in found)
    if short and scores["exact_match"] > 0:
        print(
            "BLEU is 0 because no translation has four tokens, and it "
            "counts runs of up to four: look at chrf and exact_match",
            file=sys.stderr,
        )


def _tell_tokenised(found: list[str]) -> None:
    if 2 * sum(text.endswith(" .") for text in found) > len(found):
        print(
            'the translations are tokenised (" ." for a full stop): '
            "compare their BLEU only with that of text tokenised alike",
            file=sys.stderr,
        )


def _by_tag(
    run: Run, src: list[str], found: list[str], ref: list[str]
) -> dict[str, Any]:
    """BLEU and chrF of the sentences of each tag, if there are several."""
    rows = defaultdict[str, list[int]](list)
    for i, line in enumerate(src):
        rows[tag_before(run.source, line)].append(i)
    if len(rows) < 2:
        return {}
    scores = {}
    for tag, some in sorted(rows.items()):
        each = score([found[i] for i in some], [ref[i] for i in some])
        names = "bleu", "chrf", "sentences"
        scores[tag or "no tag"] = {name: each[name] for name in names}
    return scores


def _placeholders(
    run: Run, src: list[str], found: list[str]
) -> dict[str, int]:
    """How many sentences have placeholders, and how many kept them all."""
    lost = missing(run.source, src, found)
    if not lost:
        return {}
    bare = missing(run.source, src, [""] * len(src))
    have = [bool(some) for some in bare]
    kept = sum(some and not gone for some, gone in zip(have, lost))
    return {"placeholders": sum(have), "all_kept": kept}


def _table(scores: dict[str, Any]) -> str:
    """Scores as text, one per line, next to the other system's."""
    others = scores.pop("against", {})
    rows = []
    for name, value in scores.items():
        if isinstance(value, dict):
            value = f"bleu {value['bleu']}, chrf {value['chrf']}"
        other = others.pop(name, value)
        beside = "" if other == value else other
        rows.append(f"{name:15} {value!s:12} {beside}".rstrip())
    for name, test in others.items():
        rows.append(
            f"{name:15} {test['difference']:+.2f}, in 95 % of draws "
            f"{test['low']:+.2f} to {test['high']:+.2f}, "
            f"p = {test['p']:.3g}"
        )
    return "\n".join(rows)
