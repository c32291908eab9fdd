"""A job kept apart from its site ends with the same weights here as anywhere; files travel; a sweep is as many runs."""

import json
from pathlib import Path

import pytest

from jobspec.artifact import render
from tests.cli import records
from tests.clusters import KINDS
from tests.e2e import two_sites
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

_SCRIPT = """
import torch.distributed as dist
from lib.words import WORD

dist.init_process_group("gloo")
print(f"{WORD} from rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"""


def test_a_job_with_this_site_has_the_weights_of_a_run_alone(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.needs_controllers("jobset")
    two_sites.write_data(cluster.claim(namespace, "data"))
    checkpoints = cluster.claim(namespace, "checkpoints")
    files = [str(two_sites.JOB), str(two_sites.FOLDER / "kubernetes.yaml")]
    cluster.apply(render("jobset", files, [f"image={cluster.image}", f"kubernetes.namespace={namespace}"]))
    cluster.succeeds(namespace, "jobset", "both")
    (end,) = records(checkpoints / "run", "end")
    assert (end["step"], end["weights_sha256"]) == (40, two_sites.weights_alone(tmp_path))


@pytest.mark.parametrize("target", KINDS)
def test_a_script_that_was_edited_runs_without_an_image_of_its_own(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.needs_controllers(target)
    player = cluster.player()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "mine.py").write_text(_SCRIPT)
    for word in ("first", "edited"):
        (tmp_path / "lib" / "words.py").write_text(f"WORD = {word!r}\n")
        spec = {**job(cluster.image, command=["mine.py"], files=["mine.py", "lib/*.py"]), "name": word}
        cluster.apply(rendered(target, spec, namespace, tmp_path))
        cluster.succeeds(namespace, target, word)
        said = player.logs(namespace)
        assert all(f"{word} from rank {rank} of 2" in said for rank in range(2)), said
    for word in ("first", "edited"):
        # The operator of PyTorchJob deletes a Worker that still runs when the Master has ended.
        expected = [[word], [word] * 2] if target == "pytorchjob" else [[word] * 2]
        assert selected_by_the_policy_of(word, cluster, namespace) in expected


def selected_by_the_policy_of(job: str, cluster: Cluster, namespace: str) -> list[str]:
    """Names of the jobs of the pods that the NetworkPolicy of this job protects and lets in."""
    policy = json.loads(cluster.kubectl("get", "networkpolicy", job, "--namespace", namespace, "--output=json"))["spec"]
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}]
    ((key, value),) = policy["podSelector"]["matchLabels"].items()
    labels = [pod["metadata"]["labels"] for pod in cluster.pods(namespace)]
    return [own["app.kubernetes.io/instance"] for own in labels if own.get(key) == value]


@pytest.mark.parametrize("target", ["indexedjob", "jobset", "trainjob"])
def test_a_pod_that_starts_again_runs_the_files_that_the_job_began_with(
    target: str, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when other files were applied in between; a kind that cannot take them says so."""
    cluster.needs_controllers(target)
    player = cluster.player()
    monkeypatch.chdir(tmp_path)
    spec = {**job(cluster.image, command=["mine.py"], files=["mine.py"], max_restarts=3), "nodes": 1}
    (tmp_path / "mine.py").write_text('import time\nprint("of the first", flush=True)\ntime.sleep(3000)\n')
    cluster.apply(rendered(target, spec, namespace, tmp_path))
    cluster.until(lambda: "of the first" in player.logs(namespace), "the job runs")
    (tmp_path / "mine.py").write_text('print("of the second", flush=True)\n')
    manifests = rendered(target, spec, namespace, tmp_path)
    done = cluster.try_kubectl("apply", "--server-side", "--filename", "-", text=manifests)
    refused = target != "trainjob"
    assert (done.returncode != 0, "immutable" in done.stderr) == (refused, refused), done.stderr
    player.kill(namespace, cluster.pods(namespace)[-1]["metadata"]["name"])
    cluster.until(lambda: player.logs(namespace).count("of the ") == 2, "it has started again")
    assert "of the second" not in player.logs(namespace)


def test_a_sweep_of_six_is_six_runs_with_a_folder_and_a_result_of_its_own_each(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers("indexedjob")
    work = cluster.claim(namespace, "work")
    train = {"model": "mlp", "dataset": "synthetic", "max_steps": 3, "run_dir": "/work/runs"}
    spec = job(cluster.image, train=train, sweep=two_sites.SWEEP, mounts=[{"claim": "work", "path": "/work"}])
    cluster.apply(rendered("indexedjob", {**spec, "nodes": 1}, namespace, tmp_path))
    for number in range(6):
        cluster.succeeds(namespace, "indexedjob", f"job-{number}")
    of_sweep = ("get", "jobs", "--namespace", namespace, "--selector=app.kubernetes.io/part-of=job", "--output=name")
    assert len(cluster.kubectl(*of_sweep).split()) == 6
    two_sites.check_sweep(work / "runs")
