#!/usr/bin/env bash
# Rendered by `render-job torchrun every-key.yaml`; edit the spec, not this file.
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
#   bash every-key.torchrun.sh node0 node1
# Or run it once on each node; node0 stands for the name or address of node 0, as the other nodes reach it:
#   NODE_RANK=0 MASTER_ADDR=node0 bash every-key.torchrun.sh
#   NODE_RANK=1 MASTER_ADDR=node0 bash every-key.torchrun.sh
# Its output comes to this terminal.  End it: Ctrl-C.
set -euo pipefail

# Secrets come from the environment of this shell; here are only their names.
: "${WANDB_API_KEY:?is a secret of this job; export it before the start}"
: "${HF_TOKEN:?is a secret of this job; export it before the start}"

refuse() { echo "every-key: $1" >&2; exit "${2-1}"; }
if (( $# )); then
  [[ -f $0 ]] && (( 2 <= $# && $# <= 2 )) ||
    refuse "save this script in a file and name all 2 nodes, node 0 first" 2
  hosts=("$@")
  # Nothing is written into the first two pipes.  When this script closes `work`, or has ended, the nodes let their
  # processes save and end; when it then closes `grace`, they kill them.  The third pipe brings the news of all nodes:
  # "NODE - REASON" for what may become the reason of an end, "NODE CODE" for an end.
  exec {work}<> <(:) {grace}<> <(:) {news}<> <(:)
  exec {end_of_work}<"/dev/fd/$work" {end_of_grace}<"/dev/fd/$grace"
  closed() { read -rt "$2" _ <&"$1" || (( $? <= 128 )); } # waits for it up to $2 seconds

  # What the shell of node $1 reads.  An empty line a second shows that this script lives.
  feed() {
    local limit=$(( SECONDS + 90 ))
    until read -rt 1 _ <&"$ready"; do # before that, a .bashrc that reads would swallow the script
      if closed "$end_of_work" 0.1 || ! echo; then return; fi
      if (( SECONDS > limit )); then
        echo " $1 - no shell within 90 s; does ~/.bashrc there wait for something?" >&"$news"
        return
      fi
    done
    printf 'export PATH=%q MASTER_ADDR=%q NODE_RANK=%q JOB_NODES=%q\n' \
      "$PATH" "${MASTER_ADDR:-${hosts[0]##*@}}" "$1" "${hosts[*]##*@}"
    printf 'export WANDB_API_KEY=%q\n' "$WANDB_API_KEY"
    printf 'export HF_TOKEN=%q\n' "$HF_TOKEN"
    printf 'folder=%q\nscript=%q\n' "$PWD" "$(cat -- "$0")"
    cat <<'END'
{
  cd "$folder" 2>/dev/null || { echo "no folder $folder here; all nodes need it, shared or as a copy"; exit 1; }
  logs=$(mktemp -d) || exit
  exec 3<&0
  JOB_LOGS=$logs TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='rank ${rank}: ' \
    bash <(printf %s "$script") </dev/null 3<&- &
  agent=$!
  kill_all() { # also the processes of a torchrun that was killed
    for file in $(grep -lsxzF "JOB_LOGS=$logs" /proc/[0-9]*/environ); do
      file=${file%/environ}
      kill -KILL "${file##*/}"
    done
  } 2>/dev/null
  {
    while read -rt 60 word <&3 && [[ $word != stop ]]; do :; done
    kill "$agent"
    if [[ $word == stop ]]; then
      while read -rt 60 _ <&3; do :; done
      kill_all
    fi
  } >/dev/null 2>&1 &
  status=0
  wait "$agent" 2>/dev/null || status=$?
  kill "$!" 2>/dev/null
  kill_all
  rm -rf "$logs"
  exit "$status"
}
END
    until closed "$end_of_work" 1; do echo || return; done
    if closed "$end_of_grace" 0.2; then return; fi # this script was killed: the processes may take their time
    echo stop
    until closed "$end_of_grace" 1; do echo || return; done
  } 2>/dev/null

  # Begin each line of node $1 with the node's name, and look for news in it.
  label() {
    local host=${hosts[$1]//[^[:alnum:]._:@-]/?} line last=
    while IFS= read -r line; do
      line=${line%$'\r'} # ssh ends its own lines so
      if [[ $line == "every-key: connected" ]]; then
        echo >&"$ready"
        continue
      fi
      last=${line%.}
      echo "$host: $line" || true
      if [[ $line == "every-key: node $1 starts torchrun"* ]]; then
        local failure="failed (exitcode: \(-*[0-9]*\)) local_rank: \([0-9]*\) " # torchrun's words
        sed -u -e h -e "s/.* $failure.*/ $1 - local rank \2 ended with \1/w /dev/fd/$news" -e g \
          -e "s/^/$host: /" && return
        kill -HUP $$ # the terminal is gone, and what saves now must not fail at its next line
        exec cat >/dev/null
      fi
    done
    echo " $1 - ${last:-it ended before torchrun started}" >&"$news"
    return 1
  }

  node() {
    trap "" INT HUP QUIT # this script alone hears them, and asks the nodes to end
    set +e
    exec {work}>&- {grace}>&- {ready}<> <(:)
    # A node that the network lost is noticed after a minute.
    feed "$1" | ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=20 -- "${hosts[$1]}" \
      'echo "every-key: connected"; exec bash -s' 2>&1 | label "$1"
    set -- "$1" "${PIPESTATUS[@]:1}"
    echo " $1 $(( $2 ? $2 : $3 ))" >&"$news"
  }
  running=("${hosts[@]}")
  for number in "${!hosts[@]}"; do
    node "$number" &
  done

  say() { echo "every-key: $1" >&2 || true; }
  by='' code=0 failed='' suspect='' reason='' since=0 lost=0 limit=''
  interrupt() { # by $1, signal $2
    if [[ -z $by ]]; then
      by=$1 code=$(( 128 + $2 ))
      exec {work}>&-
      say "$1: the nodes save and end; another Ctrl-C kills them"
    elif [[ $1 == Ctrl-C ]]; then
      exec {grace}>&-
      limit=$(( SECONDS + 10 ))
    fi
  }
  trap 'interrupt Ctrl-C 2' INT
  trap 'interrupt SIGHUP 1' HUP
  trap 'interrupt SIGTERM 15' TERM

  while [[ -n ${running[*]} ]] && (( SECONDS < ${limit:-SECONDS + 1} )); do
    # At its timeout, read can lose what it has: here at most the blank with which a line of news begins.
    read -rt 1 -N 1 first <&"$news" || continue
    IFS= read -r line <&"$news"
    read -r number ended text <<<"$first$line"
    # One failure makes other processes fail: the first news of a minute has the reason.
    if [[ $ended != 0 ]] && { [[ -z $suspect ]] || (( SECONDS > since + 60 )); }; then
      suspect=$number reason=$text since=$SECONDS
    fi
    if [[ $ended == - ]]; then continue; fi
    unset "running[$number]"
    if (( ended == 0 || code )); then
      (( lost += ended != 0 )) || true
      continue
    fi
    (( lost += 1 ))
    if (( ended == 255 )) && [[ $suspect == "$number" && -n $reason ]]; then
      reason+="; log in by hand once, or see ssh-copy-id"
    elif (( ended == 255 )); then
      suspect=$number reason="ssh lost the connection"
    fi
    code=$ended
    failed="${hosts[suspect]} failed first: ${reason:+$reason, }exit code $code"
    exec {work}>&-
  done

  if [[ -n ${running[*]} ]]; then
    say "$by: no answer from ${running[*]}; look there for processes that are left"
  elif [[ -n $failed ]]; then
    say "$failed"
  elif (( lost )); then
    say "$by ended ${hosts[*]}"
  else
    code=0
  fi
  exit "$code"
fi

[[ ${NODE_RANK-} =~ ^(0|[1-9][0-9]{0,4})$ && -n ${MASTER_ADDR-} ]] && (( NODE_RANK < 2 )) ||
  refuse "set NODE_RANK (this node's number, 0 to 1) and MASTER_ADDR (name or address of node 0).\
 Or give the names of all nodes as arguments" 2

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=8
export PYTHONSAFEPATH=1
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
done </dev/null

# Look at this node first: torchrun would wait long, and then say little.
command -v torchrun >/dev/null ||
  refuse "torchrun is not found; activate its environment in setup of the spec, or before the start"
address_of() { { getent ahostsv4 "$1" || getent ahosts "$1"; } | awk 'NR == 1 { print $1 }'; }
address=$(address_of "$MASTER_ADDR") ||
  refuse "$MASTER_ADDR, node 0, has no address here; look at DNS and /etc/hosts, or set MASTER_ADDR to an address"
port=$(printf %04X 29400)
if (( NODE_RANK == 0 )); then
  ! grep -qs ":$port [0-9A-F:]* 0A " /proc/net/tcp{,6} ||
    refuse "port 29400 is in use, perhaps by another start of this job; set another in rendezvous.port"
  [[ $(ip route get "$address" 2>/dev/null || echo local) == local* ]] ||
    echo "every-key: NODE_RANK is 0, but $MASTER_ADDR is no address of this machine; is this node 0?" >&2
elif [[ $address == 127.* || $address == ::1 ]] && [[ $MASTER_ADDR != "$address" && $MASTER_ADDR != localhost ]]; then
  refuse "$MASTER_ADDR, node 0, is $address here, this machine; look at /etc/hosts, or set MASTER_ADDR to an address"
fi
started="node $NODE_RANK starts torchrun"

# gloo would take the address of this machine's own name, in Debian 127.0.1.1, which no other node reaches.  The way to
# node 0 shows the right interface; on node 0 itself, if its name is such an address, the way to another node does.
for node in "$MASTER_ADDR" ${JOB_NODES-}; do
  own=$(ip route get "$(address_of "$node")" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p') || own=''
  interface=$(ip -o address show to "${own:-none}" 2>/dev/null | awk 'NR == 1 { print $2 }') || interface=''
  if [[ -n $interface && $interface != lo ]] || [[ $node == "$address" ]]; then break; fi
done
if [[ -z $interface || $interface == lo && $MASTER_ADDR != "$address" && $MASTER_ADDR != localhost ]]; then
  started+="; the interface towards the other nodes is unknown: set GLOO_SOCKET_IFNAME in env,"
  started+=" or MASTER_ADDR to an address"
else
  export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}" NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-=$interface}"
  started+="; gloo and NCCL use $GLOO_SOCKET_IFNAME ($own)"
fi
echo "every-key: $started" >&2

# torchrun, too, gives up after this time, but names only keys of its own.
(
  for (( second = 0; second < 3600; second++ )); do
    # Connections to the port.  On node 0 its own is listed twice, as it has both ends.
    met=$(cat /proc/net/tcp{,6} 2>/dev/null | grep -c ":$port \([0-9A-F:]* \)\?01 ") || true
    read -r stat <"/proc/$BASHPID/stat"
    read -r _ parent _ <<<"${stat##*) }"  # after the program's name, which may hold blanks
    if (( met > (NODE_RANK ? 0 : 2) )) || [[ $parent != "$$" ]]; then exit; fi
    sleep 1
  done
  if (( NODE_RANK )); then missing="node 0"; else missing="another node"; fi
  echo "every-key: $missing did not come to $MASTER_ADDR:29400 within 3600 s;" \
    "does every node run this script, and does a firewall between them let TCP through?" >&2
) &

exec torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=3 --rdzv-backend=static --rdzv-conf=timeout=3600 \
  --rdzv-id=every-key \
  ${JOB_LOGS:+--tee=3 "--log-dir=$JOB_LOGS"} \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port=29400 \
  -m train --device=cuda --model=resnet18 --dataset=fashion_mnist --batch-size=256 \
  --checkpoint-dir=/checkpoints --resume=auto
