"""A training script that nobody here wrote: the training operator's own PyTorch example, with what it imports.

`fetch` takes it unchanged from the operator's Go module and tensorboardX, which it needs, from PyPI; both are kept in
${XDG_CACHE_HOME:-~/.cache}.  The script trains a network on FashionMNIST, which it reads from ../data.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MODULE = "github.com/kubeflow/training-operator@v1.9.4"
_NEEDS = ["tensorboardX==2.6.4", "packaging", "protobuf<8"]  # numpy and torch are there
_KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multinode-torch" / "foreign-script"


@dataclass(frozen=True)
class Foreign:
    """The script, and the folder that PYTHONPATH needs for what it imports."""

    script: Path
    packages: Path


def find() -> Foreign | None:
    """The script, if it was fetched."""
    found = Foreign(_KEPT / "mnist.py", _KEPT / "packages")
    return found if found.script.exists() else None


def fetch() -> str:
    """Fetch the script if it is not here; in words why that is impossible, or nothing."""
    if find():
        return ""
    if not shutil.which("go"):
        return "go not installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(_KEPT / "packages")]
    done = subprocess.run(["go", "mod", "download", "-json", _MODULE], capture_output=True, text=True)
    if done.returncode == 0:
        folder = Path(json.loads(done.stdout)["Dir"])
        done = subprocess.run([*install, *_NEEDS], capture_output=True, text=True)
    if done.returncode:
        return (done.stderr or done.stdout).strip().splitlines()[-1]
    shutil.copyfile(folder / "examples" / "pytorch" / "mnist" / "mnist.py", _KEPT / "mnist.py")
    return ""


def unpack(source: Path, target: Path) -> None:
    """Copy FashionMNIST's files as the script would have downloaded and unpacked them."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        (target / file.name.removesuffix(".gz")).write_bytes(content)
