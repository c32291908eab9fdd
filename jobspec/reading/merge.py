"""Merge several spec files into one: one file says what runs, another where it runs.

Mappings are merged key by key.  Any other value replaces the earlier one, and an empty value (`key:` or `key: null`)
removes the key.  A list under `+key` is appended to the list that is there, and no later file replaces the
result: then the files are in the wrong order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobspec.problems import Path, Place, Problem, SpecError
from jobspec.reading import yaml_source
from jobspec.reading.notation import dotted, hidden, is_secret, shown
from jobspec.reading.yaml_source import Source


def read_all(files: Sequence[str], notes: list[str] | None = None) -> Source:
    """Return the spec in some files, merged from left to right; "-" is stdin.  What looks odd is added to `notes`."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for file in files:
        try:
            name = yaml_source.STDIN if file == "-" else file
            sources.append(yaml_source.parse(yaml_source.read(name), name, may_be_empty=len(files) > 1))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    named = [source for source in sources if source.values.get("name") is not None]
    if notes is not None and len({shown(source.values["name"]) for source in named}) > 1:
        places = [(source.values["name"], source.items["name",]) for source in named]
        listed = ", ".join(f"{shown(name)} in {place.name}:{place.line}" for name, place in places)
        notes.append(f"these files become one job, but give different names; the last name counts: {listed}")
    return merge(sources)


def merge(sources: Sequence[Source]) -> Source:
    """Return one source with the values of all; each key and value keeps its place."""
    first, *others = sources
    if not others and not any(_appends(path[-1]) for path in first.keys):
        return first
    secrets = frozenset[str]().union(*(source.secrets for source in sources))
    merged = _Merged({}, {}, {(): first.items[()]}, earlier=secrets)
    for source in sources:
        merged.add(source, source.values, merged.values, ())
    if merged.problems:
        raise SpecError(merged.problems)
    # Without the places of what was replaced or removed.
    there = set(_paths(merged.values))
    keys, items = ({at: of[at] for at in of if at in there} for of in (merged.keys, merged.items))
    return Source(merged.values, keys, items, earlier=secrets)


@dataclass(frozen=True)
class _Merged(Source):
    """The values and places of the sources so far, and what is wrong with them."""

    appended: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, source: Source, new: dict[str, Any], there: dict[str, Any], at: Path) -> None:
        """Merge the mapping `new` of the source into `there`; both are at the same path."""
        for written, value in new.items():
            read_at = (*at, written)
            if _appends(written):
                self._append(source, read_at, value, new, there)
                continue
            old = there.get(written)
            if value is None and old is not None:
                del there[written]
                self.appended.pop(read_at, None)
            elif read_at in self.appended:
                place, this = self.appended[read_at], source.keys[read_at].name
                message = f"{dotted(read_at)} would drop what +{written} in {place.name}:{place.line} adds"
                hint = f"name {this} before {place.name}; or write +{written} here, too"
                self._refuse(source, read_at, message, hint)
            elif old is not None and isinstance(old, dict) != isinstance(value, dict):
                message = f"{dotted(read_at)} is {self._shown(read_at, value)} here, but {self._said(read_at, old)}"
                self._refuse(source, read_at, message, "write a mapping in both files or in neither")
            elif isinstance(value, dict):
                if old is None:
                    there[written] = {}
                    self.keys[read_at], self.items[read_at] = source.keys[read_at], source.items[read_at]
                self.add(source, value, there[written], read_at)
            else:
                there[written] = value
                self._take_places(source, read_at, read_at, value)

    def _append(self, source: Source, read_at: Path, value: Any, new: dict[str, Any], there: dict[str, Any]) -> None:
        *above, written = read_at
        key = str(written)[1:]
        path = (*above, key)
        old = there.get(key)
        if key in new:
            hint = f"write all elements in one list under {key}"
            self._refuse(source, read_at, f'one file has both "{key}" and "+{key}"', hint)
        elif not isinstance(value, list) or not isinstance(old or [], list):
            other = f"is {shown(value, read_at)}" if not isinstance(value, list) else f"{key} {self._said(path, old)}"
            message = f"{dotted(read_at)} appends to a list, but {other}"
            self._refuse(source, read_at, message, f"write {key}: without the + to replace the value")
        else:
            if old is None:
                self.keys[path], self.items[path] = source.keys[read_at], source.items[read_at]
            for number, element in enumerate(value):
                self._take_places(source, (*read_at, number), (*path, len(old or []) + number), element)
            there[key] = [*(old or []), *value]
            self.appended[path] = source.keys[read_at]

    def _shown(self, path: Path, value: Any) -> str:
        return shown(value, path, self.earlier)

    def _said(self, path: Path, old: Any) -> str:
        place = self.items[path]
        return f"is {self._shown(path, old)} in {place.name}:{place.line}:{place.column}"

    def _refuse(self, source: Source, read_at: Path, message: str, hint: str) -> None:
        problem = Problem(source.keys[read_at], message, hint)
        self.problems.append(hidden(problem) if is_secret(read_at, self.earlier) else problem)

    def _take_places(self, source: Source, read_at: Path, path: Path, value: Any) -> None:
        """Record where a value of the source and everything in it were written."""
        for below in _paths(value):
            for places, new in ((self.keys, source.keys), (self.items, source.items)):
                if read_at + below in new:
                    places[path + below] = new[read_at + below]


def _appends(key: str | int) -> bool:
    return isinstance(key, str) and len(key) > 1 and key.startswith("+")


def _paths(value: Any) -> Iterator[Path]:
    """Yield the path of a value, which is empty, and the paths of everything in it."""
    yield ()
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in inside:
        yield from ((key, *below) for below in _paths(element))
