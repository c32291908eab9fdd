"""Programs that the tests build from Go modules, once: they are kept in ${XDG_CACHE_HOME:-~/.cache}."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotBuildError(Exception):
    """A program cannot be built here; the message says why."""


def cache(name: str) -> Path:
    """The folder that keeps the programs of this name, which has their version in it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "multinode-torch" / name


@contextmanager
def new(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, which takes its place when all has gone well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside, "made")
        made.mkdir()
        yield made
        made.rename(folder)


def go(*words: str, folder: Path, **environ: str) -> str:
    """What a go command prints.  Raises CannotBuildError."""
    if not shutil.which("go"):
        raise CannotBuildError("go is not installed")
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", **environ}
    done = subprocess.run(["go", *words], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(f"`go {' '.join(words)}` failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
