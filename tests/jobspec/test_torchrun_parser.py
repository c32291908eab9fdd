"""torchrun's own parser and its own templates leave every program of a job as it is meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspec.plan import make_plan
from jobspec.spec.job import Job
from tests import workers
from tests.hostile import some_lines
from train.config import TrainConfig, to_argv


def parsed_by_torchrun(**keys: object) -> list[str]:
    """A job's program as torchrun starts it, less Python's own `-u` where Python runs it."""
    job = {"name": "job", "nodes": 1, "procs_per_node": 2, "device": "cpu", **keys}
    plan = make_plan(Job.model_validate(job, strict=True))
    words = workers.words(["torchrun", "--standalone", "--nproc-per-node=2", *plan.torchrun_program])
    if plan.job.no_python:
        return words
    assert words[0] == "-u"
    return words[1:]


_OPTIONS = st.text(alphabet="-almnogx= '\n$") | st.sampled_from(["--", "--log", "-h"])


@pytest.mark.parametrize("program", [["mine.py"], ["-m", "mine"], ["$local_rank/$$mine.py"], ["-m", "${local_rank}"]])
@given(arguments=st.lists(_OPTIONS | some_lines, max_size=4))
def test_torchrun_passes_on_every_argument(program: list[str], arguments: list[str]) -> None:
    assert parsed_by_torchrun(command=[*program, *arguments]) == [*program, *arguments]


@pytest.mark.parametrize("program", ["./mine.sh", "$local_rank/$$mine", "--no-python "])
@given(arguments=st.lists(_OPTIONS | some_lines, max_size=4))
def test_torchrun_starts_any_program_with_every_argument(program: str, arguments: list[str]) -> None:
    assert parsed_by_torchrun(command=[program, *arguments], no_python=True) == [program, *arguments]


def test_no_flag_of_train_is_read_by_torchrun() -> None:
    settings = {name: field.default for name, field in TrainConfig.model_fields.items()} | {
        "checkpoint_dir": "--",
        "data_root": "--log -h\n$local_rank $$ ${local_rank}$",
        "sync_batchnorm": False,
    }
    program = parsed_by_torchrun(train=settings)
    assert sorted(program) == sorted(["-m", "train", *to_argv(settings)])
