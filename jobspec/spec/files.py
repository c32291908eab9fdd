"""`files` of a spec: the user's own files, which travel in the artifact where the nodes share no file system.

Paths are as in `command`: relative to the folder in which render-job is called, and in a container to `workdir`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.mounts import normal

WORKDIR = "/scratch"  # where the files are in a container if the spec has no `workdir`

_NAME = re.compile(r"[A-Za-z0-9._/ +=@-]+")


def listed(job: Job) -> list[str]:
    """List the files of all patterns, each once, in the order of the patterns."""
    return list(dict.fromkeys(file for pattern in job.files for file in _matching(pattern)))


def workdir(job: Job) -> str | None:
    """Return the folder in which the processes of a container start; None for the image's own."""
    return job.workdir or (WORKDIR if job.files else None)


def target(job: Job, file: str) -> str:
    return f"{(job.workdir or WORKDIR).rstrip('/')}/{file}"


def problem(file: str) -> str | None:
    """Return why a file cannot travel as text in an artifact, or None."""
    if not _NAME.fullmatch(file):
        return "its name has characters that are not allowed in mounts of containers"
    try:
        text = Path(file).read_bytes().decode()
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "it is not UTF-8 text"
    return "it contains a zero byte" if "\0" in text else None


def files_are_here(job: Job) -> Iterator[Finding]:
    for number, pattern in enumerate(job.files):
        files = _matching(pattern)
        if not files:
            hint = "paths are relative to the folder in which render-job is called"
            yield Finding(("files", number), f'files[{number}]: no file here is called "{pattern}"', hint)
        for file in files:
            if why := problem(file):
                yield Finding(("files", number), f"files[{number}]: {file} is unusable: {why}", "put it in the image")
            if (path := normal(target(job, file))) in [normal(mount.path) for mount in job.mounts]:
                yield Finding(("files", number), f"files[{number}]: a mount is at {path}, too", "leave one of them out")


def _matching(pattern: str) -> list[str]:
    try:
        return sorted(path.as_posix() for path in Path().glob(pattern) if path.is_file())
    except (ValueError, IndexError, RecursionError):  # ".", "a**" or a thousand folders: no pattern for pathlib
        return []
    except OSError:  # problem() says why: a name that is too long, a folder of another user
        return [pattern]
