"""What kube-score and checkov find in pods as controllers and operators made them: tests/findings.yaml has reasons."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import KINDS, explained
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered


@pytest.mark.parametrize("tool", ["checkov", "kube-score"])
@pytest.mark.parametrize("target", KINDS)
def test_each_finding_has_a_reason(target: str, tool: str, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.needs_controllers(target)
    if not shutil.which(tool):
        pytest.skip(
            f"{tool} is not installed: pipx install checkov, go install github.com/zegl/kube-score/cmd/kube-score"
        )
    keys: dict[str, Any] = {
        "command": ["jobs/scripts/own.py", "--steps", "1"],
        "resources": {"cpus": 1, "memory": "1GiB", "devices": {"ephemeral-storage": "1GiB"}},
    }
    cluster.apply(rendered(target, job(cluster.image, **keys), namespace, tmp_path))
    cluster.until(lambda: len(cluster.pods(namespace)) == 2, "two pods are there")
    folder = tmp_path / "pods"
    folder.mkdir()
    for pod in cluster.pods(namespace):
        del pod["status"]
        (folder / f"{pod['metadata']['name']}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **pod}))
    found = {"checkov": of_checkov, "kube-score": of_kube_score}[tool](folder)
    known = explained("restricted")
    known |= explained("training operator") if target == "pytorchjob" else {}
    assert found and found <= set(known)


def of_checkov(folder: Path) -> set[str]:
    words = ["checkov", "--directory", str(folder), "--framework=kubernetes", "--skip-download", "--output=json"]
    done = subprocess.run([*words, "--quiet"], capture_output=True, text=True, check=False)
    return {check["check_id"] for check in json.loads(done.stdout)["results"]["failed_checks"]}


def of_kube_score(folder: Path) -> set[str]:
    words = ["kube-score", "score", "--output-format=json", *map(str, folder.iterdir())]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    checks = [check for pod in json.loads(done.stdout) for check in pod["checks"]]
    return {check["check"]["id"] for check in checks if not check["skipped"] and check["grade"] < 10}
