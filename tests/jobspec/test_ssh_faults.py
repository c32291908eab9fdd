"""`render-job ssh` where something is wrong: the last line names the node and the reason, and nothing is left."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import ssh
from tests.e2e.slurm.user import give
from tests.platforms import SCRIPT
from tests.slurm import RECORDER, Call
from tests.ssh import NAMES, SILENT
from tests.ssh_script import BASE, MINE, SAVING, Nodes, last_line

pytestmark = pytest.mark.skipif(ssh.missing() is not None, reason=str(ssh.missing()))


@pytest.mark.parametrize(
    ("host", "setup", "code", "reason"),
    [
        (SILENT, "", 255, f"ssh: connect to host {SILENT} port 22: Connection timed out"),
        ("sshdesk", "", 255, "ssh: connect to host sshdesk port 22: Connection refused"),
        ("nobody@sshn1", "", 255, "nobody@sshn1: Permission denied (publickey,password,keyboard-interactive)."),
        ("nowhere", "", 255, "ssh: Could not resolve hostname nowhere: "),
        ("10.77.0.11", "", 255, "Host key verification failed."),
        ("sshn1", "PATH=/usr/bin:/bin", 127, "torchrun: not found"),
        ("sshn1", "false", 1, "setup: this line failed: [ $NODE_RANK = 0 ] || false"),
        ("sshn1", "{ hostname sshn0; nonsense; }", 1, "nonsense; }"),
    ],
)
def test_node_that_cannot_start_is_named_with_the_reason(
    new_nodes: Callable[[str], Nodes], host: str, setup: str, code: int, reason: str
) -> None:
    nodes = new_nodes(SAVING)
    with known_hosts_without(nodes, "10.77.0.11"):
        status, out = nodes.run(f"{MINE}setup: ['[ $NODE_RANK = 0 ] || {setup or 'true'}']\n", "sshn0", host)
    assert status == code
    assert last_line(out).startswith(f"render-job: {host} failed first: exit code {code}; its last line: "), out
    assert reason in last_line(out) and "password:" not in out


@contextmanager
def known_hosts_without(nodes: Nodes, address: str) -> Iterator[None]:
    file = nodes.lab.home / ".ssh" / "known_hosts"
    all_hosts = file.read_text()
    file.write_text(all_hosts.replace(address, ""))
    yield
    file.write_text(all_hosts)


@pytest.mark.parametrize("hosts", [["node0"], [*NAMES, "node2"]])
def test_wrong_number_of_nodes_is_refused(new_nodes: Callable[[str], Nodes], hosts: list[str]) -> None:
    spec = BASE + 'command: [mine.py, "\\nexec torchrun --nnodes=3 \\n# Start 1 to 3 nodes, "]\n'
    status, out = new_nodes(SAVING).run(spec, *hosts)
    assert status == 2
    assert last_line(out) == f"render-job ssh: error: job.sh is for 2 nodes, not {len(hosts)}"


def test_file_that_is_no_script_for_several_nodes_is_refused(new_nodes: Callable[[str], Nodes]) -> None:
    status, out = new_nodes(SAVING).run(MINE.replace("nodes: 2", "nodes: 1"), *NAMES)
    assert status == 2
    assert "error: job.sh is no torchrun script for several nodes; `render-job torchrun` writes one" in last_line(out)


def test_host_that_looks_like_an_option_is_none(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    status, _ = nodes.run(MINE, "--", *["-oProxyCommand=touch pwned"] * 2)
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


@pytest.mark.parametrize(
    ("bashrc", "code"),
    [
        ("echo welcome; echo -n 'no end of line'", 0),
        ("read -r answer; cat >/dev/null & sleep 1; kill $!", 0),
        ("read -r; read -rt 2 -N 9999", 0),
        ("cat >/dev/null", 255),
    ],
)
def test_bashrc_may_print_and_read_but_not_to_the_end(
    new_nodes: Callable[[str], Nodes], bashrc: str, code: int
) -> None:
    nodes = new_nodes(RECORDER.format(file="call-$NODE_RANK"))
    file = nodes.lab.home / ".bashrc"
    file.write_text(bashrc)
    try:
        status, out = nodes.run(MINE, *NAMES)
    finally:
        file.unlink()
    assert status == code, out
    if code == 0:
        assert Call.read(nodes.folder / "call-1").argv[-1] == "mine.py"
    else:
        assert "exit code 255; no shell within 90 s: does ~/.bashrc there wait for something?" in last_line(out)


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


def test_own_script_over_gloo_works_where_own_names_are_loopback(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes("")
    nodes.write_program("mine.py", SCRIPT)
    (nodes.folder / "seen").mkdir(mode=0o777)
    give(nodes.folder / "seen")
    status, out = nodes.run(MINE, *NAMES)
    assert status == 0, out
    for rank in range(4):
        seen = json.loads((nodes.folder / "seen" / str(rank)).read_text())
        assert (seen["total"], seen["env"]["MASTER_ADDR"]) == (15, "sshn0")
        assert int(seen["env"]["NODE_RANK"]) == rank // 2


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
time.sleep(3600)
"""


