"""Several files become one spec: the values of plain merging, each with its own place."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspec.problems import SpecError
from jobspec.reading.merge import merge, read_all
from jobspec.reading.override import override
from jobspec.reading.yaml_source import Source, parse

JOB = """\
name: job
nodes: 2
mounts:
  - {source: /data, path: /data}
slurm:
  options: {nice: 100}
preemption: {grace: 60s}
"""
SITE = """\
slurm:
  partition: gpu
  options:
    nice: 200
+mounts:
  - {source: /scratch, path: /scratch}
+secrets: [TOKEN]
preemption:
"""


@pytest.fixture
def merged() -> Source:
    return merge([parse(JOB, "job.yaml"), parse(SITE, "site.yaml")])


@pytest.mark.parametrize(
    ("path", "name", "line", "written"),
    [
        (("nodes",), "job.yaml", 2, "2"),
        (("mounts", 0, "path"), "job.yaml", 4, "/data"),
        (("mounts", 1, "path"), "site.yaml", 6, "/scratch"),
        (("slurm", "partition"), "site.yaml", 2, "gpu"),
        (("slurm", "options", "nice"), "site.yaml", 4, "200"),
        (("secrets", 0), "site.yaml", 7, "TOKEN"),
    ],
)
def test_each_value_keeps_its_place(
    merged: Source, path: tuple[str | int, ...], name: str, line: int, written: str
) -> None:
    place = merged.items[path]
    assert (place.name, place.line, place.written) == (name, line, written)


@pytest.mark.parametrize(
    ("nothing", "path"),
    [("preemption:", ("preemption",)), ("mounts: null", ("mounts",)), ("slurm: {options: ~}", ("slurm", "options"))],
)
def test_nothing_takes_a_key_away_with_all_its_places_in_a_file_and_in_an_option(
    nothing: str, path: tuple[str, ...]
) -> None:
    job, site = parse(JOB, "job.yaml"), parse(nothing, "site.yaml")
    wanted = parse(JOB, "job.yaml").values
    del (wanted["slurm"] if len(path) > 1 else wanted)[path[-1]]
    for merged in (merge([job, site]), override(job, [".".join(path) + "="])):
        assert merged.values == wanted
        assert not [below for below in merged.keys.keys() | merged.items.keys() if below[: len(path)] == path]
        again = override(merged, [f"{'.'.join(path)}=7"])
        assert again.keys[path].option == 1


def test_nothing_where_nothing_was_stays() -> None:  # so that env.A= does not pass for an empty text
    assert override(parse("a:", "job.yaml"), ["a=", "b="]).values == {"a": None, "b": None}


def test_file_of_comments_is_empty_only_beside_others(tmp_path: Path) -> None:
    job, site = tmp_path / "job.yaml", tmp_path / "site.yaml"
    job.write_text("name: job")
    for text in ("# nothing yet\n", ""):
        site.write_text(text)
        assert read_all([str(job), str(site)]).values == read_all([str(site), str(job)]).values == {"name": "job"}
        with pytest.raises(SpecError, match="a job spec must be a mapping"):
            read_all([str(site)])
    site.write_text("null")
    with pytest.raises(SpecError, match="a job spec must be a mapping"):
        read_all([str(job), str(site)])


@pytest.mark.parametrize("key", ["mounts", "setup", "secrets"])
def test_site_before_job_is_refused_where_the_job_would_drop_what_the_site_adds(key: str) -> None:
    site, job = parse(f"\n+{key}: [A]", "site.yaml"), parse(f"{key}: [B]", "job.yaml")
    assert merge([job, site]).values == {key: ["B", "A"]}
    assert merge([site, parse(f"{key}:", "none.yaml"), job]).values == {key: ["B"]}
    with pytest.raises(SpecError) as refusal:
        merge([site, job])
    (problem,) = refusal.value.problems
    assert (problem.place.name, problem.place.written) == ("job.yaml", key)
    assert problem.message == f"{key} would drop what +{key} in site.yaml:2 adds"
    assert problem.hint == f"name job.yaml before site.yaml; or write +{key} here, too"


def test_list_to_append_is_the_list_itself_in_one_file_too() -> None:
    assert merge([parse("slurm: {+list: [a]}", "job.yaml")]).values == {"slurm": {"list": ["a"]}}


def test_sources_stay_as_they_were() -> None:
    job, site = parse(JOB, "job.yaml"), parse(SITE, "site.yaml")
    override(merge([job, site, site]), ["slurm.options.nice=1", "mounts.0.path=/x"])
    assert (job.values, site.values) == (parse(JOB, "").values, parse(SITE, "").values)


# Few keys and values, so that two mappings often meet in one; none begins with "+".
mappings = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)),
    lambda inside: st.dictionaries(st.sampled_from("abc"), inside | st.integers(0, 3), max_size=3),
    max_leaves=8,
)


def source_of(values: dict[str, Any], name: str) -> Source:
    return parse(json.dumps(values, indent=1), name)


def plain_merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What merging means, without places; KeyError where a mapping meets something else."""
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = plain_merge(old, value)
        elif value is None and old is not None:
            del merged[key]
        elif None not in (old, value) and isinstance(old, dict) != isinstance(value, dict):
            raise KeyError(key)
        else:
            merged[key] = value
    return merged


@given(mappings, mappings)
def test_values_are_those_of_plain_merging_and_their_places_hold_them(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    sources = [source_of(first, "first"), source_of(second, "second")]
    try:
        wanted = plain_merge(first, second)
    except KeyError:
        with pytest.raises(SpecError, match="first:"):
            merge(sources)
        return
    merged = merge(sources)
    assert merged.values == wanted
    for path, place in merged.items.items():
        value: Any = merged.values
        for part in path:
            value = value[part]
        if isinstance(value, int):
            assert json.loads(place.written) == value
    assert merged.items.keys() == source_of(wanted, "").items.keys()
    assert merged.keys.keys() == source_of(wanted, "").keys.keys()
