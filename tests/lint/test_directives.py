"""A variable in an #SBATCH line is reported only if sbatch itself reads the line as it is written."""

from pathlib import Path

import pytest

from lint import lint

LINE = "#SBATCH --output=$HOME/%j.out"


def reported(folder: Path, text: str) -> bool:
    file = folder / "job.sh"
    file.write_text(f"#!/bin/bash\n{text}\n")
    return any("[option-means-nothing]" in problem.message for problem in lint([str(file)]))


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        "#SBATCH -o '$HOME/%j.out'",
        "#SBATCH --output=~/%j.out",
        "#SBATCH --error=~me/%j.err",
        "#SBATCH --input=~/data",
        "#SBATCH --job-name=$1",
        "#SBATCH --export=ALL,DATA=${HOME}/data",
        "#SBATCH --nodelist=`hostname`",
        "#SBATCH --time=1:00:00 --account=$(id -gn)",
    ],
)
def test_variable_that_sbatch_takes_literally_is_reported(tmp_path: Path, text: str) -> None:
    assert reported(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --output=/home/%u/%x-%j_%%.out",
        "#SBATCH --output=out  # not $HOME",
        "#SBATCH --output=runs~/%j.out",
        "#SBATCH --constraint=~a100",
        "#SBATCH --comment='$HOME'",
        "#SBATCH --container-mounts=$HOME:/home/me",
        f"##{LINE}",
        f"# {LINE}",
        f"sbatch <<END\n#!/bin/bash\n{LINE}\nEND",
        f"cat > job.sh << !END\n{LINE}\n!END\nsbatch job.sh",
        f'echo "#!/bin/bash\n{LINE}\ndate" > job.sh',
        f'printf "#!/bin/bash\n{LINE}\n" > job.sh',
        f"for i in 1 2; do\n  cat <<-END | sbatch\n\t#!/bin/bash\n{LINE}\n\tEND\ndone",
    ],
)
def test_what_others_expand_or_may_mean_literally_is_not_reported(tmp_path: Path, text: str) -> None:
    assert not reported(tmp_path, text)
