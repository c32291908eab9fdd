"""What pods see: values through YAML and the kubelet's `$(NAME)`, and the variables that `environment` foretells."""

from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from tests.clusters import KINDS, documents, expand, pod_templates, processes


@pytest.mark.parametrize(
    ("target", "nodes"), [*((target, "3") for target in KINDS), ("pytorchjob", "{min: 2, max: 3}"), ("jobset", "1")]
)
def test_settings_name_every_variable_of_every_pod(target: str, nodes: str, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f"name: my-job\nnodes: {nodes}\nprocs_per_node: 2\nimage: train:1\ncommand: [mine.py]\nmax_restarts: 2\n"
        "env: {A: $(B)}\nsecrets: [TOKEN]\n"
    )
    module = targets.load(target)
    plan = load(module, str(spec))
    pods = processes(target, documents(render(target, str(spec))), {"TOKEN": "<secret>"})
    for rank in plan.ranks():
        # Later ones win; torchrun comes after the pod.
        in_pod = [setting for setting in module.environment(plan, rank) if setting.set_by != "torchrun"]
        told = {setting.name: setting.value for setting in in_pod}
        seen = pods[rank.node].env
        assert set(told) == set(seen)
        assert {name: value for name, value in seen.items() if told[name] != value and told[name][0] != "<"} == {}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$(A) $(B)", "1 $(B)"),
        ("$$(A)", "$(A)"),
        ("$", "$"),
        ("$(A", "$(A"),
        ("$$$$", "$$"),
        ("$x", "$x"),
        ("$é", "$Ã"),
    ],
)
def test_kubelet_of_these_tests_expands_as_the_real_one(written: str, read: str) -> None:
    assert expand(written, {"A": "1"}).encode(errors="replace").decode().startswith(read)


@pytest.mark.parametrize(("settings", "common"), [([], "job"), (["kubernetes.secret=ours"], "ours")])
@pytest.mark.parametrize("target", KINDS)
def test_secret_of_another_name_and_key_arrives_under_the_name_of_its_variable(
    target: str, settings: list[str], common: str, tmp_path: Path
) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: job\nnodes: 1\nprocs_per_node: 1\nimage: a\ncommand: [mine.py]\n"
        "secrets: [A, {HF_TOKEN: {secret: hf, key: token.txt}}, {B: {key: b}}, {C: {secret: hf}}]\n"
    )
    text = render(target, str(spec), settings)
    (template, *_) = pod_templates(documents(text))
    env = template["spec"]["containers"][0]["env"]
    found = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in env if "secretKeyRef" in one.get("valueFrom", {})}
    assert found == {
        "A": {"name": common, "key": "A"},
        "HF_TOKEN": {"name": "hf", "key": "token.txt"},
        "B": {"name": common, "key": "b"},
        "C": {"name": "hf", "key": "C"},
    }
    assert '# Needed beforehand: Secret "hf" with the keys token.txt, C.\n' in text
    assert f'# Needed beforehand: Secret "{common}" with the keys A, b.\n' in text
