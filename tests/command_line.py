"""Runs render-job as people do."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from jobspec import commands

ROOT = Path(__file__).parents[1]
QUICKSTART = str(ROOT / "jobs" / "quickstart.yaml")


def closed(stream: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The same in another process, with a stream that the caller has closed: "<", ">" or "2>"."""
    words = ["bash", "-c", f'exec "$@" {stream}&-', "bash", sys.executable, str(ROOT / "render.py"), *arguments]
    return subprocess.run(words, capture_output=True)


def command_line(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[bytes]:
    """`render-job ARGUMENTS`, run to its end: with `env` in another process, otherwise in this one."""
    if env:
        words = [sys.executable, str(ROOT / "render.py"), *arguments]
        return subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    before = Path.cwd()
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = commands.main(list(arguments))
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os.chdir(before)
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue())
    return subprocess.CompletedProcess(arguments, code, *said)
