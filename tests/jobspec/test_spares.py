"""With spares, nodes that fail or are slow are left out and named, and the good ones run the job in their order."""

from pathlib import Path

import pytest

from tests.shell import passes_bash_and_shellcheck
from tests.slurm import TWO_NODES, Cluster, directives, rendered

_SPEC = TWO_NODES.replace("nodes: 2", "nodes: 3\nspares: 2")
_NODES = ("n1", "n2", "n3", "n4", "n5")
_SAYS = "{} measured allowed 8 CPUs copy 9.75 GB/s link 900 MB/s product 100.5 GFLOP/s\n"
_SLOW = ": most nodes have twice as much;"
_AGAIN = "to have other nodes next time: sbatch --exclude="
_NOT_STARTED = "not started: {} good nodes, not 3"
CASES: dict[str, tuple[dict[str, str], list[str], list[str]]] = {
    "all are good": ({}, ["n1", "n2", "n3"], []),
    "the first one fails": (
        {"n1": "n1 FAILED OSError [Errno 28] No space left on device\n"},
        ["n2", "n3", "n4"],
        ["n1 is left out: OSError [Errno 28] No space left on device", f"{_AGAIN}n1"],
    ),
    "one is slow, one is silent": (
        {"n2": _SAYS.replace("100.5", "33"), "n4": ""},
        ["n1", "n3", "n5"],
        [
            f"n2 is left out: product 33 GFLOP/s{_SLOW}",
            "n4 is left out: no answer",
            f"{_AGAIN}n2,n4",
        ],
    ),
    "none can measure itself": (
        dict.fromkeys(_NODES, "Loading a link to n1\n"),
        [],
        [
            *["Loading a link to n1"] * 5,
            *(f"{node} is left out: no answer" for node in _NODES),
            f"{_AGAIN}{','.join(_NODES)}",
            _NOT_STARTED.format(0),
        ],
    ),
    "too few are good": (
        {
            "n1": "",
            "n3": _SAYS.replace("900", "9").replace("allowed 8", "allowed 0.25"),
            "n5": "n5 FAILED RuntimeError 1 of 2 GPUs\n",
        },
        [],
        [
            "n1 is left out: no answer",
            f"n3 is left out: allowed 0.25 CPUs{_SLOW} link 9 MB/s{_SLOW}",
            "n5 is left out: RuntimeError 1 of 2 GPUs",
            f"{_AGAIN}n1,n3,n5",
            _NOT_STARTED.format(2),
        ],
    ),
}


def _measured(cluster: Cluster, said: dict[str, str]) -> None:
    """Let the check of each node print `said` or, of the others, good rates."""
    cluster.nodes = _NODES
    for node in _NODES:
        (cluster.folder / node).write_text(said.get(node, _SAYS).replace("{}", node))
    measures = f'#!/bin/bash\n[[ $1 != -c ]] || exec cat "{cluster.folder}/$3"\n'
    cluster.install_recorder("program")
    cluster.install("python3", measures + 'exec program "$@"\n')
    cluster.install("torchrun", '#!/bin/bash\nexec program "$@"\n')


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize("case", CASES)
def test_only_good_nodes_run_the_job(case: str, launcher: str, own_cluster: Cluster, tmp_path: Path) -> None:
    said, chosen, messages = CASES[case]
    _measured(own_cluster, said)
    text = rendered(own_cluster, _SPEC, f"slurm.launcher={launcher}")
    assert directives(text)["nodes"] == "5"
    if not said:
        (tmp_path / "job.sh").write_text(text)
        passes_bash_and_shellcheck(tmp_path / "job.sh")
    status, out = own_cluster.run(text, SLURM_JOB_NUM_NODES="5")
    assert (status == 0) == bool(chosen), out
    assert out.splitlines() == messages
    calls = sorted(own_cluster.calls().items())
    assert list(dict.fromkeys(call.env["SLURMD_NODENAME"] for _, call in calls)) == chosen
    firsts = {(call.env["MASTER_ADDR"], call.env["SLURM_JOB_NODELIST"]) for _, call in calls}
    assert firsts == ({(chosen[0], ",".join(chosen))} if chosen else set())
    kept = tmp_path / "kept"
    assert (kept.read_text() if kept.exists() else "") == (f"{','.join([*chosen, 'n1'])}\n" if chosen else "")


def test_without_a_node_that_srun_cannot_reach_all_others_measure_anew(own_cluster: Cluster) -> None:
    _measured(own_cluster, {})
    said = _SAYS.replace("{}", "n1") + "srun: error: Task launch for StepId=1.0 failed on node n2: Socket timed out"
    status, out = own_cluster.run(rendered(own_cluster, _SPEC), SLURM_JOB_NUM_NODES="5", LAUNCH_FAILS=said)
    assert status == 0 and "n2 is left out: no answer" in out
    again, job = own_cluster.sruns()[1:]
    assert {"--nodes=4", "--exclude=n2"} < {*again} and "--nodelist=n1,n3,n4" in job
