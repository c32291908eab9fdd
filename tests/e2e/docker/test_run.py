"""`docker run`: training as a user without rights, and `docker stop` in the middle of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.docker.client import Docker

# Nothing but /checkpoints and /tmp can be written, there is no network, and root could do nothing more either.
CONFINED = ["--read-only", "--tmpfs=/tmp", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
TORCHRUN = ["torchrun", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "train"]
ALONE = ["python3", "-m", "train"]
FLAGS = [
    "--device=cpu",
    "--model=mnist_cnn",
    "--batch-size=32",
    "--checkpoint-dir=/checkpoints",
    "--run-dir=/checkpoints",
]


def records(docker: Docker, volume: str, image: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in docker.read(volume, image, "metrics.jsonl").splitlines()]


def wait_for(lines: Iterator[str], words: str) -> None:
    """Read what a container prints up to a line with these words.  AssertionError with all of it at its end."""
    said = []
    for line in lines:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


def run_and_stop(docker: Docker, words: list[str], code: int) -> None:
    """Start a training, stop it in the middle, and see that it ends by itself with this code."""
    container = docker("run", "--detach", *words)
    try:
        logs = docker.start("logs", "--follow", container)
        assert logs.stdout is not None
        wait_for(logs.stdout, "loss")
        docker("stop", "--time=60", container)
        wait_for(logs.stdout, "stopped by a signal")
        logs.wait()
        assert docker.inspect(container)["State"]["ExitCode"] == code  # 137 after a kill
    finally:
        docker("rm", "--force", container)


@pytest.mark.parametrize("user", ["1000:1000", "54321:54321"], ids=["image", "unknown"])
def test_trains_without_rights_on_a_read_only_root(docker: Docker, image: str, volume: str, user: str) -> None:
    if user != "1000:1000":  # as a cluster does that gives each team users of its own
        # An empty volume would be given to the image's user at the next start.
        code = f"touch /checkpoints/there; chown --recursive {user} /checkpoints"
        docker("run", "--rm", "--user=0", f"--volume={volume}:/checkpoints", image, "bash", "-c", code)
    run = ["run", "--rm", f"--user={user}", *CONFINED, f"--volume={volume}:/checkpoints", image, *TORCHRUN, *FLAGS]
    docker(*run, "--max-steps=20")
    start, *_, end = records(docker, volume, image)
    assert (start["world"]["world_size"], end["event"], end["step"]) == (2, "end", 20)
    assert "step-00000020" in docker("run", "--rm", f"--volume={volume}:/checkpoints", image, "ls", "/checkpoints")


@pytest.mark.parametrize(("launcher", "code"), [(ALONE, 143), (TORCHRUN, 1)], ids=["alone", "torchrun"])
def test_docker_stop_saves_and_ends_before_the_kill_and_the_next_start_resumes_there(
    docker: Docker, image: str, volume: str, launcher: list[str], code: int
) -> None:
    common = [*CONFINED, f"--volume={volume}:/checkpoints", image, *launcher, *FLAGS, "--log-every=10", "--resume=auto"]
    run_and_stop(docker, [*common, "--epochs=1000"], code)
    stopped = records(docker, volume, image)[-1]
    assert (stopped["event"], stopped["saved"]) == ("stop", True)
    docker("run", "--rm", *common, f"--max-steps={stopped['step'] + 1}")
    again = records(docker, volume, image)
    assert [one["step"] for one in again if one["event"] == "step"] == list(range(1, stopped["step"] + 2))
    assert again[-1]["event"] == "end"


def test_docker_stop_before_the_training_has_begun_ends_at_once(docker: Docker, image: str) -> None:
    """The first process passes the signal on when Python has no handler yet, and is not killed after ten seconds."""
    container = docker(
        "run", "--detach", image, "python3", "-c", "print('here', flush=True); import time; time.sleep(600)"
    )
    try:
        logs = docker.start("logs", "--follow", container)
        assert logs.stdout is not None
        wait_for(logs.stdout, "here")
        docker("stop", "--time=60", container)
        logs.wait()
        state = docker.inspect(container)["State"]
        assert state["ExitCode"] == 143
    finally:
        docker("rm", "--force", container)


def test_without_a_command_the_flags_are_printed(docker: Docker, image: str) -> None:
    assert "--checkpoint-dir" in docker("run", "--rm", *CONFINED, image)
