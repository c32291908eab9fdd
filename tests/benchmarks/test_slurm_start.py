"""What the benchmark of a start under Slurm makes of scripts and times.  Nothing here starts a Slurm."""

from __future__ import annotations

from pathlib import Path

from benchmarks.slurm_start import BY_HAND, compare, with_first_line


def test_the_time_is_noted_before_any_other_command_and_after_the_directives() -> None:
    lines = with_first_line(BY_HAND, Path("/runs")).splitlines()
    noted = lines.index('echo "$EPOCHREALTIME" > /runs/"$SLURM_JOB_ID.first"')
    assert [line for line in lines[:noted] if not line.startswith("#")] == []
    assert not any(line.startswith("#SBATCH") for line in lines[noted:])


def test_a_start_that_waits_is_an_outlier_and_does_not_move_the_median() -> None:
    result = compare({"ours": [1.2, 121.0, 1.0], "peer": [1.0, 1.0, 1.0]})
    assert result["outliers_s"] == [121.0]
    assert round(result["more_s"], 6) == 0.2


def test_a_slow_machine_makes_no_outlier() -> None:
    assert compare({"ours": [9.0, 9.5], "peer": [8.0, 8.5]})["outliers_s"] == []
