"""Training in pods: it ends with the weights of a run on this machine, also when a pod fails in the middle."""

from pathlib import Path
from typing import Any

import pytest

from tests import cli
from tests.clusters import KINDS
from tests.e2e.k8s.cluster import RESOURCES, Cluster
from tests.e2e.k8s.specs import STEPS, TRAINING, job, rendered, training
from train.config import to_argv


@pytest.fixture(scope="module")
def weights_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the same training without a cluster: torchrun on this machine."""
    folder = tmp_path_factory.mktemp("alone")
    done = cli.train(2, *to_argv({**TRAINING, "device": "cpu", "run_dir": str(folder)}), timeout_s=400)
    assert done.returncode == 0, done.stderr
    return str(cli.records(folder, "end")[0]["weights_sha256"])


@pytest.mark.parametrize("target", KINDS)
def test_job_succeeds_with_the_weights_of_a_run_without_a_cluster(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, weights_sha256: str
) -> None:
    cluster.needs_controllers(target)
    work = cluster.claim(namespace, "work")
    cluster.apply(rendered(target, training(cluster.image), namespace, tmp_path))
    cluster.succeeds(namespace, target, "job")
    (end,) = cli.records(work / "run", "end")
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights_sha256)


@pytest.mark.parametrize("target", KINDS)
def test_pod_that_is_killed_is_replaced_and_the_job_resumes(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, weights_sha256: str
) -> None:
    cluster.needs_controllers(target)
    work, player = cluster.claim(namespace, "work"), cluster.player()
    cluster.apply(rendered(target, training(cluster.image), namespace, tmp_path))
    cluster.until(lambda: any(work.glob("run/step-*")), "there is a checkpoint")
    player.kill(namespace, cluster.pods(namespace)[-1]["metadata"]["name"])
    cluster.succeeds(namespace, target, "job")
    (end,) = cli.records(work / "run", "end")
    assert (end["step"], end["weights_sha256"]) == (STEPS, weights_sha256)
    assert f"resume: {Path('/checkpoints/run/step-')}" in player.logs(namespace)


def _fails(cluster: Cluster, namespace: str, target: str) -> None:
    words = ("--for=condition=Failed", f"--timeout={300}s", "--namespace", namespace, f"{RESOURCES[target]}/job")
    cluster.kubectl("wait", *words)


@pytest.mark.parametrize("target", KINDS)
def test_job_that_always_fails_is_tried_again_and_then_given_up(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    spec = job(cluster.image, command=["jobs/scripts/own.py", "--steps", "not-a-number"], max_restarts=1)
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    _fails(cluster, namespace, target)
    starts = [log for log in cluster.player().logs(namespace).split("== ") if "not-a-number" in log]
    assert 2 < len(starts) <= 6, "two nodes, each started again once or twice"


# Rank 1 ends with a code of its own; rank 0 then loses its peer and ends with 1.
_ENDS_WITH_42 = """import sys
import torch.distributed as dist
dist.init_process_group("gloo")
print("started", flush=True)
dist.barrier()
if dist.get_rank() == 1:
    sys.exit(42)
dist.barrier()
"""


@pytest.mark.parametrize("preemption", [None, {}], ids=["", "with preemption"])
@pytest.mark.parametrize("target", ["indexedjob", "jobset", "trainjob"])
def test_exit_code_that_no_restart_can_mend_ends_the_job_at_its_first_start(
    preemption: Any, target: str, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.needs_controllers(target)
    player = cluster.player()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(_ENDS_WITH_42)
    keys = {"max_restarts": 5, "no_restart_on": [42], "preemption": preemption}
    spec = job(cluster.image, command=["mine.py"], files=["mine.py"], **keys)
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    _fails(cluster, namespace, target)
    assert player.logs(namespace).count("started") == 2, player.logs(namespace)
