"""Each fault of the matrix is noticed and named, and its job ends as the row says, with undisturbed bits."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from tests.cli import HANG_S, records
from tests.faults.rows import ROWS, Fault, Row
from tests.faults.workload import AN_HOUR_AHEAD, BATCH, STEPS, Job
from tests.idx import write_small_mnist

KILLS = int(os.environ.get("RANDOM_KILLS", "2"))
pytestmark = [pytest.mark.timeout(3 * HANG_S * KILLS), pytest.mark.slow]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_small_mnist(folder, BATCH * STEPS, 60)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights at the end of a run of one process."""
    job = Job(tmp_path_factory.mktemp("undisturbed"), data)
    assert job.ends(job.start(1)) == [0], job.said
    return str(records(job.folder / "run", "end")[-1]["weights_sha256"])


@pytest.fixture(scope="module")
def nine(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended after 9 steps."""
    job = Job(tmp_path_factory.mktemp("nine"), data)
    assert job.ends(job.start(2, max_steps=9)) == [0], job.said
    return job.folder


def _marks(row: Row) -> Iterator[pytest.MarkDecorator]:
    if not row.quick:
        yield pytest.mark.long
    if row.where != "machine" or "mount" in row.before:
        yield pytest.mark.skipif(os.geteuid() != 0, reason="machines and file systems of our own need root")
    if row.outside == "clock":
        absent = not Path(AN_HOUR_AHEAD["LD_PRELOAD"]).exists()
        yield pytest.mark.skipif(absent, reason="no libfaketime (Debian package libfaketime)")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[*_marks(row)]) for name, row in ROWS.items()])
def test_fault_is_noticed_named_and_survived(
    name: str, data: Path, tmp_path: Path, undisturbed: str, request: pytest.FixtureRequest
) -> None:
    job = Job(tmp_path, data, ROWS[name].fault)
    if ROWS[name].nine:
        for folder in ("run", "checkpoints"):
            shutil.copytree(request.getfixturevalue("nine") / folder, tmp_path / folder, dirs_exist_ok=True)
    _check(name, ROWS[name], job, undisturbed)


def test_killed_at_random_the_job_restarts_once_and_ends_with_undisturbed_bits(
    data: Path, tmp_path: Path, undisturbed: str
) -> None:
    """RANDOM_KILLS=100 makes 100 of them."""
    chance = Random(30)
    for number in range(KILLS):
        rank, place = chance.randrange(2), chance.choice(["step", "forward", "bucket"])
        fault = Fault("SIGKILL", str(rank), rank, chance.randint(1, STEPS), place)
        (tmp_path / str(number)).mkdir()
        job = Job(tmp_path / str(number), data, fault)
        _check(str(fault), Row("restarts", fault, ("local_rank: TO",)), job, undisturbed)


def test_killed_at_any_moment_and_started_on_any_number_of_processes_it_ends_with_undisturbed_bits(
    data: Path, tmp_path: Path, undisturbed: str
) -> None:
    """RANDOM_KILLS=50 makes 50 of them; it prints how many fell into a save."""
    chance, kills, in_saves = Random(31), 0, 0
    while kills < KILLS:
        (tmp_path / str(kills)).mkdir()
        job = Job(tmp_path / str(kills), data)
        while not list((job.folder / "run").glob("*.jsonl")) or not records(job.folder / "run", "end"):
            (process,) = job.start(chance.randint(1, 4), checkpoint_every=1)
            job.wait_for_a_step()
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.5) if kills < KILLS else HANG_S)
            kills += process.poll() is None
            job.clear_away()
            assert process.wait(HANG_S) in (0, -signal.SIGKILL), job.said
            in_saves += any((job.folder / "checkpoints").glob(".unfinished-*"))
        assert records(job.folder / "run", "end")[-1]["weights_sha256"] == undisturbed
    print(f"{kills} kills, {in_saves} of them in a save")


def _check(name: str, row: Row, job: Job, undisturbed: str) -> None:
    subprocess.run(["bash", "-c", row.before], cwd=job.folder, check=True)
    began = time.time()
    with ExitStack() as stack:
        stack.callback(job.clear_away)
        if row.where == "machine":
            processes = job.start(2, **row.train)
        else:
            stack.enter_context(job.machines(knows_node0="hosts" not in row.outside))
            if row.outside == "port":
                stack.callback(job.take_port().kill)
            processes = job.start_on_nodes(row.where == "nodes", row.outside == "clock", **row.train)
        if row.fault is not None and "ask" in row.fault.what:
            job.wait_for_question()
            _change(row, job)
            if row.where == "nodes" and row.ends == "resumes":
                for pattern in row.says:
                    job.wait_until_it_says(pattern)
                # torchrun would wait for TCP, which gives up after 15 minutes: schedulers end what is left of a job.
                for node in job.nodes[:2]:
                    node.close()
        codes = job.ends(processes)
        assert (set(codes) == {0}) == (row.ends in ("goes on", "restarts")), job.said
        if row.fault is not None:
            began = (job.folder / "fired").stat().st_mtime
        noticed_s = 0.0
        for pattern in (pattern.replace("TO", row.fault.to if row.fault else "") for pattern in row.says):
            times = [at for at, line in job.lines if at >= began and re.search(pattern, line)]
            assert times, f"{pattern}: {job.said}"
            noticed_s = noticed_s or times[0] - began
        if row.ends == "resumes":
            subprocess.run(["bash", "-c", row.mend], cwd=job.folder, check=True)
            assert job.ends(job.start(3)) == [0], job.said
    summary = f"{name}: noticed after {noticed_s:.1f} s, "
    if row.ends != "refused":
        again, lost = _history(row, job.folder / "run", undisturbed, began)
        summary += f"trained again after {again - began:.1f} s, {lost} steps lost, "
    print(f"{summary}{row.ends}")


def _history(row: Row, run: Path, undisturbed: str, began: float) -> tuple[float, int]:
    """Check what the job has recorded; when it had trained a step after the fault, and how many were lost."""
    starts = records(run, "start")
    restarts = [start["world"]["attempt"] for start in starts].count(1)
    assert restarts == (row.ends == "restarts") or row.ends == "resumes"
    kept, lost, meanwhile = list[int](), 0, 0
    for record in records(run, "step"):
        again = [step for step in kept if step >= record["step"]]
        lost += len(again)
        if row.fault is not None and (row.fault.what, row.fault.place) == ("SIGKILL", "save"):
            # Trained while the save was written that the kill cut short; the next save would have waited for it.
            meanwhile += sum(step > row.fault.step for step in again)
        kept = [*(step for step in kept if step < record["step"]), record["step"]]
    # A rank that is killed may take the loss of its last step with it, though not the step.
    assert kept[0] == 1 and STEPS - 1 <= len(kept) <= kept[-1] == STEPS
    assert lost - meanwhile <= row.lost and meanwhile <= 4
    assert records(run, "epoch")[-1]["samples_read"] == BATCH * STEPS
    assert records(run, "end")[-1]["weights_sha256"] == undisturbed
    later = max(began, starts[-1]["time"])
    first = row.fault.step if row.fault is not None and row.ends == "goes on" else 1
    known = [*records(run, "step"), *records(run, "end")]
    return min(record["time"] for record in known if record["time"] > later and record["step"] >= first), lost


def _change(row: Row, job: Job) -> None:
    """Do what the row wants when a rank asks for it, and let that rank go on."""
    what, _, number = row.outside.rpartition(" ")
    if what == "cut":
        job.nodes[2].run("ip", "link", "set", "to-node1", "down")
        job.answer()
        if number != "off":
            threading.Event().wait(int(number))  # so long is the fault
            job.nodes[2].run("ip", "link", "set", "to-node1", "up")
        return
    if what == "power off":
        job.nodes[int(number)].close()
    elif row.outside == "slow":
        for machine, card in ((job.nodes[2], "to-node1"), (job.nodes[1], "eth0")):
            machine.run(*f"tc qdisc add dev {card} root tbf rate 10mbit burst 32kbit latency 400ms".split())
    elif row.outside == "hosts":
        job.nodes[1].run("sh", "-c", "echo 10.78.0.10 node0 >>/etc/hosts")
    elif row.outside == "second start":
        assert job.ends(job.start(2), alone=False) == [1], job.said
    else:
        subprocess.run(["bash", "-c", row.outside], cwd=job.folder, check=True)
    job.answer()
