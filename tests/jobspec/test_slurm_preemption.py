"""The batch script when Slurm takes its nodes: who is signalled, who is waited for, what is requeued."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
time.sleep(60)
"""


def preemptible(
    cluster: Cluster, agent: str, spec: str = TWO_NODES, grace: str = "20s", **env: str
) -> subprocess.Popen[bytes]:
    """A job that can be preempted, with all agents running."""
    cluster.install("torchrun", agent)
    job = cluster.start(rendered(cluster, f"{spec}preemption: {{grace: {grace}}}\n"), **env)
    cluster.wait_for("running-0", "running-1")
    return job


def ended(job: subprocess.Popen[bytes]) -> tuple[int, str]:
    return (job.wait(timeout=30), job.communicate()[0].decode())


# Its containers are known by name, and its own process gets no signal.
_PODMAN = """#!/bin/bash
case $1 in
ps)
  echo "$3" > "$STAND_IN/asked-$SLURM_NODEID"
  echo "container-of-node-$SLURM_NODEID $(cat "$STAND_IN/shell-$SLURM_NODEID")"
  ;;
kill) kill -TERM "$(cat "$STAND_IN/$3")" ;;
run)
  echo $$ > "$STAND_IN/container-of-node-$SLURM_NODEID"
  for word; do case $word in --label=shell=*) echo "${word##*=}" > "$STAND_IN/shell-$SLURM_NODEID"; esac; done
  while [[ $1 != a/b:1 ]]; do shift; done
  exec "${@:2}"
esac
"""


def test_podman_itself_gets_no_signal_but_its_containers_do(own_cluster: Cluster) -> None:
    own_cluster.install("podman", _PODMAN)
    own_cluster.install("scancel", "#!/bin/sh\ntouch $STAND_IN/cancelled\n")
    spec = TWO_NODES + "image: a/b:1\nslurm: {runtime: podman}\n"
    job = preemptible(own_cluster, SAVING, spec)
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert status == 0, out
    for node in range(2):
        assert (own_cluster.folder / f"saved-{node}").exists(), out
        assert (own_cluster.folder / f"asked-{node}").read_text() == "name=^slurm-70123[.]\n"
    assert (own_cluster.folder / "requeued").exists()
    assert not (own_cluster.folder / "cancelled").exists()


def test_signal_lets_every_node_save_and_requeues_once_and_a_second_one_changes_nothing(own_cluster: Cluster) -> None:
    """The second is Slurm's own, say, after somebody's."""
    own_cluster.install("scancel", "#!/bin/bash\nkill -USR1 $PPID\n" + (own_cluster.folder / "bin/scancel").read_text())
    job = preemptible(own_cluster, SAVING)
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert status == 0, out
    assert (own_cluster.folder / "saved-0").exists()
    assert (own_cluster.folder / "saved-1").exists(), "requeued before it had saved"
    assert (own_cluster.folder / "requeued").read_text() == "70123\n"


def test_task_of_an_array_means_only_itself(own_cluster: Cluster) -> None:
    """The last task has the number of the array, which means all tasks."""
    env = {"SLURM_ARRAY_JOB_ID": "70123", "SLURM_ARRAY_TASK_ID": "3"}
    job = preemptible(own_cluster, SAVING, TWO_NODES + "slurm: {array: 0-3}\n", **env)
    job.send_signal(signal.SIGUSR1)
    status, out = ended(job)
    assert status == 0, out
    assert (own_cluster.folder / "saved-1").exists()
    assert (own_cluster.folder / "requeued").read_text() == "70123_3\n"


def test_training_that_made_its_last_step_after_the_signal_stays_out_of_the_queue(own_cluster: Cluster) -> None:
    training = "nodes: 2\ntrain: {checkpoint_dir: /c, resume: auto}\n"
    job = preemptible(own_cluster, SAVING.replace("sys.exit(1)", "sys.exit(0)"), BASE + training)
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert (own_cluster.folder / "saved-1").exists()
    assert not (own_cluster.folder / "requeued").exists()


def test_signal_while_a_lost_node_is_waited_for_requeues(own_cluster: Cluster) -> None:
    """Slurm has not noticed yet that the node is gone: its part of the step is not over."""
    (own_cluster.folder / "steps").write_text("70123.batch\n70123.0\n")
    squeue = (own_cluster.folder / "bin/squeue").read_text()
    own_cluster.install("squeue", f"{squeue}touch $STAND_IN/asked\n")
    job = preemptible(own_cluster, SAVING.replace("time.sleep(60)", "sys.exit(7)"))
    own_cluster.wait_for("asked")
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert (own_cluster.folder / "requeued").exists()


