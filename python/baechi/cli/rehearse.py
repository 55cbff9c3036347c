"""`baechi rehearse`: the plan of a model on simulated devices."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from baechi.cli import arguments as shared
from baechi.cli import models
from baechi.cli.failures import INFEASIBLE
from baechi.cli.output import Outcome, progress
from baechi.cli.reading import read_thing
from baechi.errors import InputError
from baechi.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.torch.model_plan import ModelPlan
    from baechi.torch.rehearsal import Rehearsal

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The plan, the model, and how to run it."""
    parser.add_argument("plan", metavar="PLAN", help="the plan of a model")
    models.add_model(parser, required=True)
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="how many; otherwise 2 in training, where the optimizer has its state from the second "
        "on, and 1 in inference",
    )
    parser.add_argument(
        "--numbers",
        action="store_true",
        help="compute real numbers, and show the losses; otherwise there are only bytes and clocks",
    )
    parser.add_argument(
        "--level", choices=("op", "module"), help="how the model runs; otherwise as the plan says"
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    """Rehearses and shows what was measured beside what was planned."""
    if arguments.steps is not None and arguments.steps < 1:
        raise InputError(f"--steps {arguments.steps} is not a number from 1")
    thing = read_thing(arguments.plan)
    if thing.kind != "model plan":
        raise InputError(
            f"{arguments.plan} is a {thing.kind}, not the plan of a model",
            hint="baechi plan --torch makes one; baechi simulate runs the plan of a graph",
        )
    plan: ModelPlan = thing.value
    subject = models.read_model(arguments.torch)
    plan.check(subject.model)
    rehearsal = importlib.import_module("baechi.torch.rehearsal")
    full = importlib.import_module("torch").OutOfMemoryError
    try:
        with models.told(""), progress("rehearsing"):
            found = rehearsal.rehearse(
                subject.model,
                plan,
                subject.args,
                subject.kwargs,
                steps=arguments.steps or (2 if plan.mode == "training" else 1),
                dry=not arguments.numbers,
                loss=subject.loss,
                level=arguments.level,
            )
    except full as error:
        return _failed(str(error))
    return _outcome(found, plan)


def _failed(message: str) -> Outcome:
    """A device was full: the rehearsal ends there."""
    return Outcome(
        document=lambda: {"fits": False, "error": message, "rehearsal": None},
        words=(f"does not fit: {message}",),
        code=INFEASIBLE,
    )


def _outcome(found: Rehearsal, plan: ModelPlan) -> Outcome:
    planned = plan.peak_bytes
    rows = [
        {"name": name, "peak_bytes": peak, "planned_bytes": planned[name], "cap_bytes": cap}
        for name, peak, cap in zip(found.devices, found.peak_bytes, found.cap_bytes, strict=True)
    ]
    document: dict[str, Any] = {
        "level": found.level,
        "dry": found.dry,
        "edited": plan.is_edited,
        "step_ns": found.step_ns,
        "planned_step_ns": plan.step_ns,
        "copies": found.copies,
        "planned_copies": plan.copies,
        "copied_bytes": found.copied_bytes,
        "losses": list(found.losses),
        "devices": rows,
    }
    return Outcome(
        document=lambda: {"fits": True, "error": None, "rehearsal": document},
        shown=lambda width, _: _shown(document, width),
    )


def _shown(document: dict[str, Any], width: int) -> list[RenderableType]:
    from baechi.tables import Column, as_table, fitted, hanging

    kind = "dry rehearsal" if document["dry"] else "rehearsal"
    size = f" of {format_bytes(document['copied_bytes'])}" if document["copies"] else ""
    before = "before the edit" if document["edited"] else "planned"
    head = (
        f"{kind} at {document['level']} level: step {format_ns(document['step_ns'])} "
        f"({before} {format_ns(document['planned_step_ns'])}), "
        f"{counted(document['copies'], 'copy', 'copies')}{size} "
        f"({before} {document['planned_copies']})"
    )
    rows = document["devices"]

    def sizes(field: str) -> list[str]:
        return [format_bytes(row[field]) for row in rows]

    columns = [
        Column(heading="device", cells=[row["name"] for row in rows], importance=99, is_text=True),
        Column(heading="peak", cells=sizes("peak_bytes"), importance=90),
        Column(heading=before, cells=sizes("planned_bytes"), importance=80),
        Column(heading="cap", cells=sizes("cap_bytes"), importance=70),
    ]
    lines: list[RenderableType] = [
        hanging(head, width, "bold"),
        as_table(fitted(columns, width - 2), indent=2),
    ]
    if document["losses"]:
        listed = ", ".join(f"{loss:.6g}" for loss in document["losses"])
        lines.append(hanging(f"  losses {listed}", width))
    return lines
