#!/bin/bash
#SBATCH --nodes=1
#SBATCH --cpus-per-task=32
srun hostname
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py
srun -K -c $SLURM_CPUS_PER_TASK python train.py
srun -K -c "$SLURM_CPUS_PER_TASK" python train.py
srun -lc8 --mpi pmix python train.py -c config.yaml
srun --overlap bash -c 'nvidia-smi; ulimit -l'
timeout -k 60 23h srun -uc 32 python train.py
srun_args=" \
  --wait=60 \
  --cpus-per-task $SLURM_CPUS_PER_TASK \
  "
srun $srun_args --jobid "$SLURM_JOB_ID" bash -c "python train.py"
more=(-c 32 --label)
srun "${more[@]}" python train.py
