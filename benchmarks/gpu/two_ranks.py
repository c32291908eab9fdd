"""Two ranks on one device train as two ranks on the CPU do: every sync, streams, BatchNorm with an empty rank."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu import suite
from benchmarks.gpu.collectives import first_difference, noted, numbers_in
from benchmarks.gpu.differences import largest_difference
from benchmarks.gpu.jobs import nccl_variables, refuses_one_gpu
from benchmarks.gpu.outcome import Failed, Skipped, together
from benchmarks.ranks import HERE, Node, run_ranks
from train.collectives.sync_batchnorm import convert_sync_batchnorm
from train.config import available
from train.ddp.wrapper import CustomDDP
from train.sync import MakeSync, named
from train.sync.powersgd import PowerSGD

STEPS = 10
# The largest difference of a step's loss, as a share of the CPU's: 24 and 8 bits on the wire.  PowerSGD rounds its
# factors once more.
TOLERANCES = {"all_reduce": 1e-4, "bf16": 2e-2, "powersgd": 2e-2}
BATCHNORM_TOLERANCES = {"fp32": 1e-3, "bf16": 5e-2}
_FULL_STEPS = 2
# Samples of the ranks, step by step; rank 1 has none in the second.
SHARES = ((8, 8), (16, 0), (5, 11))
_TIMEOUT_S = 80.0
_DELAY_S = 0.02
_DELAY_CYCLES = 30_000_000  # the same time at 1.5 GHz; long compared with a kernel


def over_gloo(device: str) -> dict[str, Any]:
    return _compared(device, "gloo", ["syncs"])


def marked_tests(device: str) -> dict[str, Any]:
    """Run the tests marked for CUDA, and check BatchNorm over gloo, even if tests fail."""
    batchnorm = partial(_compared, device, "gloo", ["batchnorm"])
    return together({"batchnorm": batchnorm} if device == "cpu" else {"tests": suite.marked, "batchnorm": batchnorm})


def over_nccl(device: str) -> dict[str, Any]:
    if device == "cpu":
        return _compared(device, "gloo", ["batchnorm"])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        try:
            sums = run_ranks(sum_of_ranks, _nodes(device, "nccl"), 50.0, backend="nccl", output=output)
        except RuntimeError as error:
            text = output.read_text(errors="replace")
            print(text, flush=True)
            if not refuses_one_gpu(text):
                raise
            version = ".".join(map(str, torch.cuda.nccl.version()))
            raise Skipped(f"NCCL {version} does not connect two ranks on one GPU: {error}") from error
    if sums != [3.0, 3.0]:
        raise Failed(f"NCCL's sum of 1 and 2 is {sums}")
    return together({kind: partial(_compared, device, "nccl", [kind]) for kind in ("syncs", "batchnorm")})


def sum_of_ranks() -> float:
    number = torch.full((), dist.get_rank() + 1.0, device="cuda")
    dist.all_reduce(number)
    return float(number)


def _nodes(device: str, backend: str) -> list[Node]:
    if device == "cpu" or backend == "gloo":
        return [HERE, HERE]
    words = [[f"{name}={value}" for name, value in nccl_variables(rank).items()] for rank in (0, 1)]
    return [Node(enter=("env", *of_rank)) for of_rank in words]


def _compared(device: str, backend: str, kinds: Sequence[str], steps: int = STEPS) -> dict[str, Any]:
    """Compare losses between the device and the CPU, and check that both ranks hold the same weights.

    With BatchNorm, rank 1 has no samples in some steps.  Both ranks must still start the same collectives.
    """
    differences, wrong = {}, []
    collectives: dict[str, dict[str, list[str]]] = {}
    for kind in kinds:
        expected = run_ranks(all_cases, [HERE, HERE], _TIMEOUT_S, kind=kind, device="cpu", steps=steps)
        nodes = _nodes(device, backend)
        found = run_ranks(all_cases, nodes, _TIMEOUT_S, backend=backend, kind=kind, device=device, steps=steps)
        for name, ours in found[0].items():
            tolerance = (TOLERANCES if kind == "syncs" else BATCHNORM_TOLERANCES).get(name.split(",")[0], 2e-2)
            losses, theirs = _sum_of_ranks(found, name), _sum_of_ranks(expected, name)
            largest = largest_difference(losses, theirs)
            differences[f"{kind}: {name}"] = largest
            if not largest <= tolerance:
                wrong.append(f"{kind}: {name}: losses differ by {largest:.2g}, more than {tolerance:g}")
            if ours["weights_sha256"] != found[1][name]["weights_sha256"]:
                wrong.append(f"{kind}: {name}: the ranks hold different weights")
            if not losses[-1] < losses[0]:
                wrong.append(f"{kind}: {name}: nothing was learned, so equal losses would mean little")
            sent = ours["numbers_sent"]
            if name.startswith("powersgd") and not sent[-1] < sent[0] / 2:
                wrong.append(f"{kind}: {name}: {sent[-1]} numbers travel in the last step, {sent[0]} in the first")
            if kind == "batchnorm":
                notes = [of_rank[name]["collectives"] for of_rank in found]
                collectives[name] = {
                    f"rank {rank}": ["; ".join(of_step) for of_step in of_rank] for rank, of_rank in enumerate(notes)
                }
                if difference := first_difference(notes):
                    wrong.append(f"{kind}: {name}: {difference}")
    record: dict[str, Any] = {"backend": backend, "largest_difference": differences, "steps": steps}
    record |= {"collectives_by_step": collectives} if collectives else {}
    if wrong:
        raise Failed("; ".join(wrong), record)
    return record


def _sum_of_ranks(results: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [sum(of_step) for of_step in zip(*(of_rank[name]["losses"] for of_rank in results), strict=True)]


def all_cases(kind: str, device: str, steps: int) -> dict[str, Any]:
    """Return what this rank saw in each case of a kind: its part of each step's loss, and the hash of the weights."""
    if device == "cuda":
        torch.cuda.set_device(0)
    train = partial(_train, torch.device(device), steps)
    if kind == "batchnorm":
        return {precision: train("all_reduce", False, True, precision) for precision in BATCHNORM_TOLERANCES}
    return {
        f"{sync}, {'own' if own_stream else 'default'} stream": train(sync, own_stream, False, "fp32")
        for sync in available("sync")
        for own_stream in (False, True)
    }


