"""The batch script, run by bash with stand-ins for Slurm's commands and the container runtimes."""

import os
import signal
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load
from tests.slurm import BASE, NVIDIA_SMI, RUNTIMES, TWO_NODES, Cluster, directives, rendered, run

IMAGE = "image: registry.example/team/train:1.0\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two nodes; torchrun and python3 only write down how they were called."""
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    cluster.install_recorder("torchrun")
    cluster.install_recorder("python3")
    return cluster


# What the processes see

SECRET = "s3cret $HOME $(echo ran) `echo ran`"


_SHAPES = [("1", "torchrun"), ("2", "torchrun"), ("{min: 1, max: 2}", "torchrun"), ("1", "srun"), ("2", "srun")]


@pytest.mark.parametrize(
    ("runtime", "nodes", "launcher"),
    [
        # In a container one node and a range of nodes are left to the slow run.
        pytest.param(runtime, *shape, marks=[pytest.mark.slow] if runtime != "none" and shape[0] != "2" else [])
        for runtime in RUNTIMES
        for shape in _SHAPES
    ],
)
def test_every_program_sees_what_settings_say(cluster: Cluster, runtime: str, launcher: str, nodes: str) -> None:
    spec = (
        BASE
        + IMAGE
        + (
            f"nodes: {nodes}\ncommand: [mine.py]\nsecrets: [TOKEN]\nenv: {{A: 'x y', PATH_LIKE: '$PATH'}}\n"
            f"slurm: {{runtime: {runtime}, launcher: {launcher}, array: 0-3}}\n"
        )
    )
    cluster.nodes = ("n1",) if nodes == "1" else ("n1", "n2")
    array = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "70120"}
    run(cluster, spec, TOKEN=SECRET, SLURM_CPU_BIND="x", PET_NNODES="9", **array)
    plan = load(targets.load("slurm"), str(cluster.folder / "job.yaml"))
    calls = cluster.calls()
    assert len(calls) == len(cluster.nodes) * (2 if launcher == "srun" else 1)
    for rank in plan.ranks():
        seen = calls[rank.node, rank.local_rank if launcher == "srun" else 0].env
        told = [one for one in targets.load("slurm").environment(plan, rank) if one.set_by != "torchrun"]
        assert {one.name for one in told} <= set(seen)
        known = {one.name: one.value for one in told if not one.value.startswith("<")}
        assert known == {name: seen[name] for name in known}
        assert (seen["TOKEN"], seen["SLURM_ARRAY_TASK_ID"]) == (SECRET, "3")
        if launcher == "srun":
            assert seen["MASTER_PORT"] == str(20000 + 70123 % 10000)
            assert seen["MASTER_ADDR"] == cluster.nodes[0] or len(cluster.nodes) == 1


def test_torchrun_gets_what_differs_between_jobs_and_nodes_as_flags(cluster: Cluster) -> None:
    cluster.nodes = ("n1", "n2")
    run(cluster, TWO_NODES + "max_restarts: 3\nrendezvous: {timeout: 5m}\n")
    same = "--master-addr=n1 --master-port=20123 --nproc-per-node=2 --max-restarts=3 --rdzv-conf=timeout=300 -- mine.py"
    for node in range(2):
        assert " ".join(cluster.calls()[node, 0].argv[1:]) == f"--nnodes=2 --node-rank={node} {same}"


def test_nodes_meet_by_the_names_of_rendezvous_host_or_of_the_prologue(own_cluster: Cluster) -> None:
    named = ["rendezvous.host='ib-{node}.x'"]
    run(own_cluster, TWO_NODES, *named)
    assert "--master-addr=ib-n1.x" in own_cluster.calls()[1, 0].argv
    run(own_cluster, TWO_NODES, *named, "nodes={min: 1, max: 2}")
    assert {"--rdzv-endpoint=ib-n1.x:20123", "--local-addr=ib-n2.x"} < {*own_cluster.calls()[1, 0].argv}
    own_cluster.install("getent", '#!/bin/sh\n[ "$2" = mine ] && echo 127.0.0.1 STREAM')
    status, out = own_cluster.run(rendered(own_cluster, TWO_NODES, *named))
    assert status and ": ib-n1.x has no address here: see rendezvous.host of the spec" in out
    status, out = own_cluster.run(rendered(own_cluster, TWO_NODES, "slurm.prologue=[export MASTER_ADDR=mine]"))
    assert status and "n2: mine, the first node, is a loopback address here" in out
    own_cluster.install("getent", "#!/bin/sh\necho 192.0.2.1 STREAM")
    run(own_cluster, TWO_NODES, "slurm.prologue=[export MASTER_ADDR=mine MASTER_PORT=7]")
    assert {"--master-addr=mine", "--master-port=7"} < {*own_cluster.calls()[1, 0].argv}


