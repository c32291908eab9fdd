"""python -m docs.peers: the tools in README's comparison that have a newer release on PyPI than the one compared."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
_PACKAGES = {"Kubeflow SDK": "kubeflow"}  # the others are called as the tool


def compared(text: str) -> dict[str, str]:
    """Return the version with which each tool was compared, by the name of its package."""
    table = text.partition("## Why not")[2].partition("\n## ")[0]
    rows = re.findall(r"^(\w[\w -]*?) (\d[\d.]+) \|", table, re.MULTILINE)
    return {_PACKAGES.get(tool, tool.lower()): version for tool, version in rows}


def newest(package: str) -> str:
    """Ask the registry that pip uses.  Raises CalledProcessError if it does not know the package or is not there."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.findall(r"\((.+?)\)", said)[0]


if __name__ == "__main__":
    for package, version in compared(README.read_text()).items():
        there = newest(package)
        print(f"{package}: compared {version}, newest {there}{'' if version == there else '   <- look again'}")
