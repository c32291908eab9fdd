"""A Slurm of stand-ins: a rendered script is run by bash, and each task is a process of this machine.

`Cluster` puts srun, scontrol, scancel and the container runtimes into a folder that is first on PATH.  They do what
the script relies on and no more; what they assume of the real ones is said at each.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from jobspec.artifact import render
from jobspec.spec.slurm import Slurm

# A job without a command, and one of two nodes; tests add keys.
BASE = "name: job\nprocs_per_node: 2\ndevice: cpu\n"
TWO_NODES = BASE + "nodes: 2\ncommand: [mine.py]\n"
RUNTIMES = get_args(Slurm.model_fields["runtime"].annotation)

# srun: one process a task, with Slurm's variables in its own environment only; the GPUs of the job count from 0.  The
# first task that fails ends the others with SIGKILL after --kill-on-bad-exit=1, the first that ends at all does so
# after --wait seconds.  SIGTERM to srun itself is SIGKILL for the tasks.
_SRUN = """
import contextlib, os, signal, sys, time
here, words = os.environ["STAND_IN"], sys.argv[1:]
# Two may start at the same time.
with open(f"{here}/srun-{time.monotonic_ns():020}-{os.getpid()}", "xb") as record:
    record.write(b"".join(os.fsencode(word) + b"\\0" for word in words))
with open(f"{here}/environment-of-srun", "w") as record:
    record.write("\\n".join(f"{name}={value}" for name, value in os.environ.items()))
split = next(i for i, word in enumerate(words) if not word.startswith("--"))
flags = dict(word[2:].partition("=")[::2] for word in words[:split])
if flags.get("exclude") == "" and "LAUNCH_FAILS" in os.environ:
    sys.exit(os.environ["LAUNCH_FAILS"])
nodes = [node for node in open(f"{here}/nodes").read().split() if node not in flags.get("exclude", "").split(",")]
nodes = flags["nodelist"].split(",") if "nodelist" in flags else nodes
nodes = nodes[: int(flags.get("nodes", len(nodes)))]
per_node = int(flags["ntasks-per-node"])
count, running = per_node * len(nodes), []
for task in range(count):
    node, local = divmod(task, per_node)
    pid = os.fork()
    if not pid:
        os.setsid()
        os.environ.update(
            SLURM_PROCID=str(task), SLURM_NODEID=str(node), SLURM_LOCALID=str(local), SLURMD_NODENAME=nodes[node],
            SLURM_STEP_ID="0", SLURM_NTASKS=str(count), SLURM_NNODES=str(len(nodes)),
            SLURM_STEP_TASKS_PER_NODE=os.environ.get("STEP_LAYOUT") or f"{per_node}(x{len(nodes)})",
            CUDA_VISIBLE_DEVICES=os.environ.get("STEP_GPUS", "0,1"),
        )
        os.execvp(words[split], words[split:])
    running.append(pid)
with open(f"{here}/pids", "w") as pids:
    pids.write(" ".join(map(str, running)))

def end_tasks(*_):
    for pid in running:
        for kill in (os.kill, os.killpg):  # one that was just forked may have no session yet
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)

signal.signal(signal.SIGTERM, end_tasks)
signal.signal(signal.SIGALRM, end_tasks)
worst = 0
while running:
    pid, status = os.wait()
    if len(running) == count:
        signal.alarm(int(flags.get("wait", 0)))
    running.remove(pid)
    code = os.waitstatus_to_exitcode(status)
    worst = max(worst, code if code >= 0 else 128 - code)
    if code and flags.get("kill-on-bad-exit") == "1":
        end_tasks()
