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
