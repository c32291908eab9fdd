"""Write a starter job spec from an sbatch script or a manifest that exists.

Reading order: draft.py (what was read, and the YAML made of it), bash.py (a script's statements and its program),
program.py (both as keys), script.py (sbatch), manifest.py (Kubernetes).  Nothing in a source is dropped
without a comment that names it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from jobspec.problems import Place, Problem, SpecError
from jobspec.reading.yaml_source import read
from migrate.manifest import read_manifests
from migrate.script import read_script

_YAML = re.compile(r"^(?:apiVersion|kind):", re.M)


def starter(files: Sequence[str], with_site: bool = False) -> tuple[str, str, list[str]]:
    """Return the texts of a job and, if asked for, of a site, and notes; from one script or some manifests.

    "-" is stdin.  Raises SpecError if a file is neither, OSError if one cannot be read.
    """
    texts = {file: read(file).replace("\r\n", "\n") for file in files}
    is_yaml = any(  # a script, which begins with #!, may write a manifest
        Path(file).suffix in (".yaml", ".yml", ".json") or (not text.startswith("#!") and _YAML.search(text))
        for file, text in texts.items()
    )
    if any("\0" in text or not text.strip() for text in texts.values()):
        problem = "neither a script nor a manifest"
    elif not is_yaml and len(files) > 1:
        problem = "only one script makes one job: name the one that sbatch gets"
    else:
        try:
            draft = read_manifests(texts) if is_yaml else read_script(texts[files[0]], files[0])
            draft.make_valid()
            return *draft.texts(with_site), draft.notes()
        except RecursionError:
            problem = "its brackets and quotes are nested too deeply"
    raise SpecError([Problem(Place(files[-1], 1, 1, 1, ""), problem)])
