"""No target drops a key silently: it uses the key, says in the head that it does not, or refuses it."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from jobspec import targets
from jobspec.artifact import plan_of, read, render
from jobspec.problems import SpecError
from jobspec.spec.job import Job
from jobspec.spec.keys import SECTIONS_OF_TARGETS, given
from jobspec.spec.value import Section

_BASE = {"name": "job", "nodes": 2, "procs_per_node": 2, "image": "train:1", "command": ["mine.py"]}
_RDMA = {"resources.rdma": True, "kubernetes.security": "privileged"}
_SPEC = yaml.safe_load((Path(__file__).parents[1] / "specs" / "ok" / "every-key.yaml").read_text())
# Keys that every-key.yaml does not have, or with a value that changes nothing here.
_OTHERWISE: dict[str, Any] = {
    "nodes.min": 1,
    "nodes.max": 3,
    "spares": 1,
    "device": "cpu",
    "gpus_per_node": 8,
    "command": ["other.py"],
    "no_python": True,
    "files": ["mine.py"],
    "mounts": [{"source": "/data", "claim": "data", "path": "/data"}],
    "resources.cpus": 8,
    "rendezvous.backend": "c10d",
    "rendezvous.host": "{node}-ib",
    "rendezvous.timeout": "7m",
    "preemption": {"grace": "240s"},
    "preemption.grace": "240s",
    "watch": "5m",
    "sweep": {"env.B": ["1", "2"]},
    "slurm.launcher": "srun",
    "slurm.array": "0-1",
    "slurm.array_limit": 8,
    "topology.preferred": "switch",
    "topology.segment": 1,
    "kubernetes.runtime": "torch-distributed",
    "kubernetes.gpu_resource": "amd.com/gpu",
    "kubernetes.gpu_claim": "one-gpu",
    "kubernetes.read_only_root": False,
    "compose.gpus": [2, 3, 4, 5],
}


def keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        alternatives = get_args(field.annotation) if get_origin(field.annotation) is UnionType else [field.annotation]
        section = next((one for one in alternatives if isinstance(one, type) and issubclass(one, Section)), None)
        if section is None or field.default is None:
            yield f"{above}{name}"
        if section is not None:
            yield from keys(section, f"{above}{name}.")


def _value(key: str) -> Any:
    value = _SPEC
    for part in key.split("."):
        value = value[part]
    return value


_EVERY_KEY = {key: _OTHERWISE[key] if key in _OTHERWISE else _value(key) for key in keys(Job)}
_ONLY_WITH: dict[str, dict[str, Any]] = {
    "train": {"command": None},
    "image": {"slurm.runtime": "docker"},
    "slurm.array_limit": {"slurm.array": "0-1"},
    "gpu": {"kubernetes.gpu_types": {"h100": {"example.com/gpu": "H100"}}},
    "preemption": {"max_restarts": 1},
    "preemption.grace": {"max_restarts": 1, "preemption": {}},
    "preemption.max_requeues": {"max_restarts": 1, "preemption": {}},
    "resources.rdma": {"kubernetes.rdma_resource": "rdma/hca", "kubernetes.security": "privileged"},
    "topology": {"kubernetes.queue": "lq"},
    "topology.required": {"kubernetes.queue": "lq"},
    "topology.preferred": {"kubernetes.queue": "lq"},
    "topology.segment": {"kubernetes.queue": "lq", "topology.required": "block"},
    "kubernetes.workload_priority_class": {"kubernetes.queue": "lq"},
    "kubernetes.volcano_queue": {"kubernetes.scheduler": "volcano"},
    "kubernetes.secret": {"secrets": ["TOKEN_A"]},
    "kubernetes.gpu_types": {"gpu": "h100"},
    "kubernetes.rdma_resource": _RDMA,
}


def written(tmp_path: Path, settings: dict[str, Any]) -> str:
    """The path of a spec with these settings over a small job."""
    values: dict[str, Any] = {**_BASE}
    for key, value in settings.items():
        *sections, name = key.split(".")
        inside = values
        for section in sections:
            there = inside.get(section)
            inside[section] = {"min": 2, "max": 2} if there == 2 else dict(there or {})
            inside = inside[section]
        inside[name] = value
    (tmp_path / "mine.py").touch()
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "job.yaml")


def outcome(target: str, spec: str) -> str:
    try:
        return render(target, spec)
    except SpecError as error:
        return str(error)


_OF_SMALL_JOB: dict[str, str] = {}  # what each target makes of it


@pytest.mark.parametrize("name", targets.names())
@pytest.mark.parametrize("key", _EVERY_KEY)
def test_a_key_changes_the_artifact_or_is_named_in_its_head_or_is_refused(
    name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = targets.load(name)
    if name not in _OF_SMALL_JOB:
        _OF_SMALL_JOB[name] = render(name, written(tmp_path, {}))
    only_with = _ONLY_WITH.get(key, {})
    before = outcome(name, written(tmp_path, only_with)) if only_with else _OF_SMALL_JOB[name]
    after = outcome(name, written(tmp_path, {**only_with, key: _EVERY_KEY[key]}))
    section = key.partition(".")[0]
    if key in target.not_used:
        head = takewhile(lambda line: line.startswith("#"), after.splitlines())
        assert f"# Not used here: {key}; {target.not_used[key]}." in head
    elif key in target.uses:
        assert before != after
    elif section not in target.not_used and (section not in SECTIONS_OF_TARGETS or section == name):
        is_refused_whole = section not in target.uses and Job.model_fields[section].default is None
        assert f"{section if is_refused_whole else key} is given, but target {name} does not use it" in after


_ELASTIC = {"nodes": {"min": 1, "max": 2}, "max_restarts": 1}
_SCRATCH = {"mounts": [{"scratch": "1GiB", "path": "/d"}]}


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("torchrun", {"nodes": 1, "rendezvous.port": 2000}, "rendezvous.port; one node meets no other."),
        ("jobset", {"nodes": 1, "rendezvous": {"port": 2000, "timeout": "5m"}}, "here: rendezvous.timeout; one node"),
        ("jobset", {"kubernetes": {"gpu_claim": "one", "queue": "lq"}}, "maps the DeviceClass"),
        ("jobset", {"kubernetes": {"gpu_resource": "nvidia.com/mig-1g.10gb"}}, "one MIG slice only"),
        ("indexedjob", {"max_restarts": 1}, "kubectl taint nodes NODE node.kubernetes.io/out-of-service=x:NoExecute"),
        ("indexedjob", {**_ELASTIC, "kubernetes": {"queue": "lq"}}, "Kueue then stops the job and admits it again"),
        ("indexedjob", _ELASTIC, "a failed pod counts as 1"),
        ("indexedjob", {"kubernetes": {"scheduler": "kai-scheduler"}}, 'kai.scheduler/batch-min-member: "2"'),
        ("pytorchjob", {"nodes": 256}, "starts no other job meanwhile"),
        ("slurm", {"slurm": {"options": {"error": "e/e.log"}}}, "Create the folder of e/e.log first"),
        ("compose", _SCRATCH, "the size of scratch; nothing limits it."),
        ("slurm", {**_SCRATCH, "slurm": {"runtime": "pyxis"}}, "the size of scratch; nothing limits it."),
        ("slurm", {"resources.shm": "1GiB"}, "Not used here: resources.shm"),
        (
            "slurm",
            {"slurm": {"runtime": "docker", "prologue": ["export A=1"]}},
            "slurm.prologue exports does not enter",
        ),
    ],
)
def test_what_part_of_a_key_is_not_used_stands_in_the_head(
    target: str, settings: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in render(target, written(tmp_path, {"image": "a/b:1", **settings}))
    assert said not in render(target, written(tmp_path, {"image": "a/b:1"}))


def test_a_key_that_says_what_holds_without_it_is_not_refused(tmp_path: Path) -> None:
    spec = written(tmp_path, {"setup": [], "env": {}, "no_python": False, "max_restarts": 0, "time_limit": None})
    plan = plan_of(read(spec), targets.load("torchrun"))
    assert set(given(plan.job)) == {"name", "nodes.min", "nodes.max", "procs_per_node", "image", "command"}
