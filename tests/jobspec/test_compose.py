"""The compose file, read as compose reads it: variables put in, and against the Compose Specification's schema."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobspec import targets
from jobspec.artifact import load, render
from tests.compose import MissingError, read

ROOT = Path(__file__).parents[2]
SPECS = [*sorted((ROOT / "jobs").glob("*.yaml")), ROOT / "tests" / "specs" / "ok" / "every-key.yaml"]
BASE = "name: job\nprocs_per_node: 2\ndevice: cpu\nimage: registry.example/team/train:1.0\ncommand: [mine.py]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compose")


def rendered(folder: Path, spec: str) -> str:
    (folder / "job.yaml").write_text(spec)
    return render("compose", str(folder / "job.yaml"))


def services(folder: Path, spec: str, **environ: str) -> dict[str, Any]:
    found: dict[str, Any] = read(rendered(folder, spec), environ)["services"]
    return found


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_every_file_is_what_the_compose_specification_allows(spec: Path, schemas: Path) -> None:
    schema = json.loads((schemas / "compose-spec.json").read_text())
    text = render("compose", str(spec), sweep_index=0 if spec.stem == "sweep" else None)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(text))


@pytest.mark.parametrize("nodes", ["1", "2", "{min: 1, max: 3}"])
def test_every_node_is_a_service_with_what_settings_say(folder: Path, nodes: str) -> None:
    spec = BASE + f"nodes: {nodes}\nenv: {{A: b}}\nsecrets: [TOKEN]\npreemption: {{grace: 60s}}\n"
    found = services(folder, spec, TOKEN="s3cret")
    target = targets.load("compose")
    plan = load(target, str(folder / "job.yaml"))
    assert list(found) == [target.node_name(plan, node) for node in range(plan.job.nodes.max)]
    for rank in plan.ranks():
        service = found[f"job-{rank.node}"]
        told = {one.name: one.value for one in target.environment(plan, rank) if one.set_by != "torchrun"}
        assert set(told) == set(service["environment"])
        known = {name: value for name, value in told.items() if not value.startswith("<")}
        assert known == {name: service["environment"][name] for name in known}
        assert service["environment"]["TOKEN"] == "s3cret"
        assert service["hostname"] == f"job-{rank.node}"


def test_nodes_differ_only_in_their_number_and_their_name(folder: Path) -> None:
    first, second = services(folder, BASE + "nodes: 2\nrendezvous: {port: 23456}\nmax_restarts: 3\n").values()
    assert first["environment"].pop("PET_NODE_RANK") == "0"
    assert second["environment"].pop("PET_NODE_RANK") == "1"
    assert (first.pop("hostname"), second.pop("hostname")) == ("job-0", "job-1")
    assert first == second
    flags = "--nnodes=2 --nproc-per-node=2 --max-restarts=0 --rdzv-backend=static --rdzv-conf=timeout=900"
    meeting = "--rdzv-id=job --master-addr=job-0 --master-port=23456"
    assert first["entrypoint"][3:] == ["job-0", "torchrun"]
    assert " ".join(first["command"]) == f"{flags} {meeting} -- mine.py"


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_engine_starts_a_node_again_as_often_as_the_spec_says(folder: Path, nodes: str) -> None:
    for node in services(folder, BASE + f"nodes: {nodes}\nmax_restarts: 3\n").values():
        assert (node["restart"], "--max-restarts=0" in node["command"]) == ("on-failure:3", True)
    for node in services(folder, BASE + f"nodes: {nodes}\n").values():
        assert (node["restart"], "--max-restarts=0" in node["command"]) == ("no", True)


def test_lost_node_of_an_elastic_job_stays_lost_and_torchrun_goes_on_with_the_others(folder: Path) -> None:
    for node in services(folder, BASE + "nodes: {min: 1, max: 2}\nmax_restarts: 3\n").values():
        assert (node["restart"], "--max-restarts=3" in node["command"]) == ("no", True)


def test_one_node_needs_no_address_and_has_shared_memory_without_a_wish(folder: Path) -> None:
    (only,) = services(folder, BASE + "nodes: 1\n").values()
    assert only["command"][:2] == ["--standalone", "--local-addr=127.0.0.1"]
    assert only["shm_size"] == f"{2 << 30}b"  # for its two processes, and more than a container has by itself


def test_only_the_first_node_of_an_elastic_job_hosts_the_rendezvous(folder: Path) -> None:
    found = services(folder, BASE + "nodes: {min: 1, max: 3}\nrendezvous: {port: 23456}\n")
    assert [service["environment"]["PET_RDZV_CONF"] for service in found.values()] == [
        "is_host=1,join_timeout=900,read_timeout=900",
        "is_host=0,join_timeout=900,read_timeout=900",
        "is_host=0,join_timeout=900,read_timeout=900",
    ]
    assert {"--nnodes=1:3", "--rdzv-endpoint=job-0:23456"} < set(found["job-1"]["command"])


def test_every_node_has_gpus_for_itself(folder: Path) -> None:
    spec = BASE.replace("device: cpu", "device: cuda") + "nodes: 2\n"
    for key, numbers in (("", "0123"), ("compose: {gpus: [7, 5, 3, 1, 0]}\n", "7531")):
        devices = [
            node["deploy"]["resources"]["reservations"]["devices"] for node in services(folder, spec + key).values()
        ]
        # Without a driver: the engine takes the one that it has, NVIDIA's or AMD's.
        wanted = [[{"device_ids": list(ids), "capabilities": ["gpu"]}] for ids in (numbers[:2], numbers[2:])]
        assert devices == wanted
    assert not [service for service in services(folder, BASE + "nodes: 2\n").values() if "deploy" in service]


def test_resources_mounts_and_time_to_end_are_passed_on(folder: Path) -> None:
    found = services(
        folder,
        BASE + "nodes: 1\npreemption: {grace: 200s}\nresources: {cpus: 4, memory: 8GiB, shm: 2GiB, rdma: true}\n"
        "mounts: [{source: /data, path: /d, read_only: true}, {claim: ckpt, path: /c}]\n",
    )["job-0"]
    assert (found["cpus"], found["mem_limit"], found["shm_size"]) == (4, f"{8 << 30}b", f"{2 << 30}b")
    assert found["memswap_limit"] == found["mem_limit"]
    assert (found["ulimits"], found["cap_add"]) == ({"memlock": {"soft": -1, "hard": -1}}, ["IPC_LOCK"])
    assert found["volumes"] == [
        {"type": "bind", "source": "/data", "bind": {"create_host_path": False}, "target": "/d", "read_only": True},
        {"type": "volume", "source": "ckpt", "target": "/c"},
    ]
    assert (found["stop_grace_period"], found["environment"]["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) == ("200s", "170")
    assert found["init"] is True
    assert services(folder, BASE + "nodes: 1\n")["job-0"]["stop_grace_period"] == "40s"


def test_absent_secret_stops_compose_and_the_file_holds_no_value(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    made = rendered(folder, BASE + "nodes: 2\nsecrets: [TOKEN]\n")
    assert "s3cret" not in made
    with pytest.raises(MissingError, match="TOKEN: is a secret of this job; export it before the start"):
        read(made, {})
    # A value is put in after the file was read: nothing in it is YAML, and no variable in it is put in.
    for value in ['"\n  x: $HOME ${HOME} $$', "s3cret"]:
        assert read(made, {"TOKEN": value})["services"]["job-1"]["environment"]["TOKEN"] == value


@pytest.mark.parametrize(("name", "waits"), [("localhost", 0), ("no-such-node", 2)])
def test_nodes_wait_for_the_name_of_node_0_as_long_as_torchrun_would(folder: Path, name: str, waits: int) -> None:
    first, _ = services(folder, BASE + "nodes: 2\nrendezvous: {timeout: 2s}\n").values()
    words = [word.replace("$$", "$") for word in first["entrypoint"][:3]]
    started = time.monotonic()
    done = subprocess.run([*words, name, "echo", "a b"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "a b\n" and time.monotonic() - started >= waits
