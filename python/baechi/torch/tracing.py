"""Tracing: one step of a model on the meta device, written down as a `Trace`."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from baechi.errors import InputError
from baechi.torch.autograd import ACCUMULATION, Keeper, run_backward
from baechi.torch.fingerprints import ties_of
from baechi.torch.holding import hold
from baechi.torch.losses import LossArgument, Reads, loss_value
from baechi.torch.program import Program
from baechi.torch.recorder import Recorder
from baechi.torch.stand_ins import CPU_KERNELS, Kernels, StandIns
from baechi.torch.trace import Function, Step, Trace, Value
from baechi.torch.trees import tensors_in
from baechi.torch.work import MathModes

__all__ = ["trace_call", "trace_program"]


class _Tracing:
    """What grows while the forward pass runs."""

    def __init__(self, modes: MathModes, stand_ins: StandIns) -> None:
        self.stand_ins = stand_ins
        self.recorder = Recorder(modes, stand_ins.kernels.scratch_bytes)
        self.keeper = Keeper(self.recorder)
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.starts: list[int] = []
        self.sources: list[tuple[int, int] | int | None] = []  # by value: where its gradient goes

    def add_value(self, tensor: torch.Tensor, step: int, kind: str = "made", name: str = "") -> int:
        storage = self.recorder.storage_of(tensor, kind, name)
        nbytes = tensor.numel() * tensor.element_size()
        self.values.append(Value(storage, nbytes, step))
        source: tuple[int, int] | int | None = None
        if tensor.grad_fn is not None:
            source = (tensor.grad_fn._sequence_nr(), tensor.output_nr)
        elif tensor.requires_grad:
            source = storage
        self.sources.append(source)
        return len(self.values) - 1

    def run(
        self, key: str, path: str, kind: str, reads: tuple[int, ...], call: Callable[[], Any]
    ) -> tuple[Any, Step]:
        """Runs one step and writes it down; the values that it makes are added by the caller."""
        recorder = self.recorder
        self.starts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        owner = recorder.begins(len(self.steps))
        out = call()
        recorder.owner = None
        step = Step(key, path, kind, reads, [], owner.born, owner.peak, owner.works, [])
        step.sequence, step.random = self.starts[-1], recorder.random
        self.steps.append(step)
        return out, step


def trace_call(
    model: torch.nn.Module,
    program: Program,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    loss: LossArgument = None,
    autocast: torch.dtype | None = None,
    kernels: Kernels = CPU_KERNELS,
) -> Trace:
    """Traces a program for a call of its model; the model is not touched.

    Args:
        model: whose program it is; weights and arguments may be on any device.
        program: what `capture` made of it.
        args: positional arguments of forward.
        kwargs: keyword arguments of forward.
        training: also trace backward, from the loss.
        loss: as in `planning.plan`.
        autocast: as the program was captured.
        kernels: what ops come apart into.

    Raises:
        InputError: there is no loss, or it has no gradient.
    """
    stand_ins = StandIns(kernels)
    weights = {
        name: stand_ins(tensor, requires_grad=training)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    inputs = [stand_ins(tensor, requires_grad=False) for tensor in program.bind(args, kwargs)]

    def scalar(output: Any) -> torch.Tensor:
        return loss_value(output, loss)

    return trace_program(
        program,
        weights,
        inputs,
        training=training,
        loss=scalar if training else None,
        ties=ties_of(model),
        stand_ins=stand_ins,
        modes=MathModes.of_this_process(autocast),
    )


def trace_program(
    program: Any,
    weights: Mapping[str, torch.Tensor],
    inputs: Sequence[Any],
    *,
    training: bool,
    loss: Callable[[Any], torch.Tensor] | None,
    ties: Mapping[str, tuple[str, ...]],
    stand_ins: StandIns,
    modes: MathModes | None = None,
) -> Trace:
    """Runs a captured program once on tensors without values.

    Args:
        program: what `capture` made.
        weights: stand-ins by qualified name, with ``requires_grad`` as in the model.
        inputs: the flat user inputs, tensors among them as stand-ins.
        training: also run backward from the loss.
        loss: takes the model's output (in its own structure) to a scalar; None in inference.
        ties: qualified name of each parameter and buffer to all its names.
        stand_ins: what made these.
        modes: in which types products are computed.
    """
    tracing = _Tracing(modes or MathModes(), stand_ins)
    recorder, keeper = tracing.recorder, tracing.keeper
    held: list[int] = []
    values_of: dict[Node, Any] = {}  # node -> tree of value ids
    env: dict[Node, Any] = {}
    graph = program.graph_module.graph
    roots: list[Any] = []
    for node, given in zip(graph.find_nodes(op="placeholder"), program.inputs, strict=True):
        if given.kind == "user":
            tensor, kind = inputs[given.index], "input"
        elif given.kind == "constant":
            tensor, kind = given.value, "constant"
            if isinstance(tensor, torch.Tensor):
                tensor = stand_ins(tensor, requires_grad=False)
        else:
            tensor, kind = weights[given.name], given.kind
        roots.append(tensor)
        env[node] = tensor
        if isinstance(tensor, torch.Tensor):
            values_of[node] = tracing.add_value(tensor, -1, kind, given.name)
            held.append(values_of[node])
    last_use = _last_uses(graph)
    grad = torch.enable_grad() if training else torch.no_grad()
    with grad, stand_ins.running(), recorder, keeper.watching():
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                outputs = [env[n] if isinstance(n, Node) else n for n in node.args[0]]
                out_values = [
                    values_of.get(n) if isinstance(n, Node) else None for n in node.args[0]
                ]
                break
            _run_node(tracing, program, node, env, values_of)
            for dead in last_use.get(node, ()):
                env.pop(dead, None)
        env.clear()
        ids = [v for v in out_values if v is not None]
        loss_at, scalar = -1, None
        if loss is not None:
            loss_at, scalar = _run_loss(tracing, loss, program.rebuild(outputs), outputs, ids)
        recorder.position = ("end", 0)
    functions: list[Function] = []
    if training:
        if scalar is None or scalar.grad_fn is None:
            raise InputError(
                "the loss has no gradient: no parameter that needs one leads to it",
                hint='plan with mode="inference", or unfreeze a parameter',
            )
        with stand_ins.running():
            functions = run_backward(
                recorder,
                keeper,
                scalar,
                tracing.steps,
                lambda s: bisect.bisect(tracing.starts, s) - 1,
            )
        _link_gradients(tracing, functions)
    del scalar
    trace = Trace(
        recorder.storages,
        tracing.values,
        tracing.steps,
        functions,
        held,
        ids,
        loss_at,
        0 if training else -1,
        _step_groups(program.colocated, graph),
        _step_groups([region.nodes for region in program.checkpointed], graph),
        training,
        "export",
        recorder.works,
        ties,
    )
    recorder.position = ("step end", 0)
    hold(trace, recorder.deaths)
    return trace


def _run_loss(
    tracing: _Tracing,
    loss: Callable[[Any], torch.Tensor],
    output: Any,
    tensors: Sequence[Any],
    ids: list[int],
) -> tuple[int, torch.Tensor]:
    """The loss of an output, and its value; what the user's function computes is one step."""
    with Reads(tensors) as reads:
        scalar, step = tracing.run(":loss:0", "", "loss", tuple(ids), lambda: loss(output))
    step.reads = tuple(v for t, v in zip(tensors, ids, strict=True) if t in reads)
    for tensor, value in zip(tensors, ids, strict=True):
        if tensor is scalar:
            tracing.steps.pop()
            tracing.starts.pop()
            return value, scalar
    step.makes = [tracing.add_value(scalar, len(tracing.steps) - 1)]
    ids.extend(step.makes)
    return step.makes[0], scalar


