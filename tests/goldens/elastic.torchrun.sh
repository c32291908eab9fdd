#!/usr/bin/env bash
# Rendered by `render.py torchrun elastic.yaml`; edit the spec, not this file.
# Not used here: image; this script runs in the shell's own environment, not in a container.
# Not used here: mounts; the processes see the paths of the machine.
#
# Start all nodes from here, node 0 first: ssh runs this script on each, in this folder and with this PATH.
#   bash elastic.sh node0 node1 …
# Or run it once on each node; node0 stands for the name or address of node 0, as the other nodes reach it:
#   NODE_RANK=0 MASTER_ADDR=node0 bash elastic.sh
#   NODE_RANK=1 MASTER_ADDR=node0 bash elastic.sh
#   NODE_RANK=2 MASTER_ADDR=node0 bash elastic.sh
set -euo pipefail

if (( $# )); then
  if (( $# < 1 || $# > 3 )) || ! [[ -f $0 ]]; then
    echo "elastic: save this script in a file and name 1 to 3 nodes, node 0 first" >&2
    exit 2
  fi

  # A pipe into which nothing is ever written.  Each node reads it through ssh, and ends when the pipe is closed:
  # by Ctrl-C, after a failure, or because this script has ended.
  exec {lifeline}<> <(:)
  exec {end_of_lifeline}<"/dev/fd/$lifeline"

  # What the shell of node $1 reads.
  node() {
    printf 'export PATH=%q MASTER_ADDR=%q NODE_RANK=%q\n' "$PATH" "$2" "$1"
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
      exit "$status"
    ) &
    nodes+=($!)
  done
  trap 'trap - INT TERM HUP; trap "" USR1; exec {lifeline}>&-' INT TERM HUP USR1

  status=1
  for node in "${nodes[@]}"; do
    ended=0
    wait "$node" || ended=$?
    while kill -0 "$node" 2>/dev/null; do # a signal ended the wait
      ended=0
      wait "$node" || ended=$?
    done
    if (( ! ended )); then status=0; fi # the others may have been lost
  done
  exit "$status"
fi

if ! [[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ ]] || (( NODE_RANK >= 3 )) || [[ -z ${MASTER_ADDR-} ]]; then
  echo "elastic: set NODE_RANK (this node's number, 0 to 2) and MASTER_ADDR (name or address of node 0). Or give the names of all nodes as arguments" >&2
  exit 2
fi

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# Node 0 hosts the rendezvous.  The script says so: torchrun itself would compare host names, and often guess wrong.
local_addr=
if (( NODE_RANK == 0 )); then
  local_addr=--local-addr=$MASTER_ADDR
fi

exec python3 -c \
  'import importlib.util, os, sys
train = importlib.util.find_spec("train")
found = train and (train.origin or f"{list(train.submodule_search_locations)[0]}/")
if found and not os.path.exists(f"{os.path.dirname(found)}/ddp/reducer.py"):
    sys.exit(f"python -m train would run {found}, which is another program: rename it, or start in another folder")
os.execvp(sys.argv[1], sys.argv[1:])' torchrun --nnodes=1:3 --nproc-per-node=2 --max-restarts=5 --rdzv-backend=c10d --rdzv-id=elastic \
  --rdzv-endpoint="$MASTER_ADDR:27433" ${local_addr:+"$local_addr"} \
  --rdzv-conf="is_host=$(( NODE_RANK == 0 )),join_timeout=900,read_timeout=900" \
  -m train --device=cpu --model=mnist_cnn --dataset=synthetic --epochs=3 --batch-size=96 --optimizer=adam \
  --lr=0.001 --checkpoint-dir=/checkpoints --checkpoint-every=50 --resume=auto
