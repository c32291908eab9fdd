"""A rank that is killed: the others end within seconds, and say in a line or two what they know of it."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from tests.cli import HANG_S, start_ranks, wait_until_it_trains
from tests.ranks import launched, run_ranks, shorten_timeout
from train.collectives import missing_ranks
from train.ddp.wrapper import CustomDDP
from train.errors import UserError
from train.run import Run
from train.world.environment import World

# Where a failure shows: in CustomDDP's own wait, or in a collective that is not ours.
WAYS = {
    "CustomDDP over the network": ["--sync=bf16"],
    "native DDP": ["--strategy=ddp"],
}


def _start(tmp_path: Path, way: str) -> list[subprocess.Popen[str]]:
    """Three ranks that train; rank 0 serves the store."""
    flags = ["--model=mnist_cnn", "--device=cpu", "--batch-size=96", "--epochs=1000", "--log-every=2", *WAYS[way]]
    ranks = start_ranks(3, *flags, f"--run-dir={tmp_path}")
    wait_until_it_trains(ranks[0])
    return ranks


_WHAT = re.compile(r"run\.\w+\(\) at trainer.py:\d+: (the gradients of .* were not averaged|a message between the p)")


def _message(rank: subprocess.Popen[str]) -> list[str]:
    """The lines of the one paragraph with which a rank ended."""
    _, stderr = rank.communicate()
    assert rank.returncode == 1
    stderr = re.sub(r"^(\[rank\d+\]:)?\[W\d.*?\n\n", "", stderr, flags=re.M | re.S)  # torch's own log, which has frames
    before, paragraph = stderr.split("error: ")
    assert "Traceback" not in before and "frame #" not in stderr
    return paragraph.splitlines()


@pytest.mark.parametrize("way", WAYS)
def test_survivors_of_rank_0_say_that_the_store_is_gone_and_accuse_nobody(way: str, tmp_path: Path) -> None:
    killed, *others = _start(tmp_path, way)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    for rank in others:
        what, who = _message(rank)
        assert _WHAT.match(what)
        assert who.startswith("cannot tell which ranks are missing, because the store at 127.0.0.1:")
        assert "Rank 0 or the torchrun of its node serves the store" in who


@pytest.mark.parametrize("way", WAYS)
def test_survivors_of_another_rank_name_it(way: str, tmp_path: Path) -> None:
    first, killed, last = _start(tmp_path, way)
    killed.kill()
    what, *who = _message(first)
    assert _WHAT.match(what)
    # The last rank may have noticed nothing until the first one ended.
    assert who[-1].startswith("no report within 5 s from rank 1")
    assert len(_message(last)) <= 3
    assert killed.wait() == -signal.SIGKILL


def _told(function: Callable[[], object]) -> str:
    with pytest.raises(UserError) as told:
        function()
    return str(told.value)


def _wrapped(module: nn.Module) -> CustomDDP:
    """Over the network, in a group of its own, so that what is left of one failure does not disturb the next."""
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return CustomDDP(module, process_group=group)


def _apart(world: World) -> str:
    """Rank 0 is alone in a first backward, and rank 1 in a forward."""
    x = torch.ones(2, 4)
    first, second = _wrapped(nn.Linear(4, 4)), _wrapped(nn.BatchNorm1d(4))
    for wrapped in (first, second):
        shorten_timeout(wrapped.group, 1)
    outputs = first(x).sum()
    with mock.patch.object(missing_ranks, "_REPORTS_S", HANG_S):  # they may give up at different times
        message = _told(outputs.backward) if world.rank == 0 else _told(lambda: second(x))
    dist.barrier()
    return message


def test_ranks_that_wait_at_different_places_name_them() -> None:
    of_ranks = run_ranks(2, _apart)
    assert of_ranks[0].startswith("agreeing on the buckets failed: ")
    assert of_ranks[0].endswith("rank 1 gave up at another place: forward after backward 0")
    assert of_ranks[1].startswith("sending rank 0's buffers failed: ")
    assert of_ranks[1].endswith("rank 0 gave up at another place: end of backward 1")


def _alone(world: World) -> str:
    model = _wrapped(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    shorten_timeout(model.group, 1)
    message = _told(model(torch.ones(2, 4)).sum().backward) if world.rank == 0 else ""
    dist.barrier()  # rank 1 stays alive until then
    return message


def test_a_rank_that_takes_no_part_is_named_with_the_gradients_that_wait_for_it() -> None:
    what, who = run_ranks(2, _alone)[0].splitlines()
    assert what.startswith("the gradients of bias, weight (backward 2, bucket 1) were not averaged: ")
    assert who == "no report within 5 s from rank 1 (ended or still waiting): see its log"


def _ended(world: World, reason: str | None) -> str:
    if world.rank == 1 and reason is not None:
        missing_ranks.report_failure(UserError(reason))
    dist.barrier()
    if world.rank != 0:
        return ""
    assert dist.group.WORLD is not None
    with pytest.raises(UserError) as refusal, missing_ranks.naming_missing_ranks():
        raise missing_ranks.MissingRanks(dist.group.WORLD, [1], "ended", ended=True)
    return str(refusal.value)


@pytest.mark.parametrize(("reason", "lines"), [(None, []), ("no memory", ["rank 1 failed: no memory"])])
def test_rank_that_shared_memory_misses_is_named_with_its_reason_and_no_other_is(
    reason: str | None, lines: list[str]
) -> None:
    head = "a message between the processes failed: rank 1 ended"
    assert run_ranks(3, _ended, reason)[0].splitlines() == [head, *lines]


def _uneven(what: str) -> str:
    """Two ranks that do not make the same calls."""
    missing_ranks._REPORTS_S = 100.0  # however slow the machine is
    run, dataset = Run(seed=1, collective_timeout_s=60), TensorDataset(torch.ones(8, 1))
    model: Any = run.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(batch: Any) -> Any:
        mean = model(batch[0]).mean()
        return mean.detach() if what == "no graph" and run.rank == 1 and mean.requires_grad else mean

    with pytest.raises(UserError) as told, run.loop.saved_after_failure():
        for _ in run.epochs(2):
            for batch in run.batches(dataset, 4):
                if what == "an evaluation" and run.rank == 0:
                    run.evaluate(lambda batch: {"loss": loss(batch)}, dataset, 4)
                if what == "a break" and run.rank == 0:
                    break
                if what == "no step" and run.rank == 1:
                    continue
                run.step(loss, batch, optimizer)
            run.evaluate(lambda batch: {"loss": loss(batch)}, dataset, 4)
    return str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "calls"),
    [
        ("an evaluation", ("run.evaluate()", "run.step()")),
        ("a break", ("run.evaluate()", "run.step()")),
        ("no step", ("run.step()", "run.batches()")),
    ],
)
def test_a_call_that_one_rank_alone_makes_is_named_on_both(what: str, calls: tuple[str, str]) -> None:
    for message, mine, other in zip(launched(2, _uneven, what), calls, calls[::-1], strict=True):
        own, theirs = message.splitlines()
        assert own.startswith(f"{mine} at test_missing_ranks.py:"), message
        assert re.match(rf"rank \d gave up at another place: .*{re.escape(other)} at test_missing_ranks.py:", theirs), (
            message
        )


@pytest.mark.slow
def test_a_loss_without_graph_on_one_rank_is_a_sentence_on_both() -> None:
    first, second = launched(2, _uneven, "no graph")
    said = "the function of run.step() returned a tensor of shape () without a graph (after .item(), .detach()"
    assert second.startswith(said)
    assert first.startswith("run.step() at test_missing_ranks.py:") and f"rank 1 failed: {said}" in first, first


def _with_a_store_that_ends(world: World) -> str:
    if world.rank == 1:
        missing_ranks._store().set("1", "gave up at another place: here")
    dist.barrier()
    if world.rank != 0:
        return ""
    read = missing_ranks._read

    def read_once(others: list[int]) -> dict[int, str]:
        found = read(others)
        missing_ranks._server = lambda: ("127.0.0.1", 9)  # where nobody listens
        return found

    missing_ranks._read = read_once
    return str(missing_ranks._exchange("there", [1, 2]))


def test_a_report_that_was_read_before_the_store_ended_is_shown() -> None:
    assert run_ranks(3, _with_a_store_that_ends)[0] == "{1: 'gave up at another place: here'}"
