# shellcheck shell=bash disable=SC2154  # folder, name, script and start are set before this text
# What `render-job ssh` lets bash run on a node.  On stdin comes an empty line a second, later perhaps `end` and `kill`.
{
  cd "$folder" 2>/dev/null || { echo "no folder $folder here: all nodes need it, shared or as a copy"; exit 1; }
  kill_all() { # also the processes of a torchrun that was killed
    grep -lsxzF "RENDER_JOB_START=$start" /proc/[0-9]*/environ | cut -d/ -f3 | xargs -r kill -KILL
  }
  # Processes that save must be able to write lines when ssh, which takes them, is gone.
  exec 3<&0 4> >(trap "" PIPE; cat 2>/dev/null; exec cat >/dev/null)
  RENDER_JOB_START=$start bash -c "$script" "$name" </dev/null >&4 2>&1 3<&- 4>&- &
  agent=$!
  exec 4>&- 2>/dev/null
  {
    while read -rt 60 word && [[ -z $word ]]; do :; done
    kill "$agent"
    until [[ $word == kill ]] || ! read -rt 60 word; do :; done
    [[ $word != kill ]] || kill_all
  } <&3 >/dev/null &
  wait "$agent"
  status=$?
  kill "$!"
  kill_all
  exit "$status"
}
