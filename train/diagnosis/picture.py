"""The picture of `--picture`: time and rate of an all-reduce by message size, and the rate of each link."""

from __future__ import annotations

from pathlib import Path

from train.diagnosis.report import Report
from train.errors import UserError


def draw(report: Report, file: Path) -> None:
    """Write the picture as PNG, or in the format that the ending of `file` names.

    Raises UserError if the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no state

    figure = Figure(figsize=(11, 4), layout="constrained")
    times, rates, links = figure.subplots(1, 3)
    sizes = [one.size for one in report.all_reduce]
    times.loglog(sizes, [one.seconds * 1e3 for one in report.all_reduce], marker="o")
    times.set(title=f"all-reduce over {report.backend}", xlabel="message [bytes]", ylabel="time [ms]")
    rates.loglog(sizes, [one.bytes_per_second * 8 / 1e6 for one in report.all_reduce], marker="o")
    rates.set(title="what each rank sends", xlabel="message [bytes]", ylabel="rate [Mbit/s]")
    for axes in (times, rates):
        axes.grid(True, alpha=0.3)
    names = [f"{link.source} → {link.target}" for link in report.links]
    links.bar(names, [link.bytes_per_second * 8 / 1e6 for link in report.links])
    links.set(title="links", xlabel="from rank → to rank", ylabel="rate [Mbit/s]", ylim=(0, None))
    links.tick_params(axis="x", labelrotation=0 if len(names) <= 8 else 90)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"--picture: cannot write {file}: {error}") from None