sys.exit(worst)
"""

_SCONTROL = """#!/bin/sh
case "$1 $2" in
"show hostnames") [ "$3" = "$SLURM_JOB_NODELIST" ] && cat "$STAND_IN/nodes" ;;
"update JobId=$SLURM_JOB_ID") [ "${SLURM_JOBID-}" ] || echo "${3#*=}" > "$STAND_IN/kept" ;;
requeue*) echo "$2" >> "$STAND_IN/requeued" ;;
"update job="*) [ "${3%%=*}" != Comment ] || echo "${3#*=}" > "$STAND_IN/comment" ;;
*) exit 99 ;;
esac
"""

# Without --batch or --full a signal other than KILL goes to the tasks of the steps, not to the batch script.  The
# number of an array, which is also that of its last task, means all of its tasks.  A task is a group of processes.
_SCANCEL = """#!/bin/bash
task=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
[ "$*" = "--signal=TERM ${task:-$SLURM_JOB_ID}" ] || exit 99
for pid in $(cat "$STAND_IN/pids"); do kill -TERM -- "-$pid"; done
"""

# What Slurm knows of the job and, for the number of an array, of its other tasks; a test writes down the rest.
_SQUEUE = """#!/bin/bash
name=$SLURM_JOB_ID
[[ -z ${SLURM_ARRAY_TASK_ID-} ]] || name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
words=$*
case $words in
"--noheader --jobs=$SLURM_JOB_ID --format=%A %i") echo "9 9_1"; echo "$SLURM_JOB_ID $name" ;;
"--noheader --jobs=$name --Format="*) cat "$STAND_IN/${words##*=}" ;;
"--noheader --jobs=$name --format=%k") cat "$STAND_IN/comment" ;;
"--noheader --steps --jobs=$name --format=%i") cat "$STAND_IN/steps" ;;
*) exit 99 ;;
esac
"""

# docker and podman: only variables that were named go in; flags have their value after "=", or are alone.
_CONTAINER = """#!/bin/bash
[[ $1 == run ]] || exit 99
shift
env=() words=()
while [[ $1 == --* ]]; do
  name=${1#--env=}
  if [[ $name != "$1" && -v $name ]]; then env+=("$name=${!name}"); fi
  if [[ $1 == --workdir=* ]]; then cd "${1#*=}" || exit; fi
  words+=("$1")
  shift
done
printf '%s\\0' "${words[@]}" "$1" > "$STAND_IN/container-$SLURM_PROCID"
exec env -i "PATH=$PATH" "${env[@]}" "${@:2}"
"""

# apptainer: the host's environment goes in; what the image sets wins over it unless APPTAINERENV_ says otherwise.
# Without --no-eval it runs the value of such a variable as shell text within double quotes.
_APPTAINER = """#!/bin/bash
[[ $1 == exec ]] || exit 99
shift
words=()
while [[ $1 == --* ]]; do
  if [[ $1 == --pwd=* ]]; then cd "${1#*=}" || exit; fi
  words+=("$1")
  shift
done
printf '%s\\0' "${words[@]}" "$1" > "$STAND_IN/container-$SLURM_PROCID"
for name in RANK TOKEN; do
  if [[ -v $name ]]; then export "$name=of the image"; fi
done
for name in "${!APPTAINERENV_@}"; do
  value=${!name}
  if [[ " ${words[*]} " != *" --no-eval "* ]]; then eval "value=\\"$value\\""; fi
  export "${name#APPTAINERENV_}=$value"
  unset "$name"
done
exec "${@:2}"
"""

# nvidia-smi on a node: the UUIDs of some GPUs by number.
NVIDIA_SMI = """import sys
index, *rest = sys.argv[1:]
assert index.startswith("--id=") and rest == ["--query-gpu=uuid", "--format=csv,noheader"], sys.argv
for number in index[5:].split(","):
    print("GPU-" + "abcd"[int(number)])
"""

# Stands for torchrun or python3 where a test only asks how it was called: the bytes that the kernel holds; its own name
# comes first.  In Python, because a shell changes variables such as IFS and PS4 before its first line.
RECORDER = f"""#!{sys.executable} -IS
import os, sys
with open(os.path.expandvars("{{file}}"), "wb") as file, open("/proc/self/environ", "rb") as environ:
    file.write(os.fsencode("\\0".join([str(len(sys.argv) - 1), "", *sys.argv, ""])) + environ.read())
"""


@dataclass
class Call:
    """How a program was started."""

    argv: list[str]
    env: dict[str, str]

    @classmethod
    def read(cls, file: Path) -> Call:
        """What a `RECORDER` wrote down."""
        count, _, *words = os.fsdecode(file.read_bytes()).split("\0")
        argv, env = words[: int(count) + 1], words[int(count) + 1 : -1]
        return cls(argv, dict(variable.split("=", 1) for variable in env))


@dataclass
class Cluster:
    """A folder with the stand-ins and their records."""

    folder: Path
    nodes: Sequence[str] = ("n1", "n2")
    job_id: int = 70123

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        (self.folder / "disk").mkdir(exist_ok=True)
        slurm = {"srun": _SRUN, "scontrol": _SCONTROL, "scancel": _SCANCEL, "squeue": _SQUEUE}
        for name, code in {**slurm, "docker": _CONTAINER, "podman": _CONTAINER, "apptainer": _APPTAINER}.items():
            self.install(name, code)
        # Names of nodes resolve, to an address that other machines could reach.
        self.install("getent", "#!/bin/sh\necho 192.0.2.1 STREAM")
        (self.folder / "RestartCnt").write_text("0\n")
        (self.folder / "comment").write_text("of the user\n")
        (self.folder / "PreemptTime").write_text("N/A\n")
        (self.folder / "steps").write_text(f"{self.job_id}.batch\n")

    def install(self, name: str, code: str) -> None:
        """Put a program of this name into the folder; without a first line that says otherwise, in Python."""
        program = self.folder / "bin" / name
        program.write_text(code if code.startswith("#!") else f"#!{sys.executable} -IS\n{code}")
        program.chmod(0o755)

    def install_recorder(self, name: str) -> None:
        """Put a program there that only writes down how it was called; `calls` reads it."""
        self.install(name, RECORDER.format(file=f"{self.folder}/call-$SLURM_NODEID-$SLURM_LOCALID"))

    def start(self, script: str, **env: str) -> subprocess.Popen[bytes]:
        """Run a batch script as slurmd does: by bash, on the first node, in the folder where it was submitted."""
        (self.folder / "nodes").write_text("".join(f"{node}\n" for node in self.nodes))
        for old in [*self.folder.glob("call-*"), *self.folder.glob("srun-*")]:
            old.unlink()
        (self.folder / "job.sh").write_text(script)
        by_slurm = {
            "SLURM_JOB_ID": str(self.job_id),
            "SLURM_JOB_NODELIST": f"list of {len(self.nodes)}",
            "SLURM_TMPDIR": str(self.folder / "disk"),
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
            out = job.communicate()[0].decode()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGTERM)  # each srun that is left, too, which ends its tasks
        return job.returncode, out

    def wait_for(self, job: subprocess.Popen[bytes], *names: str) -> None:
        """Until the job has written these files."""
        ended = False
        while not all((self.folder / name).exists() for name in names):
            assert not ended, f"the job ended without {names}: {job.communicate()[0].decode()}"
            ended = job.poll() is not None
            time.sleep(0.02)

    def calls(self) -> dict[tuple[int, int], Call]:
        """How each task started its program, by node and number on the node."""
        found = {}
        for file in self.folder.glob("call-*"):
            _, node, local = file.name.split("-")
            found[int(node), int(local)] = Call.read(file)
        return found

    def sruns(self) -> list[list[str]]:
        """The words of each srun, in order."""
        return [_words(file) for file in sorted(self.folder.glob("srun-*"))]

    def container(self, task: int = 0) -> list[str]:
        """The words up to the image with which a task started its container."""
        return _words(self.folder / f"container-{task}")


def rendered(cluster: Cluster, spec: str, *settings: str) -> str:
    """The batch script that a spec becomes."""
    (cluster.folder / "job.yaml").write_text(spec)
    return render("slurm", str(cluster.folder / "job.yaml"), settings)


def run(cluster: Cluster, spec: str, *settings: str, **env: str) -> str:
    """Run what a spec becomes, which has to end well; what it and its tasks wrote."""
    status, out = cluster.run(rendered(cluster, spec, *settings), **env)
    assert status == 0, out
    return out


def _words(file: Path) -> list[str]:
    return file.read_text().split("\0")[:-1]


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
