"""How a job ends that has a `ttl` or a `time_limit`."""

from pathlib import Path

import pytest

from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

# Of these kinds, what is still there after the ttl; docs/kubernetes.md says the same.
ALL = "jobs,jobsets.jobset.x-k8s.io,services,pytorchjobs.kubeflow.org"
LEFT = {
    "indexedjob": {"service/job"},
    "jobset": set(),
    "pytorchjob": set(),
}


@pytest.mark.parametrize("target", LEFT)
def test_failed_job_with_a_ttl_is_removed_and_never_run_again(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    wrong = ["jobs/scripts/own.py", "--steps", "not-a-number"]
    spec = job(cluster.image, nodes=1, command=wrong, kubernetes={"ttl": "5s"})
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    gone = ("get", ALL, "--namespace", namespace, "--output=name", "--ignore-not-found")
    cluster.until(lambda: set(cluster.kubectl(*gone).split()) == LEFT[target], f"only {LEFT[target]} is left")
    starts = cluster.player().logs(namespace).count("== job")
    assert starts == 1


@pytest.mark.parametrize("target", KINDS)
def test_job_that_may_restart_ends_at_its_time_limit(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.needs_controllers(target)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import time\ntime.sleep(3000)\n")
    keys = {"command": ["mine.py"], "files": ["mine.py"], "max_restarts": 3, "time_limit": "40s"}
    cluster.apply(rendered(target, job(cluster.image, **keys), namespace, tmp_path))
    cluster.fails(namespace, target, "job")
    gone = ("get", "pods", "--namespace", namespace, "--field-selector=status.phase=Running", "--output=name")
    cluster.until(lambda: not cluster.kubectl(*gone), "no pod runs")
