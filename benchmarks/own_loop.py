"""One training loop, written four times: time of a step, samples repeated and skipped after a kill, lines of code.

    python -m benchmarks.own_loop [--kills 8] [--peers ddp accelerate fabric]

The loops, benchmarks/peers/loop_*.py, have the same model, samples, optimizer and global batch; ours writes records.
Times: all live in the same two processes of one thread, with the allocator's settings and the flushed denormals of
ours, and take turns as in benchmarks/ddp.py; a step reads its batch.
--kills, in place of times: one of two processes kills itself by SIGKILL after a step; both are drawn, the same for all.
The loop is started again on two and, from a copy, on three processes.  The last weights come from the steps up to the
checkpoint and after the new start: a sample is repeated if an epoch of these has it twice, skipped if it lacks it.
"""

import json
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from benchmarks.measure import in_turns, machine, make_parser, quartiles, ratios, seconds_per_step, write_result
from benchmarks.peers.work import BATCH_SIZE, Step, begin
from benchmarks.ranks import run_as_torchrun

NEEDS = {"ddp": "torch", "accelerate": "accelerate", "fabric": "lightning"}
PRELOAD = ("train", "accelerate", "lightning.fabric", "benchmarks.peers.work")
STEPS = {"mlp": 100, "mnist_cnn": 8}  # counted in a turn
SAMPLES, EPOCHS, SAVE_EVERY, LAST_STEP = 1003, 2, 5, 42  # of the kills


def main(argv: list[str] | None = None) -> None:
    """Measure and write results/own_loop.json or own_loop_kills.json."""
    parser = make_parser("own_loop", __doc__, 60, "turns of each loop")
    parser.add_argument("--peers", nargs="+", choices=NEEDS, default=[*NEEDS], help="beside ours; default: all")
    parser.add_argument("--kills", type=int, help="how often each loop is killed; default: times are measured")
    options = parser.parse_args(argv)
    if missing := [NEEDS[peer] for peer in options.peers if find_spec(NEEDS[peer]) is None]:
        parser.error(f"{' and '.join(missing)} not found: pip install {' '.join(missing)}, or choose other --peers")
    loops = ["ours", *options.peers]
    result = kills(loops, options.kills) if options.kills else times(loops, options.rounds)
    texts = {loop: Path(__file__).with_name("peers").joinpath(f"loop_{loop}.py").read_text() for loop in loops}
    result["lines_of_code"] = {loop: sum(map(bool, text.splitlines()[1:])) for loop, text in texts.items()}
    write_result(options.results, result["benchmark"], result | {"machine": machine()})
    print((options.results / f"{result['benchmark']}.json").read_text())


def times(loops: list[str], rounds: int) -> dict[str, Any]:
    """Return the ratios of ours to each peer."""
    by_round, medians = dict[str, list[float]](), {}
    for model, steps in STEPS.items():
        with tempfile.TemporaryDirectory() as folder:
            run_as_torchrun(2, PRELOAD, _time, Path(folder), loops, model, rounds, steps)
            seconds = json.loads(Path(folder, "seconds.json").read_text())
        medians[model] = {loop: median(seconds[loop]) for loop in loops}
        by_round |= {f"{model} / {loop}": ratios(seconds["ours"], seconds[loop]) for loop in loops if loop != "ours"}
    return {
        "benchmark": "own_loop",
        "what": "time of a step with its data, ours / peer",
        "unit": "step time / peer's",
        "ratio": {name: median(values) for name, values in by_round.items()},
        "ratio_at_most": 1.02,
        "ratio_quartiles": {name: quartiles(values) for name, values in by_round.items()},
        "median_step_seconds": medians,
        "ratios": by_round,
        "settings": {"batch_size": BATCH_SIZE, "rounds": rounds, "steps": STEPS},
    }


def kills(loops: list[str], number: int) -> dict[str, Any]:
    """Return what count() finds for each loop, without a kill and after each kill."""
    draw = random.Random(0)
    drawn = [(draw.randrange(1, LAST_STEP), draw.randrange(2)) for _ in range(number)]
    found: dict[str, dict[str, list[list[int]]]] = {}
    for loop in loops:
        cases = found[loop] = {"no kill": [], "then 2 processes": [], "then 3 processes": []}
        for kill in (None, *drawn):
            with tempfile.TemporaryDirectory() as root:
                first, copy = Path(root, "first"), Path(root, "copy")
                run_as_torchrun(2, PRELOAD, _train, first, loop, 0, kill, may_fail=kill is not None)
                shutil.copytree(first, copy)
                for processes, folder in ((2, first), (3, copy)) if kill else ():
                    run_as_torchrun(processes, PRELOAD, _train, folder, loop, 1)
                    cases[f"then {processes} processes"].append(count(folder))
                cases["no kill"] += [] if kill else [count(first)]
    what = f"samples repeated, samples skipped, steps done again; {EPOCHS} epochs of {SAMPLES} samples"
    return {"benchmark": "own_loop_kills", "what": what, "step_and_rank_of_each_kill": drawn, **found}


def count(folder: Path) -> list[int]:
    """Return samples repeated and skipped, and steps done again, from the notes of one or two starts."""
    first, again = ([json.loads(line) for at in folder.glob(n) for line in at.read_text().splitlines()] for n in "01")
    killed = max(step for _, step, _ in first)
    resumed = min((step for _, step, _ in again), default=killed + 1)
    lasting = [noted for noted in first if noted[1] < resumed] + again
    seen = Counter((epoch, sample) for epoch, _, samples in lasting for sample in samples)
    return [seen.total() - len(seen), EPOCHS * SAMPLES - len(seen), killed + 1 - resumed]


def _time(folder: Path, loops: list[str], model: str, rounds: int, steps: int) -> None:
    num = (rounds + 1) * (steps + 1) + 1  # no epoch ends
    turns = {loop: partial(_turn, begin(loop, model, BATCH_SIZE * num, folder / loop, 1, num), steps) for loop in loops}
    in_turns(turns, 1)
    seconds = in_turns(turns, rounds)
    if dist.get_rank() == 0:
        (folder / "seconds.json").write_text(json.dumps(seconds))


def _turn(running: Iterator[Step], steps: int, number: int) -> float:
    return seconds_per_step(partial(next, running), dist.barrier, steps)


def _train(folder: Path, loop: str, number: int, kill: tuple[int, int] | None = None) -> None:
    rank, steps = int(os.environ["RANK"]), begin(loop, "mlp", SAMPLES, folder / "run", EPOCHS, SAVE_EVERY)
    with (folder / str(number)).open("a", buffering=1) as notes:
        for epoch, step, batch in steps:
            notes.write(f"{json.dumps([epoch, step, batch[2].tolist()])}\n")
            if kill == (step, rank):
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
