"""Whatever a file holds, render-job ends with 0 or with 1 and a message; it never shows a traceback.

10,000 of each, in about half an hour: pytest --hypothesis-profile=fuzz --timeout=0 tests/jobspec/test_fuzz.py
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspec import targets
from jobspec.spec.job import Job
from tests.command_line import command_line
from tests.tables import cases

ROOT = Path(__file__).parents[2]
SPECS = [
    *(file.read_bytes() for folder in ("jobs", "tests/specs/ok") for file in sorted((ROOT / folder).glob("*.yaml"))),
    *(case.spec.encode(errors="surrogateescape") for case in cases(ROOT / "tests" / "specs" / "wrong")),
]
COMMANDS = [
    *([target] for target in targets.names()),
    *(["explain", "--target", target] for target in targets.names()),
]

# YAML that goes wrong in each of its own ways, and values on the edge of what the models take.
snippets = st.sampled_from(
    [
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"&a [*a]",
        b"!!python/object:os.system x",
        b"? [a]",
        b"<<: *x",
        b"---\n",
        b"%YAML 9",
        b"'",
        b'"\\ud800"',
        b"|\n ",
        b"\t",
        b"[" * 30,
        b"{" * 30,
        b"9" * 5000,
        b"1e999",
        b".nan",
        b"-1",
        b"~",
        b"{}",
        b"[]",
    ]
)
words = st.sampled_from(
    ["train", "name", "path", "min", "max", "claim", "source", "key", "job", "1GiB", "2h", "auto", "c10d"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(words | st.text(max_size=4), below, max_size=4),
    max_leaves=6,
)


@st.composite
def changed_specs(draw: st.DrawFn) -> bytes:
    """A spec of ours with pieces cut out and others put in."""
    data = draw(st.sampled_from(SPECS))
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        data = data[:at] + draw(snippets | st.binary(max_size=8)) + data[at + length :]
    return data


@st.composite
def specs_of_anything(draw: st.DrawFn) -> bytes:
    """The right keys, with values of any shape."""
    job: dict[str, Any] = {"name": "job", "nodes": 1, "procs_per_node": 1, "command": ["mine.py"]}
    job |= draw(st.dictionaries(st.sampled_from(list(Job.model_fields)), anything, max_size=5))
    return json.dumps(job).encode()


@given(
    data=st.binary(max_size=300) | snippets | changed_specs() | specs_of_anything(), command=st.sampled_from(COMMANDS)
)
def test_any_bytes_are_rendered_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, command: list[str]
) -> None:
    spec = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    spec.write_bytes(data)
    done = command_line(command[0], str(spec), *command[1:])
    said = [line for line in done.stderr.decode().splitlines() if not line.startswith("note: ")]
    if said:
        assert (done.returncode, done.stdout) == (1, b"")
        first, *_, last = said
        assert re.match(rf"{re.escape(str(spec))}:([1-9]\d*:[1-9]|[^0-9])", first)
        assert last.endswith("; nothing was written")
    else:
        assert done.returncode == 0
