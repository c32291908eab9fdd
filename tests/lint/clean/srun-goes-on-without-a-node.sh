#!/bin/bash
#SBATCH --nodes=2-8
#SBATCH --cpus-per-task=8
srun --cpus-per-task=8 --kill-on-bad-exit=1 --wait=60 torchrun --nproc_per_node=8 train.py
srun -K1 -c 8 torchrun --nproc_per_node=8 train.py
srun -lK -c 8 torchrun --nproc_per_node=8 train.py
srun -c 8 -u -K torchrun --nproc_per_node=8 train.py
timeout 23h srun -K1 -c 8 torchrun --nproc_per_node=8 train.py
# Each step has one task, or one node.
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  srun -N1 -n1 -c8 -w "$node" torchrun --nproc_per_node=8 --node_rank="$((rank++))" train.py &
done
srun --nodes=1 -c 8 python prepare.py
wait
