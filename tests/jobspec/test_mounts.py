"""`mounts`: one entry for several clusters, of which each target takes what it knows."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from jobspec.artifact import render
from tests.clusters import KINDS, documents, pod_templates
from tests.compose import read
from tests.slurm import NVIDIA_SMI, RUNTIMES, Cluster, rendered, run

SPEC = """
name: job
nodes: 1
procs_per_node: 1
device: cpu
image: a/b:1
command: [mine.py]
mounts:
  - {source: /lustre/data/, claim: data, sub_path: team/a, path: /data, read_only: true}
  - {source: /local, scratch: 100GiB, path: /cache}
  - {source: /etc/settings, config_map: settings, sub_path: one.yaml, path: /settings/one.yaml}
  - {source: /etc/keys, secret: keys, path: /keys}
"""
FOLDERS = {
    "/data": "/lustre/data/team/a",
    "/cache": "/local",
    "/settings/one.yaml": "/etc/settings/one.yaml",
    "/keys": "/etc/keys",
}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_take_what_the_cluster_has_and_need_no_other_standard(kind: str, spec: str) -> None:
    text = render(kind, spec)
    for template in pod_templates(documents(text)):
        volumes = {volume.pop("name"): volume for volume in template["spec"]["volumes"]}
        (container,) = template["spec"]["containers"]
        mounts: dict[str, Any] = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {path: volumes[mounts[path]["name"]] for path in FOLDERS} == {
            "/data": {"persistentVolumeClaim": {"claimName": "data"}},
            "/cache": {"emptyDir": {"sizeLimit": "100Gi"}},
            "/settings/one.yaml": {"configMap": {"name": "settings"}},
            "/keys": {"secret": {"secretName": "keys"}},
        }
        sub_paths = {path: mount["subPath"] for path, mount in mounts.items() if "subPath" in mount}
        assert sub_paths == {"/data": "team/a", "/settings/one.yaml": "one.yaml", "/tmp": "tmp"}
        assert mounts["/data"]["readOnly"]
    assert "# Needed beforehand: PersistentVolumeClaim data." in text
    assert "# Needed beforehand: ConfigMap settings, mounted as files." in text
    assert "# Needed beforehand: Secret keys, mounted as files." in text


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "pyxis"])
def test_slurm_takes_the_folders(runtime: str, own_cluster: Cluster) -> None:
    own_cluster.nodes = ["n1"]
    own_cluster.install("nvidia-smi", NVIDIA_SMI)
    run(own_cluster, SPEC, f"slurm.runtime={runtime}")
    words = " ".join(own_cluster.sruns()[-1] if runtime == "pyxis" else own_cluster.container())
    for path, folder in FOLDERS.items():
        assert (f"source={folder},target={path}" if runtime == "docker" else f"{folder}:{path}") in words


def test_compose_takes_the_folders_and_else_makes_volumes(spec: str) -> None:
    (service,) = read(render("compose", spec), {})["services"].values()
    assert {one["target"]: one["source"] for one in service["volumes"]} == FOLDERS
    found = read(render("compose", spec, ["mounts.0.source=", "mounts.0.sub_path=", "mounts.1.source="]), {})
    (service,) = found["services"].values()
    data, cache, *_ = service["volumes"]
    assert (data["type"], data["source"]) == ("volume", "data")
    assert cache == {"type": "volume", "target": "/cache"}
    assert found["volumes"] == {"data": {}}


@pytest.mark.parametrize("target", [*KINDS, "compose", *(f"slurm-{runtime}" for runtime in RUNTIMES[1:])])
def test_a_mount_inside_another_is_mounted_after_it(target: str, spec: str) -> None:
    name, _, runtime = target.partition("-")
    # With pyxis a scratch is a folder of the container.
    of_sub = "source: /from, claim: c" if runtime == "pyxis" else "scratch: 1MiB"
    source = "source: /from, claim: c"
    mounts = f"{{{source}, path: /in/sub/a}}, {{{source}, path: /in/}}, {{{of_sub}, path: /in/sub}}"
    Path(spec).write_text(f"{SPEC.partition('mounts:')[0]}mounts: [{mounts}]\n")
    text = render(name, spec, [f"slurm.runtime={runtime}"] if runtime else [])
    order = [found.rstrip("/") for found in re.findall(r"(?:path: |Path: |target: |target=|:)\"?(/in[a-z/]*)", text)]
    assert order[:3] == ["/in", "/in/sub", "/in/sub/a"]


_SCRATCH = """
name: job
nodes: 2
procs_per_node: 1
device: cpu
image: a/b:1
command: [mine.py]
mounts: [{source: /data, path: /data}, {scratch: 1MiB, path: /my cache}, {scratch: 1MiB, path: /two, read_only: true}]
"""
# Records which folders exist while it runs.
_PROGRAM = """#!/bin/sh
find {disk} -mindepth 2 -empty -writable | tee -a {disk}.seen
"""


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman"])
def test_scratch_on_slurm_is_empty_folders_of_the_node_which_end_with_the_job(
    runtime: str, own_cluster: Cluster
) -> None:
    disk = own_cluster.folder / "disk"
    own_cluster.install("torchrun", _PROGRAM.format(disk=disk))
    run(own_cluster, _SCRATCH, f"slurm.runtime={runtime}")
    assert [*disk.iterdir()] == []
    seen = (disk.parent / "disk.seen").read_text().split()
    for task in range(2):
        words = "\n".join(own_cluster.container(task))
        name = re.search(f"{disk}/(scratch-{own_cluster.job_id}[.]\\w+)/1", words)
        assert name is not None, words
        first, second = f"{disk}/{name[1]}/1", f"{disk}/{name[1]}/2"
        assert {first, second} <= {*seen}
        if runtime == "apptainer":
            assert f"--bind={first}:/my cache\n" in words and f"--bind={second}:/two:ro\n" in words
        else:
            assert f"--mount=type=bind,source={first},target=/my cache\n" in words
            assert f"--mount=type=bind,source={second},target=/two,readonly\n" in words


def test_scratch_of_tasks_that_slurm_killed_is_removed(own_cluster: Cluster) -> None:
    own_cluster.install("torchrun", "#!/bin/sh\n[ $SLURM_NODEID = 1 ] && exit 7\nsleep 1000\n")
    code, out = own_cluster.run(rendered(own_cluster, _SCRATCH, "slurm.runtime=apptainer"))
    assert code != 0, out
    assert [*(own_cluster.folder / "disk").iterdir()] == []


def test_scratch_that_cannot_simply_be_removed_changes_no_exit_status(own_cluster: Cluster) -> None:
    own_cluster.nodes = ["n1"]
    slurm = "slurm={runtime: apptainer, epilogue: ['touch epilogue']}"
    disk = own_cluster.folder / "disk"
    locked = f"for one in {disk}/*/1; do mkdir $one/a; touch $one/a/b; chmod 555 $one/a; done"
    own_cluster.install("torchrun", f"#!/bin/sh\n{locked}\nexit 7\n")
    own_cluster.install("rm", f'#!/bin/sh\nPATH={os.environ["PATH"]}\nrm "$@"; exit 1\n')
    code, out = own_cluster.run(rendered(own_cluster, _SCRATCH, "nodes=1", slurm))
    assert code == 7, out
    assert (own_cluster.folder / "epilogue").exists()
    assert [*disk.iterdir()] == []


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman"])
def test_the_runtime_takes_the_place_of_the_shell_that_slurm_signals(runtime: str, own_cluster: Cluster) -> None:
    own_cluster.install("torchrun", '#!/bin/sh\necho "child of $(cat /proc/$PPID/comm)"\n')
    out = run(own_cluster, _SCRATCH, f"slurm.runtime={runtime}")
    assert re.findall("child of (.*)", out) == ["srun", "srun"], out


def test_scratch_with_pyxis_is_folders_of_the_container(tmp_path: Path, own_cluster: Cluster) -> None:
    inside = tmp_path / "my cache"
    spec = _SCRATCH.replace("/my cache", str(inside)).replace("/two", f"{tmp_path}/two")
    own_cluster.install("torchrun", f"#!/bin/sh\n[ -d '{inside}' ]")
    run(own_cluster, spec, "slurm.runtime=pyxis")
    assert {"--container-writable", "--container-mounts=/data:/data"} <= {*own_cluster.sruns()[-1]}


# Saves for half a second after a SIGTERM, and then records how many folders still exist.
_SAVING = """
import glob, os, signal, sys, time
here, node = os.environ["STAND_IN"], os.environ["SLURM_NODEID"]
def save(*_):
    time.sleep(0.5)
    with open(f"{here}/saved-{node}", "w") as file:
        file.write(str(len(glob.glob(f"{here}/disk/*/1"))))
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
os.open(f"{here}/running-{node}", os.O_CREAT)
signal.pause()
"""


def test_scratch_lasts_until_the_processes_have_saved(own_cluster: Cluster) -> None:
    own_cluster.nodes = ["n1"]
    own_cluster.install("torchrun", _SAVING)
    settings = ("nodes=1", "slurm.runtime=apptainer", "preemption={grace: 600s}")
    job = own_cluster.start(rendered(own_cluster, _SCRATCH, *settings))
    own_cluster.wait_for(job, "running-0")
    job.send_signal(signal.SIGUSR1)
    out = job.communicate()[0].decode()
    assert (own_cluster.folder / "saved-0").read_text() == "1", out
    assert (own_cluster.folder / "requeued").exists()
    assert [*(own_cluster.folder / "disk").iterdir()] == []


@pytest.mark.parametrize(
    ("target", "runtime", "folder"),
    [
        *((kind, "none", "/out") for kind in (*KINDS, "compose")),
        *(("slurm", runtime, "/out") for runtime in ("docker", "podman")),
        *(("slurm", runtime, "/tmp") for runtime in ("none", "apptainer")),
        ("torchrun", "none", "/tmp"),
    ],
)
def test_the_flight_recorder_writes_where_its_files_outlive_a_container(
    target: str, runtime: str, folder: str, spec: str
) -> None:
    mounts = "{source: /i, claim: i, path: /in, read_only: true}, {source: /s, scratch: 1GiB, path: /cache}, "
    mounts += "{source: /o, claim: out, path: /out/}"
    text = render(target, spec, ["device=cuda", f"mounts=[{mounts}]", f"slurm.runtime={runtime}"])
    assert re.search(f'TEMP_FILE.*\n?.*[ ="]{folder}/job-nccl-rank-', text)
