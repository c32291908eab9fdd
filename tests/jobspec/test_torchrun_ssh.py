"""The torchrun script that starts itself on all nodes: a real ssh and a real sshd, on addresses of this machine."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspec import filters
from jobspec.artifact import render
from tests import warm, workers
from tests.platforms import NODES, SCRIPT, free_port
from tests.slurm import RECORDER, Call

BASE = "name: job\nnodes: 2\nprocs_per_node: 2\ndevice: cpu\n"
# An agent that saves when it is told to stop, and exits 1 as torchrun does.
SAVING = """#!/bin/bash
trap 'touch saved-$NODE_RANK; exit 1' TERM
touch running-$NODE_RANK
while true; do read -rt 0.1 _ <> <(:); done
"""

pytestmark = pytest.mark.timeout(120)


@dataclass
class Nodes:
    """A folder with a script, its programs, and an ssh that reaches node0 and node1."""

    folder: Path

    def install(self, name: str, program: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(program)
        file.chmod(0o755)

    def start(self, spec: str, *hosts: str, **env: str) -> subprocess.Popen[bytes]:
        """`bash job.sh HOSTS` as a terminal does it, in a session of its own."""
        (self.folder / "job.yaml").write_text(spec)
        (self.folder / "job.sh").write_text(render("torchrun", str(self.folder / "job.yaml")))
        return subprocess.Popen(
            ["bash", "job.sh", *hosts],
            cwd=self.folder,
            env={"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, spec: str, *hosts: str, **env: str) -> tuple[int, str]:
        job = self.start(spec, *hosts, **env)
        out = job.communicate(timeout=100)[0].decode()
        return job.returncode, out

    def wait_for(self, *names: str) -> None:
        """Until these files are there."""
        deadline = time.monotonic() + 60
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline, f"{names} did not appear"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A program that is ssh with a configuration in which node0 and node1 are this machine."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or not shutil.which("ssh"):
        pytest.skip("no sshd is installed (Debian package openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd of root locks its first steps in
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    for key in ("host", "person"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress {NODES[0]}\nListenAddress {NODES[1]}\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/person.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
    )
    (folder / "ssh_config").write_text(
        "".join(f"Host node{number}\n  HostName {node}\n" for number, node in enumerate(NODES))
        + f"Host *\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/person\n  LogLevel ERROR\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    with subprocess.Popen([sshd, "-D", "-f", folder / "sshd_config"]) as server:
        try:
            deadline = time.monotonic() + 30
            while socket.socket().connect_ex((NODES[1], port)) != 0:
                assert server.poll() is None and time.monotonic() < deadline, "sshd did not start"
                time.sleep(0.02)
            yield f'#!/bin/sh\nexec {shlex.quote(shutil.which("ssh") or "")} -F {folder}/ssh_config "$@"\n'
        finally:
            server.terminate()


@pytest.fixture
def new_nodes(ssh: str, tmp_path: Path) -> Callable[[str], Nodes]:
    def make(torchrun: str) -> Nodes:
        (tmp_path / "bin").mkdir()
        nodes = Nodes(tmp_path)
        nodes.install("ssh", ssh)
        nodes.install("torchrun", torchrun)
        return nodes

    return make


accepted = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], include_characters="\n\t")
    | st.sampled_from("'\"`$(){};&|<>\\*?~#!%=, -"),
    max_size=30,
)
canary = "$(touch pwned)`touch pwned`';touch pwned;'\n touch pwned\n\"&touch pwned&"


@pytest.mark.slow
def test_hostile_values_and_secrets_arrive_on_every_node_and_run_nothing(new_nodes: Callable[[str], Nodes]) -> None:
    folder = new_nodes(RECORDER.format(file="call-$NODE_RANK")).folder
    nodes = Nodes(folder)

    @settings(max_examples=8)
    @given(value=accepted, argument=accepted, secret=accepted.filter(bool))
    def check(value: str, argument: str, secret: str) -> None:
        spec = BASE + (
            f"env: {{A: {filters.yaml(value)}, B: {filters.yaml(value + canary)}}}\nsecrets: [TOKEN]\n"
            f"command: {filters.yaml(['mine.py', argument, canary])}\n"
        )
        status, out = nodes.run(spec, "node0", "node1", TOKEN=secret)
        assert status == 0, out
        for number in range(2):
            call = Call.read(folder / f"call-{number}")
            assert (call.env["A"], call.env["B"], call.env["TOKEN"]) == (value, value + canary, secret)
            assert workers.words(call.argv)[-3:] == ["mine.py", argument, canary]
            assert {f"--node-rank={number}", "--master-addr=node0"} < set(call.argv)
            assert (call.env["PWD"], call.env["PATH"].split(":")[0]) == (str(folder), str(folder / "bin"))
        assert not list(folder.rglob("pwned"))

    check()


def test_secret_is_in_no_argument_of_any_process(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    spec = BASE + "command: [mine.py]\nsecrets: [TOKEN]\n"
    job = nodes.start(spec, "node0", "node1", TOKEN="hush-5d1c")
    nodes.wait_for("running-0", "running-1")
    assert b"hush-5d1c" not in b"".join(read(process / "cmdline") for process in Path("/proc").glob("[0-9]*"))
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) != 0


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def test_ctrl_c_lets_every_node_save_and_end(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    job = nodes.start(BASE + "command: [mine.py]\n", "node0", "node1")
    nodes.wait_for("running-0", "running-1")
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(timeout=60) != 0
    nodes.wait_for("saved-0", "saved-1")


def test_script_that_is_killed_takes_the_nodes_with_it(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    job = nodes.start(BASE + "command: [mine.py]\n", "node0", "node1")
    nodes.wait_for("running-0", "running-1")
    job.kill()
    job.wait(timeout=10)
    nodes.wait_for("saved-0", "saved-1")


def test_node_that_fails_ends_the_others_and_the_job(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING.replace("touch running", "if [ $NODE_RANK = 1 ]; then exit 7; fi\ntouch running"))
    status, out = nodes.run(BASE + "command: [mine.py]\n", "node0", "node1")
    assert status != 0, out


def test_elastic_job_goes_on_without_a_node_that_fails(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes("#!/bin/bash\n[ $NODE_RANK = 0 ] || exit 7\nread -rt 2 _ <> <(:)\ntouch ended\n")
    spec = BASE.replace("nodes: 2", "nodes: {min: 1, max: 3}") + "command: [mine.py]\n"
    status, out = nodes.run(spec, "node0", "node1")
    assert status == 0, out
    assert (nodes.folder / "ended").exists()


@pytest.mark.parametrize("hosts", [["node0"], ["node0", "node1", "node2"]])
def test_wrong_number_of_nodes_is_refused(new_nodes: Callable[[str], Nodes], hosts: list[str]) -> None:
    nodes = new_nodes(SAVING)
    status, out = nodes.run(BASE + "command: [mine.py]\n", *hosts)
    assert (status, out) == (2, "job: save this script in a file and name all 2 nodes, node 0 first\n")


def test_host_that_looks_like_an_option_is_none(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    status, _ = nodes.run(BASE + "command: [mine.py]\n", "-oProxyCommand=touch pwned", "-oProxyCommand=touch pwned")
    assert status != 0
    assert not list(nodes.folder.rglob("pwned"))


@pytest.mark.slow
@pytest.mark.timeout(300)  # torch is imported, also on a machine with other work
def test_processes_of_all_nodes_reach_each_other_with_real_torchrun(new_nodes: Callable[[str], Nodes]) -> None:
    with warm.started() as programs:
        nodes = new_nodes(f'#!/bin/sh\nexec {programs}/torchrun "$@"\n')
        (nodes.folder / "mine.py").write_text(SCRIPT)
        (nodes.folder / "seen").mkdir()
        spec = BASE + f"command: [mine.py]\nenv: {{GLOO_SOCKET_IFNAME: lo}}\nrendezvous: {{port: {free_port()}}}\n"
        status, out = nodes.run(spec, *NODES)
    assert status == 0, out
    for rank in range(4):
        seen = json.loads((nodes.folder / "seen" / str(rank)).read_text())
        assert (seen["total"], seen["env"]["MASTER_ADDR"]) == (15, NODES[0])
        assert int(seen["env"]["NODE_RANK"]) == rank // 2
