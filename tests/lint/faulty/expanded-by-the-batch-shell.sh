#!/bin/bash
#SBATCH --nodes=4
#SBATCH --exclusive
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export NODE_RANK=$SLURM_NODEID
echo "task $SLURM_PROCID starts"
srun --kill-on-bad-exit=1 bash -c "torchrun --nnodes=4 --node_rank=${SLURM_PROCID} --master_addr=$head_node train.py"
start() {
  srun --kill-on-bad-exit=1 torchrun --node_rank="$SLURM_NODEID" train.py
}
cat > hosts.txt <<END
$SLURM_LOCALID
END
