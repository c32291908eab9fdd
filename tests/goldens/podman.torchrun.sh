#!/usr/bin/env bash
# Rendered by `render.py torchrun podman.yaml`; edit the spec, not this file.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: mounts; the processes see the paths of the machine.
# Not used here: resources.memory; nothing limits the processes.
# Not used here: time_limit; nothing ends the job.
# Not used here: preemption; no scheduler takes the nodes back.
#
# Run it once on each node; node0 stands for the name or address of node 0, as the other nodes reach it:
#   NODE_RANK=0 MASTER_ADDR=node0 bash podman.sh
#   NODE_RANK=1 MASTER_ADDR=node0 bash podman.sh
set -euo pipefail

if ! [[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ ]] || (( NODE_RANK >= 2 )) || [[ -z ${MASTER_ADDR-} ]]; then
  echo "podman: set NODE_RANK (number of this node, 0 to 1) and MASTER_ADDR (name or address of node 0)" >&2
  exit 2
fi

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export OMP_NUM_THREADS=8
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=0 --rdzv-backend=static --rdzv-id=podman \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port=25714 \
  -m train --device=cuda --model=resnet18 --dataset=fashion_mnist --data-root=/data --epochs=10 \
  --batch-size=256 --optimizer=sgd --lr=0.05 --momentum=0.9 --checkpoint-dir=/checkpoints \
  --checkpoint-every=100 --resume=auto
