"""Which keys of a spec are given, and which of them a target leaves out.

A key is a path with dots, such as "resources.memory".  A list, a mapping with user-chosen names and `train` are one
key each.
"""

from collections.abc import Collection, Iterator

from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.value import Section

SECTIONS_OF_TARGETS = ("slurm", "kubernetes", "compose")  # sections whose keys other targets ignore


def keys(names: str, section: str = "") -> frozenset[str]:
    """Return the keys whose names stand in a text, all of one section or of the top level."""
    return frozenset(f"{section}.{name}" if section else name for name in names.split())


def all_of(section: str) -> frozenset[str]:
    """Return every key of a target's own section."""
    return keys(" ".join(type(Job.model_fields[section].default).model_fields), section)


def given(section: Section, above: str = "") -> Iterator[str]:
    """Yield each key that is written with a value other than its default."""
    for name, value in section:
        default = type(section).model_fields[name].default
        inside = isinstance(value, Section)
        if name in section.model_fields_set and value != default and (not inside or default is None):
            yield f"{above}{name}"
        if inside:
            yield from given(value, f"{above}{name}.")


def only(target: str, uses: Collection[str], not_used: Collection[str], job: Job) -> Iterator[Finding]:
    """Yield each given key that is neither in `uses` nor in or below one in `not_used`."""
    refused: set[str] = set()
    for key in given(job):
        section = key.partition(".")[0]
        of_others = section in SECTIONS_OF_TARGETS and not any(one.startswith(f"{section}.") for one in uses)
        if not of_others and key not in uses and not {key, section} & {*not_used, *refused}:
            refused.add(key)
            message = f"{key} is given, but target {target} does not use it"
            hint = f"leave it out; for this target alone, --set {key}= does so"
            yield Finding(tuple(key.split(".")), message, hint, on_key=True)
