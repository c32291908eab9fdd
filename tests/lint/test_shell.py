"""A function that runs in another shell is known in each of its notations."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint import lint

BODY = "export NODE_RANK=$SLURM_NODEID"


def lines(folder: Path, text: str) -> list[int]:
    file = folder / "job.sh"
    file.write_text(f"#!/bin/bash\n#SBATCH --nodes=2\n{text}")
    return [problem.place.line for problem in lint([str(file)])]


@pytest.mark.parametrize(
    "function",
    [
        f"launch() {{\n  {BODY}\n}}\n",
        f"launch ( )\n{{\n  {BODY}\n}}\n",
        f"launch()  # in a task\n{{\n  {BODY}\n}}\n",
        f"launch()\n{'#' * 80}\n# starts it\n{'#' * 80}\n{{\n  {BODY}\n}}\n",
        f"function launch {{\n  {BODY}\n}}\n",
        f"function launch() {{\n  {BODY}\n}}\n",
        f"function launch\n{{\n  if true; then {{ :; }}\n  fi\n  {BODY}\n}}\n",
        f"launch() {{ {BODY}; }}\n",
        f"if true; then\n  launch() {{\n    {{\n      true\n    }}\n    {BODY}\n  }}\nfi\n",
    ],
)
@pytest.mark.parametrize("handed_over", ["export -f launch", "export -f other launch", "typeset -f launch"])
def test_function_of_another_shell_is_expanded_there(tmp_path: Path, function: str, handed_over: str) -> None:
    start = f"{handed_over}\nsrun --kill-on-bad-exit=1 bash -c launch\n"
    assert lines(tmp_path, function + start) == []
    # What stands below the function is the batch shell's, up to the end of another function.
    assert len(lines(tmp_path, f"{function}{BODY}\nother() {{\n  {BODY}\n}}\n{start}")) == 2 - ("other" in handed_over)


def test_function_of_the_batch_shell_is_expanded_there(tmp_path: Path) -> None:
    assert lines(tmp_path, f"function launch {{\n  {BODY}\n}}\nlaunch\n") == [4]


def test_a_banner_of_signs_below_a_function_without_an_end_takes_no_time(tmp_path: Path) -> None:
    assert lines(tmp_path, f"python - <<E\ndef main()\n{'#' * 200}\nE\nusage()\n{'#' * 200}\n{{\n  true\n  }}\n") == []


def test_an_indented_function_that_is_the_first_command_is_read(tmp_path: Path) -> None:
    run = "  run() {\n    torchrun --nnodes=2 --nproc-per-node=8 train.py\n  }\n"
    assert lines(tmp_path, f"{run}  export -f run\n  srun --kill-on-bad-exit=1 bash -c run\n") == []
