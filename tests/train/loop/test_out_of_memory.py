"""Memory that really runs out halves the micro-batches of all ranks, and the losses are those of a run with enough."""

import resource
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.cli import records
from tests.ranks import launched, make_trainer, run_ranks, train_on_ranks
from train import Run
from train.loop.halving_step import is_out_of_memory
from train.world.environment import World

# No dropout: its random numbers depend on the size of a micro-batch.
_FLAGS = ["--model=mnist_cnn", "--dropout=0", "--batch-size=1000", "--max-steps=3", "--lr=0.01", "--log-every=1"]


def _train_with_little_memory(world: World, room_mib: int, *flags: str) -> int:
    """Train, with an address space on the last rank that has only `room_mib` left; return the micro-batches at last."""
    trainer = make_trainer(world, *_FLAGS, *flags)
    if world.rank == world.world_size - 1:
        _leave(room_mib, trainer.run.engine.device)
    trainer.fit()
    return trainer.run.engine.micro_batches


def _leave(room_mib: int, device: torch.device) -> None:
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + room_mib * 2**20) / total)
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room_mib * 2**20, resource.RLIM_INFINITY))


def _losses(folder: Path) -> list[float]:
    return [record["loss"] for record in records(folder, "step")]


@pytest.mark.parametrize(
    ("world_size", "strategy", "device"),
    [
        (1, "custom_ddp", "cpu"),
        (2, "custom_ddp", "cpu"),
        (2, "ddp", "cpu"),
        pytest.param(1, "custom_ddp", "cuda", marks=pytest.mark.cuda),
    ],
)
def test_the_micro_batch_is_halved_and_the_losses_stay(
    world_size: int, strategy: str, device: str, tmp_path: Path
) -> None:
    flags = [f"--device={device}", f"--strategy={strategy}"]
    train_on_ranks(world_size, *_FLAGS, *flags, f"--run-dir={tmp_path / 'plenty'}")
    halve = [*flags, "--on-oom=halve", f"--run-dir={tmp_path / 'little'}"]
    counts = run_ranks(world_size, _train_with_little_memory, 200, *halve)

    assert len(set(counts)) == 1
    assert counts[0] > 1
    incidents = records(tmp_path / "little", "incident")
    assert {incident["kind"] for incident in incidents} == {"halved_micro_batch"}
    assert all(f"rank {world_size - 1} ran out of memory" in incident["text"] for incident in incidents)
    assert incidents[0]["step"] == 1
    assert f"into {counts[0]} micro-batches" in incidents[-1]["text"]
    assert _losses(tmp_path / "little") == pytest.approx(_losses(tmp_path / "plenty"), rel=1e-5)


def _evaluated(room_mib: int, on_oom: str) -> float | str:
    run = Run(seed=1, on_oom=on_oom)
    model = run.wrap(nn.Conv2d(1, 64, 3))
    images = TensorDataset(torch.randn(1000, 1, 28, 28))
    _leave(room_mib, run.device)
    try:
        return run.evaluate(lambda batch: {"loss": model(batch[0]).mean(dim=(1, 2, 3))}, images, 1000)["loss"]
    except RuntimeError as error:
        return str(error)


def test_a_batch_of_an_evaluation_that_does_not_fit_is_cut_only_if_that_is_asked_for() -> None:
    [[plenty], [cut], [refused]] = [
        launched(1, _evaluated, *how) for how in ((4000, "stop"), (120, "halve"), (120, "stop"))
    ]
    assert cut == pytest.approx(plenty, rel=1e-5)
    assert "memory" in str(refused)


@pytest.mark.parametrize(
    ("message", "is_it"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("GET was unable to find an engine to execute this computation", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", False),
    ],
)
def test_libraries_on_a_gpu_have_their_own_words_for_it(message: str, is_it: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) is is_it
