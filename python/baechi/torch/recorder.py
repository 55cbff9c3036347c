"""Recorder: the dispatch mode under which a trace is taken, and what it sees of autograd."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from baechi.torch.meta_kernels import MetaKernels
from baechi.torch.signatures import signature_of
from baechi.torch.trace import Storage
from baechi.torch.trees import tensors_in
from baechi.torch.work import MathModes, Work, work_of

__all__ = ["Owner", "Recorder"]

_IGNORED = {torch.ops.prim.device.default, torch.ops.aten.detach.default}


@dataclasses.dataclass(slots=True)
class Owner:
    """Who allocates now: a step or an autograd function."""

    born: list[int] = dataclasses.field(default_factory=list)
    live: int = 0
    peak: int = 0
    works: list[str] = dataclasses.field(default_factory=list)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every op that is dispatched, and every storage that is born or dies.

    Who uses it says whose turn it is: a step's by `begins`, an autograd function's by `enters` and
    `leaves`. What is allocated in between, gradients that are added up, belongs to nobody.
    """

    def __init__(
        self, modes: MathModes, scratch_bytes: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Starts with no storage known; kernels hold `scratch_bytes`, by signature, beside them."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.modes, self.scratch_bytes = modes, scratch_bytes
        self.kernels = MetaKernels()
        self.works: dict[str, Work] = {}
        self.storages: list[Storage] = []
        self.ids: dict[int, int] = {}
        self.deaths: dict[int, tuple[str, int]] = {}
        self.owner: Owner | None = None
        self.position: tuple[str, int] = ("step", -1)
        self.owners: dict[int, Owner] = {}  # by autograd function
        self.silent = False
        self.random = False

    def storage_of(self, tensor: torch.Tensor, kind: str = "made", name: str = "") -> int:
        """The id of a tensor's storage; a new one belongs to the owner."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self.ids.get(key)
        if found is not None:
            return found
        at = len(self.storages)
        nbytes = storage.nbytes()
        needs = kind == "parameter" and tensor.requires_grad
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.storages.append(Storage(nbytes, kind, name, needs, dtype, tuple(tensor.shape)))
        self.ids[key] = at
        owner = self.owner
        if kind == "made" and owner is not None:
            owner.born.append(at)
            owner.live += nbytes
            owner.peak = max(owner.peak, owner.live)
        weakref.finalize(storage, self._died, key, at, owner if kind == "made" else None)
        return at

    def _died(self, key: int, at: int, owner: Owner | None) -> None:
        self.ids.pop(key, None)
        self.deaths[at] = self.position
        if owner is not None and owner is self.owner:
            owner.live -= self.storages[at].nbytes
            owner.born.remove(at)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the op and writes down what it computed and allocated."""
        kwargs = kwargs or {}
        if self.silent or func in _IGNORED:
            return func(*args, **kwargs)
        out = self.kernels(func, args, kwargs)
        for tensor in tensors_in(out):
            self.storage_of(tensor)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random = True
        if self.owner is not None:
            self._price(self.owner, func, args, kwargs, out)
        return out

    def _price(
        self, owner: Owner, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Notes the call by its signature; what a signature does is found once."""
        if func.is_view:
            return
        signature = signature_of(func, args, kwargs)
        if signature not in self.works:
            silent, self.silent = self.silent, True
            self.works[signature] = work_of(func, args, kwargs, out, self.modes)
            self.silent = silent
        if not self.works[signature].is_view:
            owner.works.append(signature)
        owner.peak = max(owner.peak, owner.live + self.scratch_bytes.get(signature, 0))

    def begins(self, step: int) -> Owner:
        """A step starts; it owns what is allocated up to the next one."""
        self.position = ("step", step)
        self.owner = Owner()
        self.random = False
        return self.owner

    def enters(self, function: int) -> None:
        """An autograd function starts: what is allocated from now on is its own."""
        self.position = ("function", function)
        self.owner = self.owners.setdefault(function, Owner())

    def leaves(self) -> None:
        """It has ended; what follows until the next one adds up gradients."""
        self.owner = None
