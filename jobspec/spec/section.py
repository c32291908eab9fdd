"""Base class of all mappings of a job spec."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the spec: exactly the keys below, each of exactly its type."""

    # The validator is built at the first use: once for the whole job, not again for each section.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)
