"""An elastic Job on the Job controller: its number of pods changes while it trains, pods die, and no sample is lost."""

import json
from pathlib import Path

import pytest

from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

SAMPLES, BATCH, EPOCHS = 1000, 32, 10
# Each rank writes the numbers of its samples before a step that needs all ranks: a step of the run has them all.
SCRIPT = f"""
import json, pathlib, sys, time, torch, torch.distributed as dist
from torch.utils.data import TensorDataset
from train import Run

work = pathlib.Path(sys.argv[1])
run = Run(seed=1, checkpoint_every=1, resume="auto", run_dir=work / "run", checkpoint_dir=work / "run")
model = run.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.restore(model=model, optimizer=optimizer)
if run.rank == 0:
    with (work / "worlds").open("a") as worlds:
        print(run.world.world_size, file=worlds)
if dist.is_initialized():
    dist.barrier()
start = len((work / "worlds").read_text().split())
data = TensorDataset(torch.arange({SAMPLES}.0)[:, None])
with (work / f"samples-{{start}}-{{run.rank}}").open("w", buffering=1) as samples:
    for epoch in run.epochs({EPOCHS}):
        for batch in run.batches(data, batch_size={BATCH}):
            print(json.dumps([epoch, run.steps_done, start, batch[0].flatten().tolist()]), file=samples)
            run.step(lambda batch: model(batch[0] / {SAMPLES}).square().mean(), batch, optimizer)
            time.sleep(2 * (work / "slow").exists())
"""


def test_job_whose_pods_change_in_number_and_die_reads_each_sample_once_an_epoch(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.needs_controllers("indexedjob")
    player, work = cluster.player(), cluster.claim(namespace, "work")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCRIPT)
    (work / "slow").touch()
    mounts = [{"claim": "work", "path": "/work"}]
    spec = job(cluster.image, command=["mine.py", "/work"], files=["mine.py"], mounts=mounts, max_restarts=20)
    cluster.apply(rendered("indexedjob", spec | {"nodes": {"min": 1, "max": 4}}, namespace, tmp_path))

    def worlds() -> list[str]:
        return (work / "worlds").read_text().split() if (work / "worlds").exists() else []

    def running() -> list[str]:
        pods = [pod for pod in cluster.pods(namespace) if pod["status"]["phase"] == "Running"]
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def train(pods: int, after: int = 0) -> None:
        cluster.until(lambda: len(worlds()) > after and worlds()[-1] == str(pods), f"{pods} pods train")

    def patch(pods: int) -> None:
        """As the head of the manifest shows it."""
        changed = json.dumps({"spec": {"parallelism": pods, "completions": pods}})
        cluster.kubectl("patch", "--namespace", namespace, "job/job", "--type=merge", f"--patch={changed}")

    train(4)
    for pods, dies in ((2, -1), (4, 0), (1, -1), (3, -1)):
        before = len(worlds())
        patch(pods)
        train(pods, before)
        before = len(worlds())
        player.kill(namespace, running()[dies])
        train(pods, before)
    (work / "slow").unlink()
    cluster.succeeds(namespace, "indexedjob", "job")

    # A step that a failure undid was done again by a later start, which counts.
    steps: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for file in work.glob("samples-*"):
        for epoch, step, start, read in map(json.loads, file.read_text().splitlines()):
            latest, known = steps.get((epoch, step), (0, []))
            if start >= latest:
                steps[epoch, step] = (start, read + (known if start == latest else []))
    for epoch in range(1, EPOCHS + 1):
        read = sorted(sample for (of, _), (_, found) in steps.items() if of == epoch for sample in found)
        assert read == list(range(SAMPLES))
