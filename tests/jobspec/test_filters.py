"""Whatever a value holds, it arrives unchanged where the template put it."""

from __future__ import annotations

import subprocess

import jinja2
import pytest
import yaml as pyyaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspec import filters

any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=30)
@given(st.lists(any_text, min_size=1))
def test_argv_survives_the_shell(words: list[str]) -> None:
    script = f"printf '%s\\0' {filters.argv(words)}"
    out = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True).stdout
    assert out.split(b"\0")[:-1] == [word.encode() for word in words]


def test_argv_goes_on_in_further_lines_when_it_gets_long() -> None:
    lines = filters.argv(["x" * 60] * 3, indent=4).split(" \\\n")
    assert lines == ["x" * 60, "    " + "x" * 60, "    " + "x" * 60]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans() | st.none())
def test_yaml_is_read_back_as_the_same_value(value: str | int | bool | None) -> None:
    assert pyyaml.safe_load(filters.yaml(value)) == value


@given(any_text)
def test_comment_stays_on_its_line(value: str) -> None:
    assert len(f"# {filters.comment(value)}".splitlines()) == 1


def test_misspelt_variable_in_a_template_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        filters._environment().from_string("{{ job.nodse }}").render(job={"nodes": 2})
