"""Draw what is in results/: `python -m benchmarks.picture`.

benchmarks.png has a panel for each file with ratios: a bar is a median ratio, a dot is one round, a line is the
target.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.measure import RESULTS

_COLUMNS = 4


def main() -> None:
    matplotlib.use("agg")
    results = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    draw_ratios({name: result for name, result in results.items() if "ratio" in result}, RESULTS / "benchmarks.png")


def draw_ratios(results: Mapping[str, Any], file: Path) -> None:
    """Draw one panel for each result."""
    from matplotlib import pyplot

    columns = min(_COLUMNS, len(results))
    rows = -(-len(results) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3.5 * rows), squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(results) :]:
        panel.axis("off")
    for panel, (name, result) in zip(panels.flat, results.items(), strict=False):
        _draw_ratio(panel, result)
        panel.set_title(name)
    figure.savefig(file, dpi=120)


def _draw_ratio(panel: Any, result: Mapping[str, Any]) -> None:
    bars = list(result["ratio"])
    panel.bar(bars, [result["ratio"][bar] for bar in bars], color="lightsteelblue")
    for bar in bars:
        rounds = result["ratios"][bar]
        panel.plot([bar] * len(rounds), rounds, "o", color="black", markersize=3)
    for key in ("ratio_at_least", "ratio_at_most"):
        bound = result.get(key)
        if isinstance(bound, dict):
            # One for each bar, across its width.
            values = [bound[bar] for bar in bars]
            left, right = [index - 0.4 for index in range(len(bars))], [index + 0.4 for index in range(len(bars))]
            panel.hlines(values, left, right, color="firebrick", linestyle="--", label=key)
        elif bound is not None:
            panel.axhline(bound, color="firebrick", linestyle="--", label=f"{key} {bound:g}")
    panel.set_ylabel(result["unit"])
    panel.tick_params(axis="x", labelrotation=30)
    if any(key.startswith("ratio_at_") for key in result):
        panel.legend()


if __name__ == "__main__":
    main()
