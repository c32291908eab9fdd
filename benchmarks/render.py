"""Wall time of `render-job` against torchx and NeMo-Run, for the same job on 2 and on 64 nodes.

    python -m benchmarks.render [--torchx PATH] [--nemo-run PYTHON]

    ours        render-job slurm, render-job pytorchjob
    torchx      torchx run --dryrun --scheduler slurm, kubernetes, with the component dist.ddp
    nemo_run    Experiment.dryrun() with a SlurmExecutor.  Its KubeflowExecutor is not measured: it contacts the cluster
                of the user's kubectl before it makes anything.

Each round starts every command once, in a new process, and measures the time until the process ends.  Most of this
time goes into imports.  One round before the others is not counted: it writes the byte code.
The first run installs each peer from PyPI into a separate environment.  With --torchx and --nemo-run it uses an
installed peer instead.
"""

import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, ratios, write_result

ROOT = Path(__file__).parent.parent
# nemo_run 0.11.1 imports something that leptonai 0.47 no longer has.
PACKAGES = {"torchx": ["torchx[kubernetes]==0.7.0"], "nemo_run": ["nemo_run==0.11.1", "leptonai==0.27.3"]}
VERSION_OF_NEMO_RUN = "import importlib.metadata as m; print('nemo_run', m.version('nemo_run'))"
NODES = (2, 64)
PROCS_PER_NODE = 8
# Each pair is compared: our target and the peer's.
COMPARED = [("slurm", "torchx_slurm"), ("pytorchjob", "torchx_kubernetes"), ("slurm", "nemo_run_slurm")]
TARGETS = ("slurm", "pytorchjob")
TARGET_RATIO = 0.6


def main(argv: list[str] | None = None) -> int:
    """Measure and write results/render.json; return 1 if an artifact grows with the number of nodes."""
    parser = make_parser("render", __doc__, 10, "how often each command is started")
    parser.add_argument("--torchx", type=Path, help="path of torchx; default: installed from PyPI")
    parser.add_argument("--nemo-run", type=Path, help="path of a Python with nemo_run; default: installed from PyPI")
    options = parser.parse_args(argv)
    torchx = options.torchx or installed("torchx") / "torchx"
    nemo_run = options.nemo_run or installed("nemo_run") / "python"

    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Callable[[int], list[str]]] = {
            "ours_slurm": partial(our_command, Path(folder), "slurm"),
            "ours_pytorchjob": partial(our_command, Path(folder), "pytorchjob"),
            "torchx_slurm": partial(torchx_command, torchx, "slurm"),
            "torchx_kubernetes": partial(torchx_command, torchx, "kubernetes"),
            "nemo_run_slurm": partial(nemo_run_command, nemo_run),
        }
        commands = {
            f"{name}_{nodes}x{PROCS_PER_NODE}": command(nodes) for nodes in NODES for name, command in makers.items()
        }
        sizes = {name: len(_of_any_size(run(command, folder))) for name, command in commands.items()}
        variants: dict[str, Callable[[int], float]] = {
            name: partial(seconds, command, folder) for name, command in commands.items()
        }
        times = in_turns(variants, options.rounds)

        versions = {
            "torchx": run([str(torchx), "--version"], folder).decode().strip(),
            "nemo_run": run([str(nemo_run), "-c", VERSION_OF_NEMO_RUN], folder).decode().strip(),
        }

    result = compare(times)
    settings = versions | {"rounds": options.rounds}
    artifacts = {name: size for name, size in sizes.items() if name.startswith("ours_")}
    write_result(options.results, "render", result | {"settings": settings, "bytes": artifacts, "machine": machine()})
    for name, ratio in result["ratio"].items():
        print(f"ours / {name}: {ratio:.2f} (target: at most {TARGET_RATIO:g})")
    for target in TARGETS:
        print(f"{target}, 64 nodes / 2 nodes: {result['ratio_of_nodes'][target]:.2f}")
    grown = [target for target in TARGETS if grows(target, artifacts)]
    for target in grown:
        print(f"the artifact for {target} grows with the number of nodes: {artifacts}")
    return 1 if grown else 0


