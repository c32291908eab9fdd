#!/usr/bin/env bash
# Rendered by `render.py torchrun elastic.yaml`; edit the spec, not this file.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: mounts; the processes see the paths of the machine.
#
# Run it once on each node; node0 stands for the name or address of node 0, as the other nodes reach it:
#   NODE_RANK=0 MASTER_ADDR=node0 bash elastic.sh
#   NODE_RANK=1 MASTER_ADDR=node0 bash elastic.sh
#   NODE_RANK=2 MASTER_ADDR=node0 bash elastic.sh
set -euo pipefail

if ! [[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ ]] || (( NODE_RANK >= 3 )) || [[ -z ${MASTER_ADDR-} ]]; then
  echo "elastic: set NODE_RANK (number of this node, 0 to 2) and MASTER_ADDR (name or address of node 0)" >&2
  exit 2
fi

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# Node 0 hosts the rendezvous.  torchrun is told so: its own guess compares host names and is often wrong.
if (( NODE_RANK == 0 )); then
  export PET_LOCAL_ADDR=$MASTER_ADDR
fi

exec torchrun --nnodes=1:3 --nproc-per-node=2 --max-restarts=5 --rdzv-backend=c10d --rdzv-id=elastic \
  --rdzv-endpoint="$MASTER_ADDR:27433" --rdzv-conf="is_host=$(( NODE_RANK == 0 ))" \
  -m train --device=cpu --model=mnist_cnn --dataset=synthetic --epochs=3 --batch-size=96 \
  --optimizer=adam --lr=0.001 --checkpoint-dir=/checkpoints --checkpoint-every=50 --resume=auto
