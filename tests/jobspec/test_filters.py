"""Whatever a value holds, it arrives unchanged where the template put it."""

import re
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml as pyyaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobspec import filters
from jobspec.reading.yaml_source import typed
from tests.clusters import YAML

any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=30)
@given(st.lists(any_text, min_size=1))
def test_argv_survives_the_shell(words: list[str]) -> None:
    script = f"printf '%s\\0' {filters.argv(words)}"
    out = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True).stdout
    assert out.split(b"\0")[:-1] == [word.encode() for word in words]


def test_a_line_of_a_command_holds_104_columns_with_its_indent() -> None:
    assert filters.argv(["x" * 48, "y" * 53]) == "x" * 48 + " " + "y" * 53
    assert filters.argv(["x" * 48, "y" * 54]) == "x" * 48 + " \\\n  " + "y" * 54
    assert filters.argv(["x" * 48, "y" * 54], indent=1) == "x" * 48 + " " + "y" * 54


def test_by_flag_puts_each_flag_with_its_values_on_a_line() -> None:
    words = ["-m", "train", "--name", "a b", "--fast", "x", "y"]
    assert filters.by_flag(words) == "-m train \\\n  --name 'a b' \\\n  --fast x y"
    assert filters.by_flag(["mine.py", "a", "--lr=1"], indent=4) == "mine.py a \\\n    --lr=1"
    assert filters.by_flag(["x" * 60, "y" * 60], indent=4) == "x" * 60 + " \\\n    " + "y" * 60


def test_assignments_quote_values_and_go_on_in_further_lines() -> None:
    assert filters.assignments({"A": "1", "B": "x y"}) == "A=1 B='x y'"
    assert filters.assignments({"A": "x" * 60, "B": "y" * 60}) == "A=" + "x" * 60 + " \\\n  B=" + "y" * 60
    assert filters.assignments({"A": "x" * 60, "B": "y" * 60}, 4) == "A=" + "x" * 60 + " \\\n    B=" + "y" * 60


@given(any_text)
def test_directive_is_one_word_for_sbatch(value: str) -> None:
    written = filters.directive(value)
    if written != value:
        assert written[0] == written[-1] == '"'
        assert re.sub(r"\\(.)", r"\1", written[1:-1], flags=re.DOTALL) == value
        assert not re.search(r'(?<!\\)(?:\\\\)*"', written[1:-1])
    else:
        assert re.fullmatch(r"[A-Za-z0-9_.,:@%+/=-]+", value)


def test_directive_quotes_only_where_it_has_to() -> None:
    assert filters.directive("0-3%2,a_B.c:d@e+f/g=h") == "0-3%2,a_B.c:d@e+f/g=h"
    assert filters.directive('a "b" \\ #c') == '"a \\"b\\" \\\\ #c"'
    assert filters.directive("") == '""'


@given(any_text)
def test_kubelet_and_compose_read_back_the_same_word(value: str) -> None:
    for written in (filters.kubelet(value), filters.compose(value)):
        read = pyyaml.safe_load(written)
        assert read.replace("$$", "").count("$") == 0
        assert read.replace("$$", "$") == value


@given(any_text | st.text(" \t\n#:-|>'\"a…é\x85\u2028\ufeff\r{}&*!%@`"))
def test_block_is_read_back_as_the_same_text(value: str) -> None:
    text = "outer:\n  key: " + filters.block(value, 4) + "\n  next: 1\n"
    assert pyyaml.safe_load(text) == pyyaml.load(text, YAML) == {"outer": {"key": value, "next": 1}}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a\nb", "|2-\n    a\n    b"),
        ("a\n\n\tb\n", "|2\n    a\n\n    \tb"),
        ("a\n\n", "|2+\n    a\n"),
        ("", '""'),
        (" \n", '" \\n"'),
        ("a\rb", '"a\\rb"'),
        ("a\x85b", '"a\\u0085b"'),
    ],
)
def test_block_is_for_people_where_nothing_changes_it(text: str, written: str) -> None:
    assert filters.block(text, 4) == written


def test_comment_replaces_only_what_would_end_the_line() -> None:
    assert filters.comment("größe 図\nb\rc") == "größe 図?b?c"


@settings(max_examples=500)
@given(any_text | st.text("aeoxyEnN019.:-_/+=~ ,#", max_size=6) | st.integers() | st.booleans() | st.none())
@example("NO")
@example("y")
@example("1e3")
@example("0o17")
@example("12:30:00")
@example("2026-11-27")
@example("0x_1F")
@example("~")
@example("a: b")
@example("a:")
@example("a #b")
@example("--- a")
def test_yaml_is_read_back_as_the_same_value(value: str | int | bool | None) -> None:
    written = filters.yaml(value)
    text = f"- {written}\n- {{a: {written}}}\n- [{written}]\n- {written}: b\n"
    wanted = [value, {"a": value}, [value], {value: "b"}]
    assert pyyaml.safe_load(text) == pyyaml.load(text, YAML) == wanted
    assert written.startswith('"') or typed(written) == value  # as YAML 1.2


@pytest.mark.parametrize(
    "word", ["torchrun", "a/b:1.0", "--lr=0.1", "-m", "kueue.x-k8s.io/queue-name", "4Gi", "/data", "PET_NODE_RANK"]
)
def test_yaml_quotes_no_word_that_needs_no_quotes(word: str) -> None:
    assert filters.yaml(word) == word


@given(any_text)
def test_comment_stays_on_its_line(value: str) -> None:
    assert len(f"# {filters.comment(value)}".splitlines()) == 1


def test_misspelt_variable_in_a_template_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        filters.environment(Path()).from_string("{{ job.nodse }}").render(job={"nodes": 2})
