"""What the doctor finds wrong with measurements; tests/train/diagnosis/test_doctor.py measures them."""

from dataclasses import replace

import pytest
import torch

from train.diagnosis import speed
from train.diagnosis.card import Card, own_card
from train.diagnosis.meeting import mistakes, open_store
from train.diagnosis.report import Report, lines, problems
from train.diagnosis.speed import AllReduce, Clock
from train.errors import UserError
from train.world.environment import World

_CARD = Card(0, 4, 0, "n0", 1, "torchrun", "n0", 2, "10.0.0.1", "eth0", "cuda:0", "GPU-0", "2.15", "3.12", "abc")
_CARDS = [replace(_CARD, rank=rank, local_rank=rank, gpu=f"GPU-{rank}") for rank in range(4)]
_GBIT = 1e9 / 8
_HEALTHY = Report(
    cards=_CARDS,
    wrong={"all-reduce": [], "barrier": []},
    all_reduce=[AllReduce(1024, 1e-4, 1e7), AllReduce(1 << 20, 1e-3, 1e9)],
    links=[100 * _GBIT] * 4,
    clocks=[Clock(0, 0.0, 0.0), Clock(1, -2.5e-3, 1e-4)],
    compute_s=[1e-3, 1e-3, 1.1e-3, 1e-3],
    throttled=[0.0] * 4,
)


def test_a_healthy_job_has_no_problems_and_its_measurements_are_shown_with_units() -> None:
    assert problems(_HEALTHY, slow_mbit_s=500) == []
    assert lines(_HEALTHY).splitlines() == [
        "answers over nccl: all-reduce right, barrier right",
        "all-reduce of  takes    each rank sends",
        "1 KiB          100 us   80.0 Mbit/s",
        "1 MiB          1.00 ms  8.0 Gbit/s",
        "links",
        *[f"  rank {rank} to {(rank + 1) % 4}: 100.0 Gbit/s" for rank in range(4)],
        "clocks: rank 1 differs most from rank 0, by -2.5 ms (± 0.1 ms)",
        "computing: the same matrix product takes 1.00 ms to 1.10 ms; slowest is rank 2",
    ]


def test_the_tensors_of_a_timed_all_reduce_have_the_size_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "of_all_ranks", lambda seconds: [seconds])
    monkeypatch.setattr(speed, "_timed_all_reduce", lambda ranks, values: values.nbytes / 1e9)
    told = speed.measure_all_reduce(speed.Ranks(0, 2, torch.device("cpu"), None, torch.distributed.HashStore()))
    assert {one.size: one.bytes_per_second for one in told} == dict.fromkeys(speed.SIZES, pytest.approx(1e9))


@pytest.mark.parametrize(("seconds", "sizes"), [(0.18, len(speed.SIZES)), (0.19, 1)])
def test_a_size_whose_two_all_reduces_would_take_more_than_6_s_is_not_timed(
    seconds: float, sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "of_all_ranks", lambda seconds: [seconds])
    monkeypatch.setattr(speed, "_timed_all_reduce", lambda ranks, values: seconds)
    told = speed.measure_all_reduce(speed.Ranks(0, 2, torch.device("cpu"), None, torch.distributed.HashStore()))
    assert len(told) == sizes


def test_one_process_alone_is_told_that_no_connection_was_checked() -> None:
    alone = replace(_HEALTHY, cards=_CARDS[:1], links=[], clocks=_HEALTHY.clocks[:1], compute_s=[1e-3], throttled=[0.0])
    assert lines(alone).splitlines() == [
        "answers over nccl: all-reduce right, barrier right",
        "only one process: start several to check their connections (torchrun --nproc-per-node 2)",
        "computing: the same matrix product takes 1.00 ms to 1.00 ms; slowest is rank 0",
    ]


def test_each_problem_is_one_sentence_that_names_the_ranks() -> None:
    cards = [*_CARDS[:2], replace(_CARDS[2], torch="2.6"), replace(_CARDS[3], code="def")]
    links = [*_HEALTHY.links[:2], 10 * _GBIT, 0.01 * _GBIT]
    sick = Report(
        cards,
        {"all-reduce": [1, 3], "barrier": []},
        _HEALTHY.all_reduce,
        links,
        [Clock(0, 0.0, 0.0), Clock(2, -61.0, 0.1), Clock(3, 1.5, 0.6)],
        [1e-3, 2.5e-3, 1e-3, 1e-3],
        [0.0, 0.0, 0.6, 0.05],
    )
    found = problems(sick, slow_mbit_s=500)
    assert [sentence.partition(":")[0] for sentence in found] == [
        "all-reduce gives a wrong answer on ranks 1, 3",
        "versions of torch differ",
        "the code of train/ differs",
        "the link from rank 2 (n0) to rank 3 (n0) is slow",
        "the link from rank 3 (n0) to rank 0 (n0) is slow",
        "the clock of rank 2 (n0) is 61.0 s behind rank 0's",
        "rank 1 (n0) is slow",
        "rank 2 (n0) was stopped for 60% of a second by the CPU limit of its cgroup (a container, a Slurm job)",
    ]
    assert "2.15 on ranks 0, 1, 3; 2.6 on rank 2" in found[1]
    assert "10.0 Gbit/s; the median is 55.0 Gbit/s" in found[3]
    assert "10.0 Mbit/s, below 500 Mbit/s" in found[4]


def test_a_slow_link_between_hosts_is_compared_with_other_links_between_hosts_only() -> None:
    cards = [replace(card, host=f"n{card.rank // 2}") for card in _CARDS]
    links = [1000 * _GBIT, 10 * _GBIT, 1000 * _GBIT, 10 * _GBIT]
    assert problems(replace(_HEALTHY, cards=cards, links=links), slow_mbit_s=500) == []


def test_cards_that_fit_together_have_no_mistakes() -> None:
    assert mistakes(_CARDS, 4, timeout_s=30) is None


def test_all_mistakes_of_the_cards_are_named_at_once() -> None:
    cards = [
        _CARDS[0],
        replace(_CARDS[1], interface="lo", gpu="GPU-0"),
        replace(_CARDS[2], host="n1", mistake="LOCAL_RANK is 2 but torch sees 1 CUDA devices on n1"),
        replace(_CARDS[2], pid=7),
    ]
    found = str(mistakes(cards, 4, timeout_s=30)).splitlines()
    assert [line[:40] for line in found] == [
        "rank 3 of 4 did not arrive within 30 s: "[:40],
        "rank 2 was started 2 times (pid 1 on n1 "[:40],
        "LOCAL_RANK is 2 but torch sees 1 CUDA de",
        "rank 1 would use the loopback interface,",
        "ranks 0, 1 all use GPU GPU-0 of n0, but ",
    ]


def test_a_node_without_a_gpu_among_others_with_one_is_named_before_any_collective() -> None:
    cards = [*_CARDS[:3], replace(_CARDS[3], device="cpu", gpu=None)]
    found = mistakes(cards, 4, 30.0)
    assert "the ranks compute on different devices: cuda on rank 0, 1, 2; cpu on rank 3. " in str(found)


def test_a_card_says_that_gloo_chooses_where_no_interface_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert own_card(World(), "cpu", None).interface == "gloo's choice"


def test_only_rank_0_says_that_it_runs_elsewhere() -> None:
    """192.0.2.1 is kept for documentation (RFC 5737): no host has it."""
    with pytest.raises(UserError, match="rank 1 found no rank 0"):
        open_store(World(1, 2, master_addr="192.0.2.1", master_port=1, launcher="environment"), 0.5)
