"""`baechi convert`: write a graph, plan or cluster in another format."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from baechi.cli import arguments as shared
from baechi.cli.output import Outcome
from baechi.cli.reading import Thing, read_thing
from baechi.errors import InputError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """From where to where."""
    parser.add_argument(
        "source",
        metavar="FROM",
        help="a graph (.json, .npz, dnn-partitioning), a plan, a cluster (.json, .toml) or devices "
        'such as "4x8GiB"',
    )
    parser.add_argument(
        "target",
        metavar="TO",
        help="a graph as .json or .npz; a cluster as .json; a plan as .json, or with --placement",
    )
    parser.add_argument(
        "--placement",
        action="store_true",
        help='of a plan only {"op": "device"}, of the plan of a model {"module": "device"}',
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Reads one format and writes another."""
    thing = read_thing(arguments.source)
    _write(thing, arguments)
    size = Path(arguments.target).stat().st_size
    return Outcome(
        document=lambda: {"kind": thing.kind, "file": arguments.target, "file_bytes": size},
        words=(f"the {thing.kind} is in {arguments.target}",),
    )


def _write(thing: Thing, arguments: argparse.Namespace) -> None:
    target, suffix = arguments.target, Path(arguments.target).suffix.lower()
    if arguments.placement:
        if thing.kind not in ("plan", "model plan"):
            raise InputError(f"--placement is of plans: {arguments.source} is a {thing.kind}")
        _write_placement(thing.value, target)
    elif thing.kind == "graph":
        thing.value.save(target)
    elif suffix != ".json":
        raise InputError(f'{target}: a {thing.kind} is written as .json, not "{suffix}"')
    else:
        thing.value.save(target)


def _write_placement(plan: Any, target: str) -> None:
    from baechi.files import write_atomically

    text = json.dumps(dict(plan.placement), indent=0, ensure_ascii=False)
    write_atomically(target, f"{text}\n".encode())
