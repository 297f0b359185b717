"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.costs import kept_bytes, state_bytes
from annotated.engine.distributed import world_size
from annotated.engine.errors import RunError
from annotated.engine.machine import cached, memory_bytes, out_of_memory
from annotated.engine.parts import build
from annotated.engine.recipes import Recipe
from annotated.engine.speed import training_speed
from annotated.engine.trainer import RunConfig
from annotated.model import TransformerConfig
from annotated.tokens import Tokenizer
from annotated.training import fingerprint

__all__ = ["fitted", "tokens_that_fit", "with_micro_tokens", "fitted_here"]


# E9-recipes.md: Fitted to a corpus
_SHAPES = (  # d_model, d_ff, layers, minimum pairs
    (512, 2048, 6, 400_000),
    (256, 1024, 3, 60_000),
    (192, 512, 3, 15_000),
    (128, 512, 2, 0),
)
_SIZES = 1500, 3000, 6000, 12_000, 24_000  # tokens of a batch
_STEPS = 2000, 20_000  # at least, for speed alone; at most, unless larger
_FASTER = 1.25  # times as many tokens per second: worth a larger batch


def _with_batch(
    recipe: Recipe,
    pace: Callable[[Recipe], float],
    seconds: float,
    most: float,
    enough: float,
) -> Recipe:
    """The recipe with the batch for its shape. pace gives target tokens
    per second; most ends a run whatever the time, and a shape that does
    not get through enough is not worth a second measurement.
    """
    least, limit = _STEPS
    for size in _SIZES[1:]:
        now, batch = pace(recipe), recipe.training.batch_tokens
        reach = seconds * now
        if reach * _SIZES[-1] / batch < enough:
            break  # even if a larger batch took no longer
        larger = recipe.changed(batch_tokens=size)
        if min(most, reach) / batch <= limit:
            timed = reach < most and reach / batch >= least
            if not timed or pace(larger) < _FASTER * now:
                break
            if seconds * pace(larger) / size < least:
                break
        if not pace(larger):  # too large for the memory
            break
        recipe = larger
    return recipe


