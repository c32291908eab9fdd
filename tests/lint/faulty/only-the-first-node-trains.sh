#!/bin/bash
#SBATCH --nodes=2
#SBATCH --exclusive
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_name=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname)
# srun is missing here.
torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head_name:29500" train.py
python3 -u -m torch.distributed.run --nproc-per-node=8 evaluate.py
accelerate launch --multi_gpu --num_machines=2 --main_process_ip="$head_name" tune.py
apptainer exec --nv image.sif torchrun --nnodes=2 --nproc-per-node=8 train.py
