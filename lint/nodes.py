"""Rules for who starts what on which node, and how the nodes meet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lint.launches import CONTAINERS, Launch, everything, launches, nodes_of, request, trained
from lint.rules import Fault
from lint.sbatch import number
from lint.shell import Script

# Any other program may start programs on other nodes, or may start this script there.
_NAMES_OF_LOOKS = """
    : [ [[ awk basename bc break cat cd chmod clear conda continue cp curl cut date dcgmi declare df dirname du echo
    exit export expr false find free getent git grep head hostname id ip jq kill ldconfig let ln local ls lscpu lsof
    mamba micromamba mkdir mktemp ml module mv nproc nvcc nvidia-smi pip pip3 pkill printenv printf ps pwd read
    readlink realpath return rm rocm-smi rsync scancel scontrol sed seq set shift shopt shuf sinfo sleep sort spack
    squeue stat tail tar tee test time touch tr trap true type typeset ulimit umask uname uniq unset unzip uv
    virtualenv wait wc wget which whoami yq
"""
_LOOKS = frozenset(_NAMES_OF_LOOKS.split())
_SETS_UP = re.compile(r"activate|conda|mamba|env|module|profile|rc$|venv|setup|start-")  # in what source or eval reads
_TRAINS = re.compile(r"(?:^|[/_.-])(?:train|pretrain|finetune|main|ddp|worker)[\w.-]*(?:\.py)?$")
_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}|\[?::1\]?")
_HERE_BY_DEFAULT = re.compile(r"\$\{\w+:?[-=](?:localhost|127\.0\.0\.1)")
_HETEROGENEOUS = re.compile(r"^#SBATCH[ \t]+(?:het|pack)job", re.M)


def asks_for_several(script: Script, launch: Launch) -> bool:
    """Return True if a launcher is told of more than one node for certain."""
    nnodes = script.shown(launch.value("nnodes"))
    all_nodes = re.match(r"\$\{?(?:SLURM_NNODES|SLURM_JOB_NUM_NODES)\b", nnodes)
    return (number(nnodes.partition(":")[0]) or 0) > 1 or bool(all_nodes and (nodes_of(script, launch) or 1) > 1)


def uses_c10d(launch: Launch) -> bool:
    """Return True if c10d numbers the nodes: node ranks then count for nothing."""
    return launch.value("rdzv-backend") == "c10d" or ("rdzv-endpoint" in launch.options and launch.kind == "torchrun")


def on_several_nodes(script: Script, launch: Launch) -> bool:
    """Return True if srun starts a launch on more than one node, or Kubernetes in several pods, for certain."""
    step, several = launch.step, (nodes_of(script, launch) or 1) > 1
    return several and (script.in_container if step is None else not step.open and "nodelist" not in step.options)


def _known(script: Script, *names: str) -> bool:
    return any(name in script.assigned or name in script.environment for name in names)


def nothing_starts_the_other_nodes(script: Script) -> Iterator[Fault]:
    """Report only what is certain: no program of the script may reach another node."""
    count = request(script).nodes or 1
    if count < 2 or not script.is_batch or _HETEROGENEOUS.search(script.text):
        return
    started = [each for each in launches(script) if not _needs_one(script, each)]
    unknown = {launch.kind for launch in started if not launch.trains} - {each.function for each in script.commands}
    if unknown or any(each.step or each.command.background or _is_part(script, each) for each in started):
        return
    for launch in started[:1]:
        reason = f"sbatch runs this only on the first of the {count} nodes, and nothing starts a program on the others"
        yield Fault(script.place(launch.text), reason, f"srun --ntasks-per-node=1 {launch.text.value} …")


def _needs_one(script: Script, launch: Launch) -> bool:
    """Return True for a program that only looks at the node or prepares it, or that is told of one node."""
    values, nnodes = [script.shown(word.value) for word in launch.words], launch.value("nnodes")
    if launch.kind in ("source", ".", "eval", "sh", "bash"):
        return not values or bool(_SETS_UP.search(" ".join(values[:2])))
    known = launch.kind in (*_LOOKS, "python -c", "") or (launch.kind == "xargs" and not values)
    known = known or (launch.step or launch).program.value in _LOOKS  # srun hostname
    known = known or (launch.kind in CONTAINERS and not {"run", "exec"} & set(values))
    alone = launch.trains and (nnodes == "1" or "standalone" in launch.options or nnodes.startswith("1:"))
    return known or alone or bool({"--help", "-h", "--version"} & set(values)) or launch.text.value[:1] == '"'


def _is_part(script: Script, launch: Launch) -> bool:
    """Return True if something else may run the rest of a launch, or if one node may be enough for it."""
    rank, given = script.shown(launch.value("node-rank")), set(launch.options)
    outside = rank.strip("${}") not in ("", "0", "SLURM_NODEID", "SLURM_PROCID")
    inside = rank or ({"multi-gpu", "use-fsdp"} & given and not {"config-file", "use-deepspeed"} & given)
    reaches = launch.kind == "deepspeed" or (launch.kind == "accelerate" and not inside)
    unsure = launch.open or (launch.value("nnodes") and not asks_for_several(script, launch))
    prepares = launch.kind == "python" and not _TRAINS.search(launch.program.value)
    alone = launch.kind == "accelerate" and not launch.value("nnodes")
    return bool(outside or reaches or unsure or prepares or alone)


def each_node_trains_alone(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        if launch.open or not on_several_nodes(script, launch):
            continue
        count, place, given = nodes_of(script, launch), script.place(launch.text), set(launch.options)
        if launch.kind == "torchrun" and "standalone" in given and launch.step:
            yield Fault(place, f"--standalone makes each of the {count} nodes a job of its own")
        elif launch.kind == "torchrun" and not given & {"nnodes", "standalone"} and not _known(script, "PET_NNODES"):
            reason = f"without --nnodes, torchrun treats each of the {count} {script.unit}s as a job of one node"
            yield Fault(place, reason)
        elif launch.kind == "deepspeed" and launch.step and "no-ssh" not in given:
            reason = f"srun starts deepspeed on each of the {count} nodes, and each takes itself for the whole job"
            yield Fault(place, reason, "srun torchrun …: DeepSpeed reads RANK and WORLD_SIZE from it")


def nodes_never_meet(script: Script) -> Iterator[Fault]:
    said = "{} is another machine on each node: they never meet"
    told = [each for each in trained(script) if asks_for_several(script, each)]
    for launch in told if not script.one_network else ():
        given = {"rdzv-endpoint", "master-addr", "rdzv-conf"} & set(launch.options)
        for option in (launch.options[name] for name in sorted(given) if _LOOPBACK.match(launch.value(name))):
            yield Fault(script.place(option.text), said.format(option.value))
        sure = launch.kind == "torchrun" and not given and not launch.open and "standalone" not in launch.options
        if sure and not _known(script, "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"):
            default = "localhost:29400" if launch.value("rdzv-backend") == "c10d" else "127.0.0.1:29500"
            reason = f"no address is given where the nodes meet: each looks at {default}, its own"
            yield Fault(script.place(launch.text), reason)
    several = told or [each for each in trained(script) if on_several_nodes(script, each)]
    words = script.assigned.get("MASTER_ADDR", [])
    if several and len(words) == 1 and _LOOPBACK.fullmatch(words[0].value) and not script.one_network:
        yield Fault(script.place(words[0].text), said.format(words[0].value))


def node_rank_cannot_be(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        rank, count = number(launch.value("node-rank")), number(launch.value("nnodes"))
        if rank is None or uses_c10d(launch):
            continue
        place = script.place(launch.options["node-rank"].text)
        if count is not None and rank >= count:
            yield Fault(place, f"node rank {rank} of {count} nodes: ranks go from 0 to {count - 1}")
        elif on_several_nodes(script, launch):
            yield Fault(place, f"each of the {nodes_of(script, launch)} {script.unit}s gets node rank {rank}")


def node_rank_is_ignored(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        given = [name for name in ("node-rank", "master-addr") if name in launch.options]
        c10d = launch.kind == "torchrun" and launch.value("rdzv-backend") == "c10d"
        for name in given[:1] if c10d and asks_for_several(script, launch) else ():
            reason = f"c10d ignores --{name}: it numbers the nodes in alphabetical order of their names"
            yield Fault(script.place(launch.options[name].text), reason)


def rendezvous_without_id(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        shares = not script.directive("exclusive") and (request(script, launch.step).gpus_per_node or 0) < 8
        c10d = launch.kind == "torchrun" and launch.value("rdzv-backend") == "c10d" and not launch.open
        known = {"rdzv-id", "standalone"} & set(launch.options) or _known(script, "PET_RDZV_ID")
        fixed = re.search(r":\d+$", launch.value("rdzv-endpoint"))
        if c10d and shares and fixed and not known and asks_for_several(script, launch):
            reason = 'the id of the rendezvous is "none": two jobs on the same host and port become one'
            yield Fault(script.place(launch.options["rdzv-backend"].text), reason)
            return


def nnodes_are_not_the_nodes(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        told, count = number(launch.value("nnodes")), nodes_of(script, launch)
        if told and count and told != count and on_several_nodes(script, launch) and (told > count or not launch.inner):
            reason = f"the launcher is told of {told} nodes, but {count} {script.unit}s start it"
            yield Fault(script.place(launch.options["nnodes"].text), reason)


def address_is_not_certain(script: Script) -> Iterator[Fault]:
    lost = "if the name is not found, each node trains alone, without an error"
    speaks = re.search("hostname|localhost|127[.]0|LAUNCH_NODE", script.text) and request(script).nodes != 1
    for command in everything(script) if speaks else ():
        values = [word.value.rpartition("/")[2] for word in command.words]
        for word in command.words:
            if "hostname" in values and word.value in ("-i", "-I", "--ip-address", "--all-ip-addresses"):
                reason = f"hostname {word.value} prints 127.0.0.1 on some nodes and several addresses on others"
                yield Fault(script.place(word.text), reason)
            if command.after == "||" and command.name in ("echo", "printf") and _LOOPBACK.fullmatch(word.value):
                yield Fault(script.place(word.text), lost)
            for name, text in word.expansions:
                if name == "SLURM_LAUNCH_NODE_IPADDR":
                    yield Fault(script.place(text), "SLURM_LAUNCH_NODE_IPADDR is where srun was called, often no node")
                elif "SLURM_" in script.text and _HERE_BY_DEFAULT.match(text.value):
                    yield Fault(script.place(text), lost)
