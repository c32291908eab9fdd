"""The JSON Schema, which editors check a spec against, agrees with what render.py accepts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from jobspec.problems import SpecError
from jobspec.schema import json_schema
from jobspec.source import parse, read
from jobspec.spec import Job

TESTS = Path(__file__).parents[1]
SCHEMA = json_schema()
RIGHT = [*sorted((TESTS.parent / "jobs").glob("*.yaml")), *sorted((TESTS / "specs" / "ok").glob("*.yaml"))]


def errors(values: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(values)]


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("spec", RIGHT, ids=lambda spec: spec.stem)
def test_schema_accepts_every_right_spec(spec: Path) -> None:
    assert errors(parse(read(str(spec)), spec.name).values) == []


def wrong_in_a_single_key() -> Iterator[tuple[str, Any]]:
    """The wrong specs that are YAML and that no rule over several keys is needed to refuse."""
    for spec in sorted((TESTS / "specs" / "err").glob("*.yaml")):
        with suppress(SpecError):
            values = parse(read(str(spec)), spec.name).values
            try:
                Job.model_validate(values, strict=True)
            except ValidationError as error:
                if {detail["type"] for detail in error.errors()} != {"keys_disagree"}:
                    yield spec.stem, values


@pytest.mark.parametrize(("spec", "values"), list(wrong_in_a_single_key()))
def test_schema_rejects_what_is_wrong_in_a_single_key(spec: str, values: Any) -> None:
    assert errors(values) != [], spec


def test_every_key_has_a_description() -> None:
    models = [SCHEMA, *SCHEMA["$defs"].values()]
    keys = [(model["title"], key, value) for model in models for key, value in model.get("properties", {}).items()]
    assert [(title, key) for title, key, value in keys if not value.get("description")] == []
