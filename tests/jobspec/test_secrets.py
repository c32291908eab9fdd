"""A job spec names its secrets; with their values in the environment nothing that is printed holds one."""

from pathlib import Path

import pytest

from jobspec import commands, targets
from jobspec.artifact import render as rendered

VALUE = "hush-7f3a"
CODE = 7031990  # a value that YAML takes for a number
SPEC = """\
name: job
nodes: 2
procs_per_node: 2
device: cpu
image: registry.example/train:1
command: [mine.py, --name, "$WANDB_API_KEY"]
env: {NOTE: "${HF_TOKEN}"}
secrets: [WANDB_API_KEY, HF_TOKEN]
"""


@pytest.mark.parametrize("target", targets.names())
def test_no_command_prints_the_value_of_a_secret(
    target: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", VALUE)
    monkeypatch.setenv("HF_TOKEN", VALUE)
    for arguments in (
        [target, spec],
        [target, spec, "--set", "nodes=0", "--set", "secrets.0=$HF_TOKEN"],
        ["explain", spec, "--target", target],
        ["explain", spec, "--target", target, "--json"],
    ):
        commands.main(arguments)
        told = "".join(capfd.readouterr())
        assert told
        assert VALUE not in told


@pytest.mark.parametrize(
    "wrong",
    [
        *(f"{key}WANDB_API_KEY={VALUE}" for key in ("secrets.0=", "secrets[0]=", "secrets.", "secrets=[")),
        *(f"{key}=[WANDB_API_KEY={VALUE}]" for key in ("secrets", "secret")),
        *(f"{key}={VALUE}" for key in ("secrets", "env.HF_TOKEN", "sweep.env.HF_TOKEN", "HF_TOKEN")),
        *(f"secret{sign}{VALUE}" for sign in (" ", ": ")),
        *(f"{key}={CODE}" for key in ("env.HF_TOKEN", "sweep.env.HF_TOKEN")),
        f"sweep={{env.HF_TOKEN: [{CODE}]}}",
        f"secrets={{WANDB_API_KEY: {VALUE}}}",
    ],
)
def test_value_in_place_of_a_name_is_not_shown(wrong: str, spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["slurm", spec, "--set", wrong]) == 1
    told = "".join(capfd.readouterr())
    assert "secret" in told or "HF_TOKEN" in told
    assert VALUE not in told and str(CODE) not in told


def test_value_in_one_of_two_files_is_not_shown(spec: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    wrong = [f"secrets: {{A: {VALUE}}}\n", f"+secrets: A={VALUE}\n", f"+secrets: [A={VALUE}]\n"]
    # These hide the names of the first file.
    wrong += [f"secrets: A B\nenv: {{HF_TOKEN: {value}}}\n" for value in (CODE, f'"{VALUE}\\a"')]
    for text in wrong:
        site.write_text(text)
        assert commands.main(["slurm", spec, str(site)]) == 1
        told = "".join(capfd.readouterr())
        assert "secrets" in told
        assert VALUE not in told and str(CODE) not in told


NO_YAML = ["&V x", "!V x", "V: x", "'V", '"V" x', '"V\\ud83d"', '"V\1"', "V\n  NAME: x", '"x\n   V" V']


@pytest.mark.parametrize("value", NO_YAML)
def test_value_in_a_line_that_is_no_yaml_is_not_shown(
    value: str, spec: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = [["--set", f"env={{HF_TOKEN: {value}}}"]]
    for number, name in enumerate(("HF_TOKEN", "LISTED")):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"secrets:\n  - LISTED\nenv:\n  NAME: {value}\n".replace("NAME", name).replace("V", VALUE))
        wrong.append([str(file)])
    for words in wrong:
        assert commands.main(["slurm", spec, *(word.replace("V", VALUE) for word in words)]) == 1
        told = "".join(capfd.readouterr())
        assert "problem" in told and VALUE not in told


@pytest.mark.parametrize("target", targets.names())
def test_no_script_traces_its_commands(target: str, spec: str) -> None:
    text = rendered(target, spec)
    assert "set -x" not in text
    assert "xtrace" not in text
