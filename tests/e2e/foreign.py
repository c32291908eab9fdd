"""A training script that nobody here wrote: the training operator's own PyTorch example, with what it imports.

`fetch` takes it unchanged from the operator's Go module and tensorboardX, which it needs, from PyPI; both are kept in
${XDG_CACHE_HOME:-~/.cache}.  The script trains a network on FashionMNIST, which it reads from ../data.
"""

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


class Absent(Exception):
    """Why the script is not to be had."""


def fetch() -> Foreign:
    """The script, fetched if it is not here.  Raises Absent."""
    found = Foreign(_KEPT / "mnist.py", _KEPT / "packages")
    if found.script.exists():
        return found
    if not shutil.which("go"):
        raise Absent(
            "the training operator's example cannot be fetched: go is not installed (Debian package golang-go)"
        )
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(found.packages)]
    done = subprocess.run(["go", "mod", "download", "-json", _MODULE], capture_output=True, text=True)
    if done.returncode == 0:
        folder = Path(json.loads(done.stdout)["Dir"])
        done = subprocess.run([*install, *_NEEDS], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1]
        raise Absent(f"the training operator's example cannot be fetched: {last}")
    shutil.copyfile(folder / "examples" / "pytorch" / "mnist" / "mnist.py", found.script)
    return found


def unpack(source: Path, target: Path) -> None:
    """Copy FashionMNIST's files as the script would have downloaded and unpacked them."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        (target / file.name.removesuffix(".gz")).write_bytes(content)
