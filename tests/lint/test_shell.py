"""The reader of shell scripts goes past every quote, expansion and bracket, and follows variables and functions."""

from pathlib import Path

import pytest

from jobspec.artifact import render
from jobspec.problems import report
from lint import lint
from lint.launches import launches
from lint.shell import Script, locator

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n"
FAULTY = "srun python train.py --rank $SLURM_NODEID\nexport HF_TOKEN=hush\n"


def rules(folder: Path, text: str) -> list[str]:
    file = folder / "job.sh"
    file.write_text(text)
    return [found.rule for found in lint([str(file)]) if not found.rule.startswith("SC")]


@pytest.mark.parametrize(
    "line",
    [
        """export MASTER_ADDR=${MASTER_ADDR:-$(getent hosts "$HOSTNAME" | awk '{print $1}')}""",
        """name="${A:-${B:-$(echo "}")}}"; other="${A:-"b c"}"; third="${A:-its}" """,
        r"""a=${A%%\\}*}; b=${B//\\'/}; d=${D#"}"}; e=${E:-`echo '}'`}""".replace("\\\\", "\\"),
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
        "echo \u00fc\u4e2d '\U0001f600' \u00df",
    ],
)
def test_lines_below_are_linted(tmp_path: Path, line: str) -> None:
    assert rules(tmp_path, f"{HEAD}{line}\n{FAULTY}") == ["expanded-by-the-batch-shell", "secret-in-file"]


@pytest.mark.parametrize(
    ("text", "kind", "options"),
    [
        (
            "srun torchrun --nnodes=2 --nproc_per_node 8 a.py --nnodes=9",
            "torchrun",
            {"nnodes": "2", "nproc-per-node": "8"},
        ),
        ("srun -N2 -- torchrun --nnodes=2 -- a.py --nnodes=9", "torchrun", {"nnodes": "2"}),
        ("A='--nnodes 2'\nsrun python -m torch.distributed.run $A a.py", "torchrun", {"nnodes": "2"}),
        ('A=(--nnodes=2)\nA+=(--rdzv-id=a)\nexec torchrun "${A[@]}" a.py', "torchrun", {"nnodes": "2", "rdzv-id": "a"}),
        ('N=2\nL="torchrun --nnodes $N"\nC="$L a.py"\nsrun bash -c "$C"', "torchrun", {"nnodes": "2"}),
        ('F=--nnodes N=2\nL="torchrun $F $N a.py"\nsrun $L', "torchrun", {"nnodes": "2"}),
        ("export N=2\nsrun sh -lc 'cd x && torchrun --nnodes $N a.py'", "torchrun", {"nnodes": "2"}),
        ("srun -N2 apptainer exec --nv a.sif torchrun --nnodes=2 a.py", "torchrun", {"nnodes": "2"}),
        ("timeout -k 60 23h nohup env X=1 torchrun --standalone a.py", "torchrun", {"standalone": ""}),
        ("if a; then N=1; else N=2; fi\ntorchrun --nnodes=$N a.py", "torchrun", {"nnodes": "$N"}),
        (
            "accelerate launch --multi_gpu --num_machines 2 --machine_rank=1 a.py",
            "accelerate",
            {"multi-gpu": "", "nnodes": "2", "node-rank": "1"},
        ),
        ("srun -lK -c8 --mpi pmix deepspeed --num_gpus=8 a.py", "deepspeed", {"nproc-per-node": "8"}),
    ],
)
def test_launcher_and_its_options_are_found(text: str, kind: str, options: dict[str, str]) -> None:
    script = Script(text, locator(text, "job.sh"))
    (found,) = [launch for launch in launches(script) if launch.kind == kind]
    assert {name: script.shown(option.value) for name, option in found.options.items()} == options
    assert found.text.value in text


def test_what_another_reader_needs_has_its_line() -> None:
    text = "#!/bin/bash\n#SBATCH -N 2 --time=1:00:00\nmodule load cuda\nexport A=1 B\nC='x y'\nsrun python a.py $C\n"
    script = Script(text, locator(text, "job.sh"))
    assert [(each.name, each.value, each.place.line) for each in script.directives] == [
        ("nodes", "2", 2),
        ("time", "1:00:00", 2),
    ]
    words = [word for command in script.commands for word in command.words]
    assert [(word.assigned, word.value) for word in words if word.assigned] == [("A", "1"), ("C", "x y")]
    fields = [field.value for word in words if not word.assigned for field in script.fields(word)]
    assert " ".join(fields) == "module load cuda export B srun python a.py x y"
    assert [script.place(command.words[0].text).line for command in script.commands] == [3, 4, 5, 6]
    assert (set(script.assigned), script.exported) == ({"A", "C"}, {"A", "B"})


def test_function_may_run_in_another_shell(tmp_path: Path) -> None:
    function = "launch() {\n  export RANK=$SLURM_NODEID\n  python train.py\n}\nexport -f launch\n"
    assert rules(tmp_path, f"{HEAD}{function}srun bash -c launch\n") == []


def test_quote_in_a_variable_of_the_job_does_not_derail_our_own_script(tmp_path: Path) -> None:
    spec, script = tmp_path / "it's.yaml", tmp_path / "job.sh"
    spec.write_text(
        "name: a\nnodes: 2\nprocs_per_node: 2\nimage: x/y:1\ncommand: [t.py]\n"
        'slurm: {runtime: docker}\nmounts: [{scratch: 1GiB, path: /x}]\nenv: {Q: "it\'s"}\n'
    )
    script.write_text(render("slurm", str(spec)))
    assert report(lint([str(script)]), "") == "0 problems"


def test_gpus_are_idle_only_if_nothing_else_runs(tmp_path: Path) -> None:
    one = "export CUDA_VISIBLE_DEVICES=0\naccelerate launch --num_processes 1 a.py\n"
    assert rules(tmp_path, f"#!/bin/bash\n#SBATCH --gpus=2\nnvidia-smi dmon &\n{one}") == ["gpus-stay-idle"]
    assert rules(tmp_path, f"#!/bin/bash\n#SBATCH --gpus=2\npython serve.py &\n{one}") == []


@pytest.mark.parametrize(
    ("port", "found"),
    [
        ("60000 + SLURM_JOB_ID % 10000", ["port-cannot-be"]),
        ("(10#${SLURM_JOB_ID} % 10000) + 60000", ["port-cannot-be"]),
        ("55536 + SLURM_JOB_ID % 10000", []),  # at most 65535
        ("RANDOM % 10000 + 55536", []),
    ],
)
def test_port_from_a_remainder_is_refused_if_it_can_be_too_large(tmp_path: Path, port: str, found: list[str]) -> None:
    assert rules(tmp_path, f"#!/bin/bash\nexport MASTER_PORT=$(({port}))\npython train.py\n") == found
