"""lint reads the values of a manifest as Kubernetes does."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from lint import lint
from lint.launches import launches
from lint.manifest import containers, documents, variables

NUMBERS = """
    1e-3 1e3 6e-4 -1e-3 1e+3 1E5 1.e3 .5e3 1_e3 0o7 0O7 -0o7 0x1F 0X1F 0b11 0B11 -0b11 010 08 0777 1_000 1.5_0 .5 5. -.5
    +1 -0 1.0
"""
SWITCHES = "y Y n N yes Yes YES no on On off OFF true TRUE False"
TEXTS = """
    1:30 12:30:00 1:30.5 2024-01-01 1.2.3 1,000 0o8 0b2 0x 1e _1 . -. e3 .e3 .5_ inf nan tRue yES oN '1' "y" "1e-3"
"""


def config_map(values: str) -> str:
    lines = "".join(f"\n  a{number}: {value}" for number, value in enumerate(values.split()))
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:{lines}\n"


@pytest.mark.parametrize(("values", "expected"), [(NUMBERS, True), (SWITCHES, True), (TEXTS, False)])
def test_numbers_and_switches_are_those_of_kubernetes(values: str, expected: bool) -> None:
    (document,) = documents(config_map(values), "a.yaml")
    data = document.get("data")
    assert data
    assert [value.text() for _, value in data.items() if value.is_number_or_switch != expected] == []


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed (one file: kubernetes.io/docs/tasks/tools)"
)
@pytest.mark.parametrize(("values", "kinds"), [(NUMBERS, {int, float}), (SWITCHES, {bool}), (TEXTS, {str})])
def test_kubectl_agrees(values: str, kinds: set[type]) -> None:
    words = ["kubectl", "annotate", "--local", "--filename=-", "a=b", "--output=json"]
    run = subprocess.run(words, input=config_map(values), capture_output=True, text=True, check=True)
    assert set(map(type, json.loads(run.stdout)["data"].values())) == kinds


def test_aliases_that_double_at_each_level_take_no_time(tmp_path: Path) -> None:
    levels = "".join(f"x{n + 1}: &x{n + 1}\n  <<: [*x{n}, *x{n}]\n" for n in range(40))
    file = tmp_path / "compose.yaml"
    file.write_text(f"x0: &x0\n  image: a\n{levels}services:\n  node:\n    <<: *x40\n")
    assert lint([str(file)]) == []


def test_containers_of_a_manifest_say_what_they_start() -> None:
    text = """
kind: Job
spec:
  parallelism: 2
  template:
    spec:
      containers:
        - {name: a, image: x, command: [torchrun, --nnodes=2, a.py], env: [{name: A, value: b c}],
           resources: {limits: {nvidia.com/gpu: 8}}}
        - {name: b, command: [sh, -c, "cd x; exec python b.py"]}
"""
    found = containers(documents(text, "a.yaml")[0])
    asked = [each.script.asked for each in found]
    assert [each.node.text("name") for each in found] == ["a", "b"]
    assert [(each.nodes, each.gpus_per_node) for each in asked] == [(2, 8), (2, None)]
    assert [[launch.kind for launch in launches(each.script)] for each in found] == [["torchrun"], ["cd", "python"]]
    assert launches(found[0].script)[0].value("nnodes") == "2"
    assert [(name, value) for name, value, _ in variables(found[0].node)] == [("A", "b c")]


@pytest.mark.parametrize("address", ["a-0.$(SERVICE)", "b-0.a", "$(HOST)", "a-0.a.team.svc.cluster.local:29500"])
def test_address_that_may_resolve_is_not_reported(tmp_path: Path, address: str) -> None:
    file = tmp_path / "a.yaml"
    pod = f"{{subdomain: a, restartPolicy: Never, containers: [{{env: [{{name: MASTER_ADDR, value: {address}}}]}}]}}"
    file.write_text(f"kind: Job\nmetadata: {{name: a}}\nspec: {{template: {{spec: {pod}}}}}\n")
    assert [found.rule for found in lint([str(file)])] == []


def test_script_of_an_init_container_is_linted(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    first = "{name: a, command: [sh, -c, 'export HF_TOKEN=hush; date']}"
    file.write_text(f"kind: Pod\nspec: {{initContainers: [{first}], containers: [{{name: b, image: b}}]}}\n")
    assert [found.rule for found in lint([str(file)])] == ["secret-in-file"]
