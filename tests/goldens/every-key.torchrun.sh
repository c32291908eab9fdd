#!/usr/bin/env bash
# Rendered by `render.py torchrun every-key.yaml`; edit the spec, not this file.
# Not used here: gpus_per_node; the machine's GPUs are used.
# Not used here: gpu; the machine's GPUs are used.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: mounts; the processes see the paths of the machine.
# Not used here: resources.memory; nothing limits the processes.
# Not used here: resources.shm; /dev/shm is the machine's own.
# Not used here: resources.rdma; the machine's devices are used.
# Not used here: resources.devices; the machine's devices are used.
# Not used here: time_limit; torchrun has no time limit.
# Not used here: preemption; no scheduler preempts the job.
#
# Start all nodes from here, node 0 first: ssh runs this script on each, in this folder and with this PATH.
#   bash every-key.sh node0 node1
# Or run it once on each node; node0 stands for the name or address of node 0, as the other nodes reach it:
#   NODE_RANK=0 MASTER_ADDR=node0 bash every-key.sh
#   NODE_RANK=1 MASTER_ADDR=node0 bash every-key.sh
set -euo pipefail

# Secrets come from the environment of this shell; here are only their names.
: "${WANDB_API_KEY:?is a secret of this job; export it before the start}"
: "${HF_TOKEN:?is a secret of this job; export it before the start}"

if (( $# )); then
  if (( $# != 2 )) || ! [[ -f $0 ]]; then
    echo "every-key: save this script in a file and name all 2 nodes, node 0 first" >&2
    exit 2
  fi

  # A pipe into which nothing is ever written.  Each node reads it through ssh, and ends when the pipe is closed:
  # by Ctrl-C, after a failure, or because this script has ended.
  exec {lifeline}<> <(:)
  exec {end_of_lifeline}<"/dev/fd/$lifeline"

  # What the shell of node $1 reads.
  node() {
    printf 'export PATH=%q MASTER_ADDR=%q NODE_RANK=%q\n' "$PATH" "$2" "$1"
    printf 'export WANDB_API_KEY=%q\n' "$WANDB_API_KEY"
    printf 'export HF_TOKEN=%q\n' "$HF_TOKEN"
    printf 'cd %q || exit\nscript=%q\n' "$PWD" "$(cat -- "$0")"
    cat <<'END'
{
  exec 3<&0
  bash <(printf %s "$script") </dev/null 3<&- &
  agent=$!
  { cat <&3; kill "$agent"; } >/dev/null 2>&1 &
  status=0
  wait "$agent" || status=$?
  kill "$!" 2>/dev/null
  exit "$status"
}
END
    exec cat <&"$end_of_lifeline"
  }

  nodes=()
  for host in "$@"; do
    (
      exec {lifeline}>&-
      status=0
      # A node that the network lost is noticed after a minute.
      ssh -o ServerAliveInterval=20 -- "$host" bash -s \
        < <(node "${#nodes[@]}" "${MASTER_ADDR:-${1##*@}}") || status=$?
      if (( status )); then kill -USR1 $$; fi
      exit "$status"
    ) &
    nodes+=($!)
  done
  trap 'trap - INT TERM HUP; trap "" USR1; exec {lifeline}>&-' INT TERM HUP USR1

  status=0
  for node in "${nodes[@]}"; do
    ended=0
    wait "$node" || ended=$?
    while kill -0 "$node" 2>/dev/null; do # a signal ended the wait
      ended=0
      wait "$node" || ended=$?
    done
    if (( ! status )); then status=$ended; fi
  done
  exit "$status"
fi

if ! [[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ ]] || (( NODE_RANK >= 2 )) || [[ -z ${MASTER_ADDR-} ]]; then
  echo "every-key: set NODE_RANK (this node's number, 0 to 1) and MASTER_ADDR (name or address of node 0). Or give the names of all nodes as arguments" >&2
  exit 2
fi

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=8
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/every-key-nccl-rank-
export TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_NCCL_TRACE_BUFFER_SIZE=2000
cd /app

# setup of the spec.
set +u  # the lines may source files that read unset variables
for JOB_LINE in \
  'source /opt/venv/bin/activate' \
  'export NCCL_SOCKET_IFNAME=ib0'; do
  eval "$JOB_LINE" || { echo "setup: this line failed: $JOB_LINE" >&2; exit 1; }
done

exec python3 -c \
  'import importlib.util, os, sys
train = importlib.util.find_spec("train")
found = train and (train.origin or f"{list(train.submodule_search_locations)[0]}/")
if found and not os.path.exists(f"{os.path.dirname(found)}/ddp/reducer.py"):
    sys.exit(f"python -m train would run {found}, which is another program: rename it, or start in another folder")
os.execvp(sys.argv[1], sys.argv[1:])' torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=3 --rdzv-backend=static --rdzv-conf=timeout=3600 \
  --rdzv-id=every-key \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port=29400 \
  -m train --device=cuda --model=resnet18 --dataset=fashion_mnist --batch-size=256 --checkpoint-dir=/checkpoints \
  --resume=auto
