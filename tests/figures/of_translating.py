"""What figures of search, scores and trees have to compute, by the package."""

from __future__ import annotations

import base64
import itertools
import random
import re
from typing import Any

import torch
from sacrebleu.metrics import BLEU

from annotated.book.portable import portable
from annotated.book.results import ledger, rounded
from annotated.engine.runs import Run
from annotated.parsing import _spoken, compare_trees, linearise, tree_over
from annotated.pocket import pocket_pairs, words
from annotated.pocket.german import german_sentence
from annotated.pocket.meaning import Clause, Meaning, Phrase
from annotated.school.exercises import exercises
from annotated.search import (
    KVCache,
    SearchConfig,
    _grow_beams,
    log_p_after,
)
from annotated.search import beam as beam_search
from annotated.tokens import (
    BOS,
    EOS,
    SPECIALS,
)
from tests.figures.of_the_model import small_model
from tests.helpers import ROOT


def sample() -> dict[str, Any]:
    """What exercise 16-sample leaves of the counts of page 16, and the
    words that are drawn from it.
    """
    page = (ROOT / "book" / "16-search.md").read_text(encoding="utf-8")
    start = page.index("from pydoc_data")
    names: dict[str, Any] = {}
    exec(exercises()["16-sample"].reference, names)
    exec("from collections import Counter, defaultdict\nimport re", names)
    exec(page[start : page.index("```", start)], names)
    follows = names["follows"]

    def left(last: str, how: dict[str, Any]) -> list[tuple[str, float]]:
        letters, counts = zip(*sorted(follows[last].items()), strict=True)
        logits = torch.tensor(counts, dtype=torch.float64).log()
        cut = names["sampling_probabilities"](
            logits, how["T"], how["k"], how["p"]
        )
        rows = sorted(zip(letters, cut.tolist()), key=lambda row: -row[1])
        return [row for row in rows if row[1] > 0]

    def drawn(begin: str, how: dict[str, Any], seed: int) -> list[str]:
        state, words = 2654435761 * seed % 2**32, []
        for _ in range(50):
            text = begin
            while len(text) < 12:
                state = (1664525 * state + 1013904223) % 2**32
                rows = left(f"^^^{text}"[-3:], how)
                sums = itertools.accumulate(p for _, p in rows)
                above = [x for x in sums if x > state / 2**32]
                letter = rows[min(-len(above), -1)][0]
                if letter == "$":
                    break
                text += letter
            words.append(text)
        return words

    cases = []
    for begin, seed, T, k, p in (
        ("s", 1, 1.0, 27, 1.0),
        ("s", 2, 0.3, 27, 1.0),
        ("pro", 3, 2.0, 3, 0.8),
        ("", 4, 1.0, 27, 0.8),
        ("s", 1, 1.0, 1, 1.0),
    ):
        how = {"T": T, "k": k, "p": p}
        words = drawn(begin, how, seed)
        cases.append(
            {
                "begin": begin,
                "seed": seed,
                "how": how,
                "left": left(f"^^^{begin}"[-3:], how),
                "words": words,
                "real": sum(word in names["manual"] for word in words),
                "different": len(set(words)),
            }
        )
    known = list(names["manual"])
    return {"follows": follows, "known": known, "cases": cases}


def beam() -> list[dict[str, Any]]:
    """The searches of the package over the language of page 16, and over
    one in which the other first word is likelier.
    """
    page = (ROOT / "book" / "16-search.md").read_text(encoding="utf-8")
    cell = page[page.index("chances = {") : page.index("where = {")]
    names: dict[str, Any] = {}
    exec(cell, names)
    first = names["chances"]
    other = first | {"<s>": {"it": 0.3, "the": 0.5, "dogs": 0.2}}
    words = SPECIALS + [
        "it",
        "the",
        "dogs",
        "is",
        "was",
        "dog",
        "hound",
        "barks",
        "loud",
    ]
    cases = []
    for chances in (first, other):

        def after(ids: list[int], chances: Any = chances) -> torch.Tensor:
            nexts = chances[words[ids[-1]]]
            return torch.tensor([nexts.get(w, 0.0) for w in words]).log()

        for k in (1, 2, 3, 4):
            for alpha in (0.0, 0.6, 1.5):
                config = SearchConfig(beam=k, alpha=alpha, nbest=k)
                ended = [
                    (
                        " ".join(words[i] for i in one.ids),
                        one.log_probability,
                        one.score,
                    )
                    for one in beam_search(after, 6, config)
                ]
                cases.append(
                    {
                        "chances": chances,
                        "k": k,
                        "alpha": alpha,
                        "ended": ended,
                    }
                )
    return cases


