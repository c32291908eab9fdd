"""What sbatch and srun read from the environment of the shell that submits: none of it changes what a job is.

Options that are sbatch's own (SBATCH_… and three more) are left to the user.  sbatch reads them before there is a job,
they win over the `#SBATCH` lines as its flags do, and Slurm has allocated what they ask for when the script starts.
The ranks stay what they are also then, unless such an option leaves no job to run.
"""

from pathlib import Path

import pytest
import yaml

from tests.e2e.slurm import observer
from tests.e2e.slurm.cluster import Cluster

pytestmark = pytest.mark.timeout(2400)
_VARIABLES: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("input_variables.yaml").read_text())

_NODES = "--nodelist=n2,n10"
# Of sbatch's own options those with which this job cannot run.
_NO_RUN = {
    "SBATCH_OVERCOMMIT": "one CPU per node is too few, and the SLURM_OVERCOMMIT that srun needs may be another job's",
    "SLURM_UMASK": "nobody may write to the log",
}
# sbatch itself says no to these, in its own words.
_REFUSED_NAMES = """
    SBATCH_BATCH SBATCH_CLUSTERS SBATCH_CONSTRAINT SBATCH_CPUS_PER_GPU SBATCH_GPUS SBATCH_GPUS_PER_SOCKET SBATCH_NO_KILL
    SBATCH_RESERVATION SLURM_CLUSTERS
"""
_REFUSED = set(_REFUSED_NAMES.split())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_variables_of_srun_and_of_an_outer_job_at_once_change_nothing(
    device: str, cluster: Cluster, tmp_path: Path
) -> None:
    text = observer.rendered(cluster, tmp_path, device=device)
    reference = observer.outcome(cluster, tmp_path, cluster.submit(text, _NODES))
    number = cluster.submit(text, _NODES, environ=_VARIABLES["srun"] | _VARIABLES["outer_job"])
    assert reference["job: JobState"] == "COMPLETED" and reference["rank 3: WORLD_SIZE"] == "4", cluster.logs()
    assert observer.differences(reference, observer.outcome(cluster, tmp_path, number)) == []


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_variable_of_srun_or_of_an_outer_job_changes_anything(device: str, cluster: Cluster, tmp_path: Path) -> None:
    text = observer.rendered(cluster, tmp_path, device=device)
    reference = observer.outcome(cluster, tmp_path, cluster.submit(text, _NODES))
    # A job with GPUs takes its nodes for itself, which makes a hundred of them long: only what is about resources.
    about = ("CPU", "GPU", "GRES", "TRES", "MEM", "TASK", "NODE", "BIND", "EXACT", "EXCLUSIVE", "OVER", "CWD")
    variables = {
        name: value
        for name, value in (_VARIABLES["srun"] | _VARIABLES["outer_job"]).items()
        if device == "cpu" or any(part in name for part in about)
    }
    numbers = {name: cluster.submit(text, _NODES, environ={name: value}) for name, value in variables.items()}
    outcomes = {name: observer.outcome(cluster, tmp_path, number) for name, number in numbers.items()}
    changed = {name: observer.differences(reference, outcome) for name, outcome in outcomes.items()}
    assert {name: what for name, what in changed.items() if what} == {}


@pytest.mark.slow
def test_options_of_sbatch_are_the_users_and_leave_the_ranks_as_they_are(cluster: Cluster, tmp_path: Path) -> None:
    text = observer.rendered(cluster, tmp_path)
    reference = _ranks(observer.outcome(cluster, tmp_path, cluster.submit(text, _NODES)))
    assert len(reference) == 4 * 6
    refused, numbers = {}, {}
    for name, value in _VARIABLES["sbatch"].items():
        try:
            # With SBATCH_WAIT sbatch stays until the job has ended.
            numbers[name] = cluster.submit(text, _NODES, environ={name: value})
        except RuntimeError as error:
            refused[name] = str(error)
    assert refused.keys() == _REFUSED, refused
    changed = {}
    for name, number in numbers.items():
        task = "_5" if name == "SBATCH_ARRAY_INX" else ""
        outcome = observer.outcome(cluster, tmp_path, number + task)
        if _ranks(outcome) != reference:
            changed[name] = outcome
    assert changed.keys() == _NO_RUN.keys(), changed
    assert {outcome["job: JobState"] for outcome in changed.values()} == {"FAILED"}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--gpus=1 --cpus-per-gpu=2 --mem-per-gpu=100", []),
        # salloc sets SLURM_HINT, which sbatch takes for its own: sockets, cores and threads that it asks for.
        ("--gres=gpu:1 --mem-per-cpu=100 --hint=nomultithread", ["job: T is 0:0:*:1, not 0:0:*:*"]),
        ("--ntasks=4 --cpus-per-task=2 --distribution=cyclic --threads-per-core=1 --overcommit --no-kill", []),
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


def _ranks(outcome: dict[str, str]) -> dict[str, str]:
    """Which process is where and has which numbers."""
    names = ("host", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return {what: value for what, value in outcome.items() if what.startswith("rank") and what.endswith(names)}
