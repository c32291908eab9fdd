"""Starts render.py as people do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "jobs" / "quickstart.yaml")
SITE = "slurm: {partition: gpu}\nenv: {NOTE: ours}\n+secrets: [TOKEN]\n"


def command_line(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[bytes]:
    """`render.py ARGUMENTS`, run to its end with `env` added to the environment."""
    words = [sys.executable, str(ROOT / "render.py"), *arguments]
    return subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True)
