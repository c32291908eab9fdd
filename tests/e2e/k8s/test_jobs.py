"""Each ready job of jobs/ runs in pods: by user 1000, in a working folder that belongs to root."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobspec import targets
from jobspec.artifact import load
from jobspec.problems import SpecError
from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.sandbox import REPOSITORY
from tests.e2e.k8s.specs import rendered
from tests.idx import write_small_mnist
from train.datasets import tokens

STEPS = 3
SAMPLES = {"num_train": 256, "num_validation": 64}


def ready() -> list[object]:
    """Each job that renders for Kubernetes, for one kind that takes it: in all kinds the pod is the same."""
    found: list[object] = []
    for file in sorted((REPOSITORY / "jobs").glob("*.yaml")):
        kinds = [kind for kind in ("pytorchjob", *KINDS) if takes(kind, file)]
        found += [pytest.param(file, kind, id=f"{file.stem}-{kind}") for kind in kinds[:1]]
    return found


def takes(kind: str, file: Path) -> bool:
    try:
        load(targets.load(kind), str(file))
    except SpecError:
        return False
    return True


@pytest.mark.parametrize(("file", "target"), ready())
def test_job_runs_by_an_ordinary_user_in_a_folder_of_root(
    file: Path, target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    player = cluster.player()
    assert REPOSITORY.stat().st_uid == 0 and not REPOSITORY.stat().st_mode & 0o022
    spec = shortened(yaml.safe_load(file.read_text()), cluster.image)
    for mount in spec.get("mounts", []):
        cluster.claim(namespace, mount["claim"])
    name = spec["name"]
    if name == "exact":
        pytest.importorskip("accelerate", reason="the image of this job holds accelerate")
    if "mnist" in name:
        # Pods of this cluster have no way out: the files come from a claim where the job would download them.
        data = cluster.claim(namespace, "data")
        write_small_mnist(data, **SAMPLES)
        (data / "MNIST").rename(data / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name])
        spec["mounts"] = [{"claim": "data", "path": "/scratch/data", "read_only": True}]
    elif name == "gpt":
        tokens.write([REPOSITORY / "README.md"], cluster.claim(namespace, "data"), context=64)
        spec["mounts"] = [{"claim": "data", "path": "/scratch/data", "read_only": True}]
        spec["train"]["data_root"] = "/scratch/data"
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    cluster.succeeds(namespace, target, name)
    assert "Permission denied" not in player.logs(namespace)


def test_data_are_downloaded_to_a_folder_that_the_user_can_write(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Without a way out of the cluster: what fails is the network and not the folder."""
    cluster.needs_controllers("indexedjob")
    player = cluster.player()
    spec = shortened(yaml.safe_load((REPOSITORY / "jobs/mnist.yaml").read_text()), cluster.image)
    cluster.apply(rendered("indexedjob", spec, namespace, tmp_path))
    cluster.until(lambda: "could not download" in player.logs(namespace), "the job tries to download")
    told = player.logs(namespace)
    assert "note: could not download MNIST to /scratch/data/MNIST/raw: Error downloading" in told
    assert "Permission denied" not in told


def shortened(spec: dict[str, Any], image: str) -> dict[str, Any]:
    """The job as it is, but for a few steps on the CPU, and one run of a sweep."""
    spec.pop("sweep", None)
    if "train" in spec:
        spec["train"]["max_steps"] = STEPS
    elif "train.doctor" in spec["command"]:
        spec |= {"procs_per_node": 2}
    return {**spec, "device": "cpu", "image": image}
