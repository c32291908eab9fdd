"""Machines that an ordinary user reaches over ssh: each has its own name, network, processes and sshd.

Their hosts files are as Debian installs them: a machine's own name stands for 127.0.1.1.  Each also has a docker0 with
the same address on all, and an IPv6 address in the network that they share.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli import HANG_S, ROOT
from tests.e2e.slurm.machine import Machine, connect
from tests.e2e.slurm.user import account_files, as_user, give

NAMES = ("sshn0", "sshn1")
DESK = "sshdesk"
"""The machine at which the user starts the script."""
SILENT = "10.77.0.99"
"""An address from which nothing ever answers, as behind a firewall that drops packets."""
_ADDRESSES = {"sshn0": "10.77.0.10", "sshn1": "10.77.0.11", DESK: "10.77.0.12"}
_SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Lab:
    """The machines by name, and the home of the user, which they share as they share all folders."""

    machines: dict[str, Machine]
    network: Machine
    home: Path

    def processes(self) -> dict[str, list[str]]:
        """The command lines of the user's processes on each machine, without sshd's."""
        shown = {
            name: machine.run("sh", "-c", "ps -u ada -o stat=,args= || true") for name, machine in self.machines.items()
        }
        found = {name: [line for line in text.splitlines() if "sshd:" not in line] for name, text in shown.items()}
        return {name: lines for name, lines in found.items() if lines}

    def wait_until_nothing_runs(self) -> None:
        deadline = time.monotonic() + HANG_S
        while left := self.processes():
            assert time.monotonic() < deadline, f"left: {left}"
            time.sleep(0.1)

    @contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """The machine's cable is out meanwhile."""
        self.network.run("ip", "link", "set", f"to-{name}", "down")
        try:
            yield
        finally:
            self.network.run("ip", "link", "set", f"to-{name}", "up")

    def command(self, words: list[str], folder: Path, name: str = DESK, **env: str) -> list[str]:
        """What runs these words on a machine, by default at the desk, as the user, in a folder."""
        path = f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
        variables = {"PATH": path, "HOME": str(self.home), "TMPDIR": "/tmp", **env}
        clean = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        return self.machines[name].inside([*clean, *as_user(words)], folder)


@contextmanager
def started(folder: Path) -> Iterator[Lab]:
    """Start all machines; at the end nothing of them is left."""
    Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd locks its first steps in
    folder.chmod(0o711)
    home, keys = folder / "home", folder / "home" / ".ssh"
    keys.mkdir(parents=True)
    hosts = {name: folder / f"hosts-{name}" for name in _ADDRESSES}
    opened = [folder.parent, ROOT, Path(sys.base_prefix)]
    for name, file in hosts.items():
        others = "".join(f"{address}\t{other}\n" for other, address in _ADDRESSES.items() if other != name)
        others += "".join(f"{address}\t{one}-ib\n" for one, address in _ADDRESSES.items())
        file.write_text(f"127.0.0.1\tlocalhost\n127.0.1.1\t{name}.lab\t{name}\n::1\tlocalhost\n{others}")
    for key, comment in ((folder / "host", "host"), (keys / "id_ed25519", "ada")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", key], check=True)
    shutil.copy(keys / "id_ed25519.pub", keys / "authorized_keys")
    public = (folder / "host.pub").read_text()
    (keys / "known_hosts").write_text("".join(f"{name},{address} {public}" for name, address in _ADDRESSES.items()))
    (folder / "sshd_config").write_text(f"HostKey {folder}/host\nUsePAM no\nPidFile none\nPasswordAuthentication yes\n")
    for file in (home, keys, *keys.iterdir()):
        give(file)
    with ExitStack() as stack:
        empty = folder / "hosts"
        empty.write_text("127.0.0.1 localhost\n")
        network = stack.enter_context(Machine("sshnet", empty))
        network.run("ip", "link", "add", "lan", "type", "bridge")
        network.run("ip", "link", "set", "lan", "up")
        accounts, machines = account_files(folder, home), {}
        for name, address in _ADDRESSES.items():
            machine = Machine(name, hosts[name], accounts, opened)
            machines[name] = stack.enter_context(machine)
            connect(network, "lan", machine, f"{address}/24")
            silent = ["ip", "neighbour", "add", SILENT, "lladdr", "02:00:00:00:00:99", "dev", "eth0"]
            machine.run(*silent, "nud", "permanent")
            machine.run("ip", "address", "add", f"fd77::{address[-2:]}/64", "dev", "eth0", "nodad")
            machine.run("ip", "link", "add", "docker0", "type", "bridge")
            machine.run("ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
            machine.run("ip", "link", "set", "docker0", "up")
            if name == DESK:
                continue
            log = stack.enter_context((folder / f"sshd-{name}").open("w"))
            machine.start([str(_SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], log)
        lab = Lab(machines, network, home)
        for name in NAMES:
            _wait_for_sshd(lab, name, folder / f"sshd-{name}")
        yield lab


def _wait_for_sshd(lab: Lab, name: str, log: Path) -> None:
    deadline = time.monotonic() + HANG_S
    while subprocess.run(lab.command(["ssh", "-o", "BatchMode=yes", name, "true"], lab.home)).returncode:
        assert time.monotonic() < deadline, f"sshd of {name} did not start: {log.read_text()}"
        time.sleep(0.1)


def missing() -> str | None:
    """Say why there can be no machines here; None if there can."""
    if os.geteuid() != 0:
        return "machines of our own need root"
    if _SSHD is None or not shutil.which("ssh"):
        return "no sshd is installed (Debian package openssh-server)"
    return None
