"""Capturing: a model's forward as a program, and whether the program may stand for the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from baechi.torch.aliases import alias_groups, changed_inputs, colocated_nodes
from baechi.torch.autocasting import make_casts_explicit
from baechi.torch.exporting import CHECKPOINT_TAG, Exported, export_twin, quiet, signature_of
from baechi.torch.fidelity import casts_lost, gradient_differences, reasons_against, why_no_program
from baechi.torch.fingerprints import refuse_layouts
from baechi.torch.flattening import flatten_regions
from baechi.torch.forward_watching import Seen
from baechi.torch.lowering import lower, needs_gradient
from baechi.torch.program import Call, Capture, CheckpointRegion, Program, ProgramInput
from baechi.torch.trees import flatten
from baechi.torch.twins import plain_tensors, tensors_of

__all__ = ["capture"]


def capture(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool,
    autocast: torch.dtype | None = None,
) -> Capture:
    """Writes down the ops of one call of a model as a graph.

    The model is not run and not changed: a twin without weights is. Weights and inputs may be on
    meta; the program is the same.

    Args:
        model: any module; modules are in training mode as they are, unless the whole model is in
            the other mode than asked for, which is switched (on the twin) first.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        training: with gradients.
        autocast: as under ``torch.autocast`` with this type; its casts become ops of the program.

    Raises:
        InputError: forward cannot be called with these arguments.
    """
    call = Call.of(signature_of(model), args, kwargs or {})
    tensors, tree = flatten(dict(call.signature.bind(*args, **(kwargs or {})).arguments))
    inputs = {f'input "{path}"': t for path, t in zip(tree.paths, tensors, strict=True)}
    refuse_layouts(inputs | {f'"{name}"': t for name, t in tensors_of(model)})
    blocked = why_no_program(model, call)
    if blocked:
        return Capture(None, "module", blocked)
    exported = export_twin(model, call, tensors, training=training, autocast=autocast)
    blocked = why_no_program(model, call, exported)
    if blocked or exported.program is None:
        return Capture(None, "module", blocked)
    reasons = reasons_against(model, exported)
    graph_module = exported.program.graph_module
    with torch.set_grad_enabled(training):
        flatten_regions(graph_module, grad_enabled=training, autocast=autocast)
        with quiet():
            inside = make_casts_explicit(graph_module)
        if inside:
            reasons = (*reasons, casts_lost(inside))
        if exported.seen.caught:
            graph_module.graph.eliminate_dead_code()  # calls that failed have no readers
        if training and not reasons:
            reasons = gradient_differences(exported, graph_module, tensors)
    program = _program(model, exported, call, training=training, autocast=autocast)
    return Capture(program, "module" if reasons else "op", reasons)


def _program(
    model: nn.Module,
    exported: Exported,
    call: Call,
    *,
    training: bool,
    autocast: torch.dtype | None,
) -> Program:
    assert exported.program is not None
    assert exported.seen.out_tree is not None
    graph_module = exported.program.graph_module
    graph = graph_module.graph
    inputs = _inputs(model, exported, call, graph)
    lower(graph_module)
    users = [node for node, given in inputs.items() if given.kind == "user"]
    changed = changed_inputs(graph, alias_groups(graph))
    groups = colocated_nodes(graph, [node for node in users if node.name not in changed])
    paths = _module_paths(graph, inputs)
    regions = _regions(graph, exported.seen)
    for node in graph.nodes:
        value = _on_meta(node.meta.get("val"))
        if isinstance(value, Tensor) and needs_gradient(node):
            value.requires_grad_()
        node.meta = {"val": value}
    return Program(
        graph_module=_LazyGraphModule(graph_module, graph),
        inputs=tuple(inputs.values()),
        call=call,
        out_tree=exported.seen.out_tree,
        training_flags=tuple(module.training for module in exported.twin.modules()),
        grad_enabled=training,
        autocast=autocast,
        module_paths=paths,
        keys=_keys(graph, paths),
        colocated=groups,
        mutated=tuple(inputs[node].name for node in users if node.name in changed),
        checkpointed=regions,
    )


def _inputs(
    model: nn.Module, exported: Exported, call: Call, graph: Graph
) -> dict[Node, ProgramInput]:
    """What each placeholder stands for; uses of tied weights go to the first of them."""
    assert exported.program is not None
    specs = exported.program.graph_signature.input_specs
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    named |= dict(model.named_buffers(remove_duplicate=False))
    attributes = plain_tensors(model)
    names_of: dict[int, list[str]] = {}
    for name, weight in named.items():
        names_of.setdefault(id(weight), []).append(name)
    first: dict[int, Node] = {}
    inputs: dict[Node, ProgramInput] = {}
    num_users = 0
    for node, spec in zip(placeholders, specs, strict=True):
        name = spec.target or ""
        if spec.kind == InputKind.USER_INPUT:
            path = call.tree.paths[num_users]
            inputs[node] = ProgramInput(kind="user", name=path, index=num_users)
            num_users += 1
        elif name in named:
            owner = first.setdefault(id(named[name]), node)
            if owner is node:
                kind = "parameter" if spec.kind == InputKind.PARAMETER else "buffer"
                name, *ties = names_of[id(named[name])]
                inputs[node] = ProgramInput(kind=kind, name=name, ties=tuple(ties))  # type: ignore[arg-type]
            else:
                node.replace_all_uses_with(owner)
                graph.erase_node(node)
        else:
            inputs[node] = _constant(name, exported, attributes)
    return inputs


def _constant(
    name: str, exported: Exported, attributes: Mapping[int, tuple[str, tuple[Any, ...]]]
) -> ProgramInput:
    assert exported.program is not None
    value = exported.program.constants[name]
    original = exported.impostor.original(value)
    if original is None:
        return ProgramInput(kind="constant", name=name, value=value)
    path, keys = attributes[id(original)]
    name = ".".join([*filter(None, [path]), *map(str, keys)])
    return ProgramInput(kind="constant", name=name, value=original, attribute=(path, keys))


def _on_meta(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_on_meta(item) for item in value)
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _module_paths(graph: Graph, inputs: Mapping[Node, ProgramInput]) -> dict[str, str]:
    """The innermost module of each node; nodes that export added go with what they work on."""
    paths: dict[str, str] = {}
    for node in graph.nodes:
        if node in inputs:
            is_weight = inputs[node].kind in ("parameter", "buffer")
            paths[node.name] = inputs[node].name.rpartition(".")[0] if is_weight else ""
        elif node.op == "call_function":
            stack = node.meta.get("nn_module_stack")
            if stack:
                # Of a module called again, torch numbers the calls: "block@1".
                paths[node.name] = re.sub(r"@\d+", "", next(reversed(stack.values()))[0])
            else:
                paths[node.name] = next((paths[used.name] for used in node.all_input_nodes), "")
    return paths


def _keys(graph: Graph, paths: Mapping[str, str]) -> dict[str, str]:
    counts: Counter[tuple[str, str]] = Counter()
    keys: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            path, op = paths[node.name], _op_name(node.target)
            keys[node.name] = f"{path}:{op}:{counts[path, op]}"
            counts[path, op] += 1
    return keys


def _op_name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    name: str = target.__name__ if schema is None else schema.name.rpartition("::")[2]
    return name


def _regions(graph: Graph, seen: Seen) -> tuple[CheckpointRegion, ...]:
    members: dict[int, list[str]] = {}
    for node in graph.nodes:
        number = node.meta.get("custom", {}).get(CHECKPOINT_TAG)
        if number is not None and node.op == "call_function":
            members.setdefault(number, []).append(node.name)
    return tuple(
        CheckpointRegion(tuple(nodes), seen.checkpoints[number])
        for number, nodes in sorted(members.items())
    )
