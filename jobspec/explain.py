"""Explain which process runs where and who sets each of its variables, before anything is submitted.

`explain` collects this, `as_json` and `as_table` format it.  A value that is known only when the job runs is in words,
between < and >.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from jobspec.environment import SetBy
from jobspec.plan import Plan, Rank
from jobspec.problems import printable
from jobspec.slurm.task import train_timeout
from jobspec.targets import Target, template

_HEADS = {"rank": "RANK", "node": "NODE_RANK", "local_rank": "LOCAL_RANK"}
_MANY = 32  # processes; above, the table has one row a node
_SHOWN = 64  # nodes; above, the table leaves out all but these first ones and the last one
_MATTER_MOST = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Explanation:
    """A plan on one target.

    `node_names` are in the order of node numbers, and empty if they are not known before the job runs; `nodes` then
    has words for each number.
    `values` hold each variable's value on all ranks, by its name and who sets it, in the order in which they are set.
    A name may be set twice, for example first by an operator and then by torchrun: the later value counts.
    """

    plan: Plan
    target: Target
    node_names: list[str]
    nodes: list[str]
    ranks: list[Rank]
    values: dict[tuple[str, SetBy], list[str]]


def explain(plan: Plan, target: Target, whole: bool = True) -> Explanation:
    """Collect everything about each process, or about those that the table shows."""
    names = [name for node in range(plan.job.nodes.max) if (name := target.node_name(plan, node)) is not None]
    numbered = sorted(names) if plan.backend == "c10d" else names
    # Under c10d, a node's number follows from its name.
    unnamed = "<number {} in alphabetical order>" if plan.backend == "c10d" else "<node {}>"
    nodes = numbered or [unnamed.format(node) for node in range(plan.job.nodes.max)]
    ranks = [rank for rank in plan.ranks() if whole or rank.node < _SHOWN or rank.node == plan.job.nodes.max - 1]
    values: dict[tuple[str, SetBy], list[str]] = {}
    for rank in ranks:
        for variable in target.environment(plan, rank):
            values.setdefault((variable.name, variable.set_by), []).append(variable.value)
    return Explanation(plan, target, names, nodes, ranks, values)


def as_json(explanation: Explanation) -> str:
    """Format an explanation for programs: one JSON object.

    Variables that are the same on all ranks appear once, the others under each rank.  All variables with one name are
    in the same one of these places, in the order in which they are set.
    """
    plan, values = explanation.plan, explanation.values
    different = {name for (name, _), by_rank in values.items() if len(set(by_rank)) > 1}

    def listed(rank: int, differ: bool) -> list[dict[str, str]]:
        return [
            {"name": name, "value": by_rank[rank], "set_by": set_by}
            for (name, set_by), by_rank in values.items()
            if (name in different) == differ
        ]

    head = {
        "job": plan.job.name,
        "target": explanation.target.name,
        "backend": plan.backend,
        "nodes": plan.job.nodes.max,
        "procs_per_node": plan.job.procs_per_node,
        "world_size": plan.job.world_size,
        "node_names": explanation.node_names,
        "rendezvous_timeout_s": plan.rendezvous_timeout_s,
        "topology": dict(explanation.target.near(plan.job)),
        "environment": listed(0, differ=False),
    }
    rows = (
        {
            "rank": rank.rank,
            "node": explanation.nodes[rank.node],
            "node_rank": rank.node,
            "local_rank": rank.local_rank,
            "device": rank.device,
            "environment": listed(rank.rank, differ=True),
        }
        for rank in explanation.ranks
    )
    # One line for each rank, because there may be thousands.
    lines = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{json.dumps(head, indent=2, ensure_ascii=False)[:-2]},\n  "ranks": [\n    {lines}\n  ]\n}}\n'


def as_table(explanation: Explanation) -> str:
    """Format an explanation for people: a row for each rank, then each variable once, by rank where values differ."""
    sections: list[Iterator[str]] = [
        _summary(explanation),
        _columns([*_HEADS.values(), "device", "node"], _rank_rows(explanation)),
        _columns(["variable", "set by", "value"], _variable_rows(explanation)),
    ]
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in sections)


def _summary(explanation: Explanation) -> Iterator[str]:
    plan, nodes, target = explanation.plan, explanation.plan.job.nodes, explanation.target.name
    count = f"{nodes.min} to {nodes.max} nodes" if nodes.elastic else f"{nodes.max} node{'s' * (nodes.max > 1)}"
    without_agent = target == "slurm" and plan.job.slurm.launcher == "srun"
    waits = nodes.max > 1 and (not without_agent or train_timeout(plan))
    meet = f" within {plan.rendezvous_timeout_s} s" if waits else ""
    processes = f"{count} x {plan.job.procs_per_node} processes"
    processes += f", spares: {plan.job.spares}" if plan.job.spares else ""
    yield f"{plan.job.name} on {target}: {processes}, {plan.backend} rendezvous{meet}"
    if reason := explanation.target.reason(plan.job):
        yield f"Why it waits: {reason}"
    if plan.job.setup:
        yield "The lines of setup run first; they may change any variable below."
    if near := explanation.target.near(plan.job):
        yield "topology: " + ", ".join(f"{name}={value}" for name, value in near.items())
    if nodes.elastic:
        yield f"Shown for {nodes.max} nodes; ranks and world size change whenever a node comes or goes."
    if plan.backend == "c10d" and nodes.max > 1:
        yield "c10d numbers the nodes in alphabetical order of their names, so gpu10 comes before gpu2."


def _rank_rows(explanation: Explanation) -> Iterator[list[str]]:
    many = len(explanation.ranks) > _MANY
    for _, of_row in groupby(explanation.ranks, lambda rank: rank.node if many else rank):
        first, *others = of_row
        last = [first, *others][-1]
        if first.node > _SHOWN:
            yield ["...", "", "", "", f"{first.node - _SHOWN} nodes more, which --json shows"]
        ranks, locals_ = (
            f"{low}-{high}" if others else str(low)
            for low, high in ((first.rank, last.rank), (first.local_rank, last.local_rank))
        )
        device = first.device + (f"-{last.local_rank}" if last.device != first.device else "")
        yield [ranks, str(first.node), locals_, device, explanation.nodes[first.node]]


def _variable_rows(explanation: Explanation) -> Iterator[list[str]]:
    """Yield one row for each variable, in the order in which they are first set, with the value that counts."""
    values = explanation.values
    target = explanation.target.name
    script = "compose file" if target == "compose" else "script" if ".sh." in template(target) else "manifest"
    setters = {"script": script, "person": "you"}
    names = dict.fromkeys(name for name, _ in values)
    for name in sorted(names, key=lambda name: (*_MATTER_MOST, name).index(name)):
        texts = {
            setters.get(set_by, set_by): _by_rank(name, by_rank, explanation.ranks)
            for (other, set_by), by_rank in values.items()
            if other == name
        }
        *_, last = texts
        words = [f"from {setter}: {text}" for setter, text in texts.items() if text != texts[last]]
        yield [name, ", then ".join(texts), texts[last] + (f"  ({'; '.join(words)})" if words else "")]


def _by_rank(name: str, values: list[str], ranks: list[Rank]) -> str:
    """Return the value that all ranks share, or how the values depend on the rank."""
    if len(set(values)) == 1:
        return _shown(values[0])
    # The column of the same name comes first: on a single node, RANK and LOCAL_RANK have the same numbers.
    for column in sorted(_HEADS, key=lambda column: _HEADS[column] != name):
        if values == [str(getattr(rank, column)) for rank in ranks]:
            return f"<{_HEADS[column]} above>"
    # Neighbouring ranks with the same value stand together: a table of 64 nodes x 8 must not show it 512 times.
    texts = []
    for value, group in groupby(range(len(values)), values.__getitem__):
        first, *others = group
        low, high = ranks[first].rank, ranks[others[-1] if others else first].rank
        texts.append(f"{f'ranks {low}-{high}' if others else f'rank {low}'}: {_shown(value)}")
    return "; ".join(texts)


def _shown(value: str) -> str:
    """Return a value on one line, in quotes if it is empty, unprintable, or begins or ends with a space."""
    plain = value.isprintable() and value == value.strip() and value
    return value if plain else printable(json.dumps(value, ensure_ascii=False))


def _columns(head: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Format a table with columns as wide as their widest cell; the last column is not padded."""
    table = [list(head), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head) - 1)]
    for row in table:
        yield "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + row[-1:]).rstrip()