def _train(
    device: torch.device, steps: int, sync: str, own_stream: bool, batchnorm: bool, precision: str
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = (_with_batchnorm if batchnorm else _plain)().to(device)
    if batchnorm:
        model = convert_sync_batchnorm(model, dist.group.WORLD)
    stream = torch.cuda.Stream() if own_stream and device.type == "cuda" else None
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())
    losses, collectives = [], []
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        wrapped = CustomDDP(model, sync=_made(sync), bucket_mib=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(steps):
            inputs, labels = _share(step, batchnorm)
            with noted() as notes:
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    outputs = wrapped(inputs.to(device))
                outputs.register_hook(_delay_on_rank_1)
                loss = F.cross_entropy(outputs.float(), labels.to(device), reduction="sum") / sum(SHARES[0])
                (loss * dist.get_world_size()).backward()
            optimizer.step()
            optimizer.zero_grad()
            collectives.append(notes)
            losses.append(loss.detach())
        weights = b"".join(param.detach().cpu().numpy().tobytes() for param in model.parameters())
        return {
            "losses": [float(loss) for loss in losses],
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "collectives": collectives,
            "numbers_sent": [sum(map(numbers_in, of_step)) for of_step in collectives],
        }


def _made(sync: str) -> MakeSync:
    """Return the function that makes the sync; PowerSGD sends its first ten steps in full, so here all of them."""
    return partial(PowerSGD, full_steps=_FULL_STEPS) if sync == "powersgd" else named(sync)


def _share(step: int, uneven: bool) -> tuple[Tensor, Tensor]:
    """Return this rank's samples of a step: points around ten centres."""
    generator = torch.Generator().manual_seed(step)
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (sum(SHARES[0]),), generator=generator)
    points = centres[labels] + 0.3 * torch.randn(len(labels), 64, generator=generator)
    counts = SHARES[step % len(SHARES) if uneven else 0]
    start = 0 if dist.get_rank() == 0 else counts[0]
    mine = slice(start, start + counts[dist.get_rank()])
    return points[mine], labels[mine]


def _delay_on_rank_1(grad: Tensor) -> None:
    """Delay the gradients of one rank; on CUDA only the device is delayed, as by long kernels."""
    if dist.get_rank() == 1:
        if grad.is_cuda:
            torch.cuda._sleep(_DELAY_CYCLES)
        else:
            time.sleep(_DELAY_S)


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def _with_batchnorm() -> nn.Module:
    hidden = [nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(128, 10))
