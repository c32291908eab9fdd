"""A training script that nobody here wrote runs unchanged."""

import re
import shutil
from pathlib import Path

from tests.e2e import foreign
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.sandbox import REPOSITORY
from tests.e2e.k8s.specs import job, rendered


def test_example_of_the_training_operator_trains_unchanged(
    cluster: Cluster, namespace: str, tmp_path: Path, data_root: Path, foreign_script: foreign.Foreign
) -> None:
    cluster.needs_controllers("pytorchjob")
    work, data = cluster.claim(namespace, "work"), cluster.claim(namespace, "data")
    shutil.copy(foreign_script.script, work)
    shutil.copytree(foreign_script.packages, work / "packages")
    foreign.unpack(data_root / "FashionMNIST" / "raw", data / "FashionMNIST" / "raw")
    spec = job(
        cluster.image,
        procs_per_node=2,
        command=["/work-of-job/mnist.py", "--epochs", "1", "--batch-size", "100", "--lr", "0.05", "--dir", "/tmp/logs"],
        env={"PYTHONPATH": "/work-of-job/packages"},
        mounts=[{"claim": "work", "path": "/work-of-job"}, {"claim": "data", "path": f"{REPOSITORY.parent}/data"}],
    )
    cluster.apply(rendered("pytorchjob", spec, namespace, tmp_path))
    cluster.succeeds(namespace, "pytorchjob", "job")
    told = cluster.player().logs(namespace)
    assert {rank for rank in range(4) if f"World Size: 4. Rank: {rank}" in told} == set(range(4))
    # Each of four processes counts its quarter of the test images against all of them.
    accuracies = [float(value) for value in re.findall(r"accuracy=([\d.]+)", told)]
    assert len(accuracies) == 4 and sum(accuracies) > 0.4
