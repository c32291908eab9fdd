"""`setup`, `workdir`, `slurm.prologue` and `slurm.epilogue`: lines of bash, run as each platform runs its artifact."""

import os
import subprocess
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import render
from jobspec.spec.shell import syntax_error
from tests import clusters, compose
from tests.slurm import RECORDER, TWO_NODES, Call, Cluster, rendered, run

# A path, a value with what YAML, the kubelet, compose and shells read, one that needs an earlier line, and a comment.
SETUP = r"""
name: job
nodes: 1
procs_per_node: 1
device: cpu
image: a/b:1
command: [mine.py, one, "$(touch pwned)"]
env: {FROM_ENV: "$(touch pwned)"}
setup:
  - cat # which must not read the script
  - export PATH="$OWN:$PATH"
  - "export VALUE='a: b' DOLLARS='$$(A)' # not a part of it"
  - "[[ $VALUE == a:* ]] && export LATER=$VALUE-$FROM_ENV FIRST=${1-none}"
"""
WANTED = {"VALUE": "a: b", "DOLLARS": "$$(A)", "LATER": "a: b-$(touch pwned)", "FIRST": "none"}


def started(target: str, spec: Path, folder: Path) -> tuple[int, str]:
    """Run the artifact of one node as its platform does; its exit code and what it wrote."""
    artifact = render(target, str(spec))
    env, text = {"OWN": str(folder / "own"), "PATH": os.environ["PATH"]}, ""
    if target == "slurm":
        cluster = Cluster(folder, nodes=["n1"])
        return cluster.run(artifact, **env | {"PATH": f"{folder / 'bin'}:{env['PATH']}"})
    if target == "torchrun":
        words, own, text = ["bash"], {}, artifact
    elif target == "compose":
        (service,) = compose.read(artifact, {})["services"].values()
        words, own = [*service["entrypoint"], *service["command"]], service["environment"]
    else:
        (pod,) = clusters.processes(target, clusters.documents(artifact), {})
        words, own = pod.argv, pod.env
    done = subprocess.run(words, cwd=folder, env=own | env, input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a run; only its folder `own`, which nothing but setup puts on PATH, has a torchrun."""
    (tmp_path / "own").mkdir()
    torchrun = tmp_path / "own" / "torchrun"
    torchrun.write_text(RECORDER.format(file=tmp_path / "call"))
    torchrun.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("target", targets.names())
def test_exports_and_path_reach_the_processes_and_the_rest_arrives_unchanged(target: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(SETUP)
    code, out = started(target, folder / "job.yaml", folder)
    assert code == 0, out
    call = Call.read(folder / "call")
    assert {name: call.env.get(name) for name in WANTED} == WANTED
    assert call.env["FROM_ENV"] == "$(touch pwned)"
    assert call.argv[-3:] == ["mine.py", "one", "$$(touch pwned)"]  # torchrun reads $$ as $
    assert call.env["PATH"].startswith(str(folder / "own"))
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("target", targets.names())
def test_line_that_fails_stops_the_job_with_its_text(target: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(SETUP + '  - "ls /nowhere || false # $(A)"\n')
    code, out = started(target, folder / "job.yaml", folder)
    assert code == 1
    assert "setup: this line failed: ls /nowhere || false # $(A)" in out
    assert not (folder / "call").exists()


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
def test_lines_and_processes_start_in_workdir(target: str, folder: Path) -> None:
    there = folder / "a ;touch pwned; 'b"
    there.mkdir()
    escaped = str(there).replace("'", "''")
    text = SETUP.replace("[[ $VALUE", "export THERE=$PWD; [[ $VALUE")
    (folder / "job.yaml").write_text(f"{text}workdir: '{escaped}'\n")
    code, out = started(target, folder / "job.yaml", folder)
    assert code == 0, out
    call = Call.read(folder / "call")
    assert call.env["THERE"] == call.env["PWD"] == str(there)
    (folder / "job.yaml").write_text(f"{text}workdir: /nowhere\n")
    code, out = started(target, folder / "job.yaml", folder)
    assert code != 0
    assert "/nowhere: No such file or directory" in out
    assert not list(folder.rglob("pwned"))


@pytest.mark.parametrize("runtime", ["apptainer", "docker", "podman", "pyxis"])
def test_setup_runs_in_the_container_on_slurm(runtime: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(
        SETUP.replace("$OWN", str(folder / "own")) + f"workdir: /\nslurm: {{runtime: {runtime}}}\n"
    )
    code, out = started("slurm", folder / "job.yaml", folder)
    assert code == 0, out
    call = Call.read(folder / "call")
    assert {name: call.env.get(name) for name in WANTED} == WANTED
    assert call.env["PWD"] == "/"


LINES = (
    "slurm: {{prologue: ['echo before >> order; export FROM_PROLOGUE=1'], epilogue: ['echo after >> order{extra}']}}\n"
)


def order(cluster: Cluster) -> list[str]:
    return (cluster.folder / "order").read_text().split()


def test_prologue_and_epilogue_run_once_around_the_job(own_cluster: Cluster) -> None:
    own_cluster.install("torchrun", "import os; open('order', 'a').write('job' + os.environ['FROM_PROLOGUE'] + '\\n')")
    run(own_cluster, TWO_NODES + LINES.format(extra=""))
    assert order(own_cluster) == ["before", "job1", "job1", "after"]


def test_epilogue_runs_after_a_failure_and_keeps_its_status(own_cluster: Cluster) -> None:
    own_cluster.nodes = ["n1"]
    own_cluster.install("torchrun", "raise SystemExit(7)")
    assert own_cluster.run(rendered(own_cluster, TWO_NODES + LINES.format(extra=""), "nodes=1"))[0] == 7
    assert order(own_cluster) == ["before", "after"]


def test_lines_that_fail_fail_the_job(own_cluster: Cluster) -> None:
    code, out = own_cluster.run(rendered(own_cluster, TWO_NODES + LINES.format(extra="; false")))
    assert (code, order(own_cluster)) == (1, ["before", "after"])
    assert "slurm.epilogue: this line failed: echo after >> order; false" in out
    code, out = own_cluster.run(rendered(own_cluster, TWO_NODES + "slurm: {prologue: ['cat /nowhere']}\n"))
    assert code == 1
    assert "slurm.prologue: this line failed: cat /nowhere" in out
    assert own_cluster.sruns() == []


def test_script_refuses_arguments_which_it_would_ignore(folder: Path) -> None:
    (folder / "job.yaml").write_text(SETUP)
    words = ["bash", "-c", render("torchrun", str(folder / "job.yaml")), "job", "--lr", "2"]
    done = subprocess.run(words, env=os.environ | {"SLURM_JOB_ID": "1"}, capture_output=True, text=True)
    assert done.returncode and "takes no arguments, so not --lr 2: edit the spec" in done.stderr


def test_epilogue_runs_before_a_requeue(own_cluster: Cluster) -> None:
    (own_cluster.folder / "PreemptTime").write_text("2026-01-01T00:00:00")
    own_cluster.install("torchrun", "raise SystemExit(1)")
    spec = TWO_NODES + "preemption: {grace: 20s}\n" + LINES.format(extra="; ls requeued >> order || true")
    own_cluster.run(rendered(own_cluster, spec))
    assert (own_cluster.folder / "requeued").exists()
    assert order(own_cluster) == ["before", "after"]


@pytest.mark.parametrize("line", ["if true; then", "cat <<END", "echo $(", "{", "a; ;"])
def test_line_that_is_no_whole_command_is_refused(line: str) -> None:
    assert syntax_error(line)


@pytest.mark.parametrize("line", ["# only a comment", "rm -f !(x)", "if true; then false; fi", "f() { a=(1 2); }"])
def test_line_of_bash_is_taken_and_not_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "startup").write_text("touch pwned")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "startup"))
    assert syntax_error(f"touch pwned; {line}") is None
    assert not (tmp_path / "pwned").exists()