def _run_node(
    tracing: _Tracing, program: Any, node: Node, env: dict[Node, Any], values_of: dict[Node, Any]
) -> None:
    args = torch.fx.node.map_arg(node.args, env.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, env.__getitem__)
    if kwargs.get("device") is not None:  # a factory
        kwargs = {**kwargs, "device": tracing.stand_ins.device}
    reads: dict[int, None] = {}
    for used in node.all_input_nodes:
        value = values_of.get(used)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                reads[one] = None
    target = node.target
    if node.op == "get_attr":

        def call() -> Any:
            return getattr(program.graph_module, str(target))
    else:

        def call() -> Any:
            return target(*args, **kwargs)  # type: ignore[operator]

    path = program.module_paths.get(node.name, "")
    kind = str(target).removesuffix(".default")
    out, step = tracing.run(program.keys.get(node.name, node.name), path, kind, tuple(reads), call)
    env[node] = out
    at = len(tracing.steps) - 1
    if node.op == "get_attr":
        values_of[node] = None
        return
    step.makes = [tracing.add_value(t, at) for t in tensors_in(out)]
    values_of[node] = step.makes[0] if isinstance(out, torch.Tensor) else step.makes


def _last_uses(graph: torch.fx.Graph) -> dict[Node, list[Node]]:
    last: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        for used in [*node.all_input_nodes, node]:
            if used not in seen:
                seen.add(used)
                last.setdefault(node, []).append(used)
    return last


def _link_gradients(tracing: _Tracing, functions: Sequence[Any]) -> None:
    by_sequence = {f.sequence: at for at, f in enumerate(functions) if f.sequence != ACCUMULATION}
    by_parameter = {f.parameter: at for at, f in enumerate(functions) if f.parameter >= 0}
    for value, source in zip(tracing.values, tracing.sources, strict=True):
        if isinstance(source, tuple) and source[0] in by_sequence:
            value.gradient = (by_sequence[source[0]], source[1])
        elif isinstance(source, int) and source in by_parameter:
            value.gradient = (by_parameter[source], 0)


def _step_groups(groups: Iterable[Sequence[str]], graph: torch.fx.Graph) -> list[tuple[int, ...]]:
    """Groups of nodes as groups of steps."""
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    at = {node.name: step for step, node in enumerate(nodes)}
    found = (tuple(at[name] for name in group if name in at) for group in groups)
    return [group for group in found if group]
