"""Model plans: which module of a PyTorch model goes to which device, and what that will take."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from baechi.cluster import Cluster
from baechi.plans import Plan
from baechi.torch.asked import Asked
from baechi.torch.fingerprints import check
from baechi.torch.losses import LossArgument
from baechi.torch.module_map import device_of, digest, follow
from baechi.torch.predictions import Compared, PlannedDevice
from baechi.units import format_ns

if TYPE_CHECKING:
    from baechi.summaries import Summary
    from baechi.torch.compiling import CompileArgument
    from baechi.torch.fitting import Fits

__all__ = ["Compared", "ModelPlan", "PlannedDevice"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelPlan:
    """A placement of a model with its prediction. Frozen; times in ns, sizes in bytes.

    Attributes:
        modules: device by module path; the longest path that a module lies under decides.
        ops: device by op key, for ops that go elsewhere than the rules say.
        together: groups of modules that share a device, with the device they were given.
        cluster: the devices.
        mode, objective: "training" or "inference"; "fastest", "fewest-devices" or "most-headroom".
        optimizer: such as "adamw (single-tensor)"; empty in inference.
        granularity: "module" or "op".
        level: "op" where a placed graph may run the model, "module" where only its own code may.
        reasons: why the level is "module".
        devices: predictions by device.
        step_ns: predicted length of a step.
        copies, copied_bytes: between devices in one step.
        compared: obvious placements.
        model: what the model holds (`baechi.torch.fingerprints`).
        inputs: the planned inputs, such as "input_ids: int64[4,128]".
        prices: how many forward calls have a price of each source; notes name the unmeasured.
        confirmed: peaks by device that a dry rehearsal measured; empty without one.
        module_level_peaks: the same of a call that runs module by module, in a plan for op level.
        notes: what a reader must know.
        versions: of baechi and torch.
        predicted_for: digest of the placement that was predicted; empty in files of older versions.
        operator_plan: the plan of the operator graph; not saved, None in a plan from a file.
        asked: the model, loss and optimizer that were planned; not saved either.
    """

    modules: Mapping[str, str]
    ops: Mapping[str, str]
    together: tuple[tuple[tuple[str, ...], str], ...]
    cluster: Cluster
    mode: str
    objective: str
    optimizer: str
    granularity: str
    level: str
    reasons: tuple[str, ...]
    devices: tuple[PlannedDevice, ...]
    step_ns: int
    copies: int
    copied_bytes: int
    compared: tuple[Compared, ...]
    model: Mapping[str, str]
    inputs: tuple[str, ...]
    prices: Mapping[str, int]
    confirmed: tuple[int, ...]
    module_level_peaks: tuple[int, ...]
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    autocast: str = ""
    predicted_for: str = ""
    operator_plan: Plan | None = None
    asked: Asked | None = None

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Predicted peak by device name."""
        return {device.name: device.peak_bytes for device in self.devices}

    @property
    def is_edited(self) -> bool:
        """Whether modules or ops were moved since: then predictions are of another placement."""
        here = digest(self.placement, self.ops, self.cluster.names)
        return bool(self.predicted_for) and self.predicted_for != here

    @property
    def is_within_limits(self) -> bool:
        """Whether no peak exceeds its cap, predicted or rehearsed; False after an edit by hand."""
        if self.is_edited:
            return False
        predicted = all(device.peak_bytes <= device.cap_bytes for device in self.devices)
        measured = zip(self.confirmed, self.devices, strict=False)
        return predicted and all(seen <= device.cap_bytes for seen, device in measured)

    @property
    def device_map(self) -> dict[str, str]:
        """The map as accelerate and transformers take it (``device_map=``)."""
        return dict(self.placement)

    @property
    def placement(self) -> Mapping[str, str]:
        """`modules`, after modules that must share a device have followed the one moved by hand."""
        return follow(self.modules, self.together)

    def device_of(self, path: str) -> str:
        """The device of a module or parameter, by path."""
        found = device_of(self.placement, path)
        return self.cluster.names[0] if found is None else found

    def fits(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        model: torch.nn.Module | None = None,
        loss: LossArgument = None,
    ) -> Fits:
        """Whether the model as placed would hold another call, by a dry rehearsal; and the peaks.

        Args:
            args: positional arguments of forward; only shapes and types are read.
            kwargs: keyword arguments of forward.
            model: the planned model; needed where the plan comes from a file.
            loss: as in `baechi.plan`; by default the one that was planned.
        """
        from baechi.torch.fitting import fits

        return fits(self, args, kwargs or {}, model, loss)

    def check(self, model: torch.nn.Module) -> None:
        """Compares a model with the planned one: names, shapes, types and ties of its tensors.

        Raises:
            PlanMismatchError: they differ; every difference is named.
        """
        check(self.model, self.placement, model)

    def apply(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        devices: Mapping[str, str | torch.device] | None = None,
        level: str = "auto",
        outputs: str = "where-computed",
        compile: CompileArgument = False,
    ) -> torch.nn.Module:
        """Moves the model's weights to their devices and lets it run as planned; returns it.

        The model stays the same object, its parameters too; an optimizer made before goes on.

        Args:
            model: as it was planned; weights on meta are loaded first (`load_weights`).
            optimizer: one or several that have been used already: their state moves along.
            devices: other devices for the plan's names, such as ``{"cuda:0": "simdev:0"}``.
            level: "auto" runs placed graphs where they may stand for the model and its own code
                elsewhere (`baechi.torch.status` says why); "op" raises instead; "module" never
                runs graphs.
            outputs: "where-computed", or "inputs" for the device of the first input tensor.
            compile: True or options of ``torch.compile``: what each device runs is compiled.

        Raises:
            PlanMismatchError: the plan was made for another model.
            InputError: an optimizer with state was not passed, or an argument is wrong.
            PlacementError: a weight cannot be moved, or level "op" cannot be had.
        """
        from baechi.torch.plan_application import apply_plan

        return apply_plan(self, model, optimizer, devices, level, outputs, compile)

    def remove(
        self, model: torch.nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None
    ) -> torch.nn.Module:
        """Gives back the model as it was before `apply`, with its weights as they are now."""
        from baechi.torch.applying import remove_placement
        from baechi.torch.plan_application import as_optimizers

        return remove_placement(model, optimizers=as_optimizers(optimizer))

    def load_weights(
        self,
        model: torch.nn.Module,
        path: str | os.PathLike[str],
        devices: Mapping[str, str | torch.device] | None = None,
        buffers: Mapping[str, torch.Tensor] | None = None,
        strict: bool = True,
    ) -> None:
        """Puts each tensor of a safetensors file, or of an index file, straight on its device.

        Args:
            model: not applied yet; its weights may be on meta.
            path: the file.
            devices: as in `apply`.
            buffers: values, by name, of buffers on meta that no file holds.
            strict: whether a tensor that the model does not have is an error.

        Raises:
            WeightsMismatchError: tensors are missing, unexpected or of another shape.
        """
        from baechi.torch.plan_application import load_planned_weights

        load_planned_weights(
            self, model, Path(path), devices=devices, buffers=buffers, strict=strict
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes sorted JSON in one step (docs/model-plans.md); OSError if it cannot."""
        from baechi.files import write_atomically

        write_atomically(path, self.to_json().encode())

    def to_json(self) -> str:
        """The text of the plan's file: the same plan gives the same bytes."""
        from baechi.torch.model_plan_json import write_document

        return write_document(self)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes one HTML file that shows the plan (docs/report.md); not for plans from a file."""
        from baechi.torch.model_plan_report import report_of

        report_of(self, path)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that Perfetto and chrome://tracing open; errors as in `report`."""
        from baechi.torch.model_plan_report import trace_of

        trace_of(self, path)

    def to_split_spec(self) -> dict[str, Any]:
        """The cuts for `torch.distributed.pipelining`, if the devices have one stretch each."""
        from baechi.torch.split_spec import split_spec_of

        return split_spec_of(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: torch.nn.Module | None = None) -> ModelPlan:
        """Reads a plan; a person may have changed devices in it.

        Raises:
            InputError: not a plan of a model; the message names the file and the field.
            PlanMismatchError: `model` was given, and is another one.
            OSError: the file cannot be read.
        """
        from baechi.torch.model_plan_json import read_model_plan

        plan = read_model_plan(path)
        if model is not None:
            plan.check(model)
        return plan

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what only this process has."""
        return {**self.__dict__, "asked": None, "operator_plan": None}

    def __eq__(self, other: object) -> bool:
        """Whether both would be saved as the same bytes."""
        if not isinstance(other, ModelPlan):
            return NotImplemented
        return self is other or self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Counts and the predicted step."""
        size = f"{len(self.modules)} entries on {len(self.devices)} devices"
        edited = " before an edit" if self.is_edited else ""
        return f"ModelPlan({size}, {format_ns(self.step_ns)} per step{edited})"

    def __str__(self) -> str:
        """One line per device, the obvious placements beside, and the notes."""
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        """What `print` shows, in parts."""
        from baechi.torch.model_plan_text import summary_of

        return summary_of(self)

    def _repr_html_(self) -> str:
        from baechi.report.notebooks import summary_html

        return summary_html(self.summary)
