#!/bin/bash
#SBATCH --nodes=4
#SBATCH --exclusive
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export head_node
srun --kill-on-bad-exit=1 bash -c 'torchrun --nnodes=4 --node_rank="$SLURM_NODEID" --master_addr="$head_node" train.py'
srun --kill-on-bad-exit=1 bash -c "torchrun --nnodes=4 --node_rank=\$SLURM_PROCID --master_addr=$head_node train.py"
# $SLURM_NODEID in a comment is nothing
cat > task.sh <<'END'
exec torchrun --node_rank="$SLURM_NODEID" train.py
END
task() {
  export PET_NODE_RANK=$SLURM_NODEID
  exec torchrun --nproc-per-node=4 train.py
}
export -f task
srun --kill-on-bad-exit=1 bash -c 'export -fn task; task'
function launch {
  export PET_NODE_RANK=$SLURM_NODEID
  exec torchrun --nproc-per-node=4 train.py
}
export -f launch
srun --kill-on-bad-exit=1 bash -c launch
look() { echo "$SLURM_PROCID"; }
srun --kill-on-bad-exit=1 bash -c "$(declare -f look); look"
