"""Fidelity: what makes an exported graph differ from the model, in plain words with a way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch._higher_order_ops.wrap import wrap_with_autocast
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Interpreter

from baechi.torch.aliases import updates_statistics, written_nodes
from baechi.torch.exporting import CannotCopyError, Exported
from baechi.torch.forward_watching import autograd_nodes, leaves_of
from baechi.torch.guards import has_global_hooks
from baechi.torch.lowering import needs_gradient
from baechi.torch.program import Call
from baechi.torch.trees import tensors_in
from baechi.torch.twins import hidden_modules, hooks_of, plain_tensors

__all__ = ["casts_lost", "gradient_differences", "reasons_against", "why_no_program"]

_READS_NUMBERS = (
    "forward decides by the values of tensors (an if, a loop or .item()), which no graph "
    "can follow: planned by modules; compute with masks or torch.where for a graph"
)


def why_no_program(
    model: nn.Module, call: Call, exported: Exported | None = None
) -> tuple[str, ...]:
    """Why the model has no graph: before it was exported, or after."""
    return tuple(_before(model, call) if exported is None else _after(model, exported))


def _before(model: nn.Module, call: Call) -> Iterator[str]:
    for name in hidden_modules(model)[:1]:
        yield (
            f'module "{name}" is in a plain list or dict, so its weights are not the model\'s: '
            "use nn.ModuleList or nn.ModuleDict"
        )
    for path, kind in call.tree.opaque:
        yield (
            f'argument "{path}" is a {kind}, whose tensors a graph cannot take: '
            "planned by modules; pass tensors, or leave it out (use_cache=False for a cache)"
        )
    if not call.tree.paths:
        yield "the call passes no tensor, so there is nothing to record: pass the model's inputs"


def _after(model: nn.Module, exported: Exported) -> Iterator[str]:
    if exported.error is not None:
        yield _explain(exported.error)
        return
    assert exported.program is not None
    seen = exported.seen
    if seen.out_tree is not None and seen.out_tree.opaque:
        path, kind = seen.out_tree.opaque[0]
        yield (
            f"forward returns a {kind}{f' at {path}' if path else ''}, whose tensors cannot be "
            "found: planned by modules; return tensors, lists, dicts or dataclasses for a graph"
        )
    if seen.remade:
        yield (
            f'forward changes which modules and weights there are ("{seen.remade[0]}"'
            f"{_more(seen.remade)}), which a graph would not do: make them before, for a graph"
        )
        return
    constants = exported.program.constants
    attributes = plain_tensors(model)
    strange = 0
    for spec in exported.program.graph_signature.input_specs:
        name = spec.target or ""
        if spec.kind == InputKind.CUSTOM_OBJ:
            found = type(constants[name]).__name__ if name in constants else f'object "{name}"'
            yield f"forward uses a {found}, which a graph cannot take: planned by modules"
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            value = constants.get(name)
            original = exported.impostor.original(value)
            is_literal = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
            is_literal &= not getattr(value, "requires_grad", False)
            is_literal &= id(value) not in seen.outside
            strange += not is_literal and (original is None or id(original) not in attributes)
    if strange:
        yield (
            "forward reads a tensor that no module owns (of a closure, a global or an object): "
            "planned by modules; register it as a buffer or a parameter for a graph"
        )
    for node in exported.program.graph.nodes:
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield _READS_NUMBERS
            return
        if any(map(_is_wrapped, tensors_in(node.meta.get("val")))):
            yield (
                "forward calls torch.vmap or torch.func, whose tensors a graph cannot hold: "
                "planned by modules"
            )
            return
        if any(not isinstance(n, int) for t in tensors_in(node.meta.get("val")) for n in t.shape):
            path = next(reversed(node.meta.get("nn_module_stack", {"": ("", "")}).values()))[0]
            yield (
                f'in module "{path}" the shape of {node.name} depends on values: '
                "planned by modules from one real step"
            )
            return


def _is_wrapped(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _explain(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    if "data-dependent" in lines[0] or "GuardOnDataDependent" in type(error).__name__:
        return _READS_NUMBERS
    if isinstance(error, CannotCopyError):
        return (
            f"the model cannot be copied ({lines[0][:200]}), so it is not run without its weights: "
            "planned by modules; give what cannot be copied a __deepcopy__ for a graph"
        )
    return f"torch.export refuses the model ({_first_line(error)}): planned by modules"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def reasons_against(model: nn.Module, exported: Exported) -> tuple[str, ...]:
    """Why the graph must not stand for the model's own code; empty where it may."""
    return tuple(_against(model, exported))


