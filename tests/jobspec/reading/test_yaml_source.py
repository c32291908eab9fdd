"""YAML 1.2 values, places of keys and values, `--set`, and no traceback for any input."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspec.problems import SpecError
from jobspec.reading.override import override
from jobspec.reading.validate import validate
from jobspec.reading.yaml_source import Source, parse, read


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("true", True),
        ("FALSE", False),
        ("", None),
        ("~", None),
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        (".INF", float("inf")),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("=", "="),
        ("<<", "<<"),
        ("'12'", "12"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalar_is_typed_by_yaml_1_2(written: str, value: Any) -> None:
    found = parse(f"key: {written}", "x.yaml").values["key"]
    assert (type(found), found) == (type(value), value)


def test_column_counts_characters_after_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: \xc3\xa4\xc3\xa4\r\nnodes: 1\r\n")
    source = parse(read(str(file)), "x.yaml")
    assert source.items["name",].column == 7
    assert source.keys["nodes",].line == 2


plain_keys = st.text(max_size=80)  # YAML has no keys above 1024 characters, which are fewer when escaped
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(plain_keys, values, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(plain_keys, plain_values))
def test_json_is_read_as_what_it_means(values: dict[str, Any]) -> None:
    written = json.dumps(values).replace("\x7f", "\\u007f")  # JSON lets DEL stand, YAML does not
    assert parse(written, "x.yaml").values == values


@given(st.text() | st.text(alphabet="ab:-&*!|>{}[],'\"\\%@` \n\t#?0\N{NEXT LINE}\ufeffU8"))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        parse(text, "x.yaml")
    except SpecError as error:
        assert str(error).startswith("x.yaml:")


def test_deep_nesting_is_refused_and_does_not_exhaust_the_stack() -> None:
    with pytest.raises(SpecError, match="nested deeper"):
        parse("a: " + "[" * 10_000, "x.yaml")


@pytest.fixture
def source() -> Source:
    return parse("train: {lr: 0.1}\nmounts: [{path: /a}]\nnodes: 2\n", "x.yaml")


def test_set_replaces_adds_and_reaches_into_lists(source: Source) -> None:
    settings = ["train.lr=1e-2", "train.model=mlp", "mounts.0.path=/b", "slurm.partition=gpu", "nodes={min: 1, max: 2}"]
    values = override(source, settings).values
    assert values == {
        "train": {"lr": 0.01, "model": "mlp"},
        "mounts": [{"path": "/b"}],
        "nodes": {"min": 1, "max": 2},
        "slurm": {"partition": "gpu"},
    }
    assert source.values["nodes"] == 2


def test_mistakes_of_options_are_reported_as_typed_in_the_order_of_the_options(source: Source) -> None:
    spec = override(source, ["procs_per_node=many", "trian=1", "zebra=1"])
    with pytest.raises(SpecError) as error:
        validate(spec)
    assert [line for line in str(error.value).splitlines() if line.startswith("--set ")] == [
        '--set procs_per_node=many:1:16: procs_per_node must be a whole number, not "many"',
        '--set trian=1:1:1: unknown key "trian"',
        '--set zebra=1:1:1: unknown key "zebra"',
    ]


def test_set_places_are_in_the_option(source: Source) -> None:
    place = override(source, ["nodes=3", "train.lr= big"]).items["train", "lr"]
    assert (place.name, place.line, place.column, place.written) == ("--set train.lr= big", 1, 11, "big")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("nodes", "--set nodes:1:1: not KEY=VALUE"),
        ("=3", "--set =3:1:1: not KEY=VALUE"),
        ("nodes.min=3", '"nodes" is not a mapping; there is no "min" in it'),
        ("kubernetes.pod.\udcff=1", "character U+DCFF is not allowed in KEY"),
        ("a" + ".a" * 3000 + "=1", "nested deeper than 20 levels"),
        ("mounts.1.path=/b", '"mounts" is a list of length 1; there is no "1" in it'),
        ("train.lr={a: [}", "--set train.lr={a: [}:1:15: not YAML"),
        ("train.lr=&a 3", "--set train.lr=&a 3:1:10: a job spec must not have anchors"),
    ],
)
def test_wrong_set_says_what_is_wrong(source: Source, setting: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        override(source, [setting])
    assert message in str(error.value)
