"""Exported from the book; edit the chapter, then run `make export`."""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from annotated.batches import Corpus
from annotated.engine.machine import cached
from annotated.engine.micro import PackedBatch
from annotated.engine.packing import PackedTransformer
from annotated.engine.recipes import Recipe, described
from annotated.engine.trainer import RunConfig, packed_loss
from annotated.schedule import make_optimizer
from annotated.tokens import Tokenizer
from annotated.training import fingerprint

__all__ = ["fitted", "training_speed", "fitted_here"]


# E9-recipes.md: Fitted to a corpus
_SHAPES = (  # d_model, d_ff, layers, minimum pairs
    (512, 2048, 6, 400_000),
    (256, 1024, 3, 60_000),
    (192, 512, 3, 15_000),
    (128, 512, 2, 0),
)


def fitted(
    recipe: Recipe,
    pairs: int,
    tokens: int,
    speed: Callable[[Recipe], float],
) -> Recipe:
    """The recipe with the fields in its fit chosen.

    The corpus has this many pairs and target tokens; speed returns the
    training steps per second of a recipe.
    """
    speed = cache(speed)

    def choose(chosen: Recipe, **values: Any) -> Recipe:
        names = values.keys() & set(recipe.fit)  # the rest was given
        return chosen.changed(**{n: values[n] for n in names})

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
            recipe.changed(fit=()), batch_tokens=1500, d_model=d_model,
            d_ff=d_ff, num_encoder_layers=layers, num_decoder_layers=layers,
        )  # fmt: skip
        batch = chosen.training.batch_tokens
        if seconds * speed(chosen) * batch >= enough:
            break
    for size in (1500, 3000, 6000, 12_000, 24_000):
        chosen = choose(chosen, batch_tokens=size)
        batch = chosen.training.batch_tokens
        longest = min(most / batch, seconds * speed(chosen))  # in steps
        if longest <= 20_000 or batch != size:
            break
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
def training_speed(
    model: PackedTransformer, corpus: Corpus, config: RunConfig
) -> tuple[float, bool]:
    """Training steps per second of this process alone, and whether other
    programs kept it from measuring them. The weights stay as they are.
    """
    wall, processor = _step_seconds(model, corpus, config)
    threads = torch.get_num_threads()
    if next(model.parameters()).device.type != "cpu":
        return 1 / wall, False
    if threads > 1:
        torch.set_num_threads(1)
        try:
            _, processor = _step_seconds(model, corpus, config)
        finally:
            torch.set_num_threads(threads)
    alone = threads == 1
    busy = wall > _BUSY * processor if alone else wall * _BUSY > processor
    return 1 / min(wall, processor), busy


_BUSY = 1.25  # times as long: other programs take part of the machine


def _step_seconds(
    model: PackedTransformer, corpus: Corpus, config: RunConfig
) -> tuple[float, float]:
    """The seconds of a training step, the least of several: by the clock
    on the wall, and in processor time.
    """
    device = next(model.parameters()).device
    optimizer = make_optimizer(model.parameters())
    plan = corpus.plan(config.batch_tokens, config.seed, epoch=0)
    clocks = time.perf_counter, time.process_time
    spent: list[list[float]] = []
    for step in range(6):
        batch = PackedBatch.of(corpus.batch(plan[step % len(plan)]))
        started = [clock() for clock in clocks]
        loss, _ = packed_loss(model, batch.to(device), config)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        spent.append([clock() - s for clock, s in zip(clocks, started)])
        if sum(wall for wall, _ in spent[1:]) > 1:
            break
    wall, processor = map(min, zip(*spent[1:]))
    return wall, processor or wall  # some clocks tick coarsely


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
    names = "batch_tokens", "precision", "compile", "clip", "seed"
    slowed = False

    def speed(recipe: Recipe) -> float:
        config = recipe.config(len(source), len(target))
        how = {name: getattr(recipe.training, name) for name in names}

        def measure() -> tuple[float, bool]:
            nonlocal slowed
            with torch.random.fork_rng(devices=[]):
                model = PackedTransformer(config).to(device)
            steps, busy = training_speed(model, corpus, recipe.training)
            slowed = slowed or busy
            return steps, not busy

        about = here | dataclasses.asdict(config) | how
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        return processes * cached("speed", about, measure)

    tokens = int(corpus.tgt.lengths.sum())
    chosen = fitted(recipe, len(corpus), tokens, speed)
    if slowed:
        print(
            "other programs keep this machine busy: fitted to what one "
            "thread does without them",
            file=sys.stderr,
        )
    if chosen != recipe.changed(fit=()):
        line = described(chosen, recipe, "fitted to the corpus")
        print(line, file=sys.stderr)
    return chosen