def _against(model: nn.Module, exported: Exported) -> Iterator[str]:
    assert exported.program is not None
    seen = exported.seen
    hooked = hooks_of(model)
    if hooked:
        yield (
            f'module "{hooked[0]}"{_more(hooked)} has hooks, which a graph would not call: '
            "remove them for a graph"
        )
    if has_global_hooks():
        yield "hooks for all modules are registered: remove them for a graph"
    if seen.tensor_hooks:
        yield (
            f"forward calls {seen.tensor_hooks[0]}, which a graph would lose: "
            "put the hook on a parameter for a graph"
        )
    custom = sorted(set(seen.custom))
    if custom:
        yield (
            f'autograd function "{custom[0]}"{_more(custom)} has a backward of its own, which '
            "a graph would lose: express it by torch ops for a graph (x + (y - x).detach() has the "
            "value of y and passes gradients to x)"
        )
    if seen.reentrant:
        yield (
            "checkpoint(use_reentrant=True) cannot be in a graph: "
            "use checkpoint(use_reentrant=False) for a graph"
        )
    if seen.selective:
        yield "checkpoint with a context_fn cannot be in a graph: leave context_fn out for a graph"
    if seen.random:
        yield (
            f"forward works on {seen.random[0]}, which a graph would not do: "
            "draw with torch's functions alone, and seed before the call, for a graph"
        )
    if seen.changed_arguments:
        yield (
            "forward changes the containers that it is given, which a graph would not do: "
            "return what is new for a graph"
        )
    if seen.changed_attributes:
        changed = seen.changed_attributes
        yield (
            f'forward changes the attribute "{changed[0]}"{_more(changed)}, which a graph would '
            "not do: keep counters in a buffer for a graph"
        )
    if seen.reshaped:
        yield (
            f'forward gives "{seen.reshaped[0]}"{_more(seen.reshaped)} another shape or type, '
            "which a graph would not do: make it in full before, for a graph"
        )
    yield from _changed_values(exported.program)
    for inner in exported.program.graph_module.modules():
        for node in inner.graph.nodes if isinstance(inner, GraphModule) else ():
            if node.target is wrap_with_autocast and node.args[0] != "cpu":
                yield (
                    f'forward enters autocast for "{node.args[0]}" by itself, whatever its tensors '
                    "are on: use torch.autocast(x.device.type) for a graph"
                )


def _changed_values(program: torch.export.ExportedProgram) -> Iterator[str]:
    """In-place changes of what outlives the call by values that carry gradients."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        changed = next(iter(written_nodes(node)), None)
        if changed is None or changed.name not in specs:
            continue
        spec = specs[changed.name]
        if spec.kind == InputKind.CONSTANT_TENSOR:
            yield (
                "forward changes a tensor that is a plain attribute, which a graph on another "
                "device would not do: register it as a buffer for a graph"
            )
        if not needs_gradient(node) or updates_statistics(node):
            continue
        what = f'the buffer "{spec.target}"' if spec.target else "an input"
        yield (
            f"forward changes {what} in place by values that carry gradients, which a graph would "
            "cut: detach them for a graph"
        )


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def casts_lost(ops: Sequence[str]) -> str:
    """The reason where autocast casts inside ops that a graph takes as one."""
    return (
        f'autocast casts inside "{ops[0]}"{_more(ops)}, which a graph does not: planned by '
        "modules; call it under torch.autocast(..., enabled=False) for a graph"
    )


def gradient_differences(
    exported: Exported, graph_module: GraphModule, tensors: list[torch.Tensor]
) -> tuple[str, ...]:
    """A reason where gradients flow through the model but not through the graph, or reach others.

    Compares the autograd functions behind the outputs, those of the model's own run with those of
    a run of the graph, which must not have been lowered yet.
    """
    assert exported.program is not None
    twin = exported.twin
    named: dict[str, torch.Tensor] = dict(twin.named_parameters(remove_duplicate=False))
    named |= dict(twin.named_buffers(remove_duplicate=False))
    given: list[torch.Tensor] = []
    users = iter(tensors)
    for spec in exported.program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            given.append(exported.impostor(next(users)))
        elif spec.target in named:
            given.append(named[spec.target])
        else:
            given.append(exported.program.constants[spec.target])
    try:
        with exported.impostor.mode:
            outputs = list(tensors_in(Interpreter(graph_module).run(*given)))
    except Exception as error:  # whatever an op may raise that forward has run in other settings
        return (
            f"its graph fails where forward does not ({_first_line(error)}): planned by modules",
        )
    nodes = list(autograd_nodes(outputs))
    of_graph = Counter(node.name() for node in nodes)
    lost = sorted((Counter(exported.seen.functions) - of_graph).elements())
    if lost:
        return (
            f"gradients of the model flow through {lost[0]}{_more(lost)}, those of the graph do "
            "not: planned by modules",
        )
    strange = leaves_of(nodes) - exported.seen.leaves
    names = [name for name, tensor in named.items() if id(tensor) in strange]
    if names:
        return (
            f'gradients of the graph reach "{names[0]}"{_more(names)}, those of the model do not: '
            "planned by modules; use torch.no_grad instead of inference_mode for a graph",
        )
    return ()
