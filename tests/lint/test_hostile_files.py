"""A file that is broken, huge or meant to do harm ends no lint, and takes seconds."""

import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lint import OF_SCRIPTS, lint
from lint.rules import findings
from lint.shell import Script, locator
from tests.tables import cases

ROOT = Path(__file__).parents[2]
EXAMPLES = [case for folder in ("sh", "yaml") for case in cases(Path(__file__).parent / "examples" / folder)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.sh", "#SBATCH -N 0 -n 4\nsrun torchrun --nproc-per-node=2 t.py"),
        ("a.sh", "#SBATCH -N 1-0 -n 4\nsrun torchrun --nproc-per-node=2 t.py"),
        ("a.sh", "#SBATCH --nodes=0-0 -n 4\nsrun -N 0 torchrun --nproc-per-node=2 t.py"),
        ("a.sh", "#SBATCH -N 2 --ntasks-per-node=²\nsrun -n ² torchrun --nproc-per-node=² --nnodes=² t.py"),
        ("a.sh", f"#SBATCH -N {'9' * 5000}\nsrun -n {'9' * 5000} torchrun --nproc-per-node=2 t.py"),
        ("a.sh", "$(" * 5000),
        ("a.sh", "${a:-" * 5000),
        ("a.sh", "a=(" * 5000),
        ("a.yaml", "kind: Job\x85\u2028\u2029\r\nspec: {template: {spec: {containers: [{env: [{value: 1}]}]}}}"),
        (
            "a.yaml",
            "kind: PyTorchJob\nspec: {nprocPerNode: ², runPolicy: {schedulingPolicy: {minAvailable: ²}}, "
            "pytorchReplicaSpecs: {Master: {replicas: ², template: {spec: {containers: "
            "[{resources: {limits: {nvidia.com/gpu: ²}}}]}}}}}",
        ),
    ],
)
def test_hostile_file_does_not_end_the_lint_of_its_folder(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(f"#!/bin/bash\n{content}\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\nexport WANDB_API_KEY=hush\n")
    assert str(tmp_path / "job.sh") in [problem.place.name for problem in lint([str(tmp_path)])]


@given(st.data())
def test_any_change_of_an_example_is_linted_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    example = data.draw(st.sampled_from(EXAMPLES))
    text = example.cells["faulty"]
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 40))
    new = data.draw(
        st.text(max_size=5) | st.sampled_from(["'", '"', "$(", "`", "<<E\n", "${", "((", "[", "&a *a", "\\"])
    )
    file = tmp_path_factory.getbasetemp() / f"changed.{example.table.parent.name}"
    file.write_text(text[:at] + new + text[at + length :], encoding="utf-8", newline="")
    for problem in lint([str(file)]):
        assert problem.place.line >= 1
        assert problem.place.column >= 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.sh", "$(\n" * 50 + ")\n" * 50),
        ("a.sh", "if true; then\n" * 50 + "srun torchrun a.py\n" + "fi\n" * 50),
        ("a.sh", "echo 'step of the job' >> $LOG\n" * 20_000),
        ("a.sh", "true && " * 5000 + "true\n"),
        ("a.sh", "true # lint: ignore=not-exported\n" * 3000),
        ("a.sh", "a='" + "x" * 1_000_000 + "\n"),
        ("a.sh", "A0=x\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(40)) + "srun torchrun $A40 a.py\n"),
        ("a.yaml", "kind: Pod\nspec:\n  containers:\n" + "    - {name: a, command: [torchrun, a.py]}\n" * 1000),
    ],
    ids=["nested", "ifs", "long", "list", "ignores", "unclosed", "doubling variables", "pods"],
)
def test_nested_and_long_files_take_seconds(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(f"#!/bin/bash\n#SBATCH -N2\n{content}" if name == "a.sh" else content)
    begin = time.process_time()
    lint([str(tmp_path / name)])
    assert time.process_time() - begin < 4


def test_random_texts_give_no_traceback() -> None:
    random = Random(27)
    words = [
        word for case in EXAMPLES for word in re.split(r"(\s+|[\"'$(){}|&;<>`\\\\])", case.cells["faulty"]) if word
    ]
    for _ in range(2_000):
        text = "#SBATCH -N2\n" + "".join(random.choices(words, k=random.randint(1, 30)))
        script = Script(text, locator(text, "a.sh"))
        list(findings(script, *OF_SCRIPTS[1:]))  # without `bash -n`


def test_characters_beyond_the_tables_of_the_parser_do_not_end_the_process(tmp_path: Path) -> None:
    text = "".join(
        f"echo {{{chr(char)} a{{{chr(char)}}}\n" for char in range(0x100, 0x110000, 0x1000) if char >> 11 != 27
    )
    (tmp_path / "a.sh").write_text(f"#!/bin/bash\n{text}export HF_TOKEN=hush\n")
    words = [sys.executable, str(ROOT / "render.py"), "lint", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("secret-in-file")) == (1, 1), done.stderr
