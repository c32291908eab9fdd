"""`python -m train` on one GPU: losses, a rank that dies, a resume, memory, waits."""

import functools
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from tests.cli import records, start_ranks
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from tests.train.devices import on_one_gpu, skip_if_refused
from train import sync
from train.data.batches import Batches
from train.data.sampler import ShardSampler
from train.datasets.synthetic import load
from train.ddp.wrapper import CustomDDP
from train.loop import nonfinite
from train.loop.step import Step
from train.strategies import custom_ddp, replicated
from train.world.environment import World

pytestmark = pytest.mark.cuda
_BASE = ("--dataset=synthetic", "--dropout=0", "--log-every=1", "--input=loader", "--workers=0", "--batch-size=64")

# Steps that are compared, and the largest difference of a loss as a share of the CPU's in fp32.  Weights that never
# change differ by 2.7e-2.  resnet18 multiplies a rounding error by a hundred in each step.
_TEN = {"fp32": (10, 1e-3), "bf16": (10, 3e-3), "fp16": (10, 3e-3)}
LIMITS = {"mlp": _TEN, "mnist_cnn": _TEN, "resnet18": {"fp32": (2, 1e-3), "bf16": (1, 3e-3), "fp16": (1, 3e-3)}}


@functools.cache
def _losses(device: str, model: str, precision: str) -> list[float]:
    steps = LIMITS[model][precision][0]
    flags = [f"--device={device}", f"--model={model}", f"--precision={precision}", f"--max-steps={steps}", "--lr=0.02"]
    with tempfile.TemporaryDirectory() as folder:
        train_on_ranks(1, *_BASE, *flags, f"--run-dir={folder}")
        return [record["loss"] for record in records(Path(folder), "step")]


@pytest.mark.parametrize("precision", _TEN)
@pytest.mark.parametrize("model", LIMITS)
def test_losses_of_the_first_steps_are_those_of_the_cpu_in_fp32(model: str, precision: str) -> None:
    steps, tolerance = LIMITS[model][precision]
    expected = _losses("cpu", model, "fp32")
    assert expected[-1] < expected[0], "something was learned, or equal losses would mean little"
    assert _losses("cuda", model, precision) == pytest.approx(expected[:steps], rel=tolerance)


