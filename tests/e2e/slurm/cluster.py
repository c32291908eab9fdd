"""A real Slurm on this machine: munged, slurmctld and one slurmd a node, each node a machine with its own network.

    with Cluster(folder, ["n2", "n10"]) as cluster:
        job = cluster.submit(script)

An ordinary user (user.py) submits the jobs from `folder`; the daemons, which run as root, keep their files in a folder
within it.  All processes, networks and mounts end with the machines (machine.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.cli import HANG_S, ROOT
from tests.e2e.slurm import user
from tests.e2e.slurm.machine import HERE, Machine, connect

NETWORK = "10.231.7"
_BRIDGE = "switch"
_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
_NOT_THE_USERS = ("SLURM", "SBATCH", "SRUN", "PET_", "XDG_", "SUDO_", "MAIL", "TMPDIR")
PYXIS = Path("/usr/local/lib/slurm/spank_pyxis.so")  # where its own Makefile installs it

# Times: a node that is silent for SlurmdTimeout is down; SIGKILL comes KillWait after SIGTERM; a job that was requeued
# waits until its old credentials have expired.
_SLURM_CONF = """\
ClusterName=e2e
SlurmctldHost=control({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PlugStackConfig={folder}/plugstack.conf
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SlurmdTimeout={silent_s}
MessageTimeout=60
KillWait=10
MinJobAge=3600
PropagateResourceLimits=NONE
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=beside_low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
"""
_TOPOLOGY = "TopologyPlugin=topology/block\n"
_NODE = "NodeName={name} NodeHostname={name} NodeAddr={address} CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN\n"

# Stands in for the GPUs' own tool, with which the preflight of a script counts those that the job was given.
_NVIDIA_SMI = """\
#!/bin/sh
IFS=,
for gpu in $CUDA_VISIBLE_DEVICES; do echo "GPU $gpu: stand-in"; done
"""


@dataclass(frozen=True)
class Job:
    """What Slurm knows of a job, one `scontrol show job` later."""

    number: str
    fields: Mapping[str, str]

    @property
    def state(self) -> str:
        return self.fields["JobState"]

    @property
    def restarts(self) -> int:
        return int(self.fields["Restarts"])


class Cluster:
    """Starts on `with`, and is ready then.

    Args:
        folder: for all its files, and the folder of the jobs that are submitted; it becomes the user's.
        nodes: the nodes' names; each has 8 CPUs and two stand-ins for GPUs.
        opened: folders that jobs need beside `folder`, this checkout and this Python.
        silent_s: after how long without an answer a node counts as down.
        release: the root folder of the Debian release whose Slurm it is (releases.py).
        blocks: lists of nodes, such as n[1-3], all of one size, that are near one another.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        silent_s: int = 60,
        opened: Sequence[Path] = (),
        release: Path = HERE,
        blocks: Sequence[str] = (),
    ) -> None:
        self.folder = user.give(folder)
        self.system = folder / "system"
        self.names = list(nodes)
        self.silent_s = silent_s
        self.release = release
        self.blocks = blocks
        self.machines: dict[str, Machine] = {}
        self._opened = [folder, ROOT, Path(sys.prefix), Path(sys.base_prefix), *opened]
        self._ends = ExitStack()

    def __enter__(self) -> Cluster:
        with ExitStack() as ends:  # whatever of it has come up goes down again if the rest fails
            self._write_files()
            self.control = ends.enter_context(self._machine("control"))
            self.control.run("ip", "link", "add", _BRIDGE, "type", "bridge")
            self.control.run("ip", "address", "add", f"{NETWORK}.1/24", "dev", _BRIDGE)
            self.control.run("ip", "link", "set", _BRIDGE, "up")
            self.control.run("mungekey", "--create", f"--keyfile={self.system}/munge.key")
            self._daemon(self.control, "munged", *self._munged_flags())
            self.wait_for("munged", lambda: (self.system / "munge.socket").exists())
            self._daemon(self.control, "slurmctld", "-D", "-f", str(self._conf))
            for name in self.names:
                ends.callback(self.power_off, name)
                self.power_on(name)
            self.wait_for("nodes", lambda: {*self.states().values()} == {"idle"})
            self._ends = ends.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.close()

    def power_on(self, name: str) -> None:
        """Start a node."""
        machine = self._machine(name)
        self.machines[name] = machine
        connect(self.control, _BRIDGE, machine, f"{self._address(name)}/24")
        self.start_slurmd(name)

    def power_off(self, name: str) -> None:
        """End a node without a warning."""
        if name in self.machines:
            self.machines.pop(name).close()

    def start_slurmd(self, name: str) -> None:
        self._daemon(self.machines[name], "slurmd", "-D", "-N", name, "-f", str(self._conf))

    def kill_slurmd(self, name: str) -> None:
        """Kill the daemon of a node; the processes of its jobs stay."""
        self.machines[name].run("pkill", "-KILL", "-x", "slurmd")

    def repair(self) -> None:
        """Bring all nodes back to work, and end the jobs."""
        self.administer("scancel", f"--user={user.NAME}")
        for name in self.names:
            if name not in self.machines:
                self.power_on(name)
            elif subprocess.run(self.machines[name].inside(["pgrep", "-x", "slurmd"]), capture_output=True).returncode:
                self.start_slurmd(name)
        self.wait_for("nodes", self._all_idle)

    def _refuse_crashes(self) -> None:
        """Raise RuntimeError if slurmd of a node has crashed (22.05 does, rarely, in a burst), and start it again."""
        crashed = [name for name, machine in self.machines.items() if "slurmd" in machine.take_crashed()]
        for name in crashed:
            self.start_slurmd(name)
        if crashed:
            output = (self.system / "daemons.log").read_text()[-3000:]
            raise RuntimeError(
                f"slurmd has crashed on {', '.join(crashed)}; it is started again.  Its output:\n{output}"
            )

    def _all_idle(self) -> bool:
        """Whether all nodes are; those that Slurm has given up are told to resume, which some do by themselves."""
        states = self.states()
        down = [name for name, state in states.items() if state.rstrip("*") in ("down", "drained", "draining")]
        if down:
            self.administer("scontrol", "update", f"NodeName={','.join(down)}", "State=RESUME")
        return {*states.values()} == {"idle"}

    def command(self, *words: str, environ: Mapping[str, str] | None = None) -> str:
        """Run one of Slurm's commands as the user on the control machine; what it wrote."""
        return self._run(user.as_user(words), self.environment() | dict(environ or {}))

    def administer(self, *words: str) -> str:
        """Run one of Slurm's commands as root, who may do what users may not; what it wrote."""
        return self._run(words, self.environment())

    def _run(self, words: Sequence[str], environ: Mapping[str, str]) -> str:
        done = subprocess.run(
            self.control.inside(words, self.folder),
            env=environ,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The environment of the user's shell: this Python and this checkout, and no other job's variables."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THE_USERS)}
        own = {"HOME": str(self.folder), "USER": user.NAME, "LOGNAME": user.NAME}
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return kept | own | {"PATH": path, "PYTHONPATH": str(ROOT), "SLURM_CONF": str(self._conf)}

    def submit(self, script: str, *flags: str, environ: Mapping[str, str] | None = None) -> str:
        """The number of the job that sbatch makes of a script."""
        file = self.folder / "submitted.sh"
        file.write_text(script)
        return self.command("sbatch", "--parsable", *flags, str(file), environ=environ).strip()

    def job(self, number: str) -> Job:
        text = self.command("scontrol", "show", "job", number, "--oneliner")
        return Job(number, dict(re.findall(r"(\w+)=(\S*)", text.splitlines()[0])))

    def wait_for_state(self, number: str, *states: str) -> Job:
        """Wait until a job is in one of the states.  RuntimeError with all logs if it is not in time."""
        deadline = time.monotonic() + 2 * HANG_S
        while (job := self.job(number)).state not in states:
            if time.monotonic() > deadline:
                raise RuntimeError(f"job {number} is {job.state}, not {' or '.join(states)}:\n{self.logs()}")
            self._refuse_crashes()
            time.sleep(0.3)
        return job

    def wait_for_end(self, number: str) -> Job:
        """Wait until a job is over and Slurm has cleared away after it."""
        return self.wait_for_state(number, *_ENDS)

    def wait_for_line(self, number: str, log: str, text: str) -> None:
        """Wait until a log of a job has the text in it.  RuntimeError with all logs if the job ends without."""
        file = self.folder / log
        deadline = time.monotonic() + 2 * HANG_S
        ended = False
        while not (file.exists() and text in file.read_text()):
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f'no "{text}" in {log}:\n{self.logs()}')
            ended = self.job(number).state in _ENDS
            time.sleep(0.1)

    def states(self) -> dict[str, str]:
        """The state of each node in a word."""
        lines = self.command("sinfo", "--noheader", "--Node", "--partition=low", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def logs(self) -> str:
        """What the jobs and the daemons have written, for the message of a failed test."""
        files = [*sorted(self.folder.glob("*-*.log")), *sorted(self.system.glob("slurm*.log"))]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-6000:]}" for file in dict.fromkeys(files))

    @property
    def _conf(self) -> Path:
        return self.system / "slurm.conf"

    def _address(self, name: str) -> str:
        return f"{NETWORK}.{10 + self.names.index(name)}"

    def _write_files(self) -> None:
        (self.system / "state").mkdir(parents=True)
        (self.folder / "bin").mkdir()
        hosts = {"localhost": "127.0.0.1", "control": f"{NETWORK}.1"}
        hosts |= {name: self._address(name) for name in self.names}
        (self.system / "hosts").write_text("".join(f"{address} {name} {name}-ib\n" for name, address in hosts.items()))
        self._accounts = user.account_files(self.system, self.folder)
        nodes = "".join(_NODE.format(name=name, address=self._address(name)) for name in self.names)
        values = {"address": f"{NETWORK}.1", "folder": self.system, "nodes": nodes, "silent_s": self.silent_s}
        self._conf.write_text(_SLURM_CONF.format(**values) + _TOPOLOGY * bool(self.blocks))
        blocks = "".join(f"BlockName=b{number} Nodes={nodes}\n" for number, nodes in enumerate(self.blocks))
        size = len(self.names) // max(1, len(self.blocks))
        (self.system / "topology.conf").write_text(f"{blocks}BlockSizes={size}\n" if blocks else "")
        for number in range(2):
            os.mknod(self.system / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))  # like /dev/null
        (self.system / "gres.conf").write_text(f"Name=gpu File={self.system}/gpu[0-1]\n")
        (self.system / "cgroup.conf").write_text("")
        pyxis = (
            f"required {PYXIS} runtime_path={self.system}/pyxis\n" if self.release == HERE and PYXIS.exists() else ""
        )
        (self.system / "plugstack.conf").write_text(pyxis)
        smi = self.folder / "bin" / "nvidia-smi"
        smi.write_text(_NVIDIA_SMI)
        smi.chmod(0o755)

    def _munged_flags(self) -> list[str]:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        return ["--foreground", "--force", *(f"--{flag}={self.system}/munge.{end}" for flag, end in files.items())]

    def _machine(self, name: str) -> Machine:
        return Machine(name, self.system / "hosts", self._accounts, self._opened, self.release)

    def _daemon(self, machine: Machine, *command: str) -> None:
        with (self.system / "daemons.log").open("a") as output:
            machine.start(command, output)

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` says so; Slurm may refuse to answer until then.  RuntimeError with all logs if not."""
        deadline = time.monotonic() + HANG_S
        problem = "not ready"
        while time.monotonic() < deadline:
            try:
                if ready():
                    return
            except RuntimeError as error:
                problem = str(error)
            time.sleep(0.2)
        raise RuntimeError(f"{what}: {problem}\n{(self.system / 'daemons.log').read_text()}\n{self.logs()}")
