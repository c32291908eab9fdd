"""A few artifacts byte for byte: a job with every key, the shortest scripts, the runtimes, elastic.

`pytest --update` rewrites them.  What people copy is golden, too, a short job on each target: `render-job check`.
Every other job of jobs/ is rendered on each target, or refused, and judged by what reads the artifact.
"""

import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobspec import targets
from jobspec.artifact import render
from jobspec.problems import SpecError
from jobspec.spec.job import Job
from jobspec.spec.value import Section
from tests.clusters import KINDS
from tests.shell import passes_bash_and_shellcheck

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens"
RIGHT = ROOT / "tests" / "specs" / "ok"
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))

STORED = [
    # A TrainJob's manifest has the whole JobSet, and the pods of an Indexed Job are the same.
    *((RIGHT / "every-key.yaml", target) for target in targets.names() if target not in ("indexedjob", "jobset")),
    *((RIGHT / "least.yaml", target) for target in ("slurm", "torchrun")),
    *((ROOT / "jobs" / f"{runtime}.yaml", "slurm") for runtime in ("apptainer", "docker", "podman")),
    (ROOT / "jobs" / "elastic.yaml", "slurm"),
]
# What every-key.yaml has, too: podman alone stops its containers in its own way.
LEFT_OUT = {
    "apptainer": ["preemption="],
    "docker": ["preemption="],
}
# The jobs that a target refuses, with the beginning of the first message; tests/specs/wrong has all of each.
_FOLDERS = "mounts[0].source is a folder of the node, which kubernetes.security restricted forbids"
REFUSED = {
    **{(job, kind): _FOLDERS for job in ("apptainer", "docker", "podman", "pyxis") for kind in KINDS},
    **{("elastic", kind): "nodes is a range, which this target cannot run" for kind in ("jobset", "trainjob")},
    **{("sweep", target): "sweep has 3 combinations, but this target" for target in ("compose", "torchrun")},
}
# The keys that specs/ok/every-key.yaml does not have, and why.
APART = {
    "nodes.min": "most targets cannot run a range",
    "nodes.max": "it goes with nodes.min",
    "spares": "only Slurm takes it",
    "command": "a job has either command or train",
    **dict.fromkeys(["no_python", "watch"], "it goes with command"),
    "files": "they are below the folder in which render-job is called",
    "rendezvous.host": "only Slurm and torchrun take it",
    "sweep": "it is several jobs",
    "slurm.array": "its tasks would share train.checkpoint_dir",
    "slurm.array_limit": "it goes with slurm.array or sweep",
    "kubernetes.gpu_claim": "it stands in place of kubernetes.gpu_resource",
    "topology.preferred": "it stands in place of required",
    "kubernetes.runtime": "it decides itself what most other keys of kubernetes say",
}


def suffix(target: str) -> str:
    return Path(targets.template(target)).suffixes[0]


@pytest.mark.parametrize(("spec", "target"), STORED, ids=lambda value: getattr(value, "stem", value))
def test_artifact_matches_golden(
    spec: Path, target: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    file = GOLDENS / f"{spec.stem}.{target}{suffix(target)}"
    golden(file, render(target, spec.name, LEFT_OUT.get(spec.stem, [])))
    if file.suffix == ".sh":
        passes_bash_and_shellcheck(file)


def test_no_golden_is_left_over() -> None:
    assert {file.name for file in GOLDENS.iterdir()} == {
        f"{spec.stem}.{target}{suffix(target)}" for spec, target in STORED
    }


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_every_job_is_rendered_without_a_fault_or_refused(job: Path, target: str, tmp_path: Path) -> None:
    if (job.stem, target) in REFUSED:
        with pytest.raises(SpecError) as error:
            render(target, str(job))
        assert error.value.problems[0].message.startswith(REFUSED[job.stem, target])
    else:
        file = tmp_path / f"{job.stem}{suffix(target)}"
        file.write_text(render(target, str(job)))
        if file.suffix == ".sh":
            passes_bash_and_shellcheck(file)


def keys_of(model: type[Section], above: str = "") -> Iterator[str]:
    """Every key of a section and of those below it, but the settings of train, which all become flags alike."""
    for key, field in model.model_fields.items():
        yield above + key
        for section in sections_in(field.annotation):
            yield from keys_of(section, f"{above}{key}.")


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in typing.get_args(annotation):
        yield from sections_in(part)


def keys_in(values: Any, above: str = "") -> Iterator[str]:
    """Every key of a spec; those of the elements of a list as if they were one mapping."""
    for element in values if isinstance(values, list) else [values]:
        for key, value in element.items() if isinstance(element, dict) else ():
            yield above + key
            yield from keys_in(value, f"{above}{key}.")


def test_job_with_every_key_has_every_key_but_those_that_cannot_be_combined() -> None:
    given = set(keys_in(yaml.safe_load((RIGHT / "every-key.yaml").read_text())))
    assert set(keys_of(Job)) - given == set(APART)
