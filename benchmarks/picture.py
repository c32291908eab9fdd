"""Draw what is in results/: `python -m benchmarks.picture`.

benchmarks.png has a panel for each file with ratios: a bar is a median ratio, a dot is one round, a line is the
target.  scaling.png shows the cost model: its errors, and what it predicts.
"""

from __future__ import annotations

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
    if "scaling" in results:
        draw_scaling(results["scaling"], RESULTS / "scaling.png")


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
    panel.tick_params(axis="x", labelrotation=15)
    panel.legend()


def draw_scaling(result: Mapping[str, Any], file: Path) -> None:
    """Draw predicted against measured steps, and a panel for each model of the prediction."""
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in result["predictions"]))
    figure, panels = pyplot.subplots(1, 1 + len(models), figsize=(5 * (1 + len(models)), 4.5), layout="constrained")
    checked, *predicted = panels
    rows = result["rows"]
    for offset, key, color in ((-0.2, "measured_s", "lightsteelblue"), (0.2, "predicted_s", "steelblue")):
        positions = [index + offset for index in range(len(rows))]
        checked.barh(positions, [row[key] for row in rows], height=0.4, color=color, label=key)
    for index, row in enumerate(rows):
        checked.annotate(f" {row['error']:+.1%}", (max(row["measured_s"], row["predicted_s"]), index), va="center")
    fitted = result["settings"]["fit"]["ranks"]
    names = [
        f"{row['ranks']:g} ranks, {row['mbit_per_s']:g} Mbit/s{', fitted' * (row['ranks'] == fitted)}" for row in rows
    ]
    checked.set_yticks(range(len(rows)), names)
    checked.invert_yaxis()
    checked.margins(x=0.15)
    checked.set(title=f"{result['settings']['workload']}: cost model against steps taken", xlabel="s a step")
    checked.legend()
    for panel, model in zip(predicted, models, strict=True):
        for row in result["predictions"]:
            if row["model"] == model:
                label = f"{row['gbit_per_s']} Gbit/s, latency {row['alpha_s'] * 1e6:.0f} us ({row['alpha']})"
                style = "-" if row["alpha"] == "measured" else "--"
                efficiency = [row["step_without_network_s"] / seconds for seconds in row["step_s"]]
                panel.plot(row["nodes"], efficiency, style, marker=".", label=label)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set(title=f"PREDICTION: {model}, one flat ring", xlabel="nodes", ylim=(0, 1.05))
        panel.set_ylabel("step without a network / step")
        panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
