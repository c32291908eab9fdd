"""`mounts`: one entry for several clusters, of which each target takes what it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobspec.artifact import render
from jobspec.problems import SpecError
from tests.clusters import KINDS, documents, pod_templates
from tests.compose import read
from tests.slurm import NVIDIA_SMI, Cluster

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


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "job.yaml").write_text(SPEC)
    return str(tmp_path / "job.yaml")


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
        assert sub_paths == {"/data": "team/a", "/settings/one.yaml": "one.yaml"}
        assert mounts["/data"]["readOnly"]
    assert "# Needed beforehand: PersistentVolumeClaim data." in text
    assert "# Needed beforehand: ConfigMap settings, mounted as files." in text
    assert "# Needed beforehand: Secret keys, mounted as files." in text


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "pyxis"])
def test_slurm_takes_the_folders(runtime: str, spec: str, own_cluster: Cluster) -> None:
    own_cluster.nodes = ["n1"]
    own_cluster.install("nvidia-smi", NVIDIA_SMI)
    code, out = own_cluster.run(render("slurm", spec, [f"slurm.runtime={runtime}"]))
    assert code == 0, out
    words = " ".join(own_cluster.sruns()[-1] if runtime == "pyxis" else own_cluster.container())
    for path, folder in FOLDERS.items():
        assert (f"source={folder},target={path}" if runtime == "docker" else f"{folder}:{path}") in words


def test_compose_takes_the_folders_and_else_makes_volumes(spec: str) -> None:
    (service,) = read(render("compose", spec), {})["services"].values()
    assert {one["target"]: one["source"] for one in service["volumes"]} == FOLDERS
    found = read(render("compose", spec, ["mounts.0.source=", "mounts.1.source="]), {})
    (service,) = found["services"].values()
    data, cache, *_ = service["volumes"]
    assert (data["type"], data["source"], data["volume"]) == ("volume", "data", {"subpath": "team/a"})
    assert cache == {"type": "volume", "target": "/cache"}
    assert found["volumes"] == {"data": {}}


@pytest.mark.parametrize(("target", "key"), [("slurm", "secret"), ("slurm", "scratch"), ("compose", "config_map")])
def test_what_a_target_does_not_know_is_refused_without_a_folder(target: str, key: str, spec: str) -> None:
    number = {"scratch": 1, "config_map": 2, "secret": 3}[key]
    with pytest.raises(SpecError) as error:
        render(target, spec, [f"mounts.{number}.source=", "slurm.runtime=docker"])
    (problem,) = error.value.problems
    assert problem.message.startswith(f"mounts[{number}].{key}")
