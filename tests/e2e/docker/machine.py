"""What a machine has of everything that engines make, to compare before and after."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ENGINE = ("dockerd", "containerd", "docker-init", "slirp4netns", "docker-proxy")
_FOLDERS = (
    "run/docker*",
    "run/containerd*",
    "run/netns/*",
    "var/lib/docker*",
    "var/lib/containerd*",
    "etc/docker*",
)
_SETTINGS = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables")


def snapshot(folder: Path) -> dict[str, set[str]]:
    """Processes, mounts, links, packet filters, control groups, settings and folders, `folder` and below among them."""
    root = Path("/")
    return {
        "processes": set(_processes()),
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "links": {link.name for link in Path("/sys/class/net").iterdir()},
        "packet filters": set(_lines("iptables-save")),
        "control groups": {str(path) for path in Path("/sys/fs/cgroup").glob("**/*docker*") if path.is_dir()},
        "settings": {f"{name}={_text(Path('/proc/sys', name))}" for name in _SETTINGS},
        "folders": {str(path) for pattern in _FOLDERS for path in root.glob(pattern)},
        "files": {str(path) for path in folder.rglob("*")},
    }


def _processes() -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/comm"):
        name = _text(status)
        # Those of the namespaces, too: a process is seen in all that are outside of its own.
        if name.startswith(_ENGINE) and "Z" not in _text(status.with_name("stat")).rpartition(")")[2][:3]:
            found.append(f"{status.parent.name} {name}")
    return found


def _lines(program: str) -> list[str]:
    done = subprocess.run([program], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if not line.startswith(("#", ":"))]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # gone meanwhile, or not on this machine
