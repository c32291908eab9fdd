"""Base class of a job spec's mappings, and the type of its values: how one is read, and what is expected, in words."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

QUOTES = "put it in quotes"  # the hint for what YAML does not read as text


class Section(BaseModel):
    """A mapping of the spec: exactly the keys below, each of exactly its type."""

    # The validator is built at the first use: once for the whole job, not again for each section.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


def optional(description: str, default: Any = None, **limits: Any) -> Any:
    """Make a key that may be left out: what it does, in words, and the value that it then has."""
    return Field(default, description=description, **limits)


@dataclass(frozen=True)
class Value:
    """A field's type for pydantic.

    expected: what is accepted, in words that follow "must be".
    read: makes the value from what the YAML holds.  Raises ValueError with a hint (or none) if it is not accepted.
    schema: the JSON Schema of what the YAML holds.
    """

    expected: str
    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def validate(value: Any) -> Any:
            try:
                return self.read(value)
            except ValueError as error:
                context = {"expected": self.expected, "hint": str(error)}
                raise PydanticCustomError("unexpected", "must be {expected}", context) from None

        return core_schema.no_info_plain_validator_function(validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        shown: dict[str, Any] = _with_message(self.schema, f"must be {self.expected}")
        return shown


def _with_message(schema: Any, message: str) -> Any:
    """Add what editors show beside each pattern."""
    if not isinstance(schema, Mapping):
        return [_with_message(each, message) for each in schema] if isinstance(schema, list) else schema
    said = {"patternErrorMessage": message} if isinstance(schema.get("pattern"), str) else {}
    return {key: _with_message(each, message) for key, each in schema.items()} | said


def fitting(schema: Mapping[str, Any], expected: str) -> Value:
    """Make a type for values that fit a JSON Schema with the words below."""

    def read(value: Any) -> Any:
        if _fits(value, schema):
            return value
        # `- echo a: b` is a mapping, and 012 a number.
        text = "a: b" if isinstance(value, dict) else str(value)
        unquoted = isinstance(value, dict | bool | int | float) and _fits(text, schema)
        raise ValueError(QUOTES if unquoted and schema.get("type") == "string" else "")

    return Value(expected, read, schema)


def matching(pattern: str, expected: str) -> Value:
    """Make a type for text that matches a regular expression as a whole; JSON Schema must know the dialect too."""
    return fitting({"type": "string", "pattern": f"^(?:{pattern})$"}, expected)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_fits(value, one) for one in schema["anyOf"])
    if "const" in schema:
        return type(value) is type(schema["const"]) and value == schema["const"]
    kinds = {str: ("string",), bool: ("boolean",), int: ("integer", "number"), float: ("number",)}.get(type(value), ())
    if not any(kind in schema["type"] for kind in kinds):  # a word or a list of words
        return False
    if "pattern" in schema:
        return re.fullmatch(schema["pattern"], value) is not None
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
