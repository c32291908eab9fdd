"""Draw results/*.json as results/benchmarks.png, one panel a file: `python -m benchmarks.picture`.

A bar is a median ratio, a dot one round, the line the ratio to be reached.
"""

from __future__ import annotations

import json

import matplotlib

from benchmarks.measure import RESULTS


def main() -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    files = sorted(RESULTS.glob("*.json"))
    figure, panels = pyplot.subplots(1, len(files), figsize=(4 * len(files), 3.5), squeeze=False, layout="constrained")
    for panel, file in zip(panels[0], files, strict=True):
        result = json.loads(file.read_text())
        names = list(result["ratio"])
        panel.bar(names, [result["ratio"][name] for name in names], color="lightsteelblue")
        for name in names:
            rounds = result["ratios"][name]
            panel.plot([name] * len(rounds), rounds, "o", color="black", markersize=3)
        for bound in ("ratio_at_least", "ratio_at_most"):
            if bound in result:
                panel.axhline(result[bound], color="firebrick", linestyle="--", label=f"{bound} {result[bound]:g}")
        panel.set_title(file.stem)
        panel.set_ylabel(result["unit"])
        panel.tick_params(axis="x", labelrotation=15)
        panel.legend()
    figure.savefig(RESULTS / "benchmarks.png", dpi=120)


if __name__ == "__main__":
    main()
