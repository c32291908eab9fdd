"""How the pods of each kind find node 0, and who of an elastic job hosts the rendezvous."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from tests.clusters import KINDS, documents, processes


@pytest.mark.parametrize("target", KINDS)
def test_peers_look_for_node_0_under_the_name_of_its_pod(target: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: my-job\nnodes: 3\nprocs_per_node: 2\nimage: train:1\ncommand: [mine.py]\n")
    pods = processes(target, documents(render(target, str(spec))), {})
    assert {pod.env["PET_MASTER_ADDR"] for pod in pods} == {pods[0].name}
    assert [pod.env["PET_NODE_RANK"] for pod in pods] == ["0", "1", "2"]
    plan, module = load(targets.load(target), str(spec)), targets.load(target)
    assert [module.node_name(plan, node) for node in range(3)] == [pod.name for pod in pods]


@pytest.mark.parametrize(
    ("kind", "number", "host"),
    [("pytorchjob", "PET_REPLICA_INDEX", "my-job-worker-0"), ("indexedjob", "PET_NODE_RANK", "my-job-0.my-job")],
)
def test_only_the_first_pod_of_an_elastic_job_hosts_the_rendezvous(
    kind: str, number: str, host: str, tmp_path: Path
) -> None:
    (tmp_path / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv."${number}"\n')
    (tmp_path / "torchrun").chmod(0o755)
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: my-job\nnodes: {min: 1, max: 3}\nprocs_per_node: 2\nimage: train:1\nmax_restarts: 5\n"
        "command: [mine.py, 'a  b', '$(HOME) \"']\n"
    )
    for index, pod in enumerate(processes(kind, documents(render(kind, str(spec))), {})):
        subprocess.run(pod.argv, env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **pod.env}, check=True)
        assert pod.env["PET_RDZV_ENDPOINT"].startswith(f"{host}:")
        assert (pod.env["PET_NNODES"], pod.env["PET_LOCAL_ADDR"]) == ("1:3", f"10.0.0.{index + 1}")
    for index in range(3):
        assert (tmp_path / f"argv.{index}").read_text().splitlines() == [
            f"--rdzv-conf=is_host={int(index == 0)},join_timeout=3600,read_timeout=3600",
            "--nproc-per-node=2",
            "--rdzv-id=my-job",
            "--max-restarts=5",
            "--",
            "mine.py",
            "a  b",
            '$$(HOME) "',  # torchrun takes one of them away
        ]


def test_container_of_a_pytorchjob_that_starts_again_waits_for_its_peers_and_ends_with_the_pod(tmp_path: Path) -> None:
    """Its first start is none of these; /dev/shm, which outlives it, is a folder here."""
    (tmp_path / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv\n')
    (tmp_path / "torchrun").chmod(0o755)
    spec = tmp_path / "job.yaml"
    spec.write_text("name: my-job\nnodes: 2\nprocs_per_node: 2\nimage: train:1\nmax_restarts: 5\ncommand: [mine.py]\n")
    pod, _ = processes("pytorchjob", documents(render("pytorchjob", str(spec))), {})
    argv = [word.replace("/dev/shm", str(tmp_path)) for word in pod.argv]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **pod.env}

    subprocess.run(argv, env=env, check=True)
    flags, program = (tmp_path / "argv").read_text().split("--\n")
    assert (flags.splitlines()[0], program) == ("--nproc-per-node=2", "mine.py\n")

    (tmp_path / "argv").unlink()
    again = subprocess.Popen(argv, env=env)
    try:
        while not (waiting := sleeping_children(again.pid)):
            assert again.poll() is None, "it did not wait"
    finally:
        again.terminate()
        code = again.wait()
    for pid in waiting:  # which in a pod the kernel ends with its first process
        os.kill(pid, signal.SIGKILL)
    assert code == 143
    assert not (tmp_path / "argv").exists()


def sleeping_children(pid: int) -> list[int]:
    """The processes that a shell waits for, if they are `sleep`."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in found if Path(f"/proc/{child}/comm").read_text() == "sleep\n"]
    except OSError:  # ended in this moment
        return []
