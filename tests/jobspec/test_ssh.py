"""`render-job ssh`: as an ordinary user, over real sshds, on machines of its own."""

import os
import pty
import shutil
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspec import filters
from tests import ssh, workers
from tests.slurm import RECORDER, Call
from tests.ssh import NAMES
from tests.ssh_script import BASE, MINE, RENDER_JOB, SAVING, Nodes, last_line

pytestmark = pytest.mark.skipif(ssh.missing() is not None, reason=str(ssh.missing()))
ELASTIC = MINE.replace("nodes: 2", "nodes: {min: 1, max: 3}")

accepted = st.text(
    alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], include_characters="\n\t")
    | st.sampled_from("'\"`$(){};&|<>\\*?~#!%=, -"),
    max_size=30,
)
canary = "$(touch pwned)`touch pwned`';touch pwned;'\n touch pwned\n\"&touch pwned&"


def test_hostile_values_and_secrets_arrive_on_every_node_and_run_nothing(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(RECORDER.format(file="call-$NODE_RANK"))
    folder = nodes.folder

    @settings(max_examples=8)
    @given(value=accepted, argument=accepted, secret=accepted.filter(bool))
    def check(value: str, argument: str, secret: str) -> None:
        spec = BASE + (
            f"env: {{A: {filters.yaml(value)}, B: {filters.yaml(value + canary)}}}\nsecrets: [TOKEN]\n"
            f"command: {filters.yaml(['mine.py', argument, canary])}\n"
        )
        status, out = nodes.run(spec, *NAMES, TOKEN=secret)
        assert status == 0, out
        for number in range(2):
            call = Call.read(folder / f"call-{number}")
            assert (call.env["A"], call.env["B"], call.env["TOKEN"]) == (value, value + canary, secret)
            assert workers.words(call.argv)[-3:] == ["mine.py", argument, canary]
            assert {f"--node-rank={number}", "--master-addr=sshn0"} < set(call.argv)
            assert (call.env["PWD"], call.env["PATH"].split(":")[0]) == (str(folder), str(folder / "bin"))
        assert not list(folder.rglob("pwned"))

    check()


def test_nodes_meet_by_the_names_of_rendezvous_host(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(RECORDER.format(file="call-$NODE_RANK"))
    status, out = nodes.run(MINE + "rendezvous: {host: '{node}-ib'}\n", *NAMES)
    assert status == 0, out
    for number in range(2):
        assert "--master-addr=sshn0-ib" in Call.read(nodes.folder / f"call-{number}").argv
        assert f"node {number} meets the others at sshn0-ib:" in out
    nodes.run(MINE + "rendezvous: {host: '{node}-ib'}\n", *NAMES, MASTER_ADDR="10.77.0.10")
    assert "--master-addr=10.77.0.10" in Call.read(nodes.folder / "call-1").argv


def test_secret_is_in_no_argument_of_any_process(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    job = nodes.start(MINE + "secrets: [TOKEN]\n", *NAMES, TOKEN="hush-5d1c")
    nodes.wait_for("running-0", "running-1")
    # The test hands the secret to `env`; what that starts has it in its environment.
    lines = [line for found in nodes.lab.processes().values() for line in found]
    assert any("ssh" in line for line in lines) and not any("hush-5d1c" in line for line in lines)
    job.signal("TERM")
    assert job.ended()[0] == 143


@pytest.mark.parametrize("way", ["Ctrl-C", "SIGTERM", "closed terminal"])
def test_asked_to_end_every_node_saves_prints_and_ends(new_nodes: Callable[[str], Nodes], way: str) -> None:
    nodes = new_nodes(SAVING)
    job = nodes.start(MINE, *NAMES, terminal=True)
    nodes.wait_for("running-0", "running-1")
    if way == "closed terminal":
        job.close_terminal()
    elif way == "Ctrl-C":
        job.type(b"\x03")
    else:
        job.signal("TERM")
    status, out = job.ended()
    nodes.wait_for("saved-0", "saved-1")
    assert status == {"Ctrl-C": 130, "SIGTERM": 143, "closed terminal": 129}[way], out
    if way != "closed terminal":
        assert {"sshn0: saved 0", "sshn1: saved 1"} < set(out.splitlines())
        assert last_line(out) == f"render-job: {way} ended sshn0 sshn1"


def test_second_ctrl_c_kills_what_does_not_end(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING.replace("; exit 1'", "; touch deaf-$NODE_RANK'"))
    job = nodes.start(MINE, *NAMES, terminal=True)
    nodes.wait_for("running-0", "running-1")
    job.type(b"\x03")
    nodes.wait_for("deaf-0", "deaf-1")
    job.type(b"\x03")
    status, out = job.ended()
    assert (status, last_line(out)) == (130, "render-job: Ctrl-C ended sshn0 sshn1")


def test_program_that_is_killed_takes_the_nodes_with_it(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    job = nodes.start(MINE, *NAMES)
    nodes.wait_for("running-0", "running-1")
    job.signal("KILL")
    assert job.ended()[0] == 137
    nodes.wait_for("saved-0", "saved-1")


def test_reader_of_the_output_that_goes_ends_the_job(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING.replace("do touch", "do echo runs; touch"))
    nodes.write(MINE)
    text = '"$@" | until [[ -e running-0 && -e running-1 ]]; do sleep 0.1; done; echo "${PIPESTATUS[0]}"'
    command = nodes.lab.command(["bash", "-c", text, "shell", *RENDER_JOB, "ssh", "job.sh", *NAMES], nodes.folder)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "129"
    nodes.wait_for("saved-0", "saved-1")


def test_nohup_keeps_the_job_when_the_terminal_is_closed(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING)
    job = nodes.start(MINE, *NAMES, terminal=True, wrapper="nohup")
    nodes.wait_for("running-0", "running-1")
    job.close_terminal()
    job.signal("TERM")
    assert job.ended()[0] == 143  # 129, if it had listened to the first


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_tmux_keeps_the_job_of_a_detached_session_and_ends_that_of_a_killed_one(
    new_nodes: Callable[[str], Nodes],
) -> None:
    nodes = new_nodes(SAVING)
    nodes.write(MINE)

    def at_desk(*words: str) -> list[str]:
        return nodes.lab.command(["tmux", "-S", str(nodes.folder / "socket"), *words], nodes.folder, TERM="xterm")

    ours, theirs = pty.openpty()
    words = at_desk("new-session", *RENDER_JOB, "ssh", "job.sh", *NAMES)
    person = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
    nodes.wait_for("running-0", "running-1")
    subprocess.run(at_desk("detach-client"), check=True)
    assert person.wait() == 0
    for number in range(2):
        (nodes.folder / f"running-{number}").unlink()
    nodes.wait_for("running-0", "running-1")
    assert not (nodes.folder / "saved-0").exists()
    subprocess.run(at_desk("kill-session"), check=True)
    nodes.wait_for("saved-0", "saved-1")
    for end in (ours, theirs):
        os.close(end)


@pytest.mark.parametrize("failing", [0, 1])
def test_exit_code_is_that_of_the_node_that_failed_first(new_nodes: Callable[[str], Nodes], failing: int) -> None:
    nodes = new_nodes(SAVING.replace("while", f"[ $NODE_RANK != {failing} ] || {{ echo no disk; exit 7; }}\nwhile"))
    status, out = nodes.run(MINE, *NAMES)
    assert status == 7
    assert last_line(out) == f"render-job: sshn{failing} failed first: exit code 7; its last line: no disk"


def test_elastic_job_goes_on_without_a_node_that_fails(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING.replace("while", "[ $NODE_RANK = 0 ] || exit 7\nwhile"))
    job = nodes.start(ELASTIC, *NAMES)
    job.wait_for_line("render-job: sshn1 failed: exit code 7; ", "; the other nodes go on")
    nodes.wait_for("running-0")
    job.signal("TERM")
    status, out = job.ended()
    assert (status, last_line(out)) == (143, "render-job: SIGTERM ended sshn0 sshn1")
    assert (nodes.folder / "saved-0").exists()


def test_elastic_job_ends_with_its_node_0(new_nodes: Callable[[str], Nodes]) -> None:
    nodes = new_nodes(SAVING.replace("while", "[ $NODE_RANK = 1 ] || exit 7\nwhile"))
    status, out = nodes.run(ELASTIC, *NAMES)
    assert status == 7 and last_line(out).startswith("render-job: sshn0 failed first: exit code 7")
