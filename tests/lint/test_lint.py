"""Each lint rule finds its fault, with the message in its table, and leaves the right way of writing it alone.

`examples/SUFFIX/*.yaml` have one case a rule: `faulty` is a file; with `fixes` (old: new) it is clean, as are
`also_clean` and `clean`.  `pytest --update` writes the messages anew.
"""

import io
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jobspec.problems import report
from lint import entries, exit_code, lint
from lint.formats import shown
from tests.tables import Case, cases, in_short

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLES = [case for folder in ("sh", "yaml") for case in cases(HERE / "examples" / folder)]
OURS = [file for folder in ("tests/goldens", "slurm", "k8s", "docker") for file in sorted((ROOT / folder).rglob("*"))]

each_rule = pytest.mark.parametrize("case", EXAMPLES, ids=str)


def written(case: Case, text: str, folder: Path) -> str:
    """The path of a file of the case's kind that holds the text."""
    file = folder / f"example.{case.table.parent.name}"
    file.write_text(text)
    return str(file)


@each_rule
def test_clean_example_has_no_fault(case: Case, tmp_path: Path) -> None:
    clean = case.cells.get("clean") or case.cells["faulty"]
    for old, new in case.cells.get("fixes", {}).items():
        assert old in clean
        clean = clean.replace(old, new)
    assert clean != case.cells["faulty"]
    file = written(case, clean + case.cells.get("also_clean", ""), tmp_path)
    assert report(lint([file]), "") == "0 problems"


@each_rule
def test_faulty_example_has_that_fault_and_no_other(
    case: Case, golden_cell: Callable[[Case, str, str], None], tmp_path: Path
) -> None:
    problems = lint([written(case, case.cells["faulty"], tmp_path)])
    assert problems
    for problem in problems:
        assert problem.message.endswith(f" [{case.name}]")
        assert problem.link.startswith("https://")
        assert problem.hint
        assert problem.place.written.strip()
    golden_cell(case, "message", in_short(problems, case.cells["faulty"]))


def test_no_other_finding_shows_the_line_of_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nexport MASTER_PORT=29500 WANDB_API_KEY='hush1' RANK=$SLURM_PROCID\n"
        "srun --export=ALL,HF_TOKEN=hush2 torchrun --node-rank=$SLURM_NODEID --nnodes=2 x.py --api-key hush3\n"
    )
    text = report(lint([str(file)]))
    assert text.count("[secret-") == 3
    assert "[expanded-by-the-batch-shell]" in text
    assert "hush" not in text


SLURM_FAULTS = "hostname -i; export WANDB_API_KEY=hush; srun A=1 python t.py"


