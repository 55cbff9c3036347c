"""`baechi show`: a graph, plan or cluster in words."""

from __future__ import annotations

import argparse

from baechi.cli import arguments as shared
from baechi.cli.output import Outcome, progress
from baechi.cli.reading import read_thing
from baechi.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to show, and how much of it."""
    parser.add_argument(
        "file", metavar="FILE", help='a graph, a plan, a cluster, or devices such as "4x8GiB"'
    )
    parser.add_argument(
        "--graph",
        metavar="GRAPH",
        help="of a plan: also what holds the memory at the peaks, and the longest path",
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="show N of each list")
    parser.add_argument("--path", action="store_true", help="show the longest path whole")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Looks what it is and describes it."""
    if arguments.top < 0:
        raise InputError(f"--top {arguments.top} is negative")
    with progress(f"reading {arguments.file}"):
        thing = read_thing(arguments.file)
    if arguments.graph is not None and thing.kind != "plan":
        raise InputError(f"--graph goes with a plan; {arguments.file} is a {thing.kind}")
    if thing.kind == "graph":
        from baechi.cli import describe_graph

        return describe_graph.outcome(thing.value, arguments.file, arguments.top)
    if thing.kind == "cluster":
        from baechi.cli import describe_cluster

        return describe_cluster.outcome(thing.value)
    if thing.kind == "model plan":
        from baechi.cli import describe_model_plan

        return describe_model_plan.outcome(thing.value, arguments.top)
    from baechi.cli import describe_plan

    graph = None if arguments.graph is None else shared.read_graph(arguments.graph)
    return describe_plan.outcome(thing.value, graph, arguments.top, whole_path=arguments.path)
