"""The torchrun script, run by bash with a torchrun that only writes down how it was called."""

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from jobspec import ssh
from jobspec.artifact import render
from jobspec.problems import SpecError
from jobspec.targets import torchrun
from tests.slurm import RECORDER, Call

BASE = "name: job\nprocs_per_node: 2\ndevice: cpu\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in torchrun, to be first on PATH."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "torchrun").write_text(RECORDER.format(file=folder / "record"))
    (folder / "torchrun").chmod(0o755)
    return folder


def render_text(folder: Path, spec: str) -> str:
    (folder / "job.yaml").write_text(spec)
    return render("torchrun", str(folder / "job.yaml"))


def run(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Pipe the script into bash, as `render-job torchrun job.yaml | bash` does."""
    path = f"{folder}:{os.environ['PATH']}"
    clean = {"PATH": path, **env}
    (folder / "record").unlink(missing_ok=True)
    return subprocess.run(["bash"], input=script.encode(), cwd=folder, env=clean, capture_output=True)


def call(folder: Path, script: str, **env: str) -> Call:
    done = run(folder, script, **env)
    assert done.returncode == 0, done.stderr.decode()
    made = Call.read(folder / "record")
    return Call(made.argv[1:], made.env)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NODE_RANK": "0"},
        {"MASTER_ADDR": "head"},
        *(
            {"NODE_RANK": rank, "MASTER_ADDR": "head"}
            for rank in ["", "2", "-1", "01", "1a", "x[$(touch pwned)]", "9" * 20]
        ),
    ],
)
def test_node_without_a_right_number_or_master_does_not_start(folder: Path, env: dict[str, str]) -> None:
    script = render_text(folder, BASE + "nodes: 2\ncommand: [mine.py]\n")
    done = run(folder, script, **env)
    assert done.returncode == 1
    text = "job: set NODE_RANK (this node's number, 0 to 1) and MASTER_ADDR (name or address of node 0)\n"
    assert done.stderr.decode() == text
    assert not (folder / "record").exists()
    assert not (folder / "pwned").exists()


def test_leftover_torchrun_variables_do_not_reach_torchrun(folder: Path) -> None:
    script = render_text(folder, BASE + "nodes: 1\ncommand: [mine.py]\n")
    env = call(folder, script, PET_STANDALONE="", PET_NNODES="7").env
    assert not [name for name in env if name.startswith("PET_")]


def test_absent_secret_stops_the_script_and_a_present_one_is_passed_on(folder: Path) -> None:
    script = render_text(folder, BASE + "nodes: 1\nsecrets: [TOKEN]\ncommand: [mine.py]\n")
    done = run(folder, script)
    assert done.returncode != 0
    assert "TOKEN: is a secret of this job" in done.stderr.decode()
    assert call(folder, script, TOKEN="s3cret").env["TOKEN"] == "s3cret"


def test_every_name_of_a_bash_variable_arrives_or_is_refused(folder: Path) -> None:
    listed = subprocess.run(["bash", "-c", "compgen -v"], capture_output=True, check=True, env={}).stdout.decode()
    # Known to bash but not in that list, for example because nothing has used them yet.
    unlisted = ["BASH_COMPAT", "BASH_XTRACEFD", "HISTCMD", "FUNCNAME", "SRANDOM"]
    unlisted += ["COPROC", "MAPFILE", "PS4", "TIMEFORMAT", "POSIXLY_CORRECT"]
    accepted = dict[str, str]()
    for name in {*listed.split(), *unlisted} - {"PATH"}:
        with suppress(SpecError):
            render_text(folder, BASE + f"nodes: 1\nenv: {{{name}: value}}\ncommand: [mine.py]\n")
            accepted[name] = "value"
    script = render_text(folder, f"{BASE}nodes: 1\nenv: {accepted}\ncommand: [mine.py]\n")
    assert accepted.items() <= call(folder, script).env.items() and {"PS4", "IFS"} < {*accepted}
    assert not accepted.keys() & {"UID", "RANDOM", "BASHPID"}


def test_env_and_secrets_are_no_variables_of_the_script(folder: Path) -> None:
    sizes = ("nodes: 2\n", "nodes: {min: 1, max: 2}\n")
    script = "".join(render_text(folder, f"{BASE}{size}command: [a.py]\n") for size in sizes)
    assert {*re.findall(r"^([a-z]\w*)=", script, re.MULTILINE)} == {*torchrun.OF_SCRIPT}
    (_, on_a_node), _ = ssh._texts("", "job.sh", ["a", "b"])
    before = {*re.findall(r"^ *(\w+)=", on_a_node.partition("bash -c")[0], re.MULTILINE)}
    assert before - {"PATH", "NODE_RANK", "MASTER_ADDR"} == {*torchrun.OF_SSH}
    secrets = [*torchrun.OF_SCRIPT, *torchrun.OF_SSH]
    for given, refused in (
        (f"env: {dict.fromkeys(secrets, 'x')}\n", len(torchrun.OF_SCRIPT)),
        (f"secrets: {secrets}\n", len(secrets)),
    ):
        with pytest.raises(SpecError) as error:
            render_text(folder, f"{BASE}nodes: 2\ncommand: [a.py]\n{given}")
        assert len(error.value.problems) == refused
        assert render_text(folder, f"{BASE}nodes: 1\ncommand: [a.py]\n{given}")
