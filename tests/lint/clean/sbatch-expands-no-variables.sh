#!/bin/bash
#SBATCH --job-name=train  # for $USER
#SBATCH --output=/home/%u/logs/%x-%j.out
#SBATCH --chdir=/home/me/data~old --comment='costs 5$'
##SBATCH --error=$HOME/logs/%j.err
srun --kill-on-bad-exit=1 python train.py

# The shell expands what it writes into a here-document.
sbatch <<END
#!/bin/bash
#SBATCH --output=$HOME/logs/%j.out
python evaluate.py
END
