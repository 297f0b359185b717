"""Exported from the book; edit the chapter, then run `make export`."""

import torch
import torch.distributed as dist
from torch import Tensor

from annotated.batches import Batch, Corpus
from annotated.model import Transformer
from annotated.training import Trainer, TrainingConfig, batch_loss

__all__ = ["ParallelTrainer"]


# 21-many-devices.md: Talking while computing
class ParallelTrainer(Trainer):
    """Trainer in several processes, each with its share of every batch.

    Needs torch.distributed.init_process_group, and the same model, corpus
    and config in all processes. Every process then has the same weights
    after each step.
    """

    def __init__(
        self, model: Transformer, corpus: Corpus, config: TrainingConfig
    ):
        super().__init__(model, corpus, config)
        self.sending: list[dist.Work] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.send)

    def send(self, parameter: Tensor) -> None:
        """Begin to add up a gradient, while others are still computed."""
        work = dist.all_reduce(parameter.grad, async_op=True)
        self.sending.append(work)

    def gradient(self, batch: Batch) -> Tensor:
        """Leave the gradient of the whole batch in the parameters; the
        batch's loss and nll per token.
        """
        rank, size = dist.get_rank(), dist.get_world_size()
        sides = batch.src, batch.tgt, batch.labels
        own = Batch(*(side[rank::size] for side in sides))
        self.seed_dropout(rank)  # each has noise of its own
        loss, nll = batch_loss(self.model, own, self.config.label_smoothing)
        (loss / batch.tokens).backward()  # the tokens of all
        for work in self.sending:
            work.wait()
        self.sending.clear()
        means = torch.stack([loss.detach(), nll.detach()]) / batch.tokens
        dist.all_reduce(means)
        return means
