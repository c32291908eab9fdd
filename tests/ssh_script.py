"""`render-job ssh` at the desk of a user, with nodes that it reaches over ssh; see tests/ssh.py."""

import os
import pty
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobspec import filters
from jobspec.artifact import render
from tests.cli import HANG_S, ROOT
from tests.ssh import DESK, Lab

RENDER_JOB = [sys.executable, str(ROOT / "render.py")]
BASE = "name: job\nnodes: 2\nprocs_per_node: 2\ndevice: cpu\n"
MINE = BASE + "command: [mine.py]\n"
# An agent that saves when it is told to stop, prints before and after it, and exits 1 as torchrun does.
SAVING = """#!/bin/bash
trap 'echo saving $NODE_RANK; touch saved-$NODE_RANK; echo saved $NODE_RANK; exit 1' TERM
while true; do touch running-$NODE_RANK; read -rt 0.1 _ <> <(:); done
"""


@dataclass
class Started:
    """A script that runs at the desk; its standard streams are files, or a terminal."""

    lab: Lab
    folder: Path
    process: subprocess.Popen[bytes]
    terminal: int | None = None
    out: bytes = b""

    def signal(self, name: str) -> None:
        self.lab.machines[DESK].run("kill", f"-{name}", (self.folder / "pid").read_text().strip())

    def ended(self) -> tuple[int, str]:
        """The exit code, and what the script and its nodes wrote."""
        deadline = time.monotonic() + HANG_S
        while not (self.folder / "ended").exists():
            self.read()
            assert time.monotonic() < deadline, f"not ended: {self.out!r} {self.lab.processes()}"
            time.sleep(0.02)
        self.process.wait()
        self.read()
        return int((self.folder / "ended").read_text()), self.out.decode().replace("\r", "").replace("^C", "")

    def read(self) -> None:
        if self.terminal is None:
            self.out = (self.folder / "out").read_bytes()
            return
        with suppress(OSError):  # nothing there, or the terminal is closed
            while data := os.read(self.terminal, 65536):
                self.out += data

    def wait_for_line(self, *parts: str) -> None:
        deadline = time.monotonic() + HANG_S
        while not any(all(part in line for part in parts) for line in self.out.decode().splitlines()):
            self.read()
            assert time.monotonic() < deadline, self.out
            time.sleep(0.02)

    def type(self, keys: bytes) -> None:
        assert self.terminal is not None
        os.write(self.terminal, keys)

    def close_terminal(self) -> None:
        """Close it, and signal the script as the shell in a terminal does."""
        assert self.terminal is not None
        os.close(self.terminal)
        self.terminal = -1
        self.signal("HUP")


@dataclass
class Nodes:
    """A folder with a script and its programs, which the desk and the nodes share."""

    lab: Lab
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def install(self, name: str, program: str) -> None:
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(program)
        file.chmod(0o755)

    def write_program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def write(self, spec: str) -> Path:
        """Write the script of the job; its path."""
        (self.folder / "job.yaml").write_text(spec)
        script = self.folder / "job.sh"
        script.write_text(render("torchrun", str(self.folder / "job.yaml")))
        return script

    def start(self, spec: str, *hosts: str, terminal: bool = False, wrapper: str = "", **env: str) -> Started:
        self.write(spec)
        # The shell of a person, which outlives what ends the script.
        script = f'echo $$ >pid; exec {wrapper} {shlex.join(RENDER_JOB)} ssh job.sh "$@"'
        shell = f'trap : INT HUP TERM; bash -c {filters.sh(script)} job "$@"; echo $? >part; mv part ended'
        words = [*(["setsid", "--ctty", "--wait"] if terminal else []), "bash", "-c", shell, "shell", *hosts]
        command = self.lab.command(words, self.folder, **env)
        for name in ("ended", "pid"):
            (self.folder / name).unlink(missing_ok=True)
        if not terminal:
            with (self.folder / "out").open("wb") as out:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
            started = Started(self.lab, self.folder, process)
        else:
            ours, theirs = pty.openpty()
            os.set_blocking(ours, False)
            process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
            os.close(theirs)
            started = Started(self.lab, self.folder, process, ours)
        self.stack.callback(process.kill)
        self.wait_for("pid")
        return started

    def run(self, spec: str, *hosts: str, **env: str) -> tuple[int, str]:
        return self.start(spec, *hosts, terminal=False, wrapper="", **env).ended()

    def by_hand(self, name: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the written script on one machine to its end."""
        command = self.lab.command(["bash", "job.sh"], self.folder, name, **env)
        return subprocess.run(command, capture_output=True, text=True)

    def wait_for(self, *names: str) -> None:
        """Until these files are there."""
        deadline = time.monotonic() + HANG_S
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline, f"{names} did not appear"
            time.sleep(0.02)


def last_line(out: str) -> str:
    return out.splitlines()[-1]
