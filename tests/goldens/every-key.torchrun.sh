#!/usr/bin/env bash
# Rendered by `render-job torchrun every-key.yaml`; edit the spec, not this file.
# Not used here: gpus_per_node; the machine's GPUs are used.
# Not used here: gpu; the machine's GPUs are used.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: mounts; the processes see the paths of the machine.
# Not used here: resources.memory; nothing limits the processes.
# Not used here: resources.shm; /dev/shm is the machine's own.
# Not used here: resources.devices; the machine's devices are used.
# Not used here: time_limit; torchrun has no time limit.
# Not used here: topology; you choose the machines.
# Not used here: preemption; no scheduler preempts the job.
# Start 2 nodes, node 0 first: render-job ssh every-key.torchrun.sh node0 node1
# Or start it on each node with its number and the name or address of node 0:
#   NODE_RANK=1 MASTER_ADDR=node0 bash every-key.torchrun.sh
set -euo pipefail
refuse() { echo "every-key: $1" >&2; exit 1; }
(( $# == 0 )) || refuse "takes no arguments, so not $*: edit the spec"
: "${WANDB_API_KEY:?is a secret of this job; export it before the start}"
: "${HF_TOKEN:?is a secret of this job; export it before the start}"
[[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ && $NODE_RANK -lt 2 && ${MASTER_ADDR-} ]] ||
  refuse "set NODE_RANK (this node's number, 0 to 1) and MASTER_ADDR (name or address of node 0)"
# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"

# If the name of another node means this machine here, the nodes or gloo would wait forever.
# `render-job ssh` sets OTHER_NODE, on node 0 to another node.
node=${OTHER_NODE:-$MASTER_ADDR}
address=$(getent ahosts "$node" | awk 'NR == 1 { print $1 }') ||
  refuse "$node has no address here: look at DNS and /etc/hosts, or set MASTER_ADDR to an address"
[[ $address == "$MASTER_ADDR" || ! $address =~ ^(127\.|::1$) ]] ||
  refuse "$node is $address here, this machine: look at /etc/hosts, or set MASTER_ADDR to an address of node 0"
own=$(ip route get "$address" | sed -n 's/.* src \([^ ]*\).*/\1/p')
# gloo would listen at the address of this machine's own name, in Debian 127.0.1.1, which no other node reaches.
interface=$(ip -o address show to "$own" | awk 'NR == 1 { print $2 }')
export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-=$GLOO_SOCKET_IFNAME}"

export NCCL_DEBUG=WARN NCCL_NET=IB OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 \
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/every-key-nccl-rank- \
  TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000
cd /app
set +u  # the lines may source files that read unset variables
for JOB_LINE in \
  'source /opt/venv/bin/activate' \
  'export NCCL_SOCKET_IFNAME=ib0'; do
  eval "$JOB_LINE" || { echo "setup: this line failed: $JOB_LINE" >&2; exit 1; }
done </dev/null
echo "every-key: node $NODE_RANK meets the others at $MASTER_ADDR:29400 over $GLOO_SOCKET_IFNAME" >&2
exec torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=3 --rdzv-conf=timeout=3600 \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port=29400 \
  -m train --device=cuda --model=resnet18 --dataset=fashion_mnist --batch-size=256 \
  --checkpoint-dir=/checkpoints --resume=auto
