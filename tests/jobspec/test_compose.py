"""The compose file, read as compose reads it: variables put in, and against the Compose Specification's schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobspec.artifact import render
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


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_engine_and_not_torchrun_restarts_a_node_as_often_as_the_spec_says(folder: Path, nodes: str) -> None:
    for keys, restart in (("max_restarts: 3\n", "on-failure:3"), ("", None)):
        for node in services(folder, f"{BASE}nodes: {nodes}\n{keys}").values():
            assert node.get("restart") == restart
            assert not [word for word in node["command"] if word.startswith("--max-restarts")]


@pytest.mark.parametrize(("size", "written"), [("4GiB", "4g"), ("1536MiB", "1536m"), ("2TiB", "2t")])
def test_sizes_are_in_units_that_people_read(folder: Path, size: str, written: str) -> None:
    (node,) = services(folder, f"{BASE}nodes: 1\nresources: {{memory: {size}, shm: {size}}}\n").values()
    assert {node[key] for key in ("mem_limit", "memswap_limit", "shm_size")} == {written}


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


def test_absent_secret_stops_compose_and_the_file_holds_no_value(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    made = rendered(folder, BASE + "nodes: 2\nsecrets: [TOKEN]\n")
    assert "s3cret" not in made
    with pytest.raises(MissingError, match="TOKEN: is a secret of this job; export it before the start"):
        read(made, {})
    # A value is put in after the file was read: nothing in it is YAML, and no variable in it is put in.
    for value in ['"\n  x: $HOME ${HOME} $$', "s3cret"]:
        assert read(made, {"TOKEN": value})["services"]["job-1"]["environment"]["TOKEN"] == value
