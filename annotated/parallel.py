"""Exported from the book; edit the chapter, then run `make export`."""

import torch
import torch.distributed as dist
from torch import Tensor

from annotated.batches import Batch, Corpus
from annotated.model import Transformer
from annotated.training import (
    Trainer,
    TrainingConfig,
    batch_loss,
    seed_dropout,
)

__all__ = ["ParallelTrainer"]


# 21-many-devices.md: Talking while computing
class ParallelTrainer(Trainer):
    """A Trainer for several processes that share the work on every batch.

    Requires torch.distributed.init_process_group, and the same model,
    corpus and config in every process. All processes then have the same
    weights after each step.
    """

    def __init__(
        self, model: Transformer, corpus: Corpus, config: TrainingConfig
    ):
        super().__init__(model, corpus, config)
        self.sending: list[dist.Work] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.send)

    def send(self, parameter: Tensor) -> None:
        """Start to sum a gradient while others are still being computed."""
        work = dist.all_reduce(parameter.grad, async_op=True)
        self.sending.append(work)

    def gradient(self, batch: Batch) -> Tensor:
        """Compute .grad for the whole batch, in every process; the batch's
        loss and nll per token.
        """
        rank, size = dist.get_rank(), dist.get_world_size()
        sides = batch.src, batch.tgt, batch.labels
        own = Batch(*(side[rank::size] for side in sides))
        # different noise in each process
        seed_dropout(self.config.seed, self.step, rank)
        loss, nll = batch_loss(self.model, own, self.config.label_smoothing)
        (loss / batch.tokens).backward()  # the tokens of all processes
        for work in self.sending:
            work.wait()
        self.sending.clear()
        means = torch.stack([loss.detach(), nll.detach()]) / batch.tokens
        dist.all_reduce(means)
        return means
