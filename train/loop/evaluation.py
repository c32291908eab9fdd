"""Loss and accuracy over the validation set, each sample once, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.collectives.agreement import StopAgreement, Stopped
from train.collectives.broadcast import broadcast_from_rank_0
from train.loop.losses import Means, losses_of_samples, sum_of_correct
from train.strategies import Context, autocast


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    context: Context,
    precision: str,
    stop_agreement: StopAgreement,
    predict: Callable[[Tensor], Tensor | None] | None = None,
) -> Means:
    """Return the mean loss and the accuracy over the validation set, the same on every rank.  A collective.

    Args:
        batches: this rank's share; all ranks have equally many batches, some of which may be empty.
        precision: as in the config.
        predict: called in place of the model; it returns None if another rank has the logits of the batch.
    Raises Stopped if a signal asks for it.
    """
    model.eval()
    if context.ranks_have_own_buffers:
        broadcast_from_rank_0(list(model.buffers()), context.group)
    sums = torch.zeros(2, dtype=torch.float64, device=context.device)
    samples = 0
    stop_agreement.begin()
    for images, labels in batches:
        with autocast(precision, context.device):
            # A rank without samples takes part, because some models send messages in their forward.
            logits = (predict or model)(images if len(labels) else images.new_zeros((1, *images.shape[1:])))
        if logits is not None:
            logits = logits[: len(labels)]
            loss = losses_of_samples(logits, labels).sum(dtype=torch.float64)
            sums += torch.stack([loss, sum_of_correct(logits, labels).double()])
            samples += len(labels)  # on the host: a number sent to a GPU would wait for the batch
        if stop_agreement.reached():
            raise Stopped
    totals = torch.tensor([*sums.tolist(), samples], dtype=torch.float64)
    dist.all_reduce(totals)
    loss_sum, correct_sum, all_samples = totals.tolist()
    return Means(loss_sum, correct_sum, int(all_samples))


def in_pieces(batches: Iterable[tuple[Tensor, Tensor]], pieces: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each batch in `pieces` pieces, some of which may be empty."""
    for images, labels in batches:
        yield from zip(images.tensor_split(pieces), labels.tensor_split(pieces), strict=True)
