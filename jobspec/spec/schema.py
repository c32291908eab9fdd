"""The JSON Schema of the job spec, for editors and other programs."""

from __future__ import annotations

from typing import Any

from jobspec.spec.job import Job


def json_schema() -> dict[str, Any]:
    """The schema, in the 2020-12 dialect.  It knows every key and type; rules over several keys it does not know."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()}
    _close(schema)
    return schema


def _close(node: Any) -> None:
    """Refuse keys that match no pattern; pydantic leaves such mappings open."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node["additionalProperties"] = False
        node = list(node.values())
    if isinstance(node, list):
        for below in node:
            _close(below)
