"""The status of an applied model: in which ways its calls have run, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from baechi.units import counted

__all__ = ["Status"]


@dataclass(frozen=True)
class Status:
    """How an applied model runs.

    Attributes:
        level: "op" if the last call ran a placed graph, "module" if it ran the model's own
            forward, "none" before the first call.
        graph_calls, module_calls: how many calls ran in each way.
        num_graphs: graphs at hand.
        reasons: why calls ran the model's own forward, with their numbers.
        compiled_parts: parts of the model that run, or will run, through torch.compile.
        uncompiled: why other parts run as they are although they were to be compiled.
    """

    level: str
    graph_calls: int
    module_calls: int
    num_graphs: int
    reasons: Mapping[str, int]
    compiled_parts: int = 0
    uncompiled: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """How many calls ran in which way, and a line for each reason."""
        if self.level == "none":
            return "no call was counted; on one device the model may run as it is"
        graphs = f"{counted(self.num_graphs, 'graph', 'graphs')} at hand"
        lines = [
            f"last call at {self.level} level; {counted(self.graph_calls, 'call', 'calls')} of a "
            f"graph ({graphs}), {self.module_calls} module by module",
            *(f"  {count} x {reason}" for reason, count in self.reasons.items()),
        ]
        if self.compiled_parts or self.uncompiled:
            lines.append(f"  {counted(self.compiled_parts, 'part', 'parts')} compiled")
            lines += [f"  {count} not: {reason}" for reason, count in self.uncompiled.items()]
        return "\n".join(lines)
