"""Ranks and nodes of the benchmarks: they do what was asked, and nothing of them is left, however the run ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.network import missing_for_nodes, start_nodes
from benchmarks.ranks import HERE, ROOT, run_ranks

needs_nodes = pytest.mark.skipif(missing_for_nodes() is not None, reason=str(missing_for_nodes()))

# Makes two nodes, says which namespaces they are and which processes hold them, and ends as it is told to.
MAKE_NODES = """
import os, sys
from benchmarks.network import start_nodes
with start_nodes(2) as nodes:
    holders = [node.enter[1].split("/")[2] for node in nodes]
    print(*[os.readlink(f"/proc/{holder}/ns/net") for holder in holders], flush=True)
    if sys.argv[1] == "crash":
        raise ValueError("as asked")
    sys.stdin.read()
"""


def sum_of_ranks(factor: int) -> int:
    import torch
    import torch.distributed as dist

    total = torch.tensor(factor * (dist.get_rank() + 1))
    dist.all_reduce(total)
    return int(total)


def fail_on_rank_1() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("as asked")
    dist.barrier()


def seconds_to_send(mbit_per_s: float, num_bytes: int) -> float:
    import torch
    import torch.distributed as dist

    from benchmarks.network import limit_rate

    limit_rate(mbit_per_s)
    flat = torch.ones(num_bytes // 4)
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(flat)
    return time.perf_counter() - started


def network_namespaces() -> set[str]:
    """Those that some process is in."""

    def of_processes() -> Iterator[str]:
        for link in Path("/proc").glob("[0-9]*/ns/net"):
            try:
                yield str(link.readlink())
            except OSError:
                # The process has ended meanwhile.
                continue

    return set(of_processes())


def test_ranks_are_connected_and_results_come_by_rank() -> None:
    assert run_ranks(sum_of_ranks, [HERE] * 2, 100.0, factor=10) == [30, 30]


def test_failed_rank_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="failed with exit code 1"):
        run_ranks(fail_on_rank_1, [HERE] * 2, 100.0)


@needs_nodes
def test_nodes_are_connected_by_links_no_faster_than_asked() -> None:
    num_bytes, mbit_per_s = 2**20, 50.0

    with start_nodes(2) as nodes:
        seconds = run_ranks(seconds_to_send, nodes, 100.0, mbit_per_s=mbit_per_s, num_bytes=num_bytes)

    # The burst of tbf goes through at once; on two ranks each sends as many bytes as the tensor has.
    assert min(seconds) > (num_bytes - 2 * 256 * 1024) * 8 / (mbit_per_s * 1e6)


@needs_nodes
@pytest.mark.parametrize("end", ["crash", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_namespace_outlives_its_maker(end: str) -> None:
    command = [sys.executable, "-c", MAKE_NODES, end]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as maker:
        assert maker.stdout is not None
        made = set(maker.stdout.readline().split())
        assert len(made) == 2
        if end != "crash":
            assert made <= network_namespaces()
            maker.send_signal(signal.Signals[end])
        maker.wait(60)

    # The kernel takes them away soon after the last process in them has ended.
    while made & network_namespaces():
        os.sched_yield()
