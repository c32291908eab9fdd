"""What a target cannot do with a key is in the head of the artifact."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import render

_BASE = "name: job\nnodes: 2\nprocs_per_node: 2\nimage: train:1\ncommand: [mine.py]\n"
_GIVEN = {
    "files": "files: [mine.py]",
    "gpu": "gpu: h100",
    "image": "",
    "kubernetes.runtime": "kubernetes: {runtime: torch-distributed}",
    "kubernetes.ttl": "kubernetes: {ttl: 1d}",
    "mounts": "mounts: [{source: /data, path: /data}]",
    "preemption": "preemption: {grace: 60s}",
    "resources.devices": "resources: {devices: {a.b/c: 2}}",
    "resources.memory": "resources: {memory: 1GiB}",
    "resources.rdma": "resources: {rdma: true}",
    "resources.shm": "resources: {shm: 1GiB}",
    "slurm.array": "slurm: {array: 0-1}",
    "time_limit": "time_limit: 2h",
}


@pytest.mark.parametrize(
    ("target", "key"), [(name, key) for name in targets.names() for key in targets.load(name).NOT_USED]
)
def test_a_key_that_a_target_leaves_out_is_named_in_the_head(target: str, key: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(f"{_BASE}{_GIVEN[key]}\n")
    (tmp_path / "mine.py").touch()
    head = takewhile(lambda line: line.startswith("#"), render(target, str(spec)).splitlines())
    assert f"# Not used here: {key}; {targets.load(target).NOT_USED[key]}." in head
