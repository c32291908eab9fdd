"""Rules for who starts what on which node, and how the nodes meet."""

import re
from collections.abc import Iterator

from lint.launches import CONTAINERS, Launch, everything, launches, trained
from lint.rules import Fault
from lint.sbatch import number
from lint.shell import Script

# Any other program may start programs on other nodes, or may start this script there.
_NAMES_OF_LOOKS = """
    : [ [[ awk bc cat cd chmod conda cp curl cut date declare df dirname du echo exit export expr free getent git grep
    head hostname id ip kill ldconfig local ls lscpu mamba mkdir mktemp module mv nproc nvcc nvidia-smi pip pip3 pkill
    printenv printf ps pwd read readlink realpath return rm rocm-smi rsync scancel scontrol sed seq set shift shuf
    sinfo sleep sort squeue tail tar tee test time touch tr trap true ulimit uname uniq unset unzip uv wait wc wget
    which whoami
"""
_LOOKS = frozenset(_NAMES_OF_LOOKS.split())
_SETS_UP = re.compile(r"activate|conda|mamba|env|module|profile|rc$|venv|setup|start-")  # in what source or eval reads
_TRAINS = re.compile(r"(?:^|[/_.-])(?:train|pretrain|finetune|main|ddp|worker)[\w.-]*(?:\.py)?$")
LOOPBACK = re.compile(r"localhost|127(?:\.\d+){3}|\[?::1\]?")
MEETS, _TOLD = ("rdzv-endpoint", "master-addr", "rdzv-conf"), {"PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"}
ANOTHER_MACHINE = "this address is another machine on each node: they never meet"
_HERE_BY_DEFAULT = re.compile(r"\$\{\w+:?[-=](?:localhost|127\.0\.0\.1)")
_HETEROGENEOUS = re.compile(r"^#SBATCH[ \t]+(?:het|pack)job", re.M)


def _asks_for_several(launch: Launch) -> bool:
    """Return True if a launcher is told of more than one node for certain."""
    nnodes = launch.script.shown(launch.value("nnodes"))
    all_nodes = re.match(r"\$\{?(?:SLURM_NNODES|SLURM_JOB_NUM_NODES)\b", nnodes)
    return (number(nnodes.partition(":")[0]) or 0) > 1 or bool(all_nodes and (launch.nodes or 1) > 1)


def nothing_starts_the_other_nodes(script: Script) -> Iterator[Fault]:
    """Report only what is certain: no program of the script may reach another node."""
    count = script.asked.nodes or 1
    if count < 2 or not script.directives or _HETEROGENEOUS.search(script.text):
        return
    functions = {command.function for command in script.commands}
    started = [each for each in launches(script) if each.kind not in functions and not _needs_one(script, each)]
    if started and all(_is_whole(script, each) for each in started):
        first = started[0].text
        reason = f"sbatch runs this only on the first of the {count} nodes, and nothing starts a program on the others"
        yield Fault(first, reason, f"srun --ntasks-per-node=1 {first.value} …")


def _needs_one(script: Script, launch: Launch) -> bool:
    """Return True for a program that only looks at the node or prepares it, or that is told of one node."""
    values = [script.shown(word.value) for word in launch.words]
    if launch.kind in ("source", ".", "eval", "sh", "bash"):
        return not values or bool(_SETS_UP.search(" ".join(values[:2])))
    looks = {launch.kind, (launch.step or launch).program.value} & {*_LOOKS, "python -c"}  # srun hostname
    prepares = not values if launch.kind == "xargs" else launch.kind in CONTAINERS and not {"run", "exec"} & {*values}
    alone = launch.trains and launch.is_alone
    return bool(looks or prepares or alone or {"--help", "-h", "--version"} & set(values))


def _is_whole(script: Script, launch: Launch) -> bool:
    """Return True for a launch that trains here alone: nothing else runs the rest of it, and one node is too few."""
    rank, given = script.shown(launch.value("node-rank")).strip("${}"), launch.options.keys()
    if not launch.trains or launch.step or launch.open or launch.command.background or launch.kind == "deepspeed":
        return False
    if launch.kind == "python":
        return bool(_TRAINS.search(launch.program.value))
    ranks = rank or ({"multi-gpu", "use-fsdp"} & given and not {"config-file", "use-deepspeed"} & given)
    told, several = launch.value("nnodes"), not launch.value("nnodes") or _asks_for_several(launch)
    reaches_others = launch.kind == "accelerate" and not (ranks and told)
    return several and not reaches_others and rank in ("", "0", "SLURM_NODEID", "SLURM_PROCID")


