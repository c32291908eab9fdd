"""The lexer reads past every quote, expansion and bracket, so the lines below it are linted."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobspec.artifact import render
from jobspec.problems import report
from lint import lint

FAULTY = "export NODE_RANK=$SLURM_NODEID\nexport HF_TOKEN=hush MASTER_PORT=29500\n"


@pytest.mark.parametrize(
    "line",
    [
        """export MASTER_ADDR=${MASTER_ADDR:-$(getent hosts "$HOSTNAME" | awk '{print $1}')}""",
        """name="${A:-${B:-$(echo "}")}}"; other="${A:-"b c}"}"; third="${A:-it's}" """,
        r"""a=${A%%\}*}; b=${B//\'/}; c=${C#'}'}; d=${D#"}"}; e=${E:-`echo '}'`}""",
        """n=${#arr[@]}; last=${arr[$((n - 1))]}; echo "$#" $? $$ ${!name} "$@" """,
        r"""msg=$'it\'s'; end=$'\\'; both=$'\'"'""",
        """grep "^gpu$" hosts; grep "$" hosts; sed "s/'$//" hosts; echo "$'" """,
        """echo $"in the user's language" """,
        "size=$(( 1 << n ))",
        '(( size = 1 << n )); size="$((1 << n))"',
        "for (( i = 1; i << n < 64; i++ )); do echo; done",
        "port=$(( (20000 + $(id -u)) % 100 ))",
        "x=$(((1 + 2) * 3)) y=$(( $(nproc) / ${A:-$((1 << n))} ))",
        "lines=$((cd /tmp && ls) | wc -l); ((cd /tmp; ls) | wc -l)",
        """cat <<END\nit's "${A:-it's "}"}" $(( 1 << n ))\nEND""",
    ],
)
def test_lines_below_are_linted(tmp_path: Path, line: str) -> None:
    file = tmp_path / "job.sh"
    file.write_text(f"#!/bin/bash\n#SBATCH --nodes=2\n{line}\n{FAULTY}")
    rules = [problem.message.rpartition(" ")[2] for problem in lint([str(file)])]
    assert rules == ["[expanded-by-the-batch-shell]", "[secret-in-script]", "[port-is-fixed]"]


def test_expansion_inside_another_is_one_of_the_script(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text("#!/bin/bash\n#SBATCH --nodes=2\nrank=${RANK:-$SLURM_NODEID}\nhost=${A:-${B:-localhost}}\n")
    assert [(problem.place.line, problem.place.column) for problem in lint([str(file)])] == [(3, 14), (4, 11)]


def test_quote_in_a_variable_of_the_job_does_not_derail_our_own_script(tmp_path: Path) -> None:
    spec, script = tmp_path / "it's.yaml", tmp_path / "job.sh"
    spec.write_text(
        "name: a\nnodes: 2\nprocs_per_node: 2\nimage: x/y:1\ncommand: [t.py]\n"
        'slurm: {runtime: docker}\nmounts: [{scratch: 1GiB, path: /x}]\nenv: {Q: "it\'s"}\n'
    )
    script.write_text(render("slurm", str(spec)))
    assert report(lint([str(script)]), "") == "0 problems"
