"""What judges a script that we render."""

import shutil
import subprocess
from pathlib import Path

import pytest


def passes_bash_and_shellcheck(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed (Debian package shellcheck)")
    subprocess.run(["shellcheck", "--severity=warning", script], check=True)