def each_node_trains_alone(script: Script) -> Iterator[Fault]:
    known = {*script.assigned, *script.environment}
    for launch in trained(script):
        if launch.open or not launch.is_on_several:
            continue
        count, place, given = launch.nodes, launch.text, launch.options.keys()
        if launch.kind == "torchrun" and "standalone" in given and launch.step:
            yield Fault(place, f"--standalone makes each of the {count} nodes a job of its own")
        elif launch.kind == "torchrun" and not given & {"nnodes", "standalone"} and "PET_NNODES" not in known:
            yield Fault(place, f"without --nnodes, torchrun makes each of the {count} {script.unit}s a job of its own")
        elif launch.kind == "deepspeed" and launch.step and "no-ssh" not in given:
            reason = f"srun starts deepspeed on each of the {count} nodes, and each takes itself for the whole job"
            yield Fault(place, reason, "srun torchrun …: DeepSpeed reads RANK and WORLD_SIZE from it")


def nodes_never_meet(script: Script) -> Iterator[Fault]:
    if script.unit == "service":
        return  # services of compose may share a network
    known = {*script.assigned, *script.environment}
    for launch in filter(_asks_for_several, trained(script)):
        for name in (name for name in MEETS if LOOPBACK.match(launch.value(name))):
            yield Fault(launch.options[name].text, ANOTHER_MACHINE)
        given = launch.options.keys() & {*MEETS, "standalone"} or known & _TOLD
        if launch.kind == "torchrun" and not given and not launch.open:
            default = "localhost:29400" if launch.value("rdzv-backend") == "c10d" else "127.0.0.1:29500"
            yield Fault(launch.text, f"no address is given where the nodes meet: each looks at {default}, its own")
    here = [(value, place) for name, value, _, place in script.settings if name == "MASTER_ADDR"]
    found = [each for each in trained(script) if not each.is_alone and (_asks_for_several(each) or each.is_on_several)]
    told = [[script.shown(each.value(name)) for name in MEETS if name in each.options] for each in found]
    if any(not values or "MASTER_ADDR" in " ".join(values) for values in told):
        for value, place in here if len(here) == 1 else ():
            if LOOPBACK.fullmatch(value):
                yield Fault(place, ANOTHER_MACHINE)


def node_rank_cannot_be(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        rank, count = number(launch.value("node-rank")), number(launch.value("nnodes"))
        if rank is None or launch.uses_c10d:
            continue
        text = launch.options["node-rank"].text
        if count is not None and rank >= count:
            yield Fault(text, f"node rank {rank} of {count} nodes: ranks go from 0 to {count - 1}")
        elif launch.is_on_several:
            yield Fault(text, f"each of the {launch.nodes} {script.unit}s gets node rank {rank}")


def node_rank_is_ignored(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        given = [name for name in ("node-rank", "master-addr") if name in launch.options]
        c10d = launch.kind == "torchrun" and launch.value("rdzv-backend") == "c10d"
        for name in given[:1] if c10d and _asks_for_several(launch) else ():
            text = launch.options[name].text
            yield Fault(text, f"c10d ignores --{name}: it numbers the nodes in alphabetical order of their names")


def nnodes_are_not_the_nodes(script: Script) -> Iterator[Fault]:
    for launch in trained(script):
        told, count = number(launch.value("nnodes")), launch.nodes
        if told and count and told != count and launch.is_on_several and (told > count or not launch.inner):
            text = launch.options["nnodes"].text
            yield Fault(text, f"the launcher is told of {told} nodes, but {count} {script.unit}s start it")


def address_is_not_certain(script: Script) -> Iterator[Fault]:
    lost = "if the name is not found, each node trains alone, without an error"
    for command in everything(script) if script.asked.nodes != 1 else ():
        asks_host = any(word.value.rpartition("/")[2] == "hostname" for word in command.words)
        falls_back = command.after == "||" and command.name in ("echo", "printf")
        for word in command.words:
            if asks_host and word.value in ("-i", "-I", "--ip-address", "--all-ip-addresses"):
                yield Fault(word.text, "this prints 127.0.0.1 on some nodes and several addresses on others")
            if falls_back and LOOPBACK.fullmatch(word.value):
                yield Fault(word.text, lost)
            for name, text in word.expansions:
                if name == "SLURM_LAUNCH_NODE_IPADDR":
                    yield Fault(text, "SLURM_LAUNCH_NODE_IPADDR is where srun was called, often no node")
                elif _HERE_BY_DEFAULT.match(text.value) and "SLURM_" in script.text:
                    yield Fault(text, lost)
