"""The torchrun script over ssh where something is wrong: each end has a last line that names node and reason."""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import ssh
from tests.e2e.slurm.user import give
from tests.platforms import SCRIPT
from tests.slurm import RECORDER, Call
from tests.ssh import NAMES, SILENT
from tests.ssh_script import BASE, MINE, SAVING, Nodes, last_line

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(ssh.missing() is not None, reason=str(ssh.missing()))]


@pytest.mark.parametrize(
    ("spec", "host", "reason"),
    [
        (MINE, SILENT, f"ssh: connect to host {SILENT} port 22: Connection timed out; log in by hand once, or see"),
        (MINE, "sshdesk", "ssh: connect to host sshdesk port 22: Connection refused; log in by hand once, or see"),
        (MINE, "nobody@sshn1", "nobody@sshn1: Permission denied (publickey,password,keyboard-interactive); log in"),
        (MINE, "nowhere", "ssh: Could not resolve hostname nowhere"),
        (MINE + "setup: ['[ $NODE_RANK = 0 ] || PATH=/usr/bin:/bin']\n", "sshn1", "torchrun: not found"),
        (MINE + "setup: ['[ $NODE_RANK = 0 ]']\n", "sshn1", "setup: this line failed: [ $NODE_RANK = 0 ]"),
        (
            MINE + "setup: ['[ $NODE_RANK = 0 ] || { hostname sshn0; nonsense; }']\n",
            "sshn1",
            "nonsense; }",
        ),
    ],
)
def test_node_that_cannot_start_is_named_with_the_reason(
    new_nodes: Callable[[str], Nodes], spec: str, host: str, reason: str
) -> None:
    nodes = new_nodes(SAVING)
    status, out = nodes.run(spec, "sshn0", host)
    assert status != 0 and reason in last_line(out), out
    assert last_line(out).startswith(f"render-job: {host} failed first: exit code {status}; "), out
    assert "password:" not in out


@pytest.mark.parametrize("hosts", [["node0"], [*NAMES, "node2"]])
def test_wrong_number_of_nodes_is_refused(new_nodes: Callable[[str], Nodes], hosts: list[str]) -> None:
    nodes = new_nodes(SAVING)
    status, out = nodes.run(BASE + "command: [mine.py]\n", *hosts)
    assert (status, out) == (2, f"render-job: job.sh needs 2 nodes, not {len(hosts)}: name each, node 0 first\n")


