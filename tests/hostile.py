"""Job specs with hostile text in every string field, as hypothesis draws them, and what of them has to arrive."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from jobspec import filters
from jobspec.problems import Path as KeyPath
from jobspec.problems import Problem, SpecError
from jobspec.reading import yaml_source
from jobspec.reading.notation import hidden, line_of, lines_with_secrets
from tests import workers

Spec = dict[str, Any]

CANARY = "pwned"
"""A file of this name is there as soon as anything in a spec has been executed."""

_VARIABLES = "$A ${A} ${A:?} $(A) $$(A) $$ $$$ $local_rank ${local_rank} $é"
_MARKS = "%j %% -- --help --export=ALL !! *a << [a]"
# What shells, YAML, Jinja, sbatch, kubelet, compose and container runtimes each take for something else.
_INLINE = [
    *"$'\"\\ #%,=:-!|>@~*?;é🎉",
    "$(touch pwned)",
    "`touch pwned`",
    "';touch pwned;'",
    '";touch pwned;"',
    "&touch pwned&",
    "|touch pwned|",
    "<(touch pwned)",
    *_VARIABLES.split(),
    "\\'",
    '\\"',
    "\\\\",
    "  ",
    " # ",
    *_MARKS.split(),
    ": ",
    "!!python/object/apply:os.system [touch pwned]",
    "&a ",
    "{{ 7*7 }}",
    "{% raw %}",
    "{# #}",
    "{a: b}",
    "- a",
    "? a",
    *["null", "no", "1e3", "012", "0x1F", "12:30:00", "2026-01-01", "[!a]", "~root", "()", "漢字"],
    *["\u202e", "\ufeff", "e\u0301"],
]
_LINE_BREAKS = [
    "\n",
    "\n\n",
    "\t",
    "\ntouch pwned\n",
    "\n#SBATCH --wrap=touch\\ pwned\n",
    "\n---\n",
    "\nEND\n",
    "\n'\n",
]
# Every piece that is text, and every two with a `$` in a row: what a program gets as its arguments.
_DOLLARS = [piece for piece in _INLINE if "$" in piece]
ARGUMENTS = ["", *_INLINE, *_LINE_BREAKS, *(first + second for first in _DOLLARS for second in _DOLLARS)]
_REFUSED = ["\0", "\r", "\x1b[31m", "\x85", "\x7f", "\u2028", "\u2029"]


def _joined(pieces: list[str], most: int = 4, without: str = "") -> st.SearchStrategy[str]:
    """Some of the pieces and of all characters that can be printed, one after the other; none of those in `without`."""
    characters = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters=without)
    piece = st.sampled_from([piece for piece in pieces if not set(piece) & set(without)]) | characters
    return st.lists(piece, min_size=1, max_size=most).map("".join)


some_lines = _joined(_INLINE + _LINE_BREAKS)
_lines = st.just("") | some_lines
_line = _joined(_INLINE)
_anything = _joined(_INLINE + _LINE_BREAKS + _REFUSED)
# Container runtimes cut mounts at these characters, nothing expands `$`, and Kubernetes takes no ".."; a spec that
# has them is refused.
_path = _joined(_INLINE, without=':,"\\.$').map("/".__add__).filter(lambda path: path.strip("/"))
_dns = st.sampled_from(["no", "on", "null", "true", "y", "0", "1e3", "012", "0x1f", "1-2", "a.b", "2026-01-01"])
_label = st.sampled_from(["no", "NO", "null", "true", "Y", "0", "1e3", "012", "0x1F", "1.0", "2026-01-01", "a_b", ""])
_key = st.sampled_from(["no", "null", "true", "1.5", "example.com/1", "a.b/no", "0x1F", "Y"])
_word = st.sampled_from(["gpu", "no", "0", "a,b", "a:b@c%d+e-f", "1e3", "_", "0%j"])


@st.composite
def _specs(draw: st.DrawFn) -> Spec:
    """Specs that every target can do something with, with text in all fields that take it."""
    spec: Spec = {
        "name": draw(st.sampled_from(["no", "on", "null", "true", "y", "e1", "x-1"])),
        "nodes": draw(st.integers(1, 2)),
        "procs_per_node": draw(st.integers(1, 2)),
        "device": "cuda",
        "image": draw(st.sampled_from(["no", "012", "a.b/c:1e3", "a.b:5000/c@sha256:0", "A-_.x/y+z"])),
        "env": {draw(st.sampled_from(["A", "NO", "NULL", "Y", "_A", "PS4", "IFS"])): draw(_lines), "B": draw(_lines)},
        "secrets": [draw(st.sampled_from(["TOKEN", "ON"]))],
        "mounts": [{"source": draw(_path), "path": draw(_path)}],
        "resources": {"memory": "4GiB", "shm": "1GiB", "rdma": draw(st.booleans())},
        "time_limit": "2h",
        "setup": draw(st.sampled_from([[], ["export IN_SETUP='a b'; true"], ["true", "cd ."]])),
        "rendezvous": {"backend": "static"},
        "slurm": {
            **{key: draw(_word) for key in ("partition", "account", "qos", "reservation")},
            "constraint": draw(st.sampled_from(["no", "a|b", "[a|b]&c", "(a*2)", "1e3"])),
            "runtime": draw(st.sampled_from(["none", "docker", "podman", "apptainer", "pyxis"])),
            "launcher": draw(st.sampled_from(["torchrun", "srun"])),
            "options": {"comment": draw(_line), "mail-user": draw(_line)},
        },
        "kubernetes": {
            "security": "privileged",  # with a folder of the node as mount
            "namespace": draw(_dns).replace(".", "-"),
            **{key: draw(_dns) for key in ("queue", "priority_class", "scheduler", "service_account", "secret")},
            "image_pull_secrets": [draw(_dns)],
            "image_pull_policy": "Always",
            "gpu_resource": draw(st.sampled_from(["nvidia.com/gpu", "1.e/no", "a/null"])),
            "rdma_resource": draw(st.sampled_from(["rdma/hca", "0.x/1e3"])),
            "node_selector": {draw(_key): draw(_label)},
            "tolerations": [{"key": draw(_key), "operator": "Equal", "value": draw(_label), "effect": "NoSchedule"}],
            "labels": {draw(_key): draw(_label)},
            "annotations": {draw(_key): draw(_lines)},
            "ttl": "1d",
        },
        "compose": {"project": draw(_dns).replace(".", "-")},
    }
    if {"IFS", "PS4"} & spec["env"].keys():
        spec["setup"] = []  # run by bash, which has its own
    if draw(st.booleans()):
        spec["command"] = ["mine.py", draw(_lines), draw(_lines)]
        # Without torchrun the program itself would have to be there, whatever its name.
        spec["no_python"] = spec["slurm"]["launcher"] == "torchrun" and draw(st.booleans())
        spec["slurm"]["array"] = draw(st.sampled_from(["0", "0-3", "1,3,5", "0-15:4%2"]))
    else:
        spec["train"] = {"model": "mlp", "batch_size": 64, "data_root": draw(some_lines), "run_dir": draw(some_lines)}
    return spec


@dataclass(frozen=True)
class Hostile:
    """A spec; the field at `path`, if there is one, holds text that may have to be refused."""

    spec: Spec
    path: KeyPath | None

    def parsed(self) -> yaml_source.Source:
        """The spec as it comes out of its file."""
        return yaml_source.parse(filters.yaml(self.spec), "job.yaml")

    def is_explained_by(self, error: SpecError, spec: yaml_source.Source) -> bool:
        """Whether an error says that this field is wrong, at its place, and nothing else."""
        if self.path is None:
            return False
        places = {places[self.path] for places in (spec.keys, spec.items) if self.path in places}
        secret = lines_with_secrets(spec.secrets, spec.keys, spec.items)
        places |= {hidden(Problem(place, "")).place for place in places if line_of(place) in secret}
        return {problem.place for problem in error.problems} <= places

    def secrets(self, value: str) -> dict[str, str]:
        """The environment in which the job is started."""
        return dict.fromkeys(self.spec["secrets"], value)

    def arrives(self, argv: Sequence[str], env: Mapping[str, str], secret: str) -> bool:
        """Whether a process has what the spec says, byte for byte; argv is of torchrun, or of a process without it."""
        argv = workers.words(argv)
        wanted = {**self.spec["env"], **self.secrets(secret)}
        if "command" in self.spec:
            words = self.spec["command"]
            program = list(argv[-len(words) :]) == words
        else:
            train = self.spec["train"]
            program = {f"--data-root={train['data_root']}", f"--run-dir={train['run_dir']}"} <= set(argv)
        return program and wanted == {name: env.get(name) for name in wanted}


@st.composite
def jobs(draw: st.DrawFn) -> Hostile:
    """Specs whose text every target takes, and as many that also have any text in any field or name."""
    spec = draw(_specs())
    if draw(st.booleans()):
        return Hostile(spec, None)
    parent, key, renamed = draw(st.sampled_from(list(_fields(spec))))
    new, inside = draw(_anything), _at(spec, parent)
    if renamed:
        value = inside.pop(key)
        inside[new] = value
        return Hostile(spec, (*parent, new))
    inside[key] = new
    return Hostile(spec, (*parent, key))


def _fields(spec: Spec) -> Iterator[tuple[KeyPath, str | int, bool]]:
    """Every text: where it stands, its key there, and whether it is the key itself, of the names that people choose."""
    named = [("env",), ("slurm", "options")]
    named += [("kubernetes", key) for key in ("node_selector", "labels", "annotations")]
    for parent in named:
        for key in _at(spec, parent):
            yield parent, key, True
    # Lines of setup are code: the shell is meant to run what they say.
    yield from _texts({key: value for key, value in spec.items() if key != "setup"}, ())


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str | int, bool]]:
    for key, below in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(below, str):
            yield path, key, False
        elif isinstance(below, dict | list):
            yield from _texts(below, (*path, key))


def _at(value: Any, path: KeyPath) -> Any:
    for key in path:
        value = value[key]
    return value