@pytest.mark.parametrize(
    "content",
    [
        "kind: Job\nspec: {template: {spec: {containers: [{name: a, command: [sh, -c, '%s']}]}}}\n",
        "kind: JobSet\nspec: {replicatedJobs: [{template: {spec: {template: {spec: {containers: "
        "[{name: a, command: [sh, -c, '%s']}]}}}}}]}\n",
        "services: {a: {command: [sh, -c, '%s'], image: x}}\n",
    ],
    ids=["Job", "JobSet", "compose"],
)
def test_what_a_container_starts_is_linted(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(content % SLURM_FAULTS)
    text = report(lint([str(file)]))
    assert {"[srun-reads-it-otherwise]", "[address-is-not-certain]", "[secret-in-file]"} <= set(text.split())


def test_every_rule_has_an_example() -> None:
    assert {case.name for case in EXAMPLES} | {"srun-without-cpus", "ignores-no-rule"} == set(entries())
    assert len(entries()) <= 35


@pytest.mark.parametrize("file", [file for file in OURS if file.suffix in (".sh", ".yaml")], ids=lambda file: file.name)
def test_what_we_render_is_clean(file: Path) -> None:
    assert report(lint([str(file)]), "") == "0 problems"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", b"a: [", "not YAML: "),
        ("a.yaml", b"{{- if .Values.a }}\na: 1\n{{- end }}", "not YAML: "),
        ("a.yaml", b"a: 1", "neither a Kubernetes manifest nor a compose file"),
        ("a.yaml", b"", "neither a Kubernetes manifest nor a compose file"),
        ("a.yaml", b"[" * 5000, "not YAML"),
        ("a.sh", b"\xff\xfe", "not UTF-8 text"),
        ("a.sh", b"\0", "lint does not know this kind of file"),
        ("a.sbatch", b"#!/usr/bin/env python3\nprint()\n", "its first line starts python3, and lint reads bash and sh"),
        ("README.md", b"# Run it\n", "lint does not know this kind of file"),
        ("train", b"", "lint does not know this kind of file"),
        (
            "a.yaml",
            b"apiVersion: v1\nkind: MPIJob\nspec: {a: [{containers: [{name: a}]}]}",
            "lint does not know where the pods",
        ),
    ],
)
def test_file_that_cannot_be_read_as_one_is_a_problem(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert [problem.message.startswith(message) for problem in lint([str(file)])] == [True]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("job", "#!/bin/bash\nexport HF_TOKEN=hush\n"),
        ("job.cmd", "#SBATCH --time=1\n"),
        (
            "stdin",
            "apiVersion: v1\nkind: List\n"
            "items: [{kind: Pod, spec: {containers: [{name: a, env: [{name: A, value: 1}]}]}}]\n",
        ),
        (
            "job.json",
            '{"kind": "Job", "spec": {"template": {"spec": {"restartPolicy": "Never",'
            '"containers": [{"env": [{"value": 1}]}]}}}}',
        ),
    ],
)
def test_file_is_known_by_its_first_line_its_name_or_what_it_holds(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    (problem,) = lint([str(file)])
    assert problem.link
    assert problem.severity == "error"


FAULT = "#!/bin/bash\nexport WANDB_API_KEY=hush\n"


def test_folder_is_linted_sorted_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b/c.slurm", "a.sbatch", "d.job", "e.bash", "z.sh", "b/.hidden/d.sh", ".e.sh", "f.py", "g.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(FAULT)
    pod = "{containers: [{name: a, env: [{name: HF_TOKEN, value: hush}]}]}"
    (tmp_path / "k.yml").write_text(f"kind: Pod\nspec: {pod}\n")
    found = list(dict.fromkeys(problem.place.name for problem in lint([str(tmp_path)])))
    assert found == [str(tmp_path / name) for name in ("a.sbatch", "b/c.slurm", "d.job", "e.bash", "k.yml", "z.sh")]


def test_links_to_nowhere_and_pipes_of_a_folder_are_passed_over(tmp_path: Path) -> None:
    fault = tmp_path / "job.sh"
    fault.write_text(FAULT)
    (tmp_path / "a.sh").symlink_to("gone.sh")
    (tmp_path / "loop.sh").symlink_to("loop.sh")
    os.mkfifo(tmp_path / "b.sh")
    assert [problem.place.name for problem in lint([str(tmp_path)])] == [str(fault)]


def test_each_file_is_linted_once_and_one_that_lint_does_not_know_is_skipped_only_in_a_folder(tmp_path: Path) -> None:
    fault, unknown = tmp_path / "a" / "job.sh", tmp_path / "a" / "mkdocs.yml"
    fault.parent.mkdir()
    fault.write_text(FAULT)
    unknown.write_text("site_name: x\n")
    (tmp_path / "link.sh").symlink_to(fault)
    paths = [str(tmp_path), str(fault.parent), str(fault), f"{fault.parent}/../a/job.sh", str(unknown)]
    skipped: list[str] = []
    found = [problem.place.name for problem in lint(paths, skipped)]
    assert (found, skipped) == ([str(fault), str(unknown)], [])
    assert len(lint([str(tmp_path)], skipped)) == 1
    assert skipped == [str(unknown)]


def test_folder_without_anything_to_lint_is_a_problem(tmp_path: Path) -> None:
    (problem,) = lint([str(tmp_path)])
    assert (
        problem.message == "no file in this folder ends in .sh or .bash or .sbatch or .slurm or .job or .yaml or .yml"
    )


def test_alias_that_leads_back_up_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: MPIJob\nspec: &a {b: [*a], c: *a}\n")
    assert lint([str(file)]) == []


def test_a_job_spec_is_refused_with_the_command_that_checks_it() -> None:
    (problem,) = lint([str(ROOT / "jobs" / "quickstart.yaml")])
    assert problem.hint.startswith("check a job spec with `render.py TARGET ")


FAULTS = "#!/bin/bash\nexport A=1\nexport HF_TOKEN=hush\nsrun T=$HF_TOKEN a\n"


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("hush", "hush # lint: ignore=secret-in-file", {"srun-reads-it-otherwise"}),
        ("A=1", "A=1 # lint: ignore=secret-in-file", {"secret-in-file", "srun-reads-it-otherwise"}),
        ("export A", "  # lint: ignore=secret-in-file, srun-reads-it-otherwise\nexport A", set()),
        (
            "srun T",
            "a \\\n  b \\\n  c  # lint: ignore=srun-reads-it-otherwise\nsrun \\\n  T",
            {"secret-in-file", "srun-reads-it-otherwise"},
        ),
        ("$HF_TOKEN a", "$HF_TOKEN \\\n  a  # lint: ignore=srun-reads-it-otherwise", {"secret-in-file"}),
        ("srun T", "cat <<E\n# lint: ignore=secret-in-file\nE\nsrun T", {"secret-in-file", "srun-reads-it-otherwise"}),
        ("A=1", "A=1 # lint: ignore=secret-in-fil", {"secret-in-file", "srun-reads-it-otherwise", "ignores-no-rule"}),
        ("A=1", "A=1 # lint: ignore=SC2034", {"secret-in-file", "srun-reads-it-otherwise"}),
        (" a\n", " bash -c '\n  a\n'  # lint: ignore=srun-reads-it-otherwise\n", {"secret-in-file"}),
    ],
)
def test_comment_switches_a_rule_off_on_its_line_or_in_the_file(
    tmp_path: Path, old: str, new: str, left: set[str]
) -> None:
    file = tmp_path / "a.sh"
    file.write_text(FAULTS.replace(old, new))
    assert {found.rule for found in lint([str(file)])} == left


