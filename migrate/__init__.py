"""Write a starter job spec from an sbatch script or a manifest that exists.

Reading order: draft.py (what was read, and the YAML made of it), bash.py (a script's statements and its program),
program.py (both as keys), script.py (sbatch), pod.py and manifest.py (Kubernetes).  Nothing in a source is dropped
without a comment that names it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jobspec.problems import Place, Problem, SpecError
from lint import lint
from migrate.manifest import read_manifests
from migrate.script import read_script

_MAX_BYTES = 1 << 20
_YAML = re.compile(r"^(?:apiVersion|kind):", re.M)


class Starter(NamedTuple):
    """Texts of a job and a site file (empty unless asked for), and short notes."""

    job: str
    site: str
    notes: list[str]


def starter(files: Sequence[str], with_site: bool = False) -> Starter:
    """Return the starter of one script, or of one job in some manifests; "-" is stdin.

    Raises SpecError if a file is neither, OSError if one cannot be read.
    """
    texts = {file: _read(file) for file in files}
    try:
        if any(Path(file).suffix in (".yaml", ".yml", ".json") or _YAML.search(text) for file, text in texts.items()):
            draft = read_manifests(texts)
        elif len(files) > 1:
            raise _refused(files[1], "only one script makes one job", "name the script that sbatch gets")
        else:
            draft = read_script(texts[files[0]], files[0])
        draft.make_valid()
    except RecursionError:
        raise _refused(files[0], "its brackets and quotes are nested too deeply") from None
    for file, text in texts.items():
        draft.faults += _faults(file, text)
    return Starter(*draft.texts(with_site), draft.notes())


def _read(file: str) -> str:
    if file == "-":
        data = sys.stdin.buffer.read(_MAX_BYTES + 1)
    else:
        with Path(file).open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise _refused(file, f"larger than {_MAX_BYTES >> 20} MiB, too large for a script or manifest")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(file, f"not UTF-8 text: byte 0x{data[error.start]:02x}", "save the file as UTF-8") from None
    if "\0" in text or not text.strip():
        raise _refused(file, "neither a script nor a manifest")
    return text.replace("\r\n", "\n")


def _refused(file: str, message: str, hint: str = "") -> SpecError:
    return SpecError([Problem(Place(file, 1, 1, 1, ""), message, hint)])


def _faults(file: str, text: str) -> list[str]:
    """Return what lint finds in a source, a line of text each."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "source.yaml" if _YAML.search(text) else "source.sh")
        copy.write_text(text, encoding="utf-8")
        return [f"line {found.place.line}: {found.message}" for found in lint([str(copy)]) if found.rule]
