"""Records what docs/pictures.py draws: `python -m docs.record DATA_ROOT`, as root; half an hour on two cores.

Writes docs/recorded.json: a session on a real Slurm of two simulated nodes, and the losses of the ready jobs.
DATA_ROOT has MNIST/raw and FashionMNIST/raw.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.cli import ROOT, records
from tests.e2e.slurm.cluster import Cluster

FILE = Path(__file__).parent / "recorded.json"
_SPEC = """\
name: hello
nodes: 2
procs_per_node: 2
device: cpu
command: [own.py, --steps, "41"]
time_limit: 10m
"""
_POINTS = 60  # of a curve
Point = tuple[int, float]  # step, loss
# What is set to run each job here, in two processes on a CPU.
_RUNS: dict[str, list[list[str]]] = {
    "quickstart": [[]],
    "mnist": [["device=cpu", "train.max_steps=300"]],
    "fashion-mnist": [["device=cpu", "train.max_steps=200"]],
    "gpt": [["train.max_steps=50"]],
    "sweep": [["sweep=", f"train.lr={lr}"] for lr in (0.003, 0.001, 0.0003)],
    "regression": [["nodes=1", "mounts="]],
    "gan": [["nodes=1", "mounts="]],
}


def on_slurm(folder: Path) -> Iterator[tuple[str, Any]]:
    """Run the session of README, and the doctor."""
    with Cluster(folder, ["n1", "n2"]) as cluster:
        (folder / "hello.yaml").write_text(_SPEC)
        shutil.copy(ROOT / "jobs" / "scripts" / "own.py", folder)
        render_job = f"{sys.executable} {ROOT}/render.py"

        def typed(line: str) -> list[str]:
            return [f"$ {line}", *cluster.command("bash", "-c", line.replace("render-job", render_job)).splitlines()]

        lines = typed("cat hello.yaml")
        lines += typed("render-job slurm hello.yaml -o hello.sh")
        lines += typed("grep -E '^#SBATCH|^MASTER|^srun' hello.sh")
        lines += typed("sbatch hello.sh")
        cluster.wait_for_state("1", "RUNNING")
        lines += typed("squeue --me")
        cluster.wait_for_end("1")
        yield "session", lines + typed("grep loss hello-1.log")

        number = cluster.submit(artifact("slurm", "doctor", "device=cpu", "procs_per_node=2"))
        cluster.wait_for_end(number)
        said = (folder / f"doctor-{number}.log").read_text().splitlines()
        begin = next(n for n, line in enumerate(said) if "processes met" in line)
        yield "doctor", said[begin : said.index("no problem found") + 1]


def artifact(target: str, job: str, *settings: str) -> str:
    """Render a ready job."""
    words = [sys.executable, "render.py", target, f"jobs/{job}.yaml"]
    words += [word for setting in settings for word in ("--set", setting)]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def run(job: str, settings: Sequence[str], folder: Path) -> list[Point]:
    """Run a ready job on this machine."""
    runs = f"command.3={folder}/run" if "nodes=1" in settings else f"train.run_dir={folder}/run"
    script = artifact("torchrun", job, *settings, runs)
    subprocess.run(["bash", "-c", script], cwd=ROOT, check=True)
    return curve(folder / "run")


def curve(run_dir: Path) -> list[Point]:
    """Some steps of a run."""
    kept = [(record["step"], round(record["loss"], 4)) for record in records(run_dir, "step")]
    return kept[:: -(-len(kept) // _POINTS)]


def main(data_root: str) -> None:
    """Record everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "slurm").mkdir()
        found = dict(on_slurm(folder / "slurm"))
        curves = {}
        pages = sorted((ROOT / "docs").glob("*.md"))
        words = [sys.executable, "-m", "train.datasets.tokens", "--data-root", str(folder), *map(str, pages)]
        subprocess.run(words, cwd=ROOT, check=True)
        for job, runs in _RUNS.items():
            root = f"train.data_root={folder if job == 'gpt' else data_root}"
            extra = [root] if job in ("mnist", "fashion-mnist", "gpt") else []
            folders = [folder / f"{job}-{number}" for number in range(len(runs))]
            curves[job] = [run(job, [*settings, *extra], into) for settings, into in zip(runs, folders, strict=True)]
    FILE.write_text(json.dumps({**found, "curves": curves}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
