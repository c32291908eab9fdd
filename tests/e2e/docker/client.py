"""The docker and compose commands, and what the tests ask them for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Docker:
    """An engine, reached with these variables in the environment."""

    environ: Mapping[str, str]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A docker command that goes on; what it prints is one stream."""
        command = ["docker", *words]
        return subprocess.Popen(
            command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )

    def __call__(self, *words: str) -> str:
        """What a docker command prints.  Raises AssertionError, with all it printed, if it fails."""
        done = subprocess.run(["docker", *words], env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, f"docker {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def has(self, *words: str) -> bool:
        """Whether this command is there and succeeds."""
        there = shutil.which(words[0])
        return bool(there) and subprocess.run(words, env=self.environ, capture_output=True).returncode == 0

    def inspect(self, name: str) -> dict[str, Any]:
        """Everything about an image or a container."""
        (found,) = json.loads(self("inspect", name))
        return dict(found)

    def build(
        self, tag: str, base: str, context: Path = ROOT, file: str = "docker/Dockerfile", **arguments: str
    ) -> None:
        """Build a Dockerfile of a folder as it stands in the documentation."""
        given = [f"--build-arg={name}={value}" for name, value in {"BASE_IMAGE": base, **arguments}.items()]
        command = ["build", "--file", str(context / file), "--tag", tag, *given, str(context)]
        environ = {**self.environ, "DOCKER_BUILDKIT": "1"}
        program = self.buildkit_client()
        assert program
        done = subprocess.run([program, *command], env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def buildkit_client(self) -> str | None:
        """A docker that can build with BuildKit: it has buildx, or is of the years when it needed no buildx."""
        for program in filter(None, map(shutil.which, ("docker", "/usr/bin/docker"))):
            version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
            if self.has(program, "buildx", "version") or 18 < int(version.partition(".")[0]) < 23:
                return program
        return None

    def read(self, volume: str, image: str, path: str) -> str:
        """A file of a volume."""
        mount = f"type=volume,source={volume},target=/volume,readonly"
        return self("run", "--rm", f"--mount={mount}", "--entrypoint=cat", image, f"/volume/{path}")

    def kill(self, container: str, image: str) -> None:
        """Kill a container's first process behind the engine's back, as the kernel does when memory runs out.

        `docker kill` is a person's wish: after it the engine starts nothing again.
        """
        pid = self.inspect(container)["State"]["Pid"]
        code = f"import os; os.kill({pid}, 9)"
        self("run", "--rm", "--pid=host", "--user=0", "--entrypoint=python3", image, "-c", code)


@dataclass(frozen=True)
class Compose:
    """A compose file and its project; everything of it is removed at the end.

    `command` starts compose, with the options that stand before those of a command.
    """

    docker: Docker
    file: Path
    project: str
    command: Sequence[str] = ("docker", "compose")

    def __enter__(self) -> Compose:
        return self

    def __exit__(self, *error: object) -> None:
        self.run("down", "--volumes", "--timeout=0")
        assert not self.docker("volume", "ls", "--quiet", f"--filter=label=com.docker.compose.project={self.project}")

    def words(self, *words: str) -> list[str]:
        return [*self.command, "--file", str(self.file), *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command to its end; what it prints is one stream."""
        return subprocess.run(
            self.words(*words),
            env=self.docker.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def up(self) -> str:
        """Run the job to the end of every node, which has to be a good one; what it printed.

        Not with the word that stops all nodes at the first end: one that is still taking Python down would show 143.
        """
        done = self.run(*(word for word in self._up() if word != "--abort-on-container-exit"))
        ends = {self.docker.inspect(container)["State"]["ExitCode"] for container in self.containers()}
        assert (done.returncode, ends) == (0, {0}), f"{ends}\n{done.stdout}"
        return done.stdout

    def up_by_its_head(self) -> None:
        """Run the job as its file's head says, whole."""
        done = self.run(*self._up())
        assert done.returncode == 0, done.stdout

    def log_by_its_head(self) -> str:
        """What the command prints that the file's head names for the time after Ctrl-C."""
        (words,) = re.findall(r"said last: docker (compose .* logs [^.|]*)\.", self.file.read_text())
        return self.docker(*words.split())

    def start(self) -> subprocess.Popen[str]:
        """The same without waiting for the end."""
        return subprocess.Popen(
            self.words(*self._up()),
            env=self.docker.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that Ctrl-C can reach all of it, as from a terminal
        )

    @contextmanager
    def ends(self) -> Iterator[subprocess.Popen[str]]:
        """Prints a line whenever a node ends from now on, `job-0 ended with 137.`"""
        told = '{{index .Actor.Attributes "com.docker.compose.service"}} ended with {{.Actor.Attributes.exitCode}}.'
        label = f"--filter=label=com.docker.compose.project={self.project}"
        process = self.docker.start("events", "--filter=event=die", label, f"--format={told}")
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _up(self) -> list[str]:
        (command,) = re.findall(r"^# Start it with `docker compose -f \S+ (up.*?)`", self.file.read_text(), re.M)
        return [*command.split(), "--no-color"]

    def containers(self) -> list[str]:
        """The identifiers of all containers, also of those that have ended."""
        label = f"label=com.docker.compose.project={self.project}"
        return self.docker("ps", "--all", "--quiet", f"--filter={label}").split()

    def container(self, service: str) -> str:
        """The identifier of a service's container, also when it has ended."""
        label = f"label=com.docker.compose.project={self.project}"
        return self.docker(
            "ps", "--all", "--quiet", f"--filter={label}", f"--filter=label=com.docker.compose.service={service}"
        )

    def volume(self, name: str) -> str:
        return f"{self.project}_{name}"
