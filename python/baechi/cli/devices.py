"""`baechi devices`: what this machine has, as a cluster file."""

from __future__ import annotations

import argparse

from baechi.cli import arguments as shared
from baechi.cli import describe_cluster
from baechi.cli.output import Outcome, progress
from baechi.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which devices, and where to write them."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the cluster to this .json file"
    )
    parser.add_argument(
        "--with-cpu", action="store_true", help="the CPU too, where there are accelerators"
    )
    parser.add_argument(
        "--reserve", metavar="SIZE", default="0B", help="of each device's memory no plan may use"
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure the links instead of assuming them"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Looks, and describes what it found as `baechi show` would."""
    if arguments.output is not None and not arguments.output.lower().endswith(".json"):
        raise InputError(f"{arguments.output}: a cluster is written as .json")
    try:
        from baechi.torch.detection import cluster_of_machine
    except ModuleNotFoundError as error:
        from baechi.errors import MissingFrameworkError

        if error.name != "torch":
            raise
        raise MissingFrameworkError("torch") from None
    with progress("looking for devices"):
        cluster, notes = cluster_of_machine(
            with_cpu=arguments.with_cpu, reserve=arguments.reserve, measure=arguments.measure
        )
    words = list(notes)
    if arguments.output is not None:
        cluster.save(arguments.output)
        words.append(f"the cluster is in {arguments.output}")
    return Outcome(
        document=lambda: {
            "num_devices": cluster.num_devices,
            "links_assumed": cluster.links_assumed,
            "notes": list(notes),
            "cluster": cluster.to_json_dict(),
            "file": arguments.output,
        },
        shown=describe_cluster.outcome(cluster).shown,
        words=tuple(words),
    )
