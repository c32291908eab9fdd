"""A Slurm of stand-ins: a rendered script is run by bash, and each task is a process of this machine.

`Cluster` puts srun, scontrol, scancel and the container runtimes into a folder that is first on PATH.  They do what
the script relies on and no more; what they assume of the real ones is said at each.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 500.0  # of a whole job; the tests have their own, which is shorter as a rule

# srun: one process a task, with Slurm's variables in its own environment only.  The first task that fails ends the
# others with SIGKILL after --kill-on-bad-exit=1, the first that ends at all does so after --wait seconds.  SIGTERM
# to srun itself is SIGKILL for the tasks.
_SRUN = """
import json, os, re, signal, subprocess, sys, time
here = os.environ["STAND_IN"]
words = sys.argv[1:]
split = next(i for i, word in enumerate(words) if not word.startswith("--"))
flags = dict(word[2:].partition("=")[::2] for word in words[:split])
with open(f"{here}/sruns", "a") as record:
    record.write(json.dumps(words) + "\\n")
nodes = open(f"{here}/nodes").read().split()
per_node = int(flags["ntasks-per-node"])
count = int(flags["ntasks"])
assert count == per_node * len(nodes), (count, per_node, nodes)
log = flags.get("output")
out = open(log.replace("%j", os.environ["SLURM_JOB_ID"]), "ab") if log else None
tasks = []
for task in range(count):
    node, local = divmod(task, per_node)
    own = {
        "SLURM_PROCID": task, "SLURM_NODEID": node, "SLURM_LOCALID": local, "SLURMD_NODENAME": nodes[node],
        "SLURM_STEP_ID": 0, "SLURM_NTASKS": count, "SLURM_STEP_GPUS": "2,3",
    }
    env = {**os.environ, **{name: str(value) for name, value in own.items()}}
    tasks.append(subprocess.Popen(words[split:], env=env, stdout=out, stderr=out, start_new_session=True))
with open(f"{here}/pids", "w") as pids:
    pids.write(" ".join(str(task.pid) for task in tasks))

def kill(*_):
    for task in tasks:
        if task.poll() is None:
            os.killpg(task.pid, signal.SIGKILL)

signal.signal(signal.SIGTERM, kill)
first = None
while None in (codes := [task.poll() for task in tasks]):
    codes = [code for code in codes if code is not None]
    if codes and first is None:
        first = time.monotonic()
    if any(codes) and flags.get("kill-on-bad-exit") == "1":
        kill()
    if first and int(flags.get("wait", 0)) and time.monotonic() - first > int(flags["wait"]):
        kill()
    time.sleep(0.01)
sys.exit(max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in tasks))
"""

_SCONTROL = """
import os, sys
here = os.environ["STAND_IN"]
if sys.argv[1:3] == ["show", "hostnames"]:
    assert sys.argv[3] == os.environ["SLURM_JOB_NODELIST"]
    print(open(f"{here}/nodes").read(), end="")
elif sys.argv[1:3] == ["show", "job"]:
    print(open(f"{here}/job").read())
elif sys.argv[1] == "requeue":
    open(f"{here}/requeued", "a").write(sys.argv[2] + "\\n")
else:
    sys.exit(f"unknown: {sys.argv}")
"""

# Without --batch or --full a signal other than KILL goes to the tasks of the steps, not to the batch script.
_SCANCEL = """
import os, signal, sys
assert sys.argv[1:] == ["--signal=TERM", os.environ["SLURM_JOB_ID"]], sys.argv
for pid in open(os.environ["STAND_IN"] + "/pids").read().split():
    os.kill(int(pid), signal.SIGTERM)
