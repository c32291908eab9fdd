"""The job specs of the tests: short trainings whose end is known."""

from pathlib import Path
from typing import Any

import yaml

from jobspec.artifact import render

STEPS = 1500  # long enough that there is a middle
EVERY = 100  # steps between two checkpoints
TRAINING: dict[str, Any] = {
    "model": "mlp",
    "dataset": "synthetic",
    "epochs": 20,
    "max_steps": STEPS,
    "batch_size": 50,
    "optimizer": "sgd",
    "lr": 0.05,
    "log_every": 10,
}
FOLDER = "/checkpoints"


def rendered(target: str, spec: dict[str, Any], namespace: str, folder: Path) -> str:
    """The manifests of a spec, in the namespace."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(spec))
    return render(target, str(file), [f"kubernetes.namespace={namespace}"])


def job(image: str, **keys: Any) -> dict[str, Any]:
    """Two nodes with a process each."""
    common = {"name": "job", "nodes": 2, "procs_per_node": 1, "device": "cpu", "image": image}
    return {**common, "env": {"OMP_NUM_THREADS": "1"}, **keys}


def training(image: str, **keys: Any) -> dict[str, Any]:
    """A training that saves to the claim `work` and resumes from there."""
    saving = {
        "checkpoint_dir": f"{FOLDER}/run",
        "checkpoint_every": EVERY,
        "resume": "auto",
        "run_dir": f"{FOLDER}/run",
    }
    mounts = [{"claim": "work", "path": FOLDER}]
    return job(image, train={**TRAINING, **saving}, mounts=mounts, max_restarts=3, **keys)
