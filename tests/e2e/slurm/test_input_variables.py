"""What srun reads from the environment of the shell that submits: none of it changes what a job is."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.slurm import observer
from tests.e2e.slurm.cluster import Cluster

pytestmark = pytest.mark.timeout(2400)
_VARIABLES: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("input_variables.yaml").read_text())

_NODES = "--nodelist=n2,n10"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_variables_of_srun_and_of_an_outer_job_at_once_change_nothing(
    device: str, cluster: Cluster, tmp_path: Path
) -> None:
    text = observer.rendered(cluster, tmp_path, device=device)
    reference = observer.outcome(cluster, tmp_path, cluster.submit(text, _NODES))
    number = cluster.submit(text, _NODES, environ=_VARIABLES["srun"] | _VARIABLES["outer_job"])
    assert reference["job: JobState"] == "COMPLETED" and reference["rank 3: WORLD_SIZE"] == "4", cluster.logs()
    assert observer.differences(reference, observer.outcome(cluster, tmp_path, number)) == []


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--gpus=1 --cpus-per-gpu=2 --mem-per-gpu=100", []),
        # salloc sets SLURM_HINT, which sbatch takes for its own: sockets, cores and threads that it asks for.
        ("--gres=gpu:1 --mem-per-cpu=100 --hint=nomultithread --overcommit", ["job: T is 0:0:*:1, not 0:0:*:*"]),
        ("--ntasks=4 --cpus-per-task=2 --distribution=cyclic --threads-per-core=1 --no-kill", []),
    ],
)
def test_a_job_on_the_cpu_that_is_submitted_inside_salloc_is_as_from_a_clean_shell(
    options: str, left: list[str], cluster: Cluster, tmp_path: Path
) -> None:
    text = observer.rendered(cluster, tmp_path)
    reference = observer.outcome(cluster, tmp_path, cluster.submit(text, _NODES))
    file = str(cluster.folder / "submitted.sh")
    number = cluster.command("salloc", "--quiet", *options.split(), "sbatch", "--parsable", _NODES, file).strip()
    assert reference["job: JobState"] == "COMPLETED", cluster.logs()
    assert observer.differences(reference, observer.outcome(cluster, tmp_path, number)) == left