def test_only_the_first_node_of_an_elastic_job_hosts_and_the_range_ends_at_what_slurm_gave(cluster: Cluster) -> None:
    cluster.nodes = ("n1", "n2")
    script = rendered(cluster, BASE + "nodes: {min: 1, max: 5}\ncommand: [mine.py]\n")
    assert cluster.run(script)[0] == 0
    same = {"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=70123", "--rdzv-endpoint=n1:20123"}
    for node, is_host in enumerate("10"):
        conf = f"--rdzv-conf=is_host={is_host},join_timeout=900,read_timeout=900"
        assert same | {conf, f"--local-addr=n{node + 1}"} < set(cluster.calls()[node, 0].argv)
    assert directives(script)["nodes"] == "1-5"
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(cluster.sruns()[-1])


def test_absent_secret_stops_the_script_and_no_value_is_in_an_argument(cluster: Cluster) -> None:
    cluster.nodes = ("n1",)
    spec = BASE + IMAGE + "nodes: 1\ncommand: [mine.py]\nsecrets: [TOKEN]\nslurm: {runtime: docker}\n"
    status, out = cluster.run(rendered(cluster, spec))
    assert status != 0
    assert "TOKEN: is a secret of this job; export it before sbatch" in out
    run(cluster, spec, TOKEN="s3cret")
    words = str([*cluster.sruns(), cluster.container(), cluster.calls()[0, 0].argv])
    assert "s3cret" not in words


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_runtimes_own_variables_are_set_before_the_container_starts(cluster: Cluster, runtime: str) -> None:
    cluster.nodes = ("n1",)
    own = {"MELLANOX_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "a 'b", "ENROOT_MOUNT_HOME": "y"}
    env = "".join(f"  {name}: {value}\n" for name, value in own.items())
    run(cluster, BASE + IMAGE + f"nodes: 1\ncommand: [mine.py]\nslurm: {{runtime: {runtime}}}\nenv:\n  A: b\n{env}")
    seen_by_srun = (cluster.folder / "environment-of-srun").read_text().splitlines()
    assert "A=b" not in seen_by_srun
    assert set(seen_by_srun) >= {f"{name}={value}" for name, value in own.items()} or runtime == "none"
    if runtime == "pyxis":
        (names,) = [word.partition("=")[2] for word in cluster.sruns()[-1] if word.startswith("--container-env=")]
        assert own.keys() <= set(names.split(","))
    elif runtime in ("docker", "podman"):
        assert {f"--env={name}" for name in own} <= set(cluster.container())
    env_of_process = cluster.calls()[0, 0].env
    assert own.items() <= env_of_process.items()


# What Slurm and the container runtimes are asked for


def test_one_task_a_process_shares_the_cpus_and_sees_all_gpus(cluster: Cluster) -> None:
    spec = "name: job\nnodes: 2\nprocs_per_node: 4\ncommand: [mine.py]\nresources: {cpus: 30}\n"
    script = rendered(cluster, spec + "slurm: {launcher: srun, srun_options: {label: true}}\n")
    asked = directives(script)
    assert (asked["ntasks-per-node"], asked["cpus-per-task"], asked["gpus-per-node"]) == ("4", "7", "4")
    cluster.nodes = ("n1", "n2")
    assert cluster.run(script)[0] == 0
    flags = {"--ntasks-per-node=4", "--cpus-per-task=7", "--label"}
    assert flags <= set(cluster.sruns()[-1])


def test_failing_task_ends_the_others_and_the_job_fails(own_cluster: Cluster) -> None:
    own_cluster.install(
        "torchrun", "import os, sys, time\nif os.environ['SLURM_NODEID'] == '1': sys.exit(3)\ntime.sleep(600)"
    )
    assert own_cluster.run(rendered(own_cluster, TWO_NODES))[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("image", "pyxis", "apptainer"),
    [
        ("pytorch/pytorch:2.6", "pytorch/pytorch:2.6", "docker://pytorch/pytorch:2.6"),
        ("localhost:5000/a/b:1", "localhost:5000#a/b:1", "docker://localhost:5000/a/b:1"),
        ("ubuntu", "ubuntu", "docker://ubuntu"),
        ("/images/a.sqsh", "/images/a.sqsh", "/images/a.sqsh"),
        ("a.sif", "a.sif", "a.sif"),
    ],
)
def test_image_is_written_as_each_runtime_reads_it(cluster: Cluster, image: str, pyxis: str, apptainer: str) -> None:
    cluster.nodes = ("n1",)
    spec = BASE + f"image: {image}\nnodes: 1\ncommand: [mine.py]\n"
    run(cluster, spec + "slurm: {runtime: pyxis}\n")
    assert f"--container-image={pyxis}" in cluster.sruns()[-1]
    run(cluster, spec + "slurm: {runtime: apptainer}\n")
    assert cluster.container()[-1] == apptainer


_SLICES = "MIG-11-22,MIG-33-44"  # which have no number


@pytest.mark.parametrize(
    ("runtime", "given", "words"),
    [
        ("docker", "0,1", {'--gpus="device=GPU-a,GPU-b"', f"--user={os.getuid()}:{os.getgid()}"}),
        ("podman", "0,1", {"--device=nvidia.com/gpu=GPU-a", "--device=nvidia.com/gpu=GPU-b"}),
        ("apptainer", "0,1", {"--nv" if Path("/dev/nvidiactl").exists() else "--rocm"}),
        ("docker", _SLICES, {f'--gpus="device={_SLICES}"'}),
        ("podman", _SLICES, {f"--device=nvidia.com/gpu={name}" for name in _SLICES.split(",")}),
    ],
)
def test_gpus_of_a_container_are_those_that_slurm_gave(
    cluster: Cluster, runtime: str, given: str, words: set[str]
) -> None:
    cluster.nodes = ("n1",)
    cluster.install("nvidia-smi", "raise SystemExit('no number')" if given == _SLICES else NVIDIA_SMI)
    spec = IMAGE + "name: job\nnodes: 1\nprocs_per_node: 2\ncommand: [mine.py]\n"
    run(cluster, spec + f"slurm: {{runtime: {runtime}}}\n", STEP_GPUS=given)
    assert words <= set(cluster.container())


def test_containers_of_docker_are_named_after_their_task_and_replace_what_a_kill_left(own_cluster: Cluster) -> None:
    own_cluster.install_recorder("python3")
    docker = own_cluster.folder / "bin" / "docker"
    record = '#!/bin/bash\n[[ $1 == rm ]] && { echo "$*" >> "$STAND_IN/removed"; exit 1; }\n'
    docker.write_text(docker.read_text().replace("#!/bin/bash\n", record))
    run(own_cluster, TWO_NODES + IMAGE + "slurm: {runtime: docker, launcher: srun}\n")
    names = [f"slurm-70123.0.{task}" for task in range(4)]
    assert [f"--name={name}" in own_cluster.container(task) for task, name in enumerate(names)] == [True] * 4
    removed = (own_cluster.folder / "removed").read_text().splitlines()
    assert sorted(removed) == [f"rm --force {name}" for name in names]


@pytest.mark.parametrize(
    ("runtime", "launcher", "flag"),
    [
        ("docker", "srun", "--pid=host"),
        ("docker", "torchrun", "--init"),
        ("podman", "srun", "--init"),
        ("podman", "torchrun", "--init"),
    ],
)
def test_containers_have_an_init_or_see_the_processes_of_their_node(
    cluster: Cluster, runtime: str, launcher: str, flag: str
) -> None:
    cluster.nodes = ("n1",)
    spec = IMAGE + "name: job\ndevice: cpu\nnodes: 1\nprocs_per_node: 2\ncommand: [mine.py]\n"
    run(cluster, spec + f"slurm: {{runtime: {runtime}, launcher: {launcher}}}\n")
    assert {"--pid=host", "--init"} & set(cluster.container()) == {flag}
