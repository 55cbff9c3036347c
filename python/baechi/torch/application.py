"""Applying a plan: the model stays the same object and runs where the plan says.

The model gets a class of the same name whose forward decides, call by call. A call that is known,
of a model that is as it was, runs a placed graph. Any other call runs the model's own forward with
its modules on their devices, on the same weights; the reason is logged once and kept.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from baechi.errors import InputError, PlacementError
from baechi.torch.applied_class import original_class
from baechi.torch.call_keys import OpaqueError, call_key
from baechi.torch.call_programs import has_form, program_for
from baechi.torch.compiled_modules import CompiledForward
from baechi.torch.compiling import Compiling
from baechi.torch.frames import Frame
from baechi.torch.graph_parts import compile_parts
from baechi.torch.guards import has_global_hooks
from baechi.torch.model_state import ModelState
from baechi.torch.module_hooks import finish_outputs, finish_pass, move_arguments
from baechi.torch.operands import common_device
from baechi.torch.parameters import MovedWeights, named_weights
from baechi.torch.placed_graph import PlacedProgram, place_program
from baechi.torch.placement_rule import ModulePlacement
from baechi.torch.program import Program
from baechi.torch.runtime import ModuleRuntime
from baechi.torch.simdev import name_of
from baechi.torch.transforms import is_transformed
from baechi.torch.trees import share_memory, tensors_in

__all__ = ["LEVELS", "Application"]

LEVELS = ("auto", "op", "module")
MAX_GRAPHS = 8
_LOGGER = logging.getLogger("baechi")


@dataclass
class _Graph:
    placed: PlacedProgram
    state: ModelState


class Application:
    """What an applied model holds beside itself. A copy of the model starts without graphs."""

    def __init__(
        self,
        placement: ModulePlacement,
        moved: MovedWeights,
        runtime: ModuleRuntime,
        level: str,
        programs: Sequence[Program] = (),
        compiling: Compiling | None = None,
    ) -> None:
        """Starts without graphs: they are made at the calls that need them."""
        self.placement, self.moved, self.runtime, self.level = placement, moved, runtime, level
        self.compiling = compiling
        self.fallback_cost = ""
        self.planned_graph = False
        self._start(tuple(programs))

    def _start(self, programs: tuple[Program, ...] = ()) -> None:
        self._programs = programs
        self._graphs: dict[Any, list[_Graph]] = {}
        self._seen: set[Any] = set()
        self._refused: dict[Any, str] = {}
        self._lock = threading.RLock()
        self.num_graphs = 0
        self.calls: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.last = "none"
        self._whole: CompiledForward | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The plan, without graphs and counts."""
        plan = "placement", "level", "compiling", "fallback_cost", "planned_graph"
        kept = (*plan, "moved", "runtime")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy starts anew."""
        self.__dict__.update(state)
        self._start()

    def forget_refusals(self) -> None:
        """Calls that no graph could run are looked at anew."""
        self._refused.clear()

    def device_map(self) -> dict[str, str] | None:
        """Devices by module path as accelerate writes them; None where all is on one device."""
        modules = self.placement.modules
        if len(set(modules.values())) < 2:
            return None
        return {path: str(device) for path, device in modules.items()}

    def call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one forward."""
        runtime = self.runtime
        if self._runs_plainly():
            inputs = tensors_in((args, kwargs))
            if common_device(inputs, *runtime.devices) in runtime.devices:
                return self._forward(model)(*args, **kwargs)
            return self._run_modules(model, args, kwargs)
        if self.level != "module" and not runtime.state.frames:
            graph = self._graph(model, args, kwargs)
            if graph is not None:
                self._count("op")
                result = self._run_graph(graph.placed, model, args, kwargs)
                return finish_outputs(runtime, args, kwargs, result)
        self._count("module")
        return self._run_modules(model, args, kwargs)

    def _runs_plainly(self) -> bool:
        """Whether all is on one device, and no graph would hold less there.

        In training a graph holds what the model's own code holds. In inference that code's local
        variables keep values longer, and what was planned is the graph.
        """
        if len(self.runtime.devices) > 1 or self.placement.ops:
            return False
        is_inference = not torch.is_grad_enabled() and self.compiling is None
        return not (self.planned_graph and is_inference and self.level != "module")

    def _count(self, level: str) -> None:
        self.last = level
        self.calls[level] += 1

    def _run_graph(self, placed: PlacedProgram, model: nn.Module, args: Any, kwargs: Any) -> Any:
        kinds = self._active_autocasts()
        if not kinds:
            return placed(model, args, kwargs)
        with ExitStack() as stack:  # the graph has its casts
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return placed(model, args, kwargs)

    def _run_modules(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        runtime = self.runtime
        depth = len(runtime.state.frames)
        only = next(iter(runtime.devices)) if len(runtime.devices) == 1 else None
        frame = Frame(model, "", only, self.placement.device_of(""))
        runtime.push(frame)
        try:
            if only is not None:
                args, kwargs = move_arguments(runtime, frame, args, kwargs)
            result = self._forward(model)(*args, **kwargs)
        except BaseException:  # also an interruption from the keyboard, which no hook sees
            while len(runtime.state.frames) > depth:
                runtime.pop(runtime.state.frames[-1].module)
            runtime.state.stale.clear()
            raise
        return finish_pass(runtime, model, args, kwargs, result)

    def _forward(self, model: nn.Module) -> Callable[..., Any]:
        """The model's own forward, compiled if that was asked for and all is on one device."""
        forward = original_class(model).forward
        devices = self.runtime.devices
        if self.compiling is None or self.compiling.refused or len(devices) > 1:
            return MethodType(forward, model)
        if self._whole is None:
            device, runtime = next(iter(devices)), self.runtime
            self._whole = CompiledForward(model, forward, device, self.compiling, runtime)
        return self._whole

    def _active_autocasts(self) -> list[str]:
        # Simulated devices have the type meta, which has no autocast: theirs is the host's.
        kinds = {"cpu" if at.type == "meta" else at.type for at in self.runtime.devices}
        return [kind for kind in sorted(kinds) if torch.is_autocast_enabled(kind)]

    def _graph(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Graph | None:
        if is_transformed():
            self._fall_back("it is inside of torch.func or of forward-mode derivatives")
            return None
        if has_global_hooks():
            self._fall_back("hooks for all modules are registered, which no graph calls")
            return None
        try:
            key: Any = call_key(args, kwargs)
        except OpaqueError as error:
            self._fall_back(f"the call passes a {error}, which no graph takes")
            return None
        autocast = [torch.get_autocast_dtype(kind) for kind in self._active_autocasts()]
        key = key, torch.is_grad_enabled(), model.training, *autocast
        known = self._graphs.get(key, ())
        graph = next((one for one in known if one.state.difference() is None), None)
        if graph is None:
            with self._lock:
                graph = self._make(model, key, args, kwargs, autocast[0] if autocast else None)
        if graph is not None and graph.placed.program.mutated and share_memory((args, kwargs)):
            self._fall_back("forward changes an input in place that another one shares memory with")
            return None
        return graph

    def _make(
        self,
        model: nn.Module,
        key: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        autocast: torch.dtype | None,
    ) -> _Graph | None:
        """A new graph for a call, where there should be one."""
        relatives = [other for other in self._graphs if other[1:] == key[1:]]
        for graph in [graph for other in relatives for graph in self._graphs[other]]:
            is_spelling = has_form(graph.placed.program, args, kwargs)
            if is_spelling and graph.state.difference() is None:
                self._graphs.setdefault(key, []).append(graph)
                return graph
        reason = self._refused.get(key)
        if reason is None and not all(isinstance(w, nn.Parameter) for w in model.parameters()):
            reason = "its parameters are other tensors for the time being (functional_call)"
        if reason is None and self.num_graphs >= MAX_GRAPHS:
            reason = f"there are {MAX_GRAPHS} graphs already"
        if reason is None and relatives and key not in self._seen and self.level == "auto":
            self._seen.add(key)
            reason = "the inputs have a form that was not planned, and may not come again"
            for graph in self._graphs.get(key, ())[-1:]:
                reason = f"after the graph was made: {graph.state.difference()}"
        if reason is None:
            try:
                with saved_tensors_hooks(_as_it_is, _as_it_is):  # not those around the call
                    return self._add_graph(model, key, args, kwargs, autocast)
            except InputError as error:
                reason = self._refused[key] = str(error).splitlines()[0]
        self._fall_back(reason)
        return None

    def _add_graph(
        self,
        model: nn.Module,
        key: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        autocast: torch.dtype | None,
    ) -> _Graph:
        program = program_for(model, self._programs, args, kwargs, autocast)
        devices, homes = self.placement.place(model, program)
        for name, weight in named_weights(model):
            if weight.device != homes.get(name, weight.device):
                raise InputError(
                    f'"{name}" is on {name_of(weight.device)}, the plan has '
                    f"{name_of(homes[name])}: apply the plan again, which moves it there"
                )
        placed = place_program(program, devices, homes)
        if self.compiling is not None and self.compiling.is_possible():
            compile_parts(placed.graph_module, self.compiling.part)
        graph = _Graph(placed, ModelState(model))
        self._graphs.setdefault(key, []).append(graph)
        self.num_graphs += 1
        return graph

    def _fall_back(self, reason: str) -> None:
        if self.level == "op":
            raise PlacementError(
                f"no graph runs this call: {reason}",
                hint='apply with level="auto" to run such calls module by module',
            )
        if reason not in self.reasons:
            cost = f"; planned for op level, {self.fallback_cost}" if self.fallback_cost else ""
            _LOGGER.warning("a call runs module by module: %s%s", reason, cost)
        self.reasons[reason] += 1


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
