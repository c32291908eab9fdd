"""What pods see: values through YAML and the kubelet's `$(NAME)`, and secrets under the names of their variables."""

from pathlib import Path

import pytest

from jobspec.artifact import render
from tests.clusters import KINDS, documents, expand, pod_templates


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
