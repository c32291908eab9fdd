"""README and docs/: commands work, links and paths lead somewhere, pieces of specs are accepted, and all stay short."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from docs.pictures import pictures
from jobspec import targets
from jobspec.spec.schema import json_schema
from tests.command_line import command_line

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
# `make test` is this very run, and the page runs what `make demo` does; pip would install torch.
_NOT_RUN = r"(?:make|pip) .*"
_MOST_WORDS = 15_500
# Steps 20 to 24 are profiled.
_STEPS, _STEPS_OF_A_PROFILE = 3, 26


def blocks(language: str) -> list[tuple[Path, str]]:
    """Each block of a language with its page; what is in text blocks needs a cluster or has a gap to fill in."""
    found = ((page, re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)) for page in PAGES)
    return [(page, block) for page, texts in found for block in texts]


def _parameters(language: str) -> list[Any]:
    """The blocks as parameters of a test; slow ones train."""
    return [
        pytest.param(
            block,
            id=f"{page.stem}-{number}",
            marks=pytest.mark.slow if re.search(r"-m train|\| bash$", block, re.M) else (),
        )
        for number, (page, block) in enumerate(blocks(language))
    ]


def _few_steps(line: str) -> str:
    if " -m train " not in line:
        return line
    return f"{line} --max-steps {_STEPS_OF_A_PROFILE if '--profile ' in line else _STEPS}"


@pytest.mark.parametrize("block", _parameters("sh"))
def test_commands_of_a_block_work_one_after_the_other(block: str, tmp_path: Path) -> None:
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name != "runs":
            (tmp_path / entry.name).symlink_to(entry)
    lines = [_few_steps(line) for line in block.splitlines() if not re.fullmatch(_NOT_RUN, line)]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    render_job = f'render-job() {{ {shlex.join([sys.executable, "render.py"])} "$@"; }}'
    script = "\n".join(["set -eo pipefail", render_job, *lines])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-3000:]}"


@pytest.mark.parametrize("block", _parameters("yaml"))
def test_piece_of_a_spec_is_accepted(block: str) -> None:
    piece = yaml.safe_load(block.replace("[…]", "[]").replace("…", "x"))
    found = jsonschema.Draft202012Validator(json_schema(part=True)).iter_errors(piece)
    assert not ({"apiVersion", "completionMode"} & {*piece} if isinstance(piece, dict) else True) and [*found] == []


def test_the_lines_shown_of_an_artifact_are_rendered_from_the_spec_shown(tmp_path: Path) -> None:
    spec, excerpt = (re.findall(rf"^```{name}\n(.*?)^```", README, re.M | re.S)[0] for name in ("yaml", "bash"))
    (tmp_path / "hello.yaml").write_text(spec)
    remaining = iter(command_line("slurm", str(tmp_path / "hello.yaml")).stdout.decode().splitlines())
    # `in` takes lines from the iterator, so this also checks their order.
    shown = [line for line in excerpt.splitlines() if line.strip() != "…"]
    assert [line for line in shown if line not in remaining] == []


def test_pictures_are_drawn_by_their_script_and_name_every_target_and_job() -> None:
    drawn = pictures()
    assert [name for name, text in drawn.items() if (ROOT / "docs" / name).read_text() != text] == [], "make render"
    overview, gallery = drawn["overview.svg"], drawn["gallery.svg"]
    assert [name for name in targets.names() if f">{name}<" not in overview or f"`{name}`" not in README] == []
    jobs = {file.stem for file in (ROOT / "jobs").glob("*.yaml")} - {"apptainer", "docker", "podman"}  # as pyxis
    assert [job for job in jobs if f">{job}" not in gallery] == []


def test_pictures_have_the_background_that_their_text_needs() -> None:
    pictures = [file.read_text() for file in (ROOT / "docs").glob("*.svg")]
    assert {len(re.findall(r"svg { background: #", picture)) for picture in pictures} == {2}  # light and dark


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_and_paths_exist(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / link if link else page
        assert file.exists(), link
        headings = re.findall(r"^#+ (.*)", file.read_text(), re.M) if anchor else []
        assert not anchor or anchor in map(_anchor, headings), f"{link}#{anchor}"
    paths = re.findall(
        r"`((?:jobs|sites|tests|docs|train|jobspec|templates|benchmarks|k8s)/[\w./-]*)`", page.read_text()
    )
    assert [path for path in paths if not (ROOT / path).exists() and not re.search("[A-Z]{3}", path)] == []


def test_readme_and_docs_stay_short() -> None:
    words = {page: len(page.read_text().split()) for page in PAGES if page.parent.name != "reference"}
    assert sum(words.values()) <= _MOST_WORDS, words
    assert words[ROOT / "README.md"] <= 900


def test_make_help_says_in_a_line_what_each_target_does() -> None:
    (targets,) = re.findall(r"^\.PHONY: help (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[0] for line in shown.splitlines()) == sorted(targets.split())
    assert len(targets.split()) <= 10


def test_the_readme_shows_every_command() -> None:
    commands = re.findall(r"^    ([a-z]+)\b", command_line("--help").stdout.decode(), re.MULTILINE)
    assert {"slurm", "explain", "check"} < set(commands)
    assert [name for name in commands if not re.search(rf"\b{name}\b", README)] == []
