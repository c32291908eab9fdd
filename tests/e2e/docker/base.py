"""A base image made on the spot: this machine's Debian or Ubuntu without anything, or with torch as installed here.

No registry is needed, and the 5 GB of torch are not downloaded again.  Everything else (Python, pip, tini, the small
libraries) the Dockerfile installs as it does on any base.
"""

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.e2e.docker.engine import WITH_US

_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class NoBaseError(Exception):
    """No base can be made here; the message says why."""


def make_base(tag: str, environ: Mapping[str, str], *packages: str) -> None:
    """Make the image `tag`, with these packages of ours, in the engine that `environ` leads to.

    Raises NoBaseError where the distribution's Python is not the one that torch is installed for, or without tools.
    """
    suite = _suite()
    with tempfile.TemporaryDirectory(prefix="e2e-docker-base-") as folder:
        root = Path(folder)
        options = ["--variant=minbase", "--include=ca-certificates"]
        # Mounts and processes that it leaves when it is interrupted end with their namespaces.
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*WITH_US, *namespaces, "debootstrap", *options, suite, str(root)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise NoBaseError(f"debootstrap failed: {done.stdout[-500:]}")
        # Images of Ubuntu have such a user since 23.04.
        user = ["useradd", "--root", str(root), "--uid", "1000", "--create-home", "ubuntu"]
        subprocess.run(user, check=True, stdin=subprocess.DEVNULL)
        # A machine behind a proxy of its own trusts that proxy; so must pip in the image.
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
        loading = subprocess.Popen(
            ["docker", "import", "-", tag], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environ
        )
        assert loading.stdin is not None
        with loading.stdin, tarfile.open(fileobj=loading.stdin, mode="w|") as archive:
            archive.add(root, ".")
            for name, file in _files_of(*packages).items():
                _add(archive, file, name)
        assert loading.wait() == 0


def _suite() -> str:
    """The name of this machine's distribution, if a base of it can hold our torch."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        raise NoBaseError("only root can make one, with debootstrap (Debian package debootstrap)")
    # torch's files fit one minor version of Python: that of the distribution must be it.
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    ask = ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    theirs = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    if ours != theirs:
        raise NoBaseError(f"torch is installed here for Python {ours}, and the distribution has {theirs}")
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _files_of(*names: str) -> dict[str, Path]:
    """Every file of these distributions and of all that they need, by its path in the image."""
    packages = f"usr/local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/dist-packages"
    files = [file for name in sorted(_needed(names)) for file in metadata.files(name) or []]
    # Scripts are listed as ../../../bin/NAME, which leads to /usr/local/bin there, too.
    found = {os.path.normpath(f"{packages}/{file}"): Path(str(file.locate())).resolve() for file in files}
    return {name: file for name, file in found.items() if file.is_file()}


def _needed(names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    todo = [(canonicalize_name(name), "") for name in names]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        found.add(name)
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                more = {(canonicalize_name(need.name), wanted) for wanted in {"", *need.extras}} - seen
                seen |= more
                todo += more
    return found


def _add(archive: tarfile.TarFile, file: Path, name: str) -> None:
    """One file, root's; a script gets the image's Python."""
    info = archive.gettarinfo(file, name)
    info.uid = info.gid = 0
    with file.open("rb") as content:
        if not name.startswith("usr/local/bin/"):
            archive.addfile(info, content)
            return
        text = b"#!/usr/bin/python3\n" + content.read().partition(b"\n")[2]
    info.size = len(text)
    archive.addfile(info, io.BytesIO(text))
