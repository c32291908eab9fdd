"""More nodes than the job needs: each measures itself, and a bad one gets no rank."""

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.slurm import long_job
from tests.e2e.slurm.cluster import Cluster
from tests.e2e.slurm.specs import script

pytestmark = pytest.mark.timeout(2400)
_DRAWS = int(os.environ.get("SPARE_DRAWS", "1"))

_SPEC = """
name: spare
nodes: {nodes}
spares: {spares}
procs_per_node: 2
device: cuda
command: [sh, -c, 'echo "rank $RANK of $WORLD_SIZE is on $(hostname) of
  $(scontrol show hostnames | xargs), first $MASTER_ADDR"']
no_python: true
env: {{TMPDIR: /media, PYTHONPATH: {folder}, OMP_NUM_THREADS: "1"}}
resources: {{cpus: 2}}
time_limit: 40m
slurm: {{launcher: srun}}
"""
# Stands in for the GPUs that nvidia-smi lists: their tensors are the CPU's, and small.
_GPUS = """
import subprocess, sys
if sys.orig_argv[1] == "-c":
    import torch
    ones, to = torch.ones, torch.Tensor.to
    torch.cuda.device_count = lambda: subprocess.getoutput("nvidia-smi").count("GPU")
    torch.ones = lambda *size, device="cpu", dtype=None: ones(size if device == "cpu" else (256, 256))
    torch.Tensor.to = lambda tensor, device, copy: to(tensor, "cpu", copy=copy)
"""

Fault = Callable[[Cluster, str], AbstractContextManager[None]]


@contextmanager
def full_disk(cluster: Cluster, name: str) -> Iterator[None]:
    cluster.machines[name].run("mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "none", "/media")
    yield
    cluster.machines[name].run("umount", "/media")


@contextmanager
def slow_link(cluster: Cluster, name: str) -> Iterator[None]:
    bucket = ["tbf", "rate", "2mbit", "burst", "32k", "latency", "50ms"]
    cluster.machines[name].run("tc", "qdisc", "add", "dev", "eth0", "root", *bucket)
    yield
    cluster.machines[name].run("tc", "qdisc", "delete", "dev", "eth0", "root")


@contextmanager
def wrong_name(cluster: Cluster, name: str) -> Iterator[None]:
    first = next(node for node in cluster.names if node != name)
    edit = f"cp /etc/hosts /etc/whole; sed 's/.* {first} .*/127.0.0.1 {first}/' /etc/whole > /etc/hosts"
    cluster.machines[name].run("sh", "-c", edit)
    yield
    cluster.machines[name].run("sh", "-c", "cat /etc/whole > /etc/hosts")


@contextmanager
def no_slurmd(cluster: Cluster, name: str) -> Iterator[None]:
    """Slurm does not know yet that it cannot reach the node."""
    cluster.kill_slurmd(name)
    yield
    cluster.repair()


@contextmanager
def slow_cpu(cluster: Cluster, name: str) -> Iterator[None]:
    """Let the kernel give the node's processes a quarter of a CPU."""
    machine, groups = cluster.machines[name], Path("/sys/fs/cgroup")
    groups /= "cpu" if (groups / "cpu").exists() else "."
    group = groups / f"slow-{os.getpid()}-{name}"
    group.mkdir()
    file, limit = ("cpu.max", "25000 100000") if (group / "cpu.max").exists() else ("cpu.cfs_quota_us", "25000")
    (group / file).write_text(limit)
    hold = f"while sleep 0.1; do for process in /proc/[0-9]*; do echo ${{process:6}} >{group}/cgroup.procs; done; done"
    with subprocess.Popen(machine.inside(["bash", "-c", hold]), stderr=subprocess.DEVNULL):
        yield
        machine.run("pkill", "-KILL", "-f", "while sleep 0.1")
    for process in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            (groups / "cgroup.procs").write_text(process)
    group.rmdir()


@contextmanager
def hangs(cluster: Cluster, name: str) -> Iterator[None]:
    """Stop Slurm's processes of all steps there until the node is left out."""
    steps, begun = "pkill -{} -f '^slurmstepd: .[0-9]*[.][0-9]'", cluster.folder / "begun"
    begun.touch()
    left_out = f"grep -qs '{name} is left' /dev/null $(find {cluster.folder}/spare-*.log -newer {begun})"
    stop = f"until (( SECONDS > 900 )) || {left_out}; do {steps.format('STOP')}; sleep 0.2; done"
    with subprocess.Popen(cluster.machines[name].inside(["bash", "-c", f"{stop}; {steps.format('CONT')}"])):
        yield


@contextmanager
def fewer_gpus(cluster: Cluster, name: str) -> Iterator[None]:
    file, tool = cluster.folder / f"nvidia-smi-{name}", str(cluster.folder / "bin" / "nvidia-smi")
    file.write_text("#!/bin/sh\necho GPU 0: stand-in\n")
    file.chmod(0o755)
    cluster.machines[name].run("mount", "--bind", str(file), tool)
    yield
    cluster.machines[name].run("umount", tool)


_WHY: dict[Fault, str] = {  # the last one is not among the six of the draws
    full_disk: "No space left on device",
    slow_link: "link ",
    wrong_name: "is a loopback address here",
    slow_cpu: "allowed 0.25 CPUs|no answer",
    fewer_gpus: "1 of 2 GPUs",
    hangs: "no answer",
    no_slurmd: "no answer",
}


def check(cluster: Cluster, spares: int, faults: Mapping[str, Fault]) -> None:
    """Run a job beside these faults: all of these nodes and no others are left out, however busy the machine is."""
    (cluster.folder / "sitecustomize.py").write_text(_GPUS)
    wanted = len(cluster.names) - spares
    with ExitStack() as repaired:
        for name, fault in faults.items():
            repaired.enter_context(fault(cluster, name))
        number = cluster.submit(script(cluster, _SPEC.format(nodes=wanted, spares=spares, folder=cluster.folder)))
        state = cluster.wait_for_end(number).state
    if state == "NODE_FAIL" and no_slurmd in faults.values():
        pytest.skip("this machine is so slow that Slurm noticed first, and ended the job")
    said = (cluster.folder / f"spare-{number}.log").read_text()
    left_out = dict(re.findall("^(n[0-9]+) is left out: (.*)$", said, re.MULTILINE))
    assert left_out.keys() == faults.keys(), said
    assert all(re.search(_WHY[fault], left_out[name]) for name, fault in faults.items()), said
    good = [node for node in cluster.names if node not in left_out]
    if len(good) < wanted:
        assert (state, f"not started: {len(good)} good nodes, not {wanted}" in said) == ("FAILED", True), cluster.logs()
    else:
        assert state == "COMPLETED", cluster.logs()
        among = f"of {' '.join(good[:wanted])}, first {good[0]}"
        ranks = [f"rank {r} of {2 * wanted} is on {good[r // 2]} {among}" for r in range(2 * wanted)]
        assert sorted(line for line in said.splitlines() if line.startswith("rank")) == sorted(ranks)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", None),
        ("n2", full_disk),
        *(pytest.param("n10", fault, marks=pytest.mark.slow) for fault in _WHY),
    ],
)
def test_a_bad_node_is_named_and_gets_no_rank(name: str, fault: Fault | None, cluster: Cluster) -> None:
    check(cluster, 1, {name: fault} if fault else {})


