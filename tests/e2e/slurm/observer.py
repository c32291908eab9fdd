"""A job of two nodes and four processes, each of which writes down what it sees and ends: no torch, so it is quick."""

import json
import re
from pathlib import Path
from typing import Any

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

_PROGRAM = """
import json, os, subprocess, sys, time
now = time.time()
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")
seen = {name: os.environ.get(name) for name in names}
seen |= {"time": now, "uid": os.getuid(), "host": os.uname().nodename, "cwd": os.getcwd()}
seen |= {"cpus": sorted(os.sched_getaffinity(0)), "umask": os.umask(0o022)}
number, rank = os.environ["SLURM_JOB_ID"], int(seen["RANK"])
if rank == 0 and "step" in sys.argv:
    step = [number, os.environ["SLURM_STEP_ID"]]
    show = ["scontrol", "show", "step", ".".join(step), "--oneliner"]
    seen["step"] = subprocess.run(show, capture_output=True, text=True, check=True).stdout
with open(os.path.join(sys.argv[1], f"{number}.{rank}"), "w") as file:
    json.dump(seen, file)
"""
_SPEC = """
name: observer
nodes: 2
procs_per_node: {processes}
device: {device}
command: [{folder}/observe.py, {folder}, {what}]
resources: {{cpus: {cpus}, memory: 200MiB}}
time_limit: 20m
slurm: {{launcher: srun}}
"""
# Of a job and of its step: what differs between two jobs that are alike.
_TIME_NAMES = """
    AccrueTime EligibleTime EndTime PreemptEligibleTime PreemptTime LastSchedEval RunTime Sid StartTime SubmitTime
    Deadline
"""
_TIMES = set(_TIME_NAMES.split())
_NAMES = {"JobId", "Priority", "Scheduler", "StdErr", "StdOut", "StepId", "Pid"}


def rendered(
    cluster: Cluster,
    folder: Path,
    *settings: str,
    processes: int = 2,
    device: str = "cpu",
    cpus: int = 2,
    what: str = "step",
) -> str:
    """The batch script of the job; `processes` and `cpus` are those of one node, `what` may be "time" alone."""
    (folder / "observe.py").write_text(_PROGRAM)
    values = {"processes": processes, "device": device, "cpus": cpus, "folder": folder, "what": what}
    return script(cluster, _SPEC.format(**values), *settings)


def seen(folder: Path, number: str) -> dict[int, dict[str, Any]]:
    """What each process of a job wrote down, by its rank."""
    return {int(file.suffix[1:]): json.loads(file.read_text()) for file in sorted(folder.glob(f"{number}.[0-9]*"))}


def outcome(cluster: Cluster, folder: Path, number: str) -> dict[str, str]:
    """What became of a job: its record, its step's and its logs in Slurm's words, and what each process saw."""
    job = cluster.wait_for_end(number)
    logs = sorted(file.name.replace(number, "<number>") for file in cluster.folder.glob(f"*-{number}[-.]*log"))
    said = {"logs": ", ".join(logs)}
    said |= {f"job: {name}": value for name, value in job.fields.items() if name not in _TIMES | _NAMES}
    for rank, process in seen(folder, job.fields["JobId"]).items():
        step = dict(re.findall(r"(\w+)=(\S*)", process.pop("step", "")))
        said |= {f"step: {name}": value for name, value in step.items() if name not in _TIMES | _NAMES}
        del process["time"]
        said |= {f"rank {rank}: {name}": str(value) for name, value in process.items()}
    return said


def differences(reference: dict[str, str], other: dict[str, str]) -> list[str]:
    """What is not the same in two outcomes."""
    names = sorted(reference.keys() | other.keys())
    pairs = [(name, reference.get(name), other.get(name)) for name in names]
    return [f"{name} is {theirs}, not {ours}" for name, ours, theirs in pairs if ours != theirs]
