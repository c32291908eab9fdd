"""Many short jobs side by side: each starts its processes soon after Slurm has given it its nodes.

Two steps in a row are the danger: slurmctld may still count the nodes of the first as busy when the second asks for
them, and then srun waits for two minutes.
"""

import shlex
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.slurm import observer
from tests.e2e.slurm.cluster import Cluster

pytestmark = [pytest.mark.timeout(2400), pytest.mark.slow]

JOBS = 100
LATE_S = 10.0


def test_none_of_a_hundred_jobs_in_a_burst_starts_late_after_its_allocation(cluster: Cluster, tmp_path: Path) -> None:
    file = cluster.folder / "burst.sh"
    # Two jobs at a time on each node: more would wait for the two cores of a small machine, not for Slurm.
    file.write_text(observer.rendered(cluster, tmp_path, processes=1, cpus=4, what="time"))
    submit = (
        f"for (( n = 0; n < {JOBS}; n++ )); do sbatch --parsable --output=burst-%j.log {shlex.quote(str(file))}; done"
    )
    numbers = cluster.command("bash", "-euc", submit, timeout_s=600.0).split()
    assert len(numbers) == JOBS
    waits = {}
    for number in numbers:
        job = cluster.wait_for_end(number)
        assert job.state == "COMPLETED", cluster.logs()
        first = min(process["time"] for process in observer.seen(tmp_path, number).values())
        waits[number] = first - datetime.fromisoformat(job.fields["StartTime"]).timestamp()
    ordered = sorted(waits.values())
    print(f"from the allocation to the first process: median {ordered[JOBS // 2]:.1f} s, longest {ordered[-3:]}")
    busy = [number for number in numbers if "nodes are busy" in (cluster.folder / f"burst-{number}.log").read_text()]
    assert busy == []
    assert {number: wait for number, wait in waits.items() if wait > LATE_S} == {}