def fitted(
    recipe: Recipe,
    pairs: int,
    tokens: int,
    speed: Callable[[Recipe], float],
) -> Recipe:
    """The recipe with the fields in its fit chosen.

    The corpus has this many pairs and target tokens; speed returns the
    training steps per second of a recipe, or 0 where it does not fit into
    memory. RunError if nothing does.
    """
    speed = cache(speed)

    def choose(chosen: Recipe, **values: Any) -> Recipe:
        names = values.keys() & set(recipe.fit)  # the rest was given
        return chosen.changed(**{n: values[n] for n in names})

    def pace(chosen: Recipe) -> float:
        return speed(chosen) * chosen.training.batch_tokens

    seconds = 60 * (recipe.training.max_minutes or 60.0) * 0.9
    first = recipe.init is None
    passes, least_steps = (30, 1000) if first else (10, 300)
    most = max(passes * tokens, least_steps * 1500)
    enough = max(1800 * 1500, min(6000 * 1500, 8 * tokens))
    chosen = recipe
    for d_model, d_ff, layers, least in _SHAPES:
        if pairs < least:
            continue
        chosen = choose(
            recipe.changed(fit=()), batch_tokens=_SIZES[0], d_model=d_model,
            d_ff=d_ff, num_encoder_layers=layers, num_decoder_layers=layers,
        )  # fmt: skip
        if "batch_tokens" in recipe.fit:
            chosen = _with_batch(chosen, pace, seconds, most, enough)
        if seconds * pace(chosen) >= enough:
            break
    if not pace(chosen):
        raise RunError(
            "out of memory even with the smallest model: try "
            "--micro-tokens 250, for more and smaller parts of a batch"
        )
    batch = chosen.training.batch_tokens
    longest = min(most, seconds * pace(chosen)) / batch  # in steps
    chosen = choose(chosen, max_steps=max(100, int(longest)))
    steps = chosen.training.max_steps
    seen = steps * batch / max(1, tokens)
    chosen = choose(
        chosen,
        warmup=max(50, min(4000, steps // 6)) if first else steps // 20 + 1,
        cooldown=2 * steps // 5,
        save_every=max(50, steps // 10),
        dropout=0.0 if seen <= 2 else 0.1 if seen <= 12 else 0.2,
        curriculum=steps // 2 if seen <= 2 else 0,
    )
    # equation 3 peaks at rate / sqrt(d_model · warmup)
    peak = 0.001 if chosen.model.d_model > 256 else 0.003
    peak = peak if first else peak / 10
    rate = peak * math.sqrt(chosen.model.d_model * chosen.training.warmup)
    return choose(chosen, rate=round(rate, 3))


# E9-recipes.md: How fast is this machine?
# bytes of a chunk of logits in the loss
_LOGITS = {"cpu": 2**24, "cuda": 2**30, "mps": 2**30}


def tokens_that_fit(
    config: TransformerConfig, training: RunConfig, device: str,
    shard: bool = False,
) -> float:  # fmt: skip
    """How many tokens at once fill two thirds of a device's memory, beside
    a process's part of the model.
    """
    precision = training.precision
    kept = kept_bytes(config, precision=precision, device=device)
    room = memory_bytes(device) * 2 / 3 - _LOGITS[torch.device(device).type]
    state = state_bytes(config, precision)
    if shard:  # its part, and one matrix of embeddings as a whole
        words = max(config.src_vocab, config.tgt_vocab)
        state = state // world_size() + 8 * words * config.d_model
    return (room - state) / kept


def with_micro_tokens(
    recipe: Recipe, device: str, shard: bool = False
) -> Recipe:
    """The recipe, with micro_tokens set if a process's share of a batch
    does not fit.
    """
    training = recipe.training
    fits = tokens_that_fit(recipe.config(), training, device, shard)
    share = training.batch_tokens / world_size()
    share *= 1 + 4 * training.bpe_dropout  # at most so many tokens more
    if training.micro_tokens is not None or max(500, fits) >= share:
        return recipe
    return recipe.changed(micro_tokens=int(max(500, fits)))


def fitted_here(
    recipe: Recipe,
    corpus: Corpus,
    source: Tokenizer,
    target: Tokenizer,
    device: str,
) -> Recipe:
    """fitted, with this machine's measured speed on the corpus; prints
    what was chosen.
    """
    gpu = torch.device(device).type == "cuda"
    here = {
        "device": torch.cuda.get_device_name(device) if gpu else device,
        "threads": torch.get_num_threads(),
        "corpus": fingerprint(corpus),
    }
    names = (
        *("batch_tokens", "micro_tokens", "precision", "compile", "clip"),
        *("seed", "freeze", "bpe_dropout"),
    )
    slowed = False

    def speed(recipe: Recipe) -> float:
        config = recipe.config(len(source), len(target))
        training = with_micro_tokens(recipe, device).training
        share = -(-training.batch_tokens // world_size())
        training = dataclasses.replace(training, batch_tokens=share)
        how = {name: getattr(training, name) for name in names}

        def measure() -> tuple[float, bool]:
            nonlocal slowed
            with torch.random.fork_rng(devices=[]):
                model = build(config).to(device)
            try:
                steps, busy = training_speed(model, corpus, training)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                return 0.0, False
            slowed = slowed or busy
            return steps, not busy

        about = here | dataclasses.asdict(config) | how
        return cached("speed", about, measure)

    tokens = int(corpus.tgt.lengths.sum())
    chosen = fitted(recipe, len(corpus), tokens, speed)
    if slowed:
        print(
            "other programs keep this machine busy: fitted to what one "
            "thread does without them",
            file=sys.stderr,
        )
    if chosen != recipe.changed(fit=()):
        line = chosen.described(recipe, "fitted to the corpus")
        print(line, file=sys.stderr)
    return chosen
