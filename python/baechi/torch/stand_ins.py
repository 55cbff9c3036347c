"""Stand-ins: tensors without values on which a step is traced, as one type of device runs it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from baechi.cluster import Cluster
from baechi.torch.costs import Costs
from baechi.torch.simdev_autocast import autocast_of_meta, autocasting_all
from baechi.torch.simdev_lowering import lowered

__all__ = ["CPU_KERNELS", "Kernels", "StandIns", "kernels_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kernels:
    """Into which kernels a type of device takes ops apart, and what these hold while they run.

    Attributes:
        device_type: such as "cuda"; "cpu" for the kernels that simulated devices run.
        scratch_bytes: what a call holds beside operands and results, by signature; 0 elsewhere.
    """

    device_type: str = "cpu"
    scratch_bytes: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


CPU_KERNELS = Kernels()


class StandIns:
    """Makes tensors without values for one run of a model.

    Those for the CPU are plain meta tensors, whose composite ops come apart as on simulated
    devices. Those for another type are fakes of its first device: PyTorch takes composite ops apart
    as it does there, down to the kernels, and autograd saves what it saves there.
    """

    def __init__(self, kernels: Kernels = CPU_KERNELS) -> None:
        """Those of a type of device that this process has."""
        self.kernels = kernels
        is_plain = kernels.device_type == "cpu"
        self.device = torch.device("meta") if is_plain else torch.device(kernels.device_type, 0)
        self.mode = None if is_plain else FakeTensorMode(allow_non_fake_inputs=True)

    def __call__(self, tensor: torch.Tensor, *, requires_grad: bool = True) -> torch.Tensor:
        """A tensor like this one; a parameter without gradient where none is to be required."""
        with self.mode or contextlib.nullcontext():
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
            )
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=requires_grad and tensor.requires_grad)
        return made

    @contextlib.contextmanager
    def running(self, *, casts: bool = False) -> Iterator[None]:
        """Ops on stand-ins come apart as on the device; they follow its autocast if asked to."""
        if self.mode is not None:
            with self.mode:
                yield
        else:
            with lowered(plain=True), autocasting_all() if casts else autocast_of_meta():
                yield


def kernels_of(cluster: Cluster, costs: Costs) -> Kernels:
    """What costs say of the kernels that run on the devices of a cluster.

    Ops come apart as on the devices that were measured, if all of the cluster are of their type
    and this process has such: only then PyTorch can say how. Of several kinds of devices the one
    that holds most in a call counts.
    """
    scratch: dict[str, int] = {}
    types = set()
    for kind in dict.fromkeys(cluster.kinds):
        device_type, found = costs.scratch_for(kind)
        types.add(device_type)
        for signature, nbytes in found.items():
            scratch[signature] = max(nbytes, scratch.get(signature, 0))
    measured = types.pop() if len(types) == 1 else ""
    return Kernels(measured if _is_here(measured) else "cpu", MappingProxyType(scratch))


def _is_here(device_type: str) -> bool:
    try:
        return bool(device_type) and bool(torch.get_device_module(device_type).is_available())
    except RuntimeError:
        return False