def installed(peer: str) -> Path:
    """Return the folder of programs in a peer's environment, which is created if it is missing or incomplete."""
    environment = ROOT / f".venv-{peer}"
    programs = environment / "bin"
    if not (environment / "complete").exists():
        print(f"installing {' and '.join(PACKAGES[peer])} into {environment.name}", flush=True)
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([programs / "pip", "install", "--quiet", *PACKAGES[peer]], check=True)
        (environment / "complete").touch()
    return programs


def our_command(folder: Path, target: str, nodes: int) -> list[str]:
    """Write the job's spec into `folder` and return our command for it.  The peers below get the same job."""
    spec = folder / f"{nodes}.yaml"
    spec.write_text(
        f"name: train\nnodes: {nodes}\nprocs_per_node: {PROCS_PER_NODE}\n"
        "image: registry.example/train:1\ncommand: [train.py]\nresources: {cpus: 32}\n"
    )
    return [sys.executable, str(ROOT / "render.py"), target, str(spec)]


def torchx_command(torchx: Path, scheduler: str, nodes: int) -> list[str]:
    """Return the command of torchx, without a workspace, because torchx would build that into an image."""
    job = ["-j", f"{nodes}x{PROCS_PER_NODE}", "--script", "train.py", "--image", "registry.example/train:1"]
    job += ["--cpu", "32", "--gpu", str(PROCS_PER_NODE)]
    queue = ["-cfg", "queue=default"] if scheduler == "kubernetes" else []
    return [str(torchx), "run", "--dryrun", "--workspace", "", "-s", scheduler, *queue, "dist.ddp", *job]


def nemo_run_command(python: Path, nodes: int) -> list[str]:
    """Return the command of a program that calls NeMo-Run, because NeMo-Run has no command line for a script."""
    return [str(python), str(Path(__file__).parent / "peers" / "nemo_run_job.py"), str(nodes), str(PROCS_PER_NODE)]


def run(command: Sequence[str], folder: str) -> bytes:
    """Return what a command prints.  Raises CalledProcessError if it fails."""
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def seconds(command: Sequence[str], folder: str, number: int) -> float:
    """Return the wall time of one run of a command; `number` is the round."""
    started = time.perf_counter()
    run(command, folder)
    return time.perf_counter() - started


def compare(times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the ratios of ours to each peer, by target and size, and of 64 nodes to 2 nodes for ours."""
    few, many = sizes = [f"{nodes}x{PROCS_PER_NODE}" for nodes in NODES]
    pairs = {
        f"{theirs}_{size}": (times[f"ours_{ours}_{size}"], times[f"{theirs}_{size}"])
        for ours, theirs in COMPARED
        for size in sizes
    }
    return {
        "benchmark": "render",
        "what": "wall time of the command, ours / the peer's dry run",
        "unit": "ours / peer, seconds",
        "ratio": {name: median_ratio(*pair) for name, pair in pairs.items()},
        "ratio_at_most": TARGET_RATIO,
        "ratios": {name: ratios(*pair) for name, pair in pairs.items()},
        "ratio_of_nodes": {
            target: median_ratio(times[f"ours_{target}_{many}"], times[f"ours_{target}_{few}"]) for target in TARGETS
        },
    }


def _of_any_size(artifact: bytes) -> bytes:
    """Return an artifact without the lines on open files, which a Slurm script has from 385 processes on."""
    return b"".join(
        line for line in artifact.splitlines(keepends=True) if b"open files" not in line and b"ulimit -Sn" not in line
    )


def grows(target: str, sizes: dict[str, int]) -> bool:
    """Return True if the artifact for 64 nodes is over 1 % longer; a few more digits in numbers are no growth."""
    few, many = (sizes[f"ours_{target}_{nodes}x{PROCS_PER_NODE}"] for nodes in NODES)
    return many > 1.01 * few


if __name__ == "__main__":
    raise SystemExit(main())
