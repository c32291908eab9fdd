#!/usr/bin/env bash
# Rendered by `render.py torchrun own-script.yaml`; edit the spec, not this file.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: resources.memory; nothing limits the processes.
# Not used here: time_limit; nothing ends the job.
#
# Run it once on each node; node0 stands for the name or address of node 0, as the other nodes reach it:
#   NODE_RANK=0 MASTER_ADDR=node0 bash own-script.sh
#   NODE_RANK=1 MASTER_ADDR=node0 bash own-script.sh
set -euo pipefail

if ! [[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ ]] || (( NODE_RANK >= 2 )) || [[ -z ${MASTER_ADDR-} ]]; then
  echo "own-script: set NODE_RANK (number of this node, 0 to 1) and MASTER_ADDR (name or address of node 0)" >&2
  exit 2
fi

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export OMP_NUM_THREADS=2
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export TORCH_DISTRIBUTED_DEBUG=INFO

exec torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=0 --rdzv-backend=static --rdzv-id=own-script \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port=20097 \
  -- jobs/scripts/own.py --steps 50 --lr 0.1