# `python -m train`, whose rank 1 dies in its 50th forward.
_DYING = """
import itertools, os, runpy, signal, sys, torch
from torch.nn.modules.module import register_module_forward_pre_hook
calls = itertools.count(1)
def die(module, inputs):
    if os.environ["RANK"] == "1" and isinstance(module, torch.nn.Linear) and next(calls) == 50:
        if os.environ["HOW"] == "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        torch.empty(1 << 48, dtype=torch.uint8, device=inputs[0].device)
register_module_forward_pre_hook(die)
sys.argv[0] = "train"
runpy.run_module("train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("how", ["kill -9", "out of memory"])
def test_when_one_of_two_ranks_dies_the_other_names_it_and_ends(how: str) -> None:
    flags = [*_BASE, "--device=cuda", "--model=mlp", "--epochs=1000", "--collective-timeout-s=40"]
    places = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "{rank}", **on_one_gpu("{rank}")}
    ranks = start_ranks(2, *flags, program=["-c", _DYING], HOW=how, **places)
    said_last, (out, err) = "".join(ranks[1].communicate()), ranks[0].communicate()
    skip_if_refused(f"{out}{err}{said_last}")
    if how == "out of memory":
        assert "out of memory" in said_last
    assert ranks[0].returncode != 0
    after_the_last_step = re.split(r"^\d\d:\d\d:\d\d  epoch .*$", out, flags=re.MULTILINE)
    assert len(after_the_last_step) > 10, f"it trained before: {out}{err}"
    lines = f"{after_the_last_step[-1]}{err}".splitlines()
    assert [line for line in lines if re.search(r"\brank 1\b", line) and "NCCL WARN" not in line], lines


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    flags = [*_BASE, "--device=cuda", "--model=resnet18", "--precision=bf16", "--momentum=0.9", "--deterministic"]
    kept = [f"--run-dir={tmp_path / 'halved'}", f"--checkpoint-dir={tmp_path / 'saved'}", "--resume=auto"]
    train_on_ranks(1, *flags, "--max-steps=8", f"--run-dir={tmp_path / 'whole'}")
    for end in (4, 8):
        train_on_ranks(1, *flags, *kept, f"--max-steps={end}")
    assert [record["step"] for record in records(tmp_path / "halved", "step")] == [*range(1, 9)]
    ends = [records(tmp_path / name, "end")[-1]["weights_sha256"] for name in ("whole", "halved")]
    assert ends[0] == ends[1]


def _reserved(world: World, input: str) -> list[int]:
    """Bytes that the caching allocator holds after each of 40 epochs of reading; each batch is used once."""
    place = torch.device("cuda", 0)
    samples = load(Path(), "validation", 0)
    sampler = ShardSampler(len(samples), 600, rank=0, world_size=1, seed=0)
    batches = Batches(samples, sampler, place, input, workers=2)
    reserved, total = [], torch.zeros((), device=place)
    for epoch in range(1, 41):
        sampler.set_epoch(epoch)
        for images, _ in batches:
            total += images.square().sum()
        reserved.append(torch.cuda.memory_reserved())
    assert torch.isfinite(total)
    return reserved


@pytest.mark.parametrize("input", ["memory", "loader"])
def test_reserved_memory_does_not_grow_with_the_epochs(input: str) -> None:
    # The first epochs fill the cache: batches of two sizes, each prepared while another one is read.
    [reserved] = run_ranks(1, _reserved, input)
    assert reserved[-1] == reserved[4]


_WARM_UP, _WATCHED = 5, 20
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class _Watch:
    """Makes an error of each call in which the host waits for the GPU, in 20 steps and the batches prepared in them.

    A profile of the same steps shows waits of which torch does not know.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen = 0
        self.profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self.patch(patch, Step, "run")
        self.patch(patch, Batches, "_prepare_on")

    def patch(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original, is_step = getattr(owner, name), owner is Step

        def watched(this: Any, *arguments: Any) -> Any:
            if is_step and self.seen == _WARM_UP:
                self.profile.start()
            with self.range() if _WARM_UP <= self.seen < _WARM_UP + _WATCHED else record_function("not watched"):
                result = original(this, *arguments)
            self.seen += is_step
            if is_step and self.seen == _WARM_UP + _WATCHED:
                self.profile.stop()
            return result

        patch.setattr(owner, name, watched)

    @contextmanager
    def range(self) -> Iterator[None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            with record_function("watched"):
                yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def waits(self) -> list[str]:
        """The calls in which the host waited in a watched range, in any thread: backward has its own."""
        events = list(self.profile.events() or ())
        ranges = [event.time_range for event in events if event.name == "watched"]
        assert len(ranges) >= _WATCHED
        assert any(event.device_type == DeviceType.CUDA for event in events)
        return [
            event.name
            for event in events
            if event.name in _WAITS and any(part.start <= event.time_range.start <= part.end for part in ranges)
        ]


def _watched(world: World, wrapped: bool, *flags: str) -> tuple[int, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        if wrapped:  # a process that trains alone uses the bare model otherwise

            def wrap(model: Any, context: Any) -> Any:
                made = CustomDDP(
                    model, sync=sync.named(context.config.sync), bucket_mib=0.5, process_group=context.group
                )
                return replicated(model, made, made.no_sync)

            patch.setattr(custom_ddp, "wrap", wrap)
        patch.setattr(nonfinite, "is_finite", lambda norm: True)
        watch = _Watch(patch)
        make_trainer(world, *_BASE, "--device=cuda", "--model=mnist_cnn", *flags).fit()
        return watch.seen, watch.waits()


@pytest.mark.parametrize(
    ("input", "precision", "wrapped"),
    [
        *((input, precision, False) for input in ("memory", "loader") for precision in ("fp32", "bf16")),
        *[("memory", "fp32", True), ("loader", "bf16", True)],
    ],
)
def test_the_host_never_waits_for_the_gpu_in_a_step(input: str, precision: str, wrapped: bool) -> None:
    """Except to judge the gradient, which is left out; so is fp16, whose scaler does the same."""
    flags = [f"--input={input}", f"--precision={precision}", "--batch-size=100"]
    [(steps, waits)] = run_ranks(1, _watched, wrapped, *flags, f"--max-steps={_WARM_UP + _WATCHED}")
    assert steps == _WARM_UP + _WATCHED
    assert waits == []
