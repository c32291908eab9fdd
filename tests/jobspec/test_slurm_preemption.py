"""The batch script when Slurm takes its nodes: who is signalled, who is waited for, what is requeued."""

import os
import signal
import subprocess

import pytest

from tests.slurm import BASE, TWO_NODES, Cluster, rendered

# An agent that needs a while to save when it is told to stop, longer on the second node, and exits 1 as torchrun does.
SAVING = """
import os, signal, sys, time
node = os.environ["SLURM_NODEID"]
here = os.environ["STAND_IN"]
def save(*_):
    time.sleep(0.2 + int(node))
    open(f"{here}/saved-{node}", "w")
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
open(f"{here}/running-{node}", "w")
signal.pause()
"""


def preemptible(
    cluster: Cluster, agent: str, spec: str = TWO_NODES, grace: str = "600s", **env: str
) -> subprocess.Popen[bytes]:
    """A job that can be preempted, with all agents running."""
    cluster.install("torchrun", agent)
    cluster.install("python3", agent)
    job = cluster.start(rendered(cluster, f"{spec}preemption: {{grace: {grace}, max_requeues: 3}}\n"), **env)
    cluster.wait_for(job, "running-0", "running-1")
    return job


def ended(job: subprocess.Popen[bytes]) -> tuple[int, str]:
    return (job.wait(), job.communicate()[0].decode())


def requeued(cluster: Cluster) -> list[str]:
    file = cluster.folder / "requeued"
    return file.read_text().split() if file.exists() else []


# Its containers are known by name, and its own process gets no signal.
_PODMAN = """#!/bin/bash
case $1 in
ps) echo "${4#name=^}" ;;
kill) kill -TERM "$(cat "$STAND_IN/$3"*)" ;;
run)
  for word; do case $word in --name=*) echo $$ > "$STAND_IN/${word#*=}"; esac; done
  while [[ $1 != a/b:1 ]]; do shift; done
  exec "${@:2}"
esac
"""


def test_podman_itself_gets_no_signal_but_its_containers_do(own_cluster: Cluster) -> None:
    own_cluster.install("podman", _PODMAN)
    own_cluster.install("scancel", "#!/bin/sh\ntouch $STAND_IN/cancelled\n")
    job = preemptible(own_cluster, SAVING, TWO_NODES + "image: a/b:1\nslurm: {runtime: podman}\n")
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert status == 0, out
    assert {f"saved-{node}" for node in range(2)} < {file.name for file in own_cluster.folder.iterdir()}, out
    assert requeued(own_cluster) == ["70123"]
    assert not (own_cluster.folder / "cancelled").exists()


def test_signal_lets_every_node_save_and_requeues_once_and_a_second_one_changes_nothing(own_cluster: Cluster) -> None:
    """The second is Slurm's own, say, after somebody's."""
    own_cluster.install("scancel", "#!/bin/bash\nkill -USR1 $PPID\n" + (own_cluster.folder / "bin/scancel").read_text())
    job = preemptible(own_cluster, SAVING)
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert status == 0, out
    assert requeued(own_cluster) == ["70123"]
    *saved, last = [(own_cluster.folder / name).stat().st_mtime for name in ("saved-0", "saved-1", "requeued")]
    assert max(saved) <= last, "requeued before it had saved"


def test_task_of_an_array_means_only_itself(own_cluster: Cluster) -> None:
    """The last task has the number of the array, which means all tasks."""
    env = {"SLURM_ARRAY_JOB_ID": "70123", "SLURM_ARRAY_TASK_ID": "3"}
    job = preemptible(own_cluster, SAVING, TWO_NODES + "slurm: {array: 0-3}\n", **env)
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert status == 0, out
    assert (own_cluster.folder / "saved-1").exists()
    assert requeued(own_cluster) == ["70123_3"]


def test_training_that_made_its_last_step_after_the_signal_stays_out_of_the_queue(own_cluster: Cluster) -> None:
    training = "nodes: 2\ntrain: {checkpoint_dir: /c, resume: auto}\n"
    job = preemptible(own_cluster, SAVING.replace("sys.exit(1)", "sys.exit(0)"), BASE + training)
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert (own_cluster.folder / "saved-1").exists()
    assert requeued(own_cluster) == []


