"""A node that dies: what Kubernetes does alone, and what a person must do, as the heads of the manifests say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cli
from tests.clusters import KINDS
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

# How the name of the pod of node 1 begins.
SECOND = {"indexedjob": "-1-", "jobset": "-node-0-1-", "pytorchjob": "-worker-0", "trainjob": "-node-0-1-"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "seconds": 5}
STEPS = 6
# Each process halts at this moment until the test lets it continue.
SCRIPT = f"""
import os, pathlib, sys, time, torch
from train import Run

work, name, moment = pathlib.Path("/work"), sys.argv[1], sys.argv[2]
def halt(here, step):
    if (here, step) == (moment, 3) and (work / "held").exists():
        (work / f"{{name}}-{{os.environ['RANK']}}").touch()
        while (work / "held").exists():
            time.sleep(0.1)
class Slow:
    def state_dict(self):
        halt("save", run.steps_done)
        return {{}}
    def load_state_dict(self, state):
        pass
halt("start", 3)
folder = work / name
run = Run(seed=1, checkpoint_every=1, resume="auto", run_dir=folder, checkpoint_dir=folder, max_steps={STEPS},
          log_every=1, collective_timeout_s=20)
model = run.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.restore(model=model, optimizer=optimizer, slow=Slow())
for _ in run.epochs(100):
    for batch in run.batches(torch.utils.data.TensorDataset(torch.ones(8, 1)), batch_size=4):
        run.step(lambda batch: model(batch[0]).square().mean(), batch, optimizer)
        halt("middle", run.steps_done)
"""


@pytest.fixture
def dies(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The node that the test loses."""
    name = f"{namespace}-dies"
    cluster.player().nodes.add(name)
    yield name
    cluster.player().nodes.live.discard(name)
    cluster.kubectl("delete", "node", name)


@pytest.mark.parametrize("moment", ["start", "middle", "save"])
def test_jobs_of_a_dead_node_wait_until_it_is_marked_and_then_go_on(
    moment: str, dies: str, cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds at once, because Kubernetes takes a minute to notice."""
    for target in KINDS:
        cluster.needs_controllers(target)
    player, work = cluster.player(), cluster.claim(namespace, "work")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCRIPT)
    (work / "held").touch()
    for target in KINDS:
        player.nodes.places[f"{namespace}/{target}{SECOND[target]}"] = dies
        spec = job(
            cluster.image,
            command=["mine.py", target, moment],
            files=["mine.py"],
            mounts=[{"claim": "work", "path": "/work"}],
            max_restarts=3,
            preemption={},
            kubernetes={"tolerations": [UNREACHABLE]},
        )
        cluster.apply(rendered(target, spec | {"name": target}, namespace, tmp_path))

    def evicted() -> int:
        pods = [pod for pod in cluster.pods(namespace) if pod["spec"].get("nodeName") == dies]
        return sum("deletionTimestamp" in pod["metadata"] for pod in pods)

    halted = [work / f"{target}-{rank}" for target in KINDS for rank in range(2)]
    cluster.until(lambda: all(file.exists() for file in halted), "all have halted")
    player.lose(dies)
    (work / "held").unlink()
    cluster.until(lambda: evicted() == len(KINDS), "the pods of the node are to go")
    done = [len(cli.records(work / target, "step")) for target in KINDS if (work / target).exists()]
    assert max(done, default=0) < STEPS
    cluster.kubectl("taint", "nodes", dies, "node.kubernetes.io/out-of-service=x:NoExecute")
    for target in KINDS:
        cluster.succeeds(namespace, target, target)
    ends = {(end["step"], end["weights_sha256"]) for target in KINDS for end in cli.records(work / target, "end")}
    assert [step for step, _ in ends] == [STEPS]  # the same weights in all kinds
    for target in KINDS:
        steps = [record["step"] for record in cli.records(work / target, "step")]
        assert steps in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 5, 6])  # none repeated; that of step 4 may have died with a peer
