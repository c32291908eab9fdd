"""python -m train.doctor on real processes: a healthy pair, and each fault named in words within a minute."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.network import INTERFACE, missing_for_nodes, start_nodes
from tests import ssh
from tests.cli import ROOT, free_port
from tests.ranks import run_ranks
from train.diagnosis.speed import Ranks, measure_links
from train.doctor import main
from train.world.environment import World

pytestmark = pytest.mark.timeout(180)

# From the last start of a rank to the last word, with the seconds that importing torch takes on a busy machine.
_MINUTE_S = 60.0


@contextmanager
def _doctor(
    port: int, rank: int, *flags: str, world_size: int = 2, master: str = "127.0.0.1", enter: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The doctor as one rank of a job whose variables were set by hand."""
    variables = {"RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": world_size}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GLOO_", "NCCL_"))}
    environment |= {name: str(value) for name, value in variables.items()}
    environment |= {"MASTER_ADDR": master, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [*enter, sys.executable, "-m", "train.doctor", "--device=cpu", *flags]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _said(*ranks: subprocess.Popen[str], within_s: float = _MINUTE_S) -> list[str]:
    """What each rank printed until it ended, which has to be within this time."""
    deadline = time.monotonic() + within_s
    return [rank.communicate(timeout=max(1.0, deadline - time.monotonic()))[0] for rank in ranks]


def _problems(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("PROBLEM: ")]


def test_a_healthy_pair_under_torchrun_is_found_healthy_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "doctor.png"
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "train.doctor", "--device=cpu", "--slow-mbit-s=20", f"--picture={picture}"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_MINUTE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = done.stdout.splitlines()[:3]
    assert head.split() == ["rank", "host", "pid", "device", "backend", "interface", "MASTER_ADDR", "torch", "code"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert all(socket.gethostname() in row and " cpu " in row and " gloo " in row for row in rows)
    answers = [f"{name} right" for name in ("all-reduce", "broadcast", "gather", "scatter", "all-to-all", "barrier")]
    assert f"answers over gloo: {', '.join(answers)}" in done.stdout
    assert "\n64 MiB " in done.stdout
    assert "\n  rank 1 to 0: " in done.stdout
    assert done.stdout.endswith("no problem found\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_single_process_is_found_healthy() -> None:
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, "-m", "train.doctor", "--device=cpu"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=_MINUTE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rank ")
    assert done.stdout.endswith("no problem found\n")


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e15", "0", "soon"])
def test_a_time_that_cannot_be_waited_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"--rendezvous-timeout-s={seconds}"])
    assert f'"{seconds}" is not accepted; it must be a number above 0' in capsys.readouterr().err


def test_a_master_addr_that_does_not_resolve_is_named_and_the_other_rank_names_who_is_missing() -> None:
    port = free_port()
    with _doctor(port, 0) as first, _doctor(port, 1, master="no-such-host.invalid") as second:
        of_first, of_second = _said(first, second)
    assert (first.returncode, second.returncode) == (1, 1)
    assert 'PROBLEM: MASTER_ADDR is "no-such-host.invalid", which does not resolve on ' in of_second
    assert "PROBLEM: rank 1 of 2 did not arrive within 30 s: look at the logs of the missing ranks" in of_first
    assert "Traceback" not in of_first + of_second


def test_a_master_addr_of_another_host_is_named_by_rank_0() -> None:
    """192.0.2.1 is kept for documentation (RFC 5737): no host has it."""
    with _doctor(free_port(), 0, "--rendezvous-timeout-s=5", master="192.0.2.1") as first:
        (of_first,) = _said(first)
    assert first.returncode == 1
    assert 'but MASTER_ADDR is "192.0.2.1", which is not an address of this host' in of_first


def test_world_sizes_that_differ_are_named_on_both_ranks_at_once() -> None:
    port = free_port()
    with _doctor(port, 0) as first, _doctor(port, 1, world_size=3) as second:
        outputs = _said(first, second)
    expected = "PROBLEM: world sizes differ: WORLD_SIZE is 2 on rank 0; WORLD_SIZE is 3 on rank 1."
    assert [output.partition(" Start all nodes")[0] for output in outputs] == [expected, expected]
    assert (first.returncode, second.returncode) == (1, 1)


def test_a_rank_that_was_started_twice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # The store outlives rank 0, as torchrun's does: the rank that comes last may come after the others have ended.
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with _doctor(store.port, 0) as first, _doctor(store.port, 1) as second, _doctor(store.port, 1) as again:
        outputs = _said(first, second, again)
    assert any("PROBLEM: rank 1 was started 2 times (pid " in output for output in outputs)


@pytest.mark.parametrize("paused", [0, 1])
def test_a_rank_paused_with_sigstop_is_named(paused: int) -> None:
    port = free_port()
    with _doctor(port, 0) as first, _doctor(port, 1) as second:
        ranks = [first, second]
        assert first.stdout is not None
        # Rank 0 prints the table when the ranks have met; the checks begin with it.
        assert first.stdout.readline().startswith("rank  host")
        os.kill(ranks[paused].pid, signal.SIGSTOP)
        (output,) = _said(ranks[1 - paused])
        os.kill(ranks[paused].pid, signal.SIGCONT)
    assert ranks[1 - paused].returncode == 1
    (problem,) = _problems(output)
    assert f"`kill -CONT {ranks[paused].pid}` continues it" in problem
    assert "stopped (SIGSTOP or a debugger)" in problem


def test_a_rank_that_was_killed_is_named() -> None:
    port = free_port()
    with _doctor(port, 0) as first, _doctor(port, 1) as second:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("rank  host")
        second.kill()
        (output,) = _said(first)
    assert first.returncode == 1
    (problem,) = _problems(output)
    assert problem.startswith("PROBLEM: rank 1 (") and "its process has ended" in problem


def test_a_rank_that_is_stopped_for_40_of_every_52_ms_is_called_slow() -> None:
    port = free_port()
    with _doctor(port, 0) as first, _doctor(port, 1) as second:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("rank  host")
        while first.poll() is None:
            os.kill(second.pid, signal.SIGSTOP)
            time.sleep(0.04)
            os.kill(second.pid, signal.SIGCONT)
            time.sleep(0.012)
        (output,) = _said(first)
    assert any(" is slow: the same matrix product takes" in problem for problem in _problems(output)), output
    assert "PROBLEM: rank 1 (" in output and first.returncode == 1


def _link_with_slow_first_message(world: World) -> list[float]:
    real, sent = dist.send, set[int]()

    def send(tensor: torch.Tensor, dst: int, group: dist.ProcessGroup | None = None) -> None:
        if tensor.dtype == torch.uint8 and dst not in sent:  # as NCCL, which makes a communicator for the pair now
            sent.add(dst)
            time.sleep(1)
        real(tensor, dst=dst, group=group)

    pytest.MonkeyPatch().setattr(dist, "send", send)
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    ranks = Ranks(world.rank, world.world_size, torch.device("cpu"), group, dist.HashStore())
    return measure_links(ranks)


def test_the_first_message_of_a_pair_which_connects_it_is_not_timed() -> None:
    for rates in run_ranks(2, _link_with_slow_first_message, timeout_s=100):
        assert min(rates) > 2**14 / 0.5


@pytest.mark.skipif(missing_for_nodes() is not None, reason=str(missing_for_nodes()))
def test_a_link_of_10_mbit_per_second_is_named() -> None:
    with start_nodes(2) as nodes:
        for node in nodes:
            subprocess.run([*node.enter, "ip", "link", "set", "lo", "up"], check=True)  # towards the own address
        limit = ["tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", "10mbit", "burst", "256kb"]
        subprocess.run([*nodes[1].enter, *limit, "latency", "50ms"], check=True)
        with (
            _doctor(29500, 0, master="10.0.0.1", enter=nodes[0].enter) as first,
            _doctor(29500, 1, master="10.0.0.1", enter=nodes[1].enter) as second,
        ):
            output, _ = _said(first, second)
    assert (first.returncode, second.returncode) == (1, 1)
    assert f"  {INTERFACE}  " in output
    slow = [problem for problem in _problems(output) if "the link from rank 1 " in problem]
    assert len(slow) == 1
    rate = float(slow[0].partition(" is slow: ")[2].split()[0])
    assert 8 < rate < 20  # what the bucket of 256 kB lets through at once comes on top


@pytest.mark.skipif(ssh.missing() is not None, reason=str(ssh.missing()))
@pytest.mark.parametrize("network", ["IPv4", "IPv6", "firewall"])
def test_two_debian_hosts_are_shown_what_a_script_of_their_own_would_meet(
    network: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each host's own name is 127.0.1.1; the firewall of the first lets only the port of the store in."""
    master = "fd77::10" if network == "IPv6" else "10.77.0.10"
    tmp_path_factory.getbasetemp().chmod(0o711)
    flags = ("--slow-mbit-s=1", "--rendezvous-timeout-s=90")  # on a busy machine one rank starts late
    with ssh.started(tmp_path_factory.mktemp("lab")) as lab:
        first, second = (lab.machines[name] for name in ssh.NAMES)
        if network == "IPv6":
            for machine in (first, second):
                machine.run("ip", "-4", "address", "flush", "dev", "eth0")
        if network == "firewall":
            rule = ["INPUT", "-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", "29500", "-j", "DROP"]
            first.run("iptables", "-A", *rule)
        with (
            _doctor(29500, 0, *flags, master=master, enter=first.inside([], ROOT)) as zero,
            _doctor(29500, 1, *flags, master=master, enter=second.inside([], ROOT)) as one,
        ):
            outputs = _said(zero, one, within_s=150)
    assert (zero.returncode, one.returncode) == (1, 1)
    problem = _problems(outputs[0])[0]  # on a busy machine also slow links
    if network == "firewall":
        assert re.search(r"^rank 1 \(sshn1, pid \d+\) waits for sshn0 at 10.77.0.10:\d+: 10 s$", outputs[1], re.M)
        assert re.search(r"rank 1 \(sshn1.*does not reach sshn0 at 10.77.0.10:\d+ .*: a firewall\?", problem)
    else:
        assert "sshn0 is 127.0.1.1, sshn1 is 127.0.1.1 there" in problem
        assert "set GLOO_SOCKET_IFNAME=eth0" in problem
