"""The ordinary user who submits the jobs of the tests.  Only the machines of a cluster know the account."""

import os
from collections.abc import Sequence
from pathlib import Path

NAME = "ada"
UID = 54321

_ACCOUNT = "{name}:x:{uid}:{uid}::{home}:/bin/bash\n"
_GROUP = "{name}:x:{uid}:\n"
_SHADOW = "{name}:*:20000::::::\n"
_IDS_OF_CONTAINERS = "{name}:200000:65536\n"


def account_files(folder: Path, home: Path) -> dict[str, Path]:
    """Write this machine's accounts and the user's into `folder`; the files by their names in /etc."""
    lines = {
        "passwd": _ACCOUNT,
        "group": _GROUP,
        "shadow": _SHADOW,  # slurmd 26.05 looks each user up there
        "subuid": _IDS_OF_CONTAINERS,
        "subgid": _IDS_OF_CONTAINERS,
    }
    files = {}
    for name, line in lines.items():
        of_machine = Path("/etc", name)
        if of_machine.exists():  # what the package of accounts has not made is for podman alone
            files[name] = folder / name
            files[name].write_text(of_machine.read_text() + line.format(name=NAME, uid=UID, home=home))
    return files


def give(folder: Path) -> Path:
    """Make a folder the user's."""
    os.chown(folder, UID, UID)
    return folder


def as_user(command: Sequence[str]) -> list[str]:
    """The command that runs `command` with the rights of the user, on a machine that has the account."""
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--init-groups", "--inh-caps=-all", "--", *command]