def test_host_that_looks_like_an_option_is_none(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    status, _ = nodes.run(BASE + "command: [mine.py]\n", "--", *["-oProxyCommand=touch pwned"] * 2)
    assert status == 255
    assert not list(nodes.folder.rglob("pwned"))


def test_gloo_and_nccl_take_the_interface_towards_the_other_nodes_and_not_docker0(
    new_nodes: Callable[[str], Nodes],
) -> None:
    nodes = new_nodes(RECORDER.format(file="call-$NODE_RANK"))
    status, out = nodes.run(MINE.replace("cpu", "cuda"), *NAMES)
    assert status == 0, out
    for number in range(2):
        env = Call.read(nodes.folder / f"call-{number}").env
        assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_bashrc_that_reads_to_the_end_is_named_after_90_s(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    bashrc = nodes.lab.home / ".bashrc"
    bashrc.write_text("cat >/dev/null")
    try:
        status, out = nodes.start(MINE, *NAMES).ended(150)
    finally:
        bashrc.unlink()
    assert status != 0
    assert "no shell within 90 s: does ~/.bashrc there wait for something?" in last_line(out), out


@pytest.mark.parametrize("reads", ["read -r answer; cat >/dev/null & sleep 1; kill $!", "read -r; read -rt 2 -N 9999"])
def test_bashrc_that_reads_swallows_nothing_of_the_script(new_nodes: Callable[[str], Nodes], reads: str) -> None:
    nodes = new_nodes(RECORDER.format(file="call-$NODE_RANK"))
    bashrc = nodes.lab.home / ".bashrc"
    bashrc.write_text(reads)
    try:
        status, out = nodes.run(MINE, *NAMES)
    finally:
        bashrc.unlink()
    assert status == 0, out
    assert Call.read(nodes.folder / "call-1").argv[-1] == "mine.py"


@pytest.mark.parametrize("first", ["10.77.0.10", "fd77::10"])
def test_node_started_by_hand_says_where_it_meets_the_others(new_nodes: Callable[[str], Nodes], first: str) -> None:
    nodes = new_nodes("#!/bin/sh\n")
    nodes.write(MINE + "rendezvous: {port: 20123}\n")
    for number, name in enumerate(NAMES):
        done = nodes.by_hand(name, NODE_RANK=str(number), MASTER_ADDR=first)
        assert done.stderr == f"job: node {number} meets the others at {first}:20123 over eth0\n"


def test_name_of_node_0_that_is_a_loopback_address_is_refused_on_each_node(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    status, out = nodes.run(MINE, *NAMES, MASTER_ADDR="sshn1")
    assert status == 1 and "sshn1 failed first: exit code 1" in last_line(out)
    assert "job: sshn1 is 127.0.1.1 here, this machine: look at /etc/hosts, or set MASTER_ADDR to an" in last_line(out)
    done = nodes.by_hand("sshn0", NODE_RANK="0", MASTER_ADDR="sshn0")
    assert done.returncode == 1 and "job: sshn0 is 127.0.1.1 here" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)  # torch is imported, also on a machine with other work
def test_own_script_over_gloo_works_where_own_names_are_loopback(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes("")
    nodes.write_program("mine.py", SCRIPT + "print('rank', dist.is_initialized())\n")
    (nodes.folder / "seen").mkdir(mode=0o777)
    give(nodes.folder / "seen")
    status, out = nodes.start(MINE, *NAMES).ended(250)
    assert status == 0, out
    for rank in range(4):
        seen = json.loads((nodes.folder / "seen" / str(rank)).read_text())
        assert (seen["total"], seen["env"]["MASTER_ADDR"]) == (15, "sshn0")
        assert int(seen["env"]["NODE_RANK"]) == rank // 2
        assert f"sshn{rank // 2}: rank False\n" in out


# Meets the other ranks until one is lost; ends well once that one is back.
MEETS = """
import os, pathlib, time, torch, torch.distributed as dist
lost = os.path.exists("running-0-of-1")
dist.init_process_group("gloo")
if lost and dist.get_world_size() == 2:
    print("both again", flush=True)
    os._exit(0)
pathlib.Path(f"running-{os.environ['RANK']}-of-{dist.get_world_size()}").write_text("")
while dist.get_world_size() > 1:
    dist.all_reduce(torch.ones(1))
time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_elastic_job_trains_on_after_a_node_was_lost_and_takes_it_back(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes("")
    nodes.write_program("mine.py", MEETS)
    spec = MINE.replace("nodes: 2", "nodes: {min: 1, max: 2}").replace("procs_per_node: 2", "procs_per_node: 1")
    job = nodes.start(spec, *NAMES)
    nodes.wait_for("running-0-of-2", "running-1-of-2", timeout_s=200)
    nodes.lab.machines["sshn1"].run("pkill", "-KILL", "-u", "ada")
    nodes.wait_for("running-0-of-1", timeout_s=200)
    back = nodes.by_hand("sshn1", NODE_RANK="1", MASTER_ADDR="sshn0")
    status, out = job.ended(200)
    assert (status, back.returncode) == (0, 0), out + back.stderr
    assert "sshn0: both again\n" in out and "; the other nodes go on\n" in out


REAL = f'#!/bin/sh\nexec {Path(sys.executable).parent}/torchrun "$@"\n'
# A worker that needs no torch: it says who it is, and works until it is asked to end.
WORKER = """
import os, pathlib, signal, sys
def end(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
ours = pathlib.Path("pid-" + os.environ["RANK"])
ours.write_text(str(os.getpid()))
ours.rename("running-" + os.environ["RANK"])
while True:
    signal.pause()
"""
FAULTS = {  # each with the seconds within which it must have ended, and with the reason that the last line must have
    "refused": (20, "Connection refused"),
    "dropped": (45, "Connection timed out"),
    "wrong folder": (20, "all nodes need it, shared or as a copy"),
    "no torchrun": (20, "torchrun: not found"),
    "worker killed": (100, "local rank 0 ended with -9"),
    "Ctrl-C": (40, "Ctrl-C ended"),
    "SIGHUP": (40, "SIGHUP ended"),
    "link cut": (130, "ssh lost the connection"),
    "127.0.1.1": (20, "is 127.0.1.1 here"),
}
_CODES = {"no torchrun": 127, "Ctrl-C": 130, "SIGHUP": 129, "refused": 255, "dropped": 255, "link cut": 255}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_start_with_a_random_fault_ends_in_time_and_names_node_and_reason(new_nodes: Callable[[str], Nodes]) -> None:
    """RANDOM_STARTS=50 makes 50 of them."""
    chance = random.Random(31)
    for number in range(int(os.environ.get("RANDOM_STARTS", "5"))):
        fault, victim = chance.choice(list(FAULTS)), chance.randrange(2)
        victim = 1 if fault == "127.0.1.1" else victim  # node 0 may have this address for its name
        delay_s = chance.random() * 3
        began = time.monotonic()
        status, out = _with_fault(new_nodes(REAL if fault == "worker killed" else SAVING), fault, victim, delay_s)
        print(f"{number}: {fault} on {NAMES[victim]}: {time.monotonic() - began:.0f} s, {status}: {last_line(out)}")
        assert FAULTS[fault][1] in last_line(out) and NAMES[victim] in last_line(out), out
        assert status == _CODES.get(fault, 1)


def _with_fault(nodes: Nodes, fault: str, victim: int, delay_s: float) -> tuple[int, str]:
    spec, master = MINE.replace("procs_per_node: 2", "procs_per_node: 1"), "sshn1" if fault == "127.0.1.1" else ""
    machine = nodes.lab.machines[NAMES[victim]]
    if fault == "no torchrun":
        spec += f"setup: ['[ $NODE_RANK != {victim} ] || PATH=/usr/bin:/bin']\n"
    nodes.write_program("mine.py", WORKER)
    for rank in range(2):
        (nodes.folder / f"running-{rank}").unlink(missing_ok=True)
    with ExitStack() as stack:
        if fault in ("refused", "dropped"):
            verdict = ["REJECT", "--reject-with", "tcp-reset"] if fault == "refused" else ["DROP"]
            rule = ["INPUT", "-p", "tcp", "--dport", "22", "--syn", "-j", *verdict]
            machine.run("iptables", "-A", *rule)
            stack.callback(machine.run, "iptables", "-D", *rule)
        if fault == "wrong folder":
            machine.run("mount", "-t", "tmpfs", "none", str(nodes.folder.parent))
            stack.callback(machine.run, "umount", str(nodes.folder.parent))
        job = nodes.start(spec, *NAMES, terminal=fault == "Ctrl-C", MASTER_ADDR=master)
        if FAULTS[fault][0] in (40, 100, 130):
            nodes.wait_for("running-0", "running-1", timeout_s=100)
            time.sleep(delay_s)
        if fault == "Ctrl-C":
            assert job.terminal is not None
            os.write(job.terminal, b"\x03")
        elif fault == "SIGHUP":
            job.signal("HUP")
        elif fault == "worker killed":
            machine.run("kill", "-KILL", (nodes.folder / f"running-{victim}").read_text())
        elif fault == "link cut":
            stack.enter_context(nodes.lab.cut(NAMES[victim]))
        result = job.ended(FAULTS[fault][0])
    nodes.lab.wait_until_nothing_runs(90 if fault == "link cut" else 5)
    return result