"""

# docker and podman: only variables that were named go in; flags have their value after "=", or are alone.
_CONTAINER = """
import os, sys
assert sys.argv[1] == "run"
words = sys.argv[2:]
split = next(i for i, word in enumerate(words) if not word.startswith("--"))
named = [word.partition("=")[2] for word in words[:split] if word.startswith("--env=")]
env = {name: os.environ[name] for name in named if name in os.environ}
open(os.environ["STAND_IN"] + "/container-" + os.environ["SLURM_PROCID"], "w").write("\\n".join(words[: split + 1]))
os.execvpe(words[split + 1], words[split + 1 :], {"PATH": os.environ["PATH"], **env})
"""

# apptainer: the host's environment goes in; what the image sets wins over it unless APPTAINERENV_ says otherwise.
_APPTAINER = """
import os, sys
assert sys.argv[1] == "exec"
words = sys.argv[2:]
split = next(i for i, word in enumerate(words) if not word.startswith("--"))
open(os.environ["STAND_IN"] + "/container-" + os.environ["SLURM_PROCID"], "w").write("\\n".join(words[: split + 1]))
env = {name: value for name, value in os.environ.items() if not name.startswith("APPTAINERENV_")}
image = {"MASTER_ADDR", "MASTER_PORT", "RANK", "PET_NODE_RANK", "TOKEN"}
env |= {name: "of the image" for name in image & set(env)}
env |= {name[13:]: value for name, value in os.environ.items() if name.startswith("APPTAINERENV_")}
os.execvpe(words[split + 1], words[split + 1 :], env)
"""

# Stands for torchrun or python3 where a test only asks how it was called.
_PROGRAM = """
import json, os, sys
name = "{here}/call-" + os.environ["SLURM_NODEID"] + "-" + os.environ["SLURM_LOCALID"]
json.dump([sys.argv, dict(os.environ)], open(name, "w"))
"""


@dataclass
class Call:
    """How a task started its program."""

    argv: list[str]
    env: dict[str, str]


@dataclass
class Cluster:
    """A folder with the stand-ins; logs and records lie in it, too."""

    folder: Path
    nodes: Sequence[str] = ("n1", "n2")
    job_id: int = 70123

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        self.install("srun", _SRUN)
        self.install("scontrol", _SCONTROL)
        self.install("scancel", _SCANCEL)
        self.install("docker", _CONTAINER)
        self.install("podman", _CONTAINER)
        self.install("apptainer", _APPTAINER)
        # Names of nodes resolve, to an address that other machines could reach.
        self.install("getent", 'print("192.0.2.1 STREAM")')
        (self.folder / "job").write_text("PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=None")

    def install(self, name: str, code: str) -> None:
        """Put a program of this name into the folder."""
        program = self.folder / "bin" / name
        program.write_text(f"#!{sys.executable} -IS\n{code}")
        program.chmod(0o755)

    def install_recorder(self, name: str) -> None:
        """Put a program there that only writes down how it was called; `calls` reads it."""
        self.install(name, _PROGRAM.format(here=self.folder))

    def start(self, script: str, **env: str) -> subprocess.Popen[bytes]:
        """Run a batch script as slurmd does: by bash, on the first node, in the folder where it was submitted."""
        (self.folder / "nodes").write_text("".join(f"{node}\n" for node in self.nodes))
        for old in [*self.folder.glob("call-*"), *self.folder.glob("sruns"), *self.folder.glob("*.log")]:
            old.unlink()
        (self.folder / "job.sh").write_text(script)
        by_slurm = {
            "SLURM_JOB_ID": str(self.job_id),
            "SLURM_JOB_NODELIST": f"list of {len(self.nodes)}",
            "SLURM_JOB_NUM_NODES": str(len(self.nodes)),
            # sbatch sets these for the batch script itself, which is a task, too.
            **{"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        }
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", "job.sh"],
            cwd=self.folder,
            env={"PATH": path, "STAND_IN": str(self.folder), **by_slurm, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, script: str, **env: str) -> tuple[int, str]:
        """Run a batch script to its end; its exit status, and what it and its tasks wrote."""
        job = self.start(script, **env)
        try:
            out = job.communicate(timeout=_TIMEOUT_S)[0].decode()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)  # srun, too, which ends the tasks
        return job.returncode, out + "".join(log.read_text() for log in sorted(self.folder.glob("*.log")))

    def calls(self) -> dict[tuple[int, int], Call]:
        """How each task started its program, by node and number on the node."""
        found = {}
        for file in self.folder.glob("call-*"):
            _, node, local = file.name.split("-")
            found[int(node), int(local)] = Call(*json.loads(file.read_text()))
        return found

    def sruns(self) -> list[list[str]]:
        """The words of each srun, in order."""
        return [json.loads(line) for line in (self.folder / "sruns").read_text().splitlines()]

    def container(self, task: int = 0) -> list[str]:
        """The words up to the image with which a task started its container."""
        return (self.folder / f"container-{task}").read_text().split("\n")


def directives(script: str) -> dict[str, str]:
    """The options of a batch script as sbatch reads them, "" for a flag: only before the first command."""
    found = {}
    for line in script.splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            word, rest = _argument(line.removeprefix("#SBATCH "))
            assert not rest.strip() or rest.strip().startswith("#"), f"two options in one line: {line}"
            name, _, value = word.removeprefix("--").partition("=")
            assert name not in found, f"{name} is given twice"
            found[name] = value
    return found


def _argument(line: str) -> tuple[str, str]:
    """The first argument of a line and the rest; sbatch's own quoting (src/sbatch/opt.c, get_argument)."""
    word, quote, escaped = "", "", False
    for at, char in enumerate(line):
        if not quote and re.match(r"\s", char, re.ASCII):
            return word, line[at:]
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = True
        elif quote and char == quote:
            quote = ""
        elif not quote and char in "\"'":
            quote = char
        elif not quote and char == "#":
            return word, line[at:]
        else:
            word += char
    return word, ""