def bleu() -> list[dict[str, Any]]:
    """sacreBLEU on words, without smoothing."""
    cases = []
    metric = BLEU(smooth_method="none", tokenize="none")
    for hypotheses, references in (
        (
            ["a dog runs across the grass .", "two men sit on a bench ."],
            ["a dog is running across the grass .", "two men sit here ."],
        ),
        (["the the the the the"], ["the cat is on the mat"]),
        (["a b c d e f g"], ["a b c d e f g"]),
        (["a b"], ["a b c d e f"]),
        (["b c d e a b c d e"], ["a b c d e"]),
    ):
        found = metric.corpus_score(hypotheses, [references])
        cases.append(
            {
                "hypotheses": hypotheses,
                "references": references,
                "counts": found.counts,
                "totals": found.totals,
                "penalty": found.bp,
                "score": found.score,
            }
        )
    return cases


class Recorded(KVCache):
    """A cache that writes down how its rows move, and what it holds."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.moved: list[list[int]] = []
        self.held: list[int] = []

    def next_logits(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().next_logits(ids)
        numbers = sum(p.k.numel() + p.v.numel() for p in self.past)
        self.held.append(4 * numbers)
        return logits

    def reorder(self, rows: torch.Tensor) -> None:
        super().reorder(rows)
        self.moved.append(rows.tolist())


def cache() -> list[dict[str, Any]]:
    """A search with the cache beside the one of chapter 16."""
    model = small_model("post", "decoder")[0].float()
    config = SearchConfig(beam=3, alpha=0.0)
    src, limit = [4, 7, 5, 9], 8
    source = torch.tensor([[*src, EOS]])
    found: dict[int, list[list[int]]] = {}

    def after(ids: list[int]) -> torch.Tensor:
        found.setdefault(len(ids), []).append(ids)
        return log_p_after(model, source, ids)

    with torch.no_grad():
        beam_search(after, limit, config)
        kept = Recorded(model, source.repeat_interleave(3, dim=0))
        _grow_beams(kept, torch.tensor([limit]), config)
    # in its first step one row counts; then all three come from it
    steps = [[[BOS]] * 3, *list(found.values())[1:]]
    assert len(steps) > 3
    moved = [[0, 0, 0], *kept.moved[1:]]
    size = {"layers": 2, "d": 16}
    return [
        {"steps": steps, "rows": moved, "held": kept.held, "size": size}
    ]


def tree() -> list[dict[str, Any]]:
    """Trees over random tokens, and what the package makes of them."""
    draw = random.Random(0)
    words = ["He", "said", ":", "up", ",", "and", "away", "it", "went", "."]
    kinds = ["S", "NP", "VP", "PRT", "ADVP", "NP-SBJ-1", "TOP", "NP=2", ""]
    marks = [mark + kind for mark in "()" for kind in kinds]
    tags = ["NN", "VBD", "-NONE-", ".", ",", "XX"]
    scored, cases = 0, []
    for size in range(120):
        usual = marks + 9 * tags[: 2 if size % 3 else None]
        gold_tokens = draw.choices(usual, k=size // 2)
        # the same with some moved or lost, or others altogether
        tokens = [x for x in gold_tokens if draw.random() < 0.9]
        if size % 4 == 0:
            tokens = draw.choices(usual, k=size // 2)
        if size % 5 == 0:  # which evalb does not tell apart
            tokens = [x.replace("PRT", "ADVP") for x in tokens]
        gold, guess = (tree_over(words, x) for x in (gold_tokens, tokens))
        score = compare_trees(gold, guess)
        scored += score.matched > 2
        cases.append(
            {
                "words": words,
                "truth": gold_tokens,
                "tokens": tokens,
                "tree": linearise(guess),
                "spoken": _spoken(guess),
                "counted": score.errors == 0,
                "numbers": [score.matched, score.gold, score.guessed],
                "shares": [score.precision, score.recall, score.f1],
            }
        )
    assert scored > 9 and sum(not one["counted"] for one in cases) > 9
    return cases


EVERYDAY = sorted((ROOT / "data" / "runs").glob("everyday-en-??"))


def sentences() -> list[str]:
    """Two hundred: a hundred ordinary ones, thirty that people type, and
    the English of seventy test sentences of pocket German.
    """
    hundred = [
        row[0] for row in ledger()["everyday-en-de"]["metrics"]["hundred"]
    ]
    typed = (ROOT / "benchmarks/typed.txt").read_text("utf-8").splitlines()
    drawn = [pair.target for pair in pocket_pairs(70, "test")]
    plain = [re.sub(r" (?=[.,?])", "", line) for line in drawn]
    return [*typed, *hundred, *plain]


def say(every: int = 50) -> dict[str, Any]:
    """The runs of everyday sentences as they travel, by language, and what
    the package makes of some of the two hundred.
    """
    made, lines = {}, sentences()[::every]
    for folder in EVERYDAY:
        data, large = portable(
            folder, "I have not slept well for three days."
        )
        run = Run.open(folder)
        made[folder.name[-2:]] = {
            "data": rounded(data, digits=4),
            "large": base64.b64encode(large).decode(),
            "sentences": [
                {
                    "text": line,
                    "src": src,
                    "said": best.text,
                    "score": best.score,
                }
                for line, src, [best] in zip(
                    lines, run.source.encode(lines), run.translate(lines)
                )
            ],
        }
    return made


TABLES = (
    "nouns",
    "verbs",
    "adjectives",
    "particles",
    "endings",
    "determiners",
    "finite",
    "pronouns",
)


def grammar() -> dict[str, Any]:
    """The tables of pocket German, as page 19 gives them to its figure."""
    return {
        table: {
            name: row._asdict()
            for name, row in words.read_table(f"{table}.tsv").items()
        }
        for table in TABLES
    }


def pocket() -> dict[str, Any]:
    """Sentences of a builder's choices, by the package's grammar."""
    tables = grammar()
    draw = random.Random(0)

    def phrase(kinds: str, case: str) -> Phrase:
        pronouns = [
            Phrase(name, "pronoun")
            for name in ("I", "you", "he", "she", "we", "they")
            if getattr(words.PRONOUNS[name], case) and "p" in kinds
        ]
        names = [
            Phrase(name, "name") for name in words.NAMES if "p" in kinds
        ]
        nouns = []
        for noun, row in words.NOUNS.items():
            if row.kind in kinds:
                nouns.append(Phrase(noun))
                if row.german_plural:
                    nouns += [Phrase(noun, "a"), Phrase(noun, "the", True)]
                else:
                    nouns.append(Phrase(noun, "bare"))
        group = draw.choice(
            [g for g in (pronouns, names, nouns, nouns) if g]
        )
        return draw.choice(group)

    def clause() -> Clause:
        verb = draw.choice([v for v in words.VERBS if v not in LEFT_OUT])
        row = words.VERBS[verb]
        made = Clause(verb, phrase(row.subject, "nominative"))
        for slot in row.slots:
            one = phrase(slot.kinds, slot.case)
            made = made._replace(**{slot.role: one})
        return made

    sentences = []
    for _ in range(400):
        one = clause()
        time = draw.choice(
            ["", "", *words.PARTICLES["day"], "evening", "every day"]
        )
        tense = {"yesterday": "past", "tomorrow": "will"}.get(time)
        one = one._replace(
            time=time,
            tense=tense or "present",
            negated=draw.random() < 0.4,
        )
        if draw.random() < 0.4:
            there = draw.choice(["in", "hinter"]), phrase("lh", "dative")
            one = one._replace(place=there)
        mood = draw.choice(["statement", "statement", "question"])
        because = (
            clause()
            if mood == "statement" and draw.random() < 0.4
            else None
        )
        roles = ("accusative", "dative", "time", "place")
        fronts = [role for role in roles if getattr(one, role)]
        front = (
            draw.choice(["", "", *fronts]) if mood == "statement" else ""
        )
        meaning = Meaning(mood, one, "because" if because else "", because)
        choice = {
            "question": mood == "question",
            "clause": choices_of(one),
            "because": because and choices_of(because),
            "front": front,
        }
        sentences.append((choice, german_sentence(meaning, front).words()))
    menus = []
    for kinds, case in (
        ("p", "nominative"),
        ("pa", "dative"),
        ("fm", "accusative"),
    ):
        nouns = [n for n, row in words.NOUNS.items() if row.kind in kinds]
        if "p" in kinds:
            nouns += words.NAMES
            nouns += [
                name
                for name in ("I", "you", "he", "she", "we", "they")
                if getattr(words.PRONOUNS[name], case)
            ]
        menus.append((kinds, case, sorted(nouns)))
    known = {
        w: "" for p in pocket_pairs(400, "train") for w in p.source.split()
    }
    known = {w: e for w, e in known.items() if w not in ".,?"}
    known |= {"Hunden": "dogs", "gekauft": "bought", "nie": "never"}
    return {
        "tables": tables,
        "sentences": sentences,
        "menus": menus,
        "words": list(known.items()),
    }


LEFT_OUT = ("sein", "gefallen", "sagen", "glauben", "hoffen", "fragen")


def choices_of(clause: Clause) -> dict[str, Any]:
    """A clause as the figure's menus give it."""
    made: dict[str, Any] = {}
    for key, value in clause._asdict().items():
        if isinstance(value, Phrase):
            value = value._asdict()
        elif key == "place" and value:
            value = [value[0], value[1]._asdict()]
        made[key] = value
    return made
