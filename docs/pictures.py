"""Draws the pictures of README, light and dark: `python -m docs.pictures`, or `make render`.

What runs have said is in recorded.json, which docs/record.py writes.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jobspec import targets
from jobspec.artifact import load
from train.data.shard import epoch_order, share

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_SPEC = [
    "name: hello",
    "nodes: 2",
    "procs_per_node: 4",
    "image: team/train:1.0",
    "command: [train.py]",
    "time_limit: 2h",
]
_ARTIFACTS = [
    ("slurm", "batch script", "| sbatch"),
    ("pytorchjob", "manifest", "| kubectl apply"),
    ("trainjob", "manifest", "| kubectl apply"),
    ("jobset", "manifest", "| kubectl apply"),
    ("indexedjob", "manifest", "| kubectl apply"),
    ("torchrun", "script, one machine or ssh", "| bash"),
    ("compose", "compose file", "docker compose up"),
]
_STYLE = """
  svg { background: #fff } text { font: 14px ui-monospace, monospace; fill: #1f2328 }
  .note { font: 13px system-ui, sans-serif; fill: #59636e }
  .head { font: bold 14px system-ui, sans-serif } rect { fill: #f6f8fa; stroke: #d1d9e0 }
  path { stroke: #0969da; fill: none; stroke-width: 1.5 } .small { font-size: 11px }
  .terminal, .typed { font-size: 12px } .typed { fill: #0969da; font-weight: bold }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 }
    text { fill: #f0f6fc } .note { fill: #9198a1 } rect { fill: #151b23; stroke: #3d444d } path { stroke: #4493f8 }
    .typed { fill: #4493f8 }
  }"""
_ROW, _TOP, _LEFT, _RIGHT = 34, 36, 250, 360
# Each ready job with a line; its picture is its curve if one is recorded, else mostly its spec.
_JOBS = {
    "own-script": "your PyTorch script",
    "quickstart": "a first training run",
    "mnist": "PyTorch's example, its first 300 steps",
    "fashion-mnist": "ResNet18, its first 200 steps",
    "gpt": "a small GPT on the text of docs/",
    "regression": "your own loop, with train.Run",
    "gan": "two models and optimizers",
    "exact": "each sample once, killed or not",
    "sweep": "one job for three learning rates",
    "elastic": "one to three nodes, which come and go",
    "pyxis, apptainer, …": "Slurm with containers",
    "doctor": "checks nodes and connections first",
}


def _text(x: float, y: float, words: str, kind: str = "code") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" xml:space="preserve">{words}</text>'


def _box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>'


def _picture(width: int, height: int, alt: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{alt}">'
    return "\n".join([head, f"<style>{_STYLE}\n</style>", *parts, "</svg>", ""])


def overview() -> str:
    """Draw the targets of a spec."""
    height = _TOP + _ROW * len(_ARTIFACTS) + 12
    middle = (_TOP + height - 12) / 2
    box = 26 * len(_SPEC) + 16
    parts = [_text(10, 22, "one spec", "head"), _text(_RIGHT, 22, "seven targets, plain text", "head")]
    parts.append(_box(10, middle - box / 2, _LEFT - 10, box))
    parts += [_text(22, middle - box / 2 + 26 + 26 * number, line) for number, line in enumerate(_SPEC)]
    for number, (target, kind, then) in enumerate(_ARTIFACTS):
        y = _TOP + _ROW * number
        parts.append(
            f'<path d="M{_LEFT} {middle} C{_LEFT + 60} {middle} {_RIGHT - 60} {y + 14} {_RIGHT - 4} {y + 14}"/>'
        )
        parts += [_box(_RIGHT, y, 470, 28), _text(_RIGHT + 12, y + 19, target)]
        parts += [_text(_RIGHT + 120, y + 19, kind, "note"), _text(_RIGHT + 312, y + 19, then)]
    return _picture(840, height, "One job spec becomes the text of seven targets", parts)


def session(lines: Sequence[str]) -> str:
    """Draw a terminal; commands begin with a dollar sign."""
    parts, y = [], 4
    for line in lines:
        typed = line.startswith("$")
        y += 23 if typed else 16
        parts.append(_text(16, y, line, "typed" if typed else "terminal"))
    height = y + 16
    parts.insert(0, _box(1, 1, 838, height - 2))
    return _picture(840, height, "A spec becomes a batch script, and the script a running job", parts)


def badges() -> str:
    """Draw what this version is and was tested with: as in pyproject.toml and README's table."""
    project, readme = (ROOT / "pyproject.toml").read_text(), (ROOT / "README.md").read_text()
    (code,) = re.findall(r'^__version__ = "(.+)"', (ROOT / "train" / "__init__.py").read_text(), re.M)
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    facts = {"version": code, "Python": f"{pythons[0]}–{pythons[-1]}"}
    facts |= dict(re.findall(r"^(Slurm|Kubernetes) ([\d., ]*\d)", readme, re.M))
    facts |= {"licence": "".join(re.findall(r'^license = "(.+)"', project, re.M))}
    parts, x = [], 1.0
    for name, value in facts.items():
        width = 7.4 * len(name) + 8.6 * len(value) + 26
        parts += [_box(x, 1, width, 26), _text(x + 8, 19, name, "note"), _text(x + 16 + 7.4 * len(name), 19, value)]
        x += width + 8
    return _picture(round(x), 28, ", ".join(" ".join(fact) for fact in facts.items()), parts)


def gallery(recorded: dict[str, Any]) -> str:
    """Draw each ready job with its line."""
    parts = []
    for number, (job, line) in enumerate(_JOBS.items()):
        x, y = 1 + 282 * (number % 3), 1 + 168 * (number // 3)
        parts += [_box(x, y, 274, 160), _text(x + 12, y + 20, job, "head"), _text(x + 12, y + 38, line, "note")]
        if job in ("own-script", "elastic"):
            parts += _rank_map(x + 12, y + 54, job)
        elif job in recorded["curves"]:
            parts += _curves(x + 12, y + 54, recorded["curves"][job])
        else:
            parts += [_text(x + 12, y + 60 + 13 * n, words, "small") for n, words in enumerate(_lines(job, recorded))]
    return _picture(840, 168 * -(-len(_JOBS) // 3), "The ready jobs: " + ", ".join(_JOBS), parts)


def _rank_map(x: int, y: int, job: str) -> Iterator[str]:
    """Where `explain` says that the ranks are."""
    for rank in load(targets.load("slurm"), str(ROOT / "jobs" / f"{job}.yaml")).ranks():
        left = x + 84 * rank.node
        if rank.local_rank == 0:
            yield from (_box(left, y, 78, 92), _text(left + 10, y + 18, f"node {rank.node}", "note"))
        yield _text(left + 10, y + 44 + 24 * rank.local_rank, f"rank {rank.rank}")


def _curves(x: int, y: int, runs: Sequence[Sequence[tuple[int, float]]]) -> Iterator[str]:
    """The loss of each run by its steps."""
    last, highest = runs[0][-1][0], max(loss for run in runs for _, loss in run)
    for run in runs:
        places = [f"{x + 250 * step / last:.0f} {y + 78 - 70 * loss / highest:.0f}" for step, loss in run]
        yield f'<path d="M{" L".join(places)}"/>'
    ends = ", ".join(f"{run[-1][1]:.2g}" for run in runs)
    yield _text(x, y + 96, f"loss at step {last}: {ends}", "note")


def _lines(job: str, recorded: dict[str, Any]) -> list[str]:
    """What the doctor said, which samples ranks read, or the spec; as far as there is room."""
    if job == "exact":
        order = epoch_order(16, seed=1, epoch=1)
        found = []
        for start, ranks in ((0, 2), (8, 4)):
            found.append(f"{ranks} ranks" if start == 0 else f"killed, then {ranks} ranks")
            found += [
                f"rank {rank}: {' '.join(str(order[start + k]) for k in share(range(8), rank, ranks))}"
                for rank in range(ranks)
            ]
        return found
    if job == "doctor":
        lines = recorded["doctor"]
    else:
        spec = (ROOT / "jobs" / f"{job.partition(',')[0]}.yaml").read_text().splitlines()
        lines = [line.partition("  #")[0] for line in spec if line and line[0] != "#"][-7:]
    return [line if len(line) < 38 else f"{line[:36]} …" for line in lines]


def pictures() -> dict[str, str]:
    """Return each picture by its file name."""
    recorded = json.loads((DOCS / "recorded.json").read_text())
    return {
        "overview.svg": overview(),
        "session.svg": session(recorded["session"]),
        "gallery.svg": gallery(recorded),
        "badges.svg": badges(),
    }


if __name__ == "__main__":
    for name, text in pictures().items():
        (DOCS / name).write_text(text)
