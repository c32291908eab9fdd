"""Rules for shell scripts, most of them for batch scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobspec.problems import Place
from lint.lexer import TORCHRUN
from lint.rules import Fault, rule
from lint.sbatch import Directive
from lint.shell import Flag, Script
from lint.steps import nodes, options, starts_training

_OF_A_TASK = ("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID")
_LOOKS = ("echo", "printf", "[", "[[", "test", "case")
_HERE_ONLY = re.compile(r"localhost|127\.0\.0\.1")
_HERE_BY_DEFAULT = re.compile(rf"\$\{{\w+:?[-=](?:{_HERE_ONLY.pattern})")


@rule("https://github.com/huggingface/accelerate/issues/2816")
def expanded_by_the_batch_shell(script: Script) -> Iterator[Fault]:
    if not script.is_batch:
        return
    for command in script.commands:
        if command.inner or command.name in _LOOKS:
            continue
        for word in command.words:
            for found in word.expansions:
                if found.name in _OF_A_TASK:
                    yield Fault(
                        script.locate(found.start, len(found.text)),
                        f"the batch shell replaces {found.name} before srun starts the tasks: it is 0 on every node",
                        f"use single quotes, so that each task replaces it: srun bash -c '… ${found.name} …'",
                    )


@rule("https://github.com/reframe-hpc/reframe/issues/2655")
def srun_without_cpus(script: Script) -> Iterator[Fault]:
    asked = script.directive("cpus-per-task")
    if asked is None or any(name == "SRUN_CPUS_PER_TASK" for name, _ in script.assignments()):
        return
    for command in filter(starts_training, script.commands):
        # A step that overlaps others, such as a check of the nodes, runs beside the training and needs few cores.
        if not options(script, command).keys() & {"cpus-per-task", "overlap"}:
            reason = "since Slurm 22.05 srun does not inherit --cpus-per-task from sbatch: each task gets one core"
            yield Fault(script.place(command.program[0]), reason, f"srun --cpus-per-task={asked.value} …")


@rule("https://github.com/meta-pytorch/torchx/issues/479")
def srun_goes_on_without_a_node(script: Script) -> Iterator[Fault]:
    if any(name == "SLURM_KILL_BAD_EXIT" for name, _ in script.assignments()):
        return
    for command in filter(starts_training, script.commands):
        own = options(script, command)
        is_alone = nodes(script, command) == 1 or own.get("ntasks") == "1"
        if not is_alone and "kill-on-bad-exit" not in own:
            reason = "when one node fails, the others wait for it until the time limit"
            yield Fault(script.place(command.program[0]), reason, "srun --kill-on-bad-exit=1 --wait=60 …")


@rule("https://github.com/rwth-i6/sisyphus/issues/201")
def requeue_overwrites_log(script: Script) -> Iterator[Fault]:
    mode = script.directive("open-mode")
    if not script.is_batch or (mode and mode.value.startswith("a")):
        return
    places = [found.place for found in script.directives if found.name == "requeue"]
    for command in script.commands:
        if command.name == "scontrol" and any(word.value == "requeue" for word in command.words):
            places.append(script.place(command.words[0]))
    for place in places[:1]:
        yield Fault(place, "a requeued job overwrites the log of the run before it", "#SBATCH --open-mode=append")


@rule("https://github.com/facebookincubator/submitit/issues/1709")
def signal_without_trap(script: Script) -> Iterator[Fault]:
    asked = script.directive("signal")
    if asked and asked.value.startswith("B:") and not any(command.name == "trap" for command in script.commands):
        reason = (
            "only the batch shell gets this signal (B:); without a trap the shell ends, and Slurm kills the processes"
        )
        fix = 'srun … & step=$!; trap \'kill -USR1 "$step"; wait "$step"\' USR1; wait "$step"'
        yield Fault(asked.place, reason, fix)


@rule("https://github.com/pytorch/pytorch/issues/154849")
def signal_kills_the_agent(script: Script) -> Iterator[Fault]:
    asked = script.directive("signal")
    torchrun = any(command.has(*TORCHRUN) for command in script.commands)
    if asked and torchrun and re.match(r"(?:SIG)?USR", asked.value) and not any(script.flags("--signals-to-handle")):
        reason = "srun hands the signal to torchrun, which dies of it and leaves its workers running"
        yield Fault(asked.place, reason, "--signal=B:USR1@120 with a trap, or torchrun --signals-to-handle")


@rule("https://github.com/mlfoundations/open_clip/issues/614")
def task_sees_one_gpu(script: Script) -> Iterator[Fault]:
    tasks = script.directive("ntasks-per-node")
    if tasks is None or tasks.value in ("", "1"):
        return
    options: list[Directive | Flag] = [
        found for found in script.directives if found.name in ("gpus-per-task", "gpu-bind")
    ]
    for found in [*options, *script.flags("--gpus-per-task", "--gpu-bind")]:
        if found.value != "none":
            reason = "each task sees only its own GPU, as cuda:0, so cuda:LOCAL_RANK is an invalid device ordinal"
            yield Fault(found.place, reason, "--gpus-per-node and one task per node: torchrun starts a process per GPU")


@rule("https://www.shellcheck.net/wiki/SC2128")
def array_used_as_text(script: Script) -> Iterator[Fault]:
    arrays = {name for name, word in script.assignments() if word.text.rstrip(")").partition("=")[2].startswith("(")}
    for command in script.commands:
        for word in command.words:
            for found in word.expansions:
                if found.name in arrays and found.text in (f"${found.name}", f"${{{found.name}}}"):
                    place = script.locate(found.start, len(found.text))
                    reason = f"{found.name} is an array: without an index you get only its first element"
                    yield Fault(
                        place, reason, f'all of them: "${{{found.name}[@]}}"; the first: "${{{found.name}[0]}}"'
                    )


@rule("https://github.com/pytorch/pytorch/issues/126510")
def port_is_fixed(script: Script) -> Iterator[Fault]:
    if not script.is_batch or script.directive("exclusive"):
        return
    for place, value in _ports(script):
        if value.isdigit():
            reason = f"every job takes port {value}: two jobs on one node cannot both run"
            yield Fault(place, reason, "derive it from the job: $(( 20000 + SLURM_JOB_ID % 10000 ))")


@rule("https://github.com/NVIDIA/enroot/issues/243")
def port_is_random(script: Script) -> Iterator[Fault]:
    if not script.is_batch:
        return
    for place, value in _ports(script):
        if "RANDOM" in value or "shuf" in value:
            reason = "a random port may be in use, or be one that Linux hands out to clients (32768-60999)"
            yield Fault(place, reason, "derive it from the job: $(( 20000 + SLURM_JOB_ID % 10000 ))")


def _ports(script: Script) -> Iterator[tuple[Place, str]]:
    """Yield every rendezvous port that a script sets, and its place."""
    for name, word in script.assignments():
        if name.upper() in ("MASTER_PORT", "PORT", "RDZV_PORT", "PET_MASTER_PORT"):
            yield script.place(word), word.assigned_value
    for flag in script.flags("--master-port", "--main-process-port"):
        yield flag.place, flag.value
    for flag in script.flags("--rdzv-endpoint"):
        yield flag.place, flag.value.rpartition(":")[2]


@rule("https://github.com/huggingface/accelerate/issues/2362")
def address_of_hostname(script: Script) -> Iterator[Fault]:
    for command in script.commands:
        if not command.has("hostname"):
            continue
        for word in command.words:
            if word.value in ("-i", "-I", "--ip-address", "--all-ip-addresses"):
                reason = f"hostname {word.value} prints 127.0.0.1 on some nodes and several addresses on others"
                fix = 'use the scheduler\'s name of the node: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
                if script.in_container:
                    fix = "use the name of the pod or service of node 0"
                yield Fault(script.place(word), reason, fix)


@rule("https://github.com/mlc-ai/pith-train/pull/91")
def falls_back_to_localhost(script: Script) -> Iterator[Fault]:
    fix = "remove the fallback; read the nodes with scontrol before the container starts, and export MASTER_ADDR"
    reason = "if the name is not found, each node trains alone, without an error"
    for command in script.commands:
        words = [word for word in command.words if _HERE_ONLY.fullmatch(word.value)]
        if command.after == "||" and command.name in ("echo", "printf") and words:
            yield Fault(script.place(words[0]), reason, fix)
        for word in command.words:
            for found in word.expansions:
                if "SLURM_" in script.text and _HERE_BY_DEFAULT.match(found.text):
                    yield Fault(script.locate(found.start, len(found.text)), reason, fix)


@rule("https://github.com/NVIDIA/pyxis/issues/124")
def image_hides_variables(script: Script) -> Iterator[Fault]:
    exported = [
        word.assigned
        for command in script.commands
        for word in command.words
        if command.name == "export" and word.assigned
    ]
    if not exported or any(script.flags("--container-env")):
        return
    for flag in script.flags("--container-image"):
        names = list(dict.fromkeys(exported))
        reason = f"if the image also sets these variables, the image's values replace the job's: {', '.join(names)}"
        yield Fault(flag.place, reason, f"srun --container-env={','.join(names)} …")


@rule("https://github.com/NVIDIA/NVFlare/issues/5038")
def container_without_gpu_variables(script: Script) -> Iterator[Fault]:
    if any(name.endswith("ENV_CUDA_VISIBLE_DEVICES") for name, _ in script.assignments()):
        return
    for flag in script.flags("--cleanenv"):
        if not any("CUDA_VISIBLE_DEVICES" in word.value for word in flag.command.words):
            reason = "--cleanenv drops CUDA_VISIBLE_DEVICES, too: every task takes the same GPUs"
            yield Fault(
                flag.place, reason, 'export APPTAINERENV_CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" in the task'
            )


@rule("https://github.com/NVIDIA/nccl/issues/286")
def gloo_interface_is_a_pattern(script: Script) -> Iterator[Fault]:
    for name, word in script.assignments():
        if name == "GLOO_SOCKET_IFNAME" and word.assigned_value.startswith(("^", "=")):
            reason = "Gloo wants the exact name of an interface; only NCCL takes patterns"
            yield Fault(script.place(word), reason, "write the interface that `ip route get MASTER_ADDR` shows")
