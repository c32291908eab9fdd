"""python -m train.doctor: can these processes train together, and how fast can they talk?

Start it exactly as the training is started, on the same nodes:

    torchrun --standalone --nproc-per-node 2 -m train.doctor
    render-job slurm jobs/doctor.yaml sites/mine.yaml | sbatch
"""

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from train.config import YEAR_S
from train.errors import SharedError, leave, refuse_without, report
from train.world.environment import World
from train.world.signals import stop_with_parent

# Longer than the silence after which Watch names the missing rank.
_CONNECT_S = 120.0


def main(argv: list[str] | None = None) -> int:
    """Examine, report and return the exit code: 0 if nothing is wrong, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m train.doctor",
        description="Show where each rank runs, check and time messages between all processes, and report problems.",
        allow_abbrev=False,
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="as in python -m train")
    parser.add_argument("--picture", type=Path, metavar="PATH", help="draw the measured times as PNG, SVG or PDF")
    help_text = "report links slower than this many Mbit/s (default: %(default)g)"
    parser.add_argument("--slow-mbit-s", type=float, default=500.0, metavar="RATE", help=help_text)
    for name, default, text in (
        ("silence", 15.0, "seconds without a sign of life after which a rank counts as paused or gone"),
        ("rendezvous-timeout", 30.0, "seconds to wait for the other ranks"),
        ("resolve-timeout", 20.0, "seconds to wait until the name in MASTER_ADDR resolves"),
    ):
        help_text = f"{text} (default: %(default)g)"
        parser.add_argument(f"--{name}-s", type=_seconds, default=default, metavar="SECONDS", help=help_text)
    options = parser.parse_args(argv)
    try:
        world = World.detect(os.environ)
        if world.launcher == "torchrun":
            stop_with_parent()
        return 1 if examine(world, options) else 0
    except Exception as error:
        report(error, "PROBLEM", sys.stdout)
        return 1


def examine(world: World, options: argparse.Namespace) -> list[str]:
    """Run all checks and let rank 0 print what they show; return the problems, on all ranks.

    Raises UserError if the processes cannot be connected, or SharedError if they do not fit together.
    """
    # Imported here: importing torch takes seconds, and a wrong environment should be reported at once.
    import torch
    import torch.distributed as dist

    from train.collectives.broadcast import thing_of_rank_0
    from train.diagnosis import card, meeting
    from train.diagnosis.report import draw, lines, measured, problems
    from train.diagnosis.speed import Ranks
    from train.diagnosis.watch import Watch
    from train.world.placement import gradient_group
    from train.world.rendezvous import choose_interfaces, connect_to_store, wait_until_resolvable

    if options.picture is not None and world.rank == 0:
        refuse_without("matplotlib", "--picture", "report")
    wait_until_resolvable(world.master_addr, options.resolve_timeout_s)
    gloo_address = card.gloo_address()
    choose_interfaces(world)
    server = meeting.open_store(world, options.rendezvous_timeout_s)
    world = replace(world, master_port=server.port, store_is_served=True)
    keys = f"doctor-{world.store_attempt}"  # used by no other program and no earlier attempt
    store = dist.PrefixStore(keys, server)
    own = card.own_card(world, options.device, gloo_address)
    cards = meeting.meet(own, store, options.rendezvous_timeout_s)
    if world.rank == 0:
        print(card.table(cards), flush=True)

    def connect() -> dist.Store:
        return dist.PrefixStore(keys, connect_to_store(world, timedelta(seconds=options.rendezvous_timeout_s)))

    with Watch(connect, own, cards, options.silence_s) as watch:
        watch.doing("trying the connections between hosts")
        unreachable = meeting.try_hosts(own, cards, store)
        if not unreachable:
            watch.doing("connecting the ranks")
            # By the same groups as in a training: gloo for messages, NCCL for gradients on GPUs.
            limit, device = timedelta(seconds=_CONNECT_S), torch.device(own.device or "cpu")
            dist.init_process_group("gloo", store=store, rank=own.rank, world_size=own.world_size, timeout=limit)
            ranks = Ranks(own.rank, own.world_size, device, gradient_group(device, _CONNECT_S), store)
            found = measured(ranks, cards, watch)
    if unreachable:
        raise SharedError(unreachable)
    sentences = thing_of_rank_0(problems(found, options.slow_mbit_s) if world.rank == 0 else [])
    if world.rank == 0:
        print(lines(found))
        print("\n".join(f"PROBLEM: {problem}" for problem in sentences) or "no problem found", flush=True)
        if options.picture is not None:
            draw(found, options.picture)
    return sentences


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= YEAR_S:
            return float(text)
    raise argparse.ArgumentTypeError(f'"{text}" is not accepted; it must be a number above 0, at most {YEAR_S:.0f}')


if __name__ == "__main__":
    leave(main())
