"""The plan of a model in words: prediction, which module is where, what it was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baechi.cli.documents import model_plan_document
from baechi.cli.output import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baechi.torch.model_plan import ModelPlan

__all__ = ["outcome"]


def outcome(plan: ModelPlan, top: int) -> Outcome:
    """For `baechi show`."""
    document = {
        "kind": "model plan",
        **model_plan_document(plan),
        "modules": dict(plan.placement),
        "ops": dict(plan.ops),
        "num_tensors": len(plan.model),
    }
    return Outcome(
        document=lambda: document,
        shown=lambda width, blocks: [
            *plan.summary.renderables(width, blocks=blocks),
            *_shown(document, width, top),
        ],
    )


def _shown(document: dict[str, Any], width: int, top: int) -> list[RenderableType]:
    from baechi.tables import hanging

    prices = ", ".join(f"{count} {source}" for source, count in document["prices"].items())
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    autocast = f", autocast {document['autocast']}" if document["autocast"] else ""
    lines = [
        f"  made by {versions} for a model of {document['num_tensors']} tensors{autocast}",
        f"  inputs {'; '.join(document['inputs'])}",
        f"  prices of ops: {prices}",
    ]
    for heading, entries in (("modules", document["modules"]), ("ops", document["ops"])):
        if not entries:
            continue
        lines.append(f"{heading}:")
        listed = [f"  {path or '(all others)'}: {home}" for path, home in entries.items()]
        lines += listed[:top]
        if len(listed) > top:
            lines.append(f"  ... {len(listed) - top} more; --top shows more, --json all")
    return [hanging(line, width, "dim" if at < 3 else "") for at, line in enumerate(lines)]
