"""The check of each node before the start of a batch script: what it refuses, and how it says so."""

import os
import resource
import socket
import subprocess

import pytest

from tests.slurm import TWO_NODES, Cluster, rendered, run


def preflight(cluster: Cluster, spec: str) -> str:
    """What a refused job wrote; nothing but the preflight was started."""
    status, out = cluster.run(rendered(cluster, spec))
    assert status == 1, out
    assert len(cluster.sruns()) == 1
    assert cluster.calls() == {}
    return out


def test_preflight_refuses_a_name_that_does_not_resolve(own_cluster: Cluster) -> None:
    own_cluster.install("getent", "raise SystemExit(2)")
    out = preflight(own_cluster, TWO_NODES)
    for node in ("n1", "n2"):
        assert f"preflight: {node}: n1, the first node, resolves to no address, so" in out


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_preflight_refuses_a_loopback_address(own_cluster: Cluster, address: str) -> None:
    own_cluster.install("getent", f"print('{address} STREAM n1')")
    told = preflight(own_cluster, TWO_NODES)
    assert f"n1, the first node, resolves to {address}, so other nodes cannot reach it" in told


@pytest.mark.parametrize("spec", [TWO_NODES, TWO_NODES + "env: {GLOO_SOCKET_IFNAME: eth0}\n"])
def test_preflight_warns_of_nodes_whose_own_names_are_loopback_addresses(own_cluster: Cluster, spec: str) -> None:
    own_cluster.install("getent", "import sys\nprint('10.0.0.1' if sys.argv[-1] == 'n1' else '127.0.1.1')")
    status, out = own_cluster.run(rendered(own_cluster, spec))
    assert (status, out.count("warning: its own name is 127.0.1.1 here, and there gloo listens")) == (
        0,
        2 if spec == TWO_NODES else 0,
    )


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_preflight_refuses_a_port_in_use(own_cluster: Cluster, family: socket.AddressFamily) -> None:
    with socket.create_server(("", 0), family=family) as server:
        port = server.getsockname()[1]
        out = preflight(own_cluster, TWO_NODES + f"rendezvous: {{port: {port}}}\n")
    assert out.count(f"port {port} is in use") == 1
    assert run(own_cluster, TWO_NODES + f"rendezvous: {{port: {port}}}\n")


def test_preflight_counts_gpus_and_slices_of_mig(own_cluster: Cluster) -> None:
    listed = "GPU 0: A (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\n  MIG 1g.5gb Device 1: (UUID: MIG-3)"
    own_cluster.install("nvidia-smi", f"print({listed!r})\nprint('GPU 1: B (UUID: GPU-4)')")
    spec = "name: job\nnodes: 2\ncommand: [mine.py]\nprocs_per_node: "
    assert "3 GPUs for 4 processes" in preflight(own_cluster, spec + "4\n")
    run(own_cluster, spec + "3\n")


def test_preflight_measures_shared_memory(own_cluster: Cluster) -> None:
    spec = TWO_NODES + "resources: {shm: "
    assert "but resources.shm is 536870912 MiB" in preflight(own_cluster, spec + "512TiB}\n")
    run(own_cluster, spec + "1MiB}\n")


def test_preflight_refuses_rdma_without_the_right_to_lock_memory(own_cluster: Cluster) -> None:
    script = rendered(own_cluster, TWO_NODES + "resources: {rdma: true}\n")
    own_cluster.run(script)  # writes job.sh and the list of nodes
    env = {"PATH": f"{own_cluster.folder / 'bin'}:{os.environ['PATH']}", "STAND_IN": str(own_cluster.folder)}
    env |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "list of 2", "SLURM_JOB_NUM_NODES": "2"}
    limited = subprocess.run(
        ["bash", "job.sh"],
        cwd=own_cluster.folder,
        env=env,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)),
    )
    assert limited.returncode == 1
    assert "RDMA needs unlimited locked memory, not 64 KiB" in limited.stderr.decode()


def test_preflight_trusts_no_variable_of_the_shell_that_called_sbatch(own_cluster: Cluster) -> None:
    run(own_cluster, TWO_NODES, failed="1")
    assert len(own_cluster.calls()) == 2


def test_scontrol_that_fails_ends_the_job(own_cluster: Cluster) -> None:
    own_cluster.install("scontrol", "raise SystemExit(1)")
    status, _ = own_cluster.run(rendered(own_cluster, TWO_NODES))
    assert status != 0
    assert not own_cluster.sruns()
