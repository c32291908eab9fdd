"""A job without torch whose processes sleep, save at a signal, and fail if they are told to."""

from pathlib import Path

from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

# Rank SLOW needs longer than the others to save; rank FAILS fails as soon as all are up.
_PROGRAM = """
import os, signal, sys, time
folder, seconds, rank = sys.argv[1], float(sys.argv[2]), os.environ["RANK"]
def stop(signum, frame):
    if rank == os.environ.get("SLOW"):
        time.sleep(20)
    print(f"rank {rank} saved", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, stop)
open(f"{folder}/{os.environ['SLURM_JOB_ID']}.{rank}", "w").close()
print("up", flush=True)
if rank == os.environ.get("FAILS"):
    while len([name for name in os.listdir(folder) if name.startswith(os.environ["SLURM_JOB_ID"])]) < 2:
        time.sleep(0.1)
    sys.exit(7)
time.sleep(seconds)
"""
_SPEC = """
name: sleeps
nodes: {nodes}
procs_per_node: {processes}
device: cpu
command: [{folder}/sleeper.py, {folder}, "{seconds}"]
time_limit: 20m
preemption: {{grace: 10m}}
slurm: {{launcher: srun}}
"""


def rendered(cluster: Cluster, folder: Path, *settings: str, nodes: int = 1, seconds: int = 20) -> str:
    """The batch script of a job of two processes, on one node or on two."""
    (folder / "sleeper.py").write_text(_PROGRAM)
    values = {"folder": folder, "nodes": nodes, "processes": 2 // nodes, "seconds": seconds}
    return script(cluster, _SPEC.format(**values), *settings)


def up(cluster: Cluster, folder: Path, number: str) -> None:
    """Wait until both processes of the job sleep."""
    cluster.wait_for("two processes", lambda: len([*folder.glob(f"{number}.[01]")]) == 2)
