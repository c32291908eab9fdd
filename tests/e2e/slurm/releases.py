"""Slurm of later Debian releases: the release's files, fetched once and kept in ${XDG_CACHE_HOME:-~/.cache}.

A machine of the tests mounts their /usr and /etc in place of its own, so daemons and jobs use the release's programs.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tests.e2e.go_modules import CannotBuildError, cache, new
from tests.e2e.slurm.machine import HERE

_PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch")
# libffi8 is for this Python's ctypes; the other libraries that Python links come with these packages.
_PACKAGES = "slurm-wlm,munge,iproute2,procps,libffi8"
_MIRROR = "http://deb.debian.org/debian"
_SCRIPTS = {"trixie": "trixie", "forky": "sid"}  # debootstrap of Debian 12 does not know forky


def find(release: str) -> Path:
    """The root folder of a Debian release, or for "here" of this machine's.  CannotBuildError: no Slurm can be had."""
    if os.getuid() != 0:
        raise CannotBuildError("it takes root to make network namespaces")
    if release != "here":
        return _fetched(release)
    if absent := [program for program in _PROGRAMS if shutil.which(program) is None]:
        raise CannotBuildError(f"{', '.join(absent)} not installed: apt-get install slurm-wlm munge")
    return HERE


def _fetched(release: str) -> Path:
    folder = cache(f"slurm-{release}")
    if folder.exists():
        return folder
    with new(folder) as made:
        # What debootstrap mounts ends with the namespace.
        namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(made), _MIRROR]
        try:
            subprocess.run([*namespace, *words, _SCRIPTS[release]], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as failed:
            said = (failed.stderr or failed.stdout).strip().splitlines()[-1]
            raise CannotBuildError(f"debootstrap cannot fetch Debian's {release}: {said}") from failed
    return folder