def test_signal_while_a_lost_node_is_waited_for_requeues(own_cluster: Cluster) -> None:
    """Slurm has not noticed yet that the node is gone: its part of the step is not over."""
    (own_cluster.folder / "steps").write_text("70123.batch\n70123.0\n")
    squeue = (own_cluster.folder / "bin/squeue").read_text()
    own_cluster.install("squeue", squeue + "[[ $1 != --steps && $2 != --steps ]] || touch $STAND_IN/asked\n")
    job = preemptible(own_cluster, SAVING.replace("signal.pause()", "sys.exit(7)"))
    own_cluster.wait_for(job, "asked")
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert requeued(own_cluster) == ["70123"]


def test_a_process_that_hangs_without_torchrun_does_not_cost_the_requeue(own_cluster: Cluster) -> None:
    deaf = SAVING.replace("time.sleep(0.2 + int(node))", "time.sleep(600)").replace("SLURM_NODEID", "SLURM_PROCID")
    spec = TWO_NODES.replace("procs_per_node: 2", "procs_per_node: 1") + "slurm: {launcher: srun}\n"
    job = preemptible(own_cluster, deaf, spec, grace="4s")
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert requeued(own_cluster) == ["70123"]


@pytest.mark.parametrize(("restarts", "again"), [(2, True), (3, False)])
def test_requeues_end_at_the_limit(restarts: int, again: bool, own_cluster: Cluster) -> None:
    (own_cluster.folder / "RestartCnt").write_text(f"{restarts}   \n")
    job = preemptible(own_cluster, SAVING)
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert (status, bool(requeued(own_cluster))) == ((0, True) if again else (1, False)), out
    assert ("not requeued: preemption.max_requeues (3) is reached" in out) != again


@pytest.mark.parametrize(("time", "code"), [("2026-01-01T00:00:00", 1), ("2026-01-01T00:00:00", 0), ("N/A", 1)])
def test_signal_to_only_the_processes_requeues_if_slurm_preempts_and_they_do_not_end_with_0(
    time: str, code: int, own_cluster: Cluster
) -> None:
    again = time != "N/A" and code == 1
    job = preemptible(own_cluster, SAVING.replace("sys.exit(1)", f"sys.exit({code})"))
    (own_cluster.folder / "PreemptTime").write_text(f"{time}\n")
    for pid in (own_cluster.folder / "pids").read_text().split():
        os.killpg(int(pid), signal.SIGTERM)
    assert ended(job)[0] == (0 if again else code)
    assert bool(requeued(own_cluster)) == again


@pytest.mark.parametrize(
    ("epilogue", "comment", "kept"),
    [("", "of the user", "of the user"), ("true", "(null)", ""), ("false", "of the user", "of the user")],
)
def test_a_completed_job_that_slurm_starts_again_runs_nothing_and_keeps_its_comment(
    epilogue: str, comment: str, kept: str, own_cluster: Cluster
) -> None:
    slurm = f"slurm: {{epilogue: ['{epilogue}']}}\n" if epilogue else ""
    script = rendered(own_cluster, f"{TWO_NODES}preemption: {{}}\n{slurm}")
    own_cluster.install_recorder("torchrun")
    file = own_cluster.folder / "comment"
    file.write_text(f"{comment}\n")
    failed = epilogue == "false"  # a job whose epilogue failed has not completed
    assert own_cluster.run(script)[0] == failed
    assert own_cluster.calls()
    assert (file.read_text() == f"{kept} render-job:completed\n") == (not failed)
    assert own_cluster.run(script)[0] == failed
    assert bool(own_cluster.calls()) == failed


def test_cancelled_job_stays_out_of_the_queue(own_cluster: Cluster) -> None:
    job = preemptible(own_cluster, SAVING)
    for pid in (own_cluster.folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    job.send_signal(signal.SIGTERM)
    job.wait()
    job.communicate()
    assert requeued(own_cluster) == []


def test_torchrun_waits_for_a_checkpoint_as_long_as_slurm_allows(own_cluster: Cluster) -> None:
    script = rendered(own_cluster, TWO_NODES + "preemption: {grace: 200s}\n")
    assert own_cluster.run(script)[0] == 0
    assert {"--kill-on-bad-exit=0", "--wait=200"} <= set(own_cluster.sruns()[-1])
    for grace, torchrun in (("200s", 170), ("40s", 30)):
        script = rendered(own_cluster, TWO_NODES + f"preemption: {{grace: {grace}}}\n")
        assert f"_SHUTDOWN_TIMEOUT={torchrun} " in script