@pytest.mark.parametrize("hosts", [NAMES, NAMES[::-1]])
def test_elastic_job_trains_on_after_a_node_was_lost_and_takes_it_back(
    new_nodes: Callable[[str], Nodes], hosts: tuple[str, str]
) -> None:
    nodes = new_nodes("")
    nodes.write_program("mine.py", MEETS)
    spec = MINE.replace("nodes: 2", "nodes: {min: 1, max: 2}").replace("procs_per_node: 2", "procs_per_node: 1")
    job = nodes.start(spec, *hosts)
    nodes.wait_for("running-0-of-2", "running-1-of-2")
    nodes.lab.machines[hosts[1]].run("pkill", "-KILL", "-u", "ada")
    nodes.wait_for("running-0-of-1")
    back = nodes.by_hand(hosts[1], NODE_RANK="1", MASTER_ADDR=hosts[0])
    status, out = job.ended()
    assert (status, back.returncode) == (0, 0), out + back.stderr
    assert f"{hosts[0]}: both again\n" in out and "; the other nodes go on\n" in out


TORCHRUN = f'#!/bin/sh\nexec {Path(sys.executable).parent}/torchrun "$@"\n'
# A worker that needs no torch: it works until it is asked to end, and then prints before it saves.
WORKER = """
import os, pathlib, signal
def save(*_):
    print("saving", flush=True)
    pathlib.Path("saved-" + os.environ["RANK"]).touch()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("running-" + os.environ["RANK"]).touch()
while True:
    signal.pause()
"""
MOUNT = ["mount", "-t", "tmpfs", "none"]


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("a node without the folder", 1, "its last line: no folder "),
        ("a worker is killed", 1, "first failure: rank 1 on sshn1.lab ended with -9 (SIGKILL): "),
        ("torchrun is killed", 137, "its last line: "),
        ("ssh is killed", 255, "ssh lost the connection"),
        ("sshd is killed", 255, "ssh lost the connection"),
        ("the cable is out", 255, "ssh lost the connection"),
    ],
)
def test_fault_on_a_node_ends_the_job_and_leaves_nothing(
    new_nodes: Callable[[str], Nodes], fault: str, code: int, reason: str
) -> None:
    nodes = new_nodes(TORCHRUN)
    nodes.write_program("mine.py", WORKER)
    machine, desk = nodes.lab.machines["sshn1"], nodes.lab.machines[ssh.DESK]
    with ExitStack() as stack:
        if fault == "a node without the folder":
            machine.run(*MOUNT, str(nodes.folder.parent))
            stack.callback(machine.run, "umount", str(nodes.folder.parent))
        job = nodes.start(MINE.replace("procs_per_node: 2", "procs_per_node: 1"), *NAMES)
        if fault != "a node without the folder":
            nodes.wait_for("running-0", "running-1")
        if fault == "a worker is killed":
            machine.run("pkill", "-KILL", "-f", "mine.py$", "--newest")
        elif fault == "torchrun is killed":
            machine.run("pkill", "-KILL", "-f", "bin/torchrun")
        elif fault == "ssh is killed":
            desk.run("pkill", "-KILL", "-f", "^ssh .* sshn1 ")
        elif fault == "sshd is killed":
            machine.run("pkill", "-KILL", "-f", "^sshd: ada")
        elif fault == "the cable is out":
            stack.enter_context(nodes.lab.cut("sshn1"))
        status, out = job.ended()
    said = reason if reason.startswith("first") else f"sshn1 failed first: exit code {code}; {reason}"
    assert status == code and said in last_line(out), out
    nodes.lab.wait_until_nothing_runs()
    assert (nodes.folder / "saved-1").exists() or code != 255
