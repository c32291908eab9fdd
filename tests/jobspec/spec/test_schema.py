"""The JSON Schema, which editors check a spec against, agrees with what render-job accepts."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from jobspec.problems import SpecError
from jobspec.reading.yaml_source import parse, read
from jobspec.spec.job import Job
from jobspec.spec.schema import json_schema
from tests.tables import cases

TESTS = Path(__file__).parents[2]
SCHEMA = json_schema()
RIGHT = [*sorted((TESTS.parent / "jobs").glob("*.yaml")), *sorted((TESTS / "specs" / "ok").glob("*.yaml"))]

WRONG = {case.name: case for case in cases(TESTS / "specs" / "wrong")}


def errors(values: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(values)]


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] != json_schema(part=True)["$id"]


@pytest.mark.parametrize("spec", RIGHT, ids=lambda spec: spec.stem)
def test_schema_accepts_every_right_spec(spec: Path) -> None:
    assert errors(parse(read(str(spec)), spec.name).values) == []


def refused() -> Iterator[Any]:
    """The wrong specs that are YAML and need no rule over several keys to be refused, with the places at fault."""
    for case in WRONG.values():
        with suppress(SpecError):
            values = parse(case.spec, case.name).values
            try:
                Job.model_validate(values, strict=True)
            except ValidationError as error:
                at_fault = [detail["loc"] for detail in error.errors() if detail["type"] != "keys_disagree"]
                if at_fault:
                    yield pytest.param(values, at_fault, id=case.name)


def places(errors: Iterable[jsonschema.ValidationError]) -> Iterator[tuple[Any, ...]]:
    """Where a schema's errors are, those of alternatives included."""
    for error in errors:
        yield tuple(error.absolute_path)
        yield from places(error.context)


@pytest.mark.parametrize(("values", "at_fault"), list(refused()))
def test_schema_rejects_each_wrong_key_and_value_at_its_place(values: Any, at_fault: list[tuple[Any, ...]]) -> None:
    found = set(places(jsonschema.Draft202012Validator(SCHEMA).iter_errors(values)))
    for path in at_fault:
        # A key that is wrong itself, unknown or missing is a fault of the mapping that it is in.
        assert path in found or path[:-1] in found or (path[-1] == "[key]" and path[:-2] in found), path


@pytest.mark.parametrize("spec", ["train-and-command", "neither-train-nor-command", "mount-source-and-claim"])
def test_schema_rejects_what_must_be_one_of_two(spec: str) -> None:
    assert errors(parse(WRONG[spec].spec, spec).values) != []


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for below in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from nodes(below)


def test_patterns_have_messages_and_examples_fit() -> None:
    examples = [(node, example) for node in nodes(SCHEMA) for example in node.get("examples", ())]
    for node in nodes(SCHEMA):
        assert not isinstance(node.get("pattern"), str) or node["patternErrorMessage"].startswith("must be ")
    for node, example in examples:
        assert jsonschema.Draft202012Validator({**node, "$defs": SCHEMA["$defs"]}).is_valid(example), (example, node)
    assert {"my-job", "/data", "h100"} < {example for _, example in examples if isinstance(example, str)}


PART = jsonschema.Draft202012Validator(json_schema(part=True))


def test_every_key_of_a_part_has_its_description_where_editors_look() -> None:
    part = json_schema(part=True)
    sections = [part, *(part["$defs"][name] for name in ("Slurm", "Kubernetes", "Compose"))]
    keys = {key: value for section in sections for key, value in section["properties"].items() if key[0] != "+"}
    assert [key for key, value in keys.items() if not value.get("description")] == []


@pytest.mark.parametrize("file", [*RIGHT, *sorted((TESTS.parent / "sites").glob("*.yaml"))], ids=lambda file: file.stem)
def test_schema_of_a_part_accepts_sites_and_jobs(file: Path) -> None:
    assert not [error.message for error in PART.iter_errors(parse(read(str(file)), file.name).values)]


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ({"+mounts": [{"path": "/a"}]}, False),
        ({"+nodes": 2}, False),
        ({"partition": "gpu"}, False),
        ({"slurm": {"partiton": "gpu"}}, False),
        ({"kubernetes": {"+tolerations": {}}}, False),
        ({"resources": {"cpus": "many"}}, False),
        ({"+command": ["--lr=1"], "+setup": ["true"]}, True),
        ({"preemption": None, "slurm": {"account": None}, "kubernetes": {"+tolerations": []}}, True),
    ],
)
def test_schema_of_a_part_refuses_what_no_merge_makes_right(values: dict[str, Any], right: bool) -> None:
    assert PART.is_valid(values) == right