def test_stdin_holds_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = '{"kind": "Pod", "spec": {"containers": [{"env": [{"name": "HF_TOKEN", "value": "hush"}]}]}}'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pod.encode())))
    assert {found.rule for found in lint(["-"])} >= {"secret-in-file"}


def test_unreadable_file_does_not_discard_the_others_and_patterns_are_expanded(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(FAULTS)
    (tmp_path / "b.sh").write_bytes(b"\xff")
    found = lint([str(tmp_path / "gone.sh"), str(tmp_path / "*.sh")])
    assert [(Path(each.place.name).name, each.rule) for each in found] == [
        ("gone.sh", ""),
        ("a.sh", "secret-in-file"),
        ("a.sh", "srun-reads-it-otherwise"),
        ("b.sh", ""),
    ]
    assert exit_code(found, strict=False) == 4
    assert exit_code(found[1:3], strict=False) == 1
    warning = [replace(found[1], severity="warning")]
    assert (exit_code(warning, strict=False), exit_code(warning, strict=True), exit_code([], strict=True)) == (0, 1, 0)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_error_of_shellcheck_is_shown_under_its_own_name_unless_it_takes_too_long(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\nif [ -n text ]; then\n\texit 300\nfi\n")
    found = [(each.rule, each.severity, each.place.line, each.place.column) for each in lint([str(tmp_path)])]
    assert found == [("SC2157", "warning", 2, 9), ("SC2242", "warning", 3, 7)]
    (tmp_path / "a.sh").write_text("#!/bin/bash\n" + "echo $A\n" * 20_000)
    assert (lint([str(tmp_path)]), capfd.readouterr().err) == (
        [],
        f"note: shellcheck did not end in 2 s: {tmp_path}/a.sh\n",
    )


def test_formats_hold_every_finding(tmp_path: Path) -> None:
    (tmp_path / "a,b.sh").write_text(FAULTS)
    found = lint([str(tmp_path)])
    record = json.loads(shown(found, "json", []))[0]
    assert (record["rule"], record["severity"], record["line"]) == ("secret-in-file", "error", 3)
    annotation = shown(found, "github", []).splitlines()[0]
    assert annotation.startswith("::error file=")
    assert "a%2Cb.sh,line=3,col=8,endColumn=16,title=secret-in-file::" in annotation
    assert shown(found, "text", []).count(": error: ") == 2
    sarif = json.loads(shown(found, "sarif", list(entries().values())))
    (run,) = sarif["runs"]
    assert (sarif["version"], len(run["tool"]["driver"]["rules"])) == ("2.1.0", len(entries()))
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [(each.rule, "error") for each in found]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 3, "startColumn": 8, "endColumn": 16}
    formats = ("text", "json", "github", "sarif")
    assert "hush" not in "".join(shown(found, name, list(entries().values())) for name in formats)


def test_verdicts_on_the_corpus_are_as_precise_as_the_docs_say() -> None:
    """Each row: rule, right/arguable/wrong, the places; the sums stand in docs/lint.md, and are at least as asked."""
    text = (HERE / "corpus.txt").read_text()
    assert len(re.findall(r"(?m)^[msk]\d{3} ", text)) >= 150
    assert len(re.findall(r"(?m)^t\d{2} ", text)) == 40
    sums = {"error": [0, 0, 0], "warning": [0, 0, 0]}
    for name, *counts, places in re.findall(r"(?m)^([a-z-]+) (\d+)/(\d+)/(\d+) (.*)", text):
        numbers = [int(count) for count in counts]
        signs = [[place[-1] not in "?!" for place in places.split()].count(True), places.count("?"), places.count("!")]
        assert signs == numbers, name
        sums[entries()[name].severity] = [a + b for a, b in zip(sums[entries()[name].severity], numbers, strict=True)]
    assert sums["error"][0] / sum(sums["error"]) >= 0.95
    assert sums["warning"][0] / sum(sums["warning"]) >= 0.85
    page = (ROOT / "docs" / "lint.md").read_text()
    assert all(f"{sums[each][0]} of {sum(sums[each])}" in page for each in sums), sums