def test_signal_before_the_start_requeues_without_a_start(own_cluster: Cluster) -> None:
    mark = own_cluster.folder / "in-preflight"
    own_cluster.install("getent", f"import time\nopen({str(mark)!r}, 'w')\ntime.sleep(2)\nprint('192.0.2.1')")
    job = own_cluster.start(rendered(own_cluster, TWO_NODES + "preemption: {grace: 20s}\n"))
    own_cluster.wait_for("in-preflight", timeout_s=60)
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert (own_cluster.folder / "requeued").read_text() == "70123\n"
    assert own_cluster.calls() == {}


def test_node_that_hangs_does_not_cost_the_requeue(own_cluster: Cluster) -> None:
    job = preemptible(own_cluster, SAVING.replace("time.sleep(0.2 + int(node))", "time.sleep(60)"), grace="8s")
    begin = time.monotonic()
    job.send_signal(signal.SIGUSR1)
    assert ended(job)[0] == 0
    assert 7 <= time.monotonic() - begin < 15
    assert (own_cluster.folder / "requeued").read_text() == "70123\n"


@pytest.mark.parametrize(("time", "code"), [("2026-01-01T00:00:00", 1), ("2026-01-01T00:00:00", 0), ("None", 1)])
def test_signal_to_only_the_processes_of_a_command_requeues_if_slurm_preempts_and_they_do_not_end_with_0(
    time: str, code: int, own_cluster: Cluster
) -> None:
    requeued = time != "None" and code == 1
    job = preemptible(own_cluster, SAVING.replace("sys.exit(1)", f"sys.exit({code})"))
    (own_cluster.folder / "job").write_text(f"PreemptTime={time}")
    for pid in (own_cluster.folder / "pids").read_text().split():
        os.killpg(int(pid), signal.SIGTERM)
    assert ended(job)[0] == (0 if requeued else code)
    assert (own_cluster.folder / "requeued").exists() == requeued


@pytest.mark.parametrize(
    ("running", "more"),
    [(0, ""), (1, ""), (0, "slurm: {options: {output: mine.log}}\n")],
    ids=["this start", "a later start", "log named by the user"],
)
def test_processes_that_saved_by_themselves_requeue_their_own_start_and_no_later_one(
    own_cluster: Cluster, running: int, more: str
) -> None:
    """A node that Slurm has given up may run on: its script must not end the start on other nodes."""
    state = f"JobState=RUNNING Reason=None\n   Requeue=1 Restarts={running} BatchFlag=1\n   PreemptTime=None"
    agent = f"open('job', 'w').write({state!r})\nprint('stopped by a signal at epoch 1, step 2; saved')"
    own_cluster.install("torchrun", f"{agent}\nraise SystemExit(1)")
    saving = "nodes: 2\ntrain: {checkpoint_dir: /c, resume: auto}\npreemption: {grace: 20s}\n"
    status, out = own_cluster.run(rendered(own_cluster, BASE + saving + more))
    assert (own_cluster.folder / "requeued").exists() == (status == 0), out
    assert status == (1 if more else running)


def test_cancelled_job_stays_out_of_the_queue(own_cluster: Cluster) -> None:
    job = preemptible(own_cluster, SAVING)
    for pid in (own_cluster.folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    job.send_signal(signal.SIGTERM)
    job.wait(timeout=30)
    job.communicate()
    assert not (own_cluster.folder / "requeued").exists()


def test_torchrun_waits_for_a_checkpoint_as_long_as_slurm_allows(own_cluster: Cluster) -> None:
    script = rendered(own_cluster, TWO_NODES + "preemption: {grace: 200s}\n")
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=170" in script
    assert own_cluster.run(script)[0] == 0
    assert {"--kill-on-bad-exit=0", "--wait=200"} <= set(own_cluster.sruns()[-1])
    for grace, torchrun, srun in (("200s", 170, 185), ("40s", 30, 35)):
        script = rendered(own_cluster, TWO_NODES + f"preemption: {{grace: {grace}}}\n")
        assert f"_SHUTDOWN_TIMEOUT={torchrun} " in script and f'{{ sleep {srun}; kill "$step"; }}' in script


_DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: open("asked", "w").close())
open("running", "w").close()
while True:
    time.sleep(0.05)
    os.utime("running")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)  # torch is imported, also on a machine with other work
