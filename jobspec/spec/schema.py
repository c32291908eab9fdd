"""The JSON Schema of the job spec, for editors and other programs."""

import re
from typing import Any

import yaml

from jobspec.spec.job import Job


def json_schema(part: bool = False) -> dict[str, Any]:
    """Return the schema, in the 2020-12 dialect.  It has every key and type, but not the rules between keys.

    part: for one of several files: no key is required, `+key` adds to a list, and an empty value removes a key.
    """
    dialect, name = "https://json-schema.org/draft/2020-12/schema", "urn:multinode-torch:job-spec"
    schema = {"$schema": dialect, "$id": name + ":part" * part, **Job.model_json_schema()}
    _complete(schema)
    if part:
        ways = [way for field in schema["properties"].values() for way in (field, *field.get("anyOf", ()))]
        sections = [schema["$defs"][way["$ref"].rpartition("/")[2]] for way in ways if "$ref" in way]
        for section in [schema, *(section for section in sections if "properties" in section)]:
            _loosen(section)
    return schema


def _loosen(section: dict[str, Any]) -> None:
    for key in ("required", "oneOf"):
        section.pop(key, None)
    ways = [(key, way) for key, value in section["properties"].items() for way in (value, *value.get("anyOf", ()))]
    for key, value in section["properties"].items():  # editors show the words that stand at the key itself
        section["properties"][key] = {"description": value["description"], "anyOf": [value, {"type": "null"}]}
    section["properties"] |= {f"+{key}": way for key, way in ways if way.get("type") == "array"}


def example(words: str) -> str:
    """Return the YAML of the value that a sentence names, as in "numbers such as [2, 3]"; empty if it names none."""
    named = re.search(r"such as (\{.*?\}(?!\})|\[.*?\]|[^ ;)]*[^ ;:,)])", words)
    return named[1] if named else ""


def _complete(node: Any) -> None:
    """Refuse keys that match no pattern, which pydantic does not; add the examples that the words name."""
    for below in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _complete(below)
    if isinstance(node, dict):
        if "patternProperties" in node:
            node["additionalProperties"] = False
        if named := example(f"{node.get('description')} {node.get('patternErrorMessage')}"):
            node["examples"] = [yaml.safe_load(named)]
            for way in node.get("anyOf", ()):  # what the key says is nearer than what its type says
                way.pop("examples", None)
