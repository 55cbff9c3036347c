"""PyTorch: plan a model, rehearse the plan on simulated devices, apply it and train.

`baechi.plan` and `baechi.rehearse` are here; names resolve on first use.
"""

from __future__ import annotations

import importlib

try:
    import torch as _torch  # noqa: F401 - what follows cannot do without
except ModuleNotFoundError as error:
    from baechi.errors import MissingFrameworkError

    raise MissingFrameworkError("torch") from error

TYPE_CHECKING = False

if TYPE_CHECKING:
    from baechi.torch.application_status import Status
    from baechi.torch.applying import status
    from baechi.torch.costs import Costs
    from baechi.torch.device_argument import read_torch_devices
    from baechi.torch.measuring import measure_costs
    from baechi.torch.model_graph import model_graph
    from baechi.torch.model_plan import ModelPlan
    from baechi.torch.planning import plan
    from baechi.torch.rehearsal import Rehearsal, rehearse

# Public name -> the module that holds it.
_HOMES = {
    "Costs": "costs",
    "ModelPlan": "model_plan",
    "Rehearsal": "rehearsal",
    "Status": "application_status",
    "measure_costs": "measuring",
    "model_graph": "model_graph",
    "plan": "planning",
    "read_torch_devices": "device_argument",
    "rehearse": "rehearsal",
    "status": "applying",
}

__all__ = [
    "Costs",
    "ModelPlan",
    "Rehearsal",
    "Status",
    "measure_costs",
    "model_graph",
    "plan",
    "read_torch_devices",
    "rehearse",
    "status",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    module = importlib.import_module(f"baechi.torch.{home or name}") if _is_ours(name) else None
    if module is None:
        raise AttributeError(f"module 'baechi.torch' has no attribute {name!r}")
    value = getattr(module, name) if home else module
    globals()[name] = value
    return value


def _is_ours(name: str) -> bool:
    return name in _HOMES or name in ("simdev",)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