@pytest.mark.parametrize(("keys", "seconds"), [("preemption: {grace: 24s}\n", 18), ("", 30)])
def test_the_real_torchrun_kills_what_hangs_after_three_quarters_of_grace_or_30_s(
    keys: str, seconds: int, own_cluster: Cluster
) -> None:
    own_cluster.nodes = ["n1"]
    own_cluster.install("torchrun", f'#!/bin/sh\nexec {Path(sys.executable).parent}/torchrun "$@"\n')
    (own_cluster.folder / "mine.py").write_text(_DEAF)
    job = own_cluster.start(rendered(own_cluster, f"{BASE}nodes: 1\ncommand: [mine.py]\n{keys}"))
    own_cluster.wait_for("running", timeout_s=200)
    os.killpg(int((own_cluster.folder / "pids").read_text()), signal.SIGTERM)
    status, out = (job.wait(timeout=60), job.communicate()[0].decode())
    asked, last = ((own_cluster.folder / name).stat().st_mtime for name in ("asked", "running"))
    assert status == 1 and seconds - 1 < last - asked < seconds + 3, out


@pytest.mark.parametrize(("done", "requeued"), [(2, True), (3, False)])
def test_requeues_end_at_max_requeues(own_cluster: Cluster, done: int, requeued: bool) -> None:
    (own_cluster.folder / "job").write_text(f"JobName=job Restarts={done} PreemptTime=None")
    own_cluster.install("torchrun", SAVING)
    spec = TWO_NODES + "preemption: {grace: 20s, max_requeues: 3}\n"
    status, out = signalled(own_cluster, spec)
    assert (own_cluster.folder / "requeued").exists() == requeued, out
    assert (own_cluster.folder / "saved-1").exists()
    if not requeued:
        assert status == 1
        assert "not requeued: the limit preemption.max_requeues (3) is reached" in out


@pytest.mark.parametrize(("step", "requeued"), [(8, True), (4, False)])
def test_two_starts_that_end_at_the_same_step_are_the_last(own_cluster: Cluster, step: int, requeued: bool) -> None:
    (own_cluster.folder / "job").write_text("JobName=job Restarts=1 PreemptTime=None")
    told = f"    print('stopped by a signal at epoch 1, step {step}; saved', flush=True)\n    sys.exit(1)"
    own_cluster.install("torchrun", SAVING.replace("    sys.exit(1)", told))
    spec = BASE + "nodes: 2\ntrain: {checkpoint_dir: /c, resume: auto}\npreemption: {grace: 20s}\n"
    before = "stopped by a signal at epoch 1, step 4; saved\n"
    status, out = signalled(own_cluster, spec, before)
    assert (own_cluster.folder / "requeued").exists() == requeued, out
    if not requeued:
        assert status == 1
        assert "no progress since the last signal" in out


@pytest.mark.parametrize(("restarts", "writes", "requeued"), [(0, False, True), (1, True, True), (1, False, False)])
def test_restart_of_a_command_without_progress_is_the_last(
    own_cluster: Cluster, restarts: int, writes: bool, requeued: bool
) -> None:
    (own_cluster.folder / "a b.pt").touch()
    (own_cluster.folder / "job").write_text(f"JobName=job Restarts={restarts} PreemptTime=None")
    saves = SAVING.replace("{here}/saved-{node}", "{here}/a b.pt") if writes else SAVING
    own_cluster.install("torchrun", saves)
    progress = f"preemption: {{grace: 20s, progress: '{own_cluster.folder}/*.pt'}}\n"
    _, out = signalled(own_cluster, TWO_NODES + progress)
    assert (own_cluster.folder / "requeued").exists() == requeued, out
    assert ("no progress since the last signal" in out) != requeued


def signalled(cluster: Cluster, spec: str, log_before: str = "") -> tuple[int, str]:
    """Run a job that gets USR1 once its agents run; `log_before` is the log of its first start."""
    job = cluster.start(rendered(cluster, spec))
    if log_before:
        (cluster.folder / "job-70123-r0.log").write_text(log_before)
    cluster.wait_for("running-0", "running-1", timeout_s=60)
    job.send_signal(signal.SIGUSR1)
    return ended(job)


def test_a_lost_node_is_waited_for_as_long_as_the_site_does(own_cluster: Cluster) -> None:
    """SlurmdTimeout and a minute; here sleeping takes no time."""
    (own_cluster.folder / "steps").write_text("70123.batch\n70123.0\n")
    slept = own_cluster.folder / "slept"
    own_cluster.install("sleep", f"#!/bin/sh\necho $1 >> {slept}\n")
    own_cluster.install("torchrun", "raise SystemExit(7)")
    status, out = own_cluster.run(rendered(own_cluster, TWO_NODES + "preemption: {grace: 20s}\n"))
    assert status == 7, out
    in_tasks = 2 * 5  # before they end the step
    assert 300 <= sum(map(int, slept.read_text().split())) - in_tasks <= 360