@pytest.mark.slow
@pytest.mark.timeout(2400 * _DRAWS)
def test_of_eight_nodes_up_to_three_bad_ones_are_named_and_get_no_rank(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, names = tmp_path_factory.mktemp("eight"), [f"n{number}" for number in range(1, 9)]
    with Cluster(folder, names, 300, [tmp_path_factory.getbasetemp()], cluster.release) as eight:
        for seed in range(_DRAWS):
            draw = random.Random(seed)
            check(eight, 3, {name: draw.choice([*_WHY][:-1]) for name in draw.sample(names, draw.randint(0, 3))})


@pytest.mark.slow
def test_a_requeued_job_goes_on_without_the_node_that_died(
    cluster: Cluster, undisturbed: dict[str, Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, names = tmp_path_factory.mktemp("four"), ["n1", "n2", "n3", "n4"]
    with Cluster(folder, names, 20, [tmp_path_factory.getbasetemp()], cluster.release) as four:
        number = four.submit(long_job.rendered(four, tmp_path, f"{long_job.PREEMPTION}spares: 1\n"))
        four.wait_for("a checkpoint", lambda: any(tmp_path.glob("checkpoints/step-*/manifest.json")))
        assert four.states()["n3"] == "idle", "a spare that is not used belongs to Slurm again"
        four.power_off("n2")
        job = long_job.ended_as(undisturbed, four, number, tmp_path)
        nodes = four.command("scontrol", "show", "hostnames", job.fields["NodeList"]).split()
        assert (job.restarts, nodes) == (1, ["n1", "n3"])
