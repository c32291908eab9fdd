"""The folder `train` of an older commit, from git."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from benchmarks.ranks import ROOT

# Where CustomDDP is: formerly and today.
_PATHS = ("train/ddp.py", "train/ddp/wrapper.py")


class GitError(Exception):
    """The reason why git cannot provide a commit."""


def unpack(rev: str, folder: Path) -> str:
    """Unpack `train` of a commit into `folder`; return the commit's hash.  Raise GitError if that is impossible."""
    no_commit = f"there is no commit {rev!r} in this repository: give a hash, a tag or a branch that git log shows"
    commit = _git("rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}", otherwise=no_commit)
    if not _git("ls-tree", "--name-only", commit, *_PATHS):
        raise GitError(f"commit {rev!r} has no CustomDDP: neither {' nor '.join(_PATHS)} is in it")
    archive = folder / "train.zip"
    _git("archive", "--format=zip", f"--output={archive}", commit, "train")
    with zipfile.ZipFile(archive) as files:
        files.extractall(folder)
    return commit


def describe_checkout() -> dict[str, str | bool]:
    """Return the commit of this checkout, and whether `train` has been changed since."""
    return {"after": _git("rev-parse", "HEAD"), "after_is_changed": bool(_git("status", "--porcelain", "--", "train"))}


def _git(*arguments: str, otherwise: str = "git failed and gave no reason") -> str:
    """Return the output of a git command in this checkout; raise GitError with git's reason or else `otherwise`."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise GitError("git is not installed, but the older commit comes from it: install git") from None
    if done.returncode:
        raise GitError(done.stderr.strip() or otherwise)
    return done.stdout.strip()
