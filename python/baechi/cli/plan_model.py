"""`baechi plan --torch`: from a model of PyTorch to its plan."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from baechi.cli import models
from baechi.cli.arguments import given_link
from baechi.cli.documents import model_plan_document
from baechi.cli.output import Outcome, progress
from baechi.errors import InputError

if TYPE_CHECKING:
    from baechi.torch.model_plan import ModelPlan

__all__ = ["add_arguments", "refuse_mixed", "run"]

_OF_GRAPHS = {
    "algorithm": "best",
    "rules": "physical",
    "retention": "liveness",
    "favorites": None,
    "threshold": None,
    "seed": 0,
    "no_repair": False,
    "group": False,
    "smallest_limit": False,
}
_OF_MODELS = (
    "mode",
    "optimizer",
    "objective",
    "pin",
    "granularity",
    "level",
    "autocast",
    "costs",
    "save_graph",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `baechi.plan` takes; None where its own default decides."""
    group = parser.add_argument_group("a model of PyTorch instead of a graph")
    models.add_model(group, required=False)
    group.add_argument(
        "--mode", choices=("training", "inference"), help="what a step is; otherwise training"
    )
    group.add_argument(
        "--optimizer", metavar="NAME", help="such as adamw, which is taken otherwise"
    )
    group.add_argument(
        "--objective",
        choices=("fastest", "fewest-devices", "most-headroom"),
        help="what is best among what fits; otherwise fastest",
    )
    group.add_argument(
        "--pin",
        action="append",
        metavar="PATH=DEVICE",
        help="put a module, or all that match a pattern, on a device; may be repeated",
    )
    group.add_argument(
        "--granularity",
        choices=("module", "op"),
        help="op: ops without weights are placed one by one",
    )
    group.add_argument(
        "--level",
        choices=("auto", "op", "module"),
        help="module: plan for the model's own code, not for a graph of it",
    )
    group.add_argument(
        "--autocast", choices=("bfloat16", "float16"), help="as under torch.autocast"
    )
    group.add_argument("--costs", metavar="FILE", help="measured times of ops")
    group.add_argument(
        "--save-graph",
        metavar="FILE",
        help="also write the graph of the step (.json, .npz), for compare and all that takes GRAPH",
    )
    group.add_argument(
        "--no-confirm", action="store_true", help="do not rehearse the plan without values"
    )


def refuse_mixed(arguments: argparse.Namespace) -> None:
    """Either a graph or a model, with its own options.

    Raises:
        InputError: neither, both, or an option of the other.
    """
    if (arguments.graph is None) == (arguments.torch is None):
        raise InputError(
            "name a graph file or a model of PyTorch, and not both",
            hint="baechi plan GRAPH, or baechi plan --torch package.module:factory",
        )
    found = [name for name in _OF_MODELS if getattr(arguments, name) is not None]
    found += ["no_confirm"] * arguments.no_confirm
    of_what = "models: say --torch"
    if arguments.torch is not None:
        found = [name for name, usual in _OF_GRAPHS.items() if getattr(arguments, name) != usual]
        of_what = "graphs, not of models"
    if found:
        raise InputError(f"--{found[0].replace('_', '-')} is an option of {of_what}")


def run(arguments: argparse.Namespace) -> Outcome:
    """Plans, saves and shows."""
    subject = models.read_model(arguments.torch)
    planning = importlib.import_module("baechi.torch.planning")
    with models.told(""), progress("planning"):
        plan = planning.plan(
            subject.model,
            subject.args,
            subject.kwargs,
            loss=subject.loss,
            **_options(arguments, subject),
        )
    return _outcome(plan, arguments)


def _outcome(plan: ModelPlan, arguments: argparse.Namespace) -> Outcome:
    words = []
    if arguments.save_graph:
        report = importlib.import_module("baechi.torch.model_plan_report")
        report.graph_of(plan).save(arguments.save_graph)
        words.append(f"the graph is in {arguments.save_graph}")
    if arguments.trace:
        plan.trace(arguments.trace)
        words.append(f"the trace is in {arguments.trace}")
    if arguments.report:
        plan.report(arguments.report)
        words.append(f"the report is in {arguments.report}")
    if arguments.output == "-":
        return Outcome(raw=plan.to_json(), words=tuple(words))
    if arguments.output:
        plan.save(arguments.output)
        words.insert(0, f"the plan is in {arguments.output}")
    return Outcome(
        document=lambda: {**model_plan_document(plan), "file": arguments.output},
        shown=lambda width, blocks: plan.summary.renderables(width, blocks=blocks),
        words=tuple(words),
    )


def _options(arguments: argparse.Namespace, subject: models.Subject) -> dict[str, Any]:
    options: dict[str, Any] = {
        "devices": _devices(arguments),
        "optimizer": arguments.optimizer or subject.optimizer,
        "pin": dict(map(_pin, arguments.pin or ())),
        "confirm": not arguments.no_confirm,
    }
    for name in ("mode", "objective", "granularity", "level"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    if arguments.autocast is not None:
        options["autocast"] = getattr(importlib.import_module("torch"), arguments.autocast)
    if arguments.costs is not None:
        options["costs"] = importlib.import_module("baechi.torch.costs").Costs.load(arguments.costs)
    return options


def _devices(arguments: argparse.Namespace) -> Any:
    """Devices as `baechi.plan` takes them, with the links that were asked for."""
    from baechi.cluster import Cluster

    if arguments.link is None and arguments.channels is None:
        return arguments.devices
    reading = importlib.import_module("baechi.torch.device_argument")
    cluster, _ = reading.read_torch_devices(arguments.devices)
    if arguments.link is not None:
        channels = arguments.channels or cluster.channels
        return Cluster(cluster.devices, given_link(arguments.link), channels)
    return cluster.with_channels(arguments.channels)


def _pin(text: str) -> tuple[str, str]:
    path, equals, device = text.rpartition("=")
    if not equals:
        raise InputError(f'--pin "{text}" is not path=device', hint="write --pin lm_head=cuda:1")
    return path, device
