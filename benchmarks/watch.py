"""What the key `watch` costs a step: `torchrun --standalone --nproc-per-node=2 -m benchmarks.watch`.

In turns the heartbeat of each rank looks without a pause, and not at all.  In a job it pauses for 3 s after each look
of 0.2 s, so a sixteenth of the difference counts.  `bound`: with 95 % the median ratio is not above it.
"""

import math
import os
import threading

import torch.distributed as dist

from benchmarks.measure import in_turns, machine, make_parser, median_ratio, ratios, write_result
from benchmarks.steps import Training
from jobspec.watch import Watch
from train.world.environment import World

ON = threading.Event()


class Restless(Watch):
    def _renew(self) -> None:
        self._beat_s = 0.0
        ON.wait()
        super()._renew()


def turn(number: int) -> float:
    ON.clear() if ON.is_set() else ON.set()
    return training.seconds_per_step(100)


if __name__ == "__main__":
    args = make_parser("watch", str(__doc__), 30, "100 steps with the heartbeat, and as many without").parse_args()
    dist.init_process_group("gloo")
    Restless(World.detect(os.environ), 600.0)
    training = Training("mlp", "native")
    on, off = in_turns({"on": turn, "off": turn}, args.rounds).values()
    found = sorted(1 + (ratio - 1) / 16 for ratio in ratios(on, off))
    below = [sum(math.comb(args.rounds, k) for k in range(n + 1)) / 2**args.rounds for n in range(args.rounds)]
    bound = found[min(sum(likely < 0.95 for likely in below), args.rounds - 1)]
    if dist.get_rank() == 0:
        result = {"bound": bound, "without_a_pause": median_ratio(on, off), "on": on, "off": off, "machine": machine()}
        write_result(args.results, "watch", {"what": "time of a step with watch / without", **result})
