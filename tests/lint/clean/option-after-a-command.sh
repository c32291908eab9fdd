#!/bin/bash
# A comment is no command.

#SBATCH --job-name=train
#SBATCH -N 2 --time=2:00:00  # two options on a line
set -euo pipefail
srun --kill-on-bad-exit=1 python train.py

# Another script, which begins here.
sbatch <<'END'
#!/bin/bash
#SBATCH --job-name=evaluate
python evaluate.py
END
