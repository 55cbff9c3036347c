"""Random graphs with the originals' attributes, and what a placer leaves on them.

Hypothesis draws the knobs and a seed, so that what it reports is small; the seed draws the rest.
Few distinct durations make ties, and most limits are tight: there the rules differ most.
"""

import random
from dataclasses import dataclass

import networkx as nx
from hypothesis import strategies as st

TIGHTNESS = (0.4, 0.7, 1.0, 1.4, 2.0, 50.0)  # of all limits together, over all that ops hold


@dataclass(frozen=True)
class Case:
    """An op graph and a device graph, built anew by every call, and how to place them."""

    seed: int
    num_ops: int
    num_devices: int
    fan_in: int
    most_duration: int
    most_transfer: int
    tightness: float
    num_groups: int

    def rng(self):
        return random.Random(repr(self))

    def tf(self, order_only=True, ids=False):
        """Build the graphs for the TensorFlow placers.

        `order_only` lets edges have no tensors, `ids` numbers the edges as they were inserted.
        """
        rng = self.rng()
        nodes = [self._tf_node(rng) for _ in range(self.num_ops)]
        outputs = [self._outputs(rng, op) for op in range(self.num_ops)]
        edges = []
        shared = rng.random() < 0.6
        for number, (parent, child) in enumerate(self._pairs(rng)):
            own = [{"name": ("own", number), "weight": rng.randint(0, self.most_transfer)}]
            some = rng.sample(outputs[parent], rng.randint(1, len(outputs[parent])))
            tensors = some if shared else own
            if rng.random() < 0.04 and order_only:
                tensors = []
            weight = sum(tensor["weight"] for tensor in tensors)
            edges.append((parent, child, {"tensor": tensors, "weight": weight}))
        graph = self._graph(rng, nodes, edges, ids)
        if rng.random() < 0.3:
            for op, number in enumerate(rng.sample(range(2 * self.num_ops), self.num_ops)):
                graph.nodes[op]["topo_order"] = number
        held = [sum(n["output_memory"]) + n["temporary_memory"] for n in nodes]
        return graph, self._devices(rng, held, whole=True)

    def torch(self, ids=False):
        """Build the graphs for the torch placers; in eighths of ms float sums are exact."""
        rng = self.rng()
        nodes = [self._torch_node(rng) for _ in range(self.num_ops)]
        edges = []
        for parent, child in self._pairs(rng):
            weight = rng.randint(0, 8 * self.most_transfer) / 8
            num_bytes = rng.choice((0, 1, rng.randint(0, 4)))
            edges.append((parent, child, {"weight": weight, "requested_bytes": num_bytes}))
        graph = self._graph(rng, nodes, edges, ids)
        held = [n["permanent_mem"] + n["temporary_mem"] // 2 for n in nodes]
        return graph, self._devices(rng, held, whole=False)

    def favorites(self, graph):
        """Draw a favorite for some ops: mostly a child, now and then any op; conflicts included."""
        rng = random.Random(self.seed + 1)
        ops = list(graph.nodes)
        favorites = {}
        for op in ops:
            among = list(graph.succ[op]) if rng.random() < 0.9 else ops
            if among and rng.random() < 0.8:
                favorites[op] = rng.choice(among)
        return favorites

    def _tf_node(self, rng):
        sizes = [rng.randint(0, 5) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        persistent = rng.choice((0, sum(sizes), rng.randint(0, sum(sizes) + 4)))
        return {
            "weight": rng.randint(1, self.most_duration),
            "temporary_memory": rng.choice((0, rng.randint(0, 4))),
            "persistent_memory": persistent,
            "output_memory": sizes,
            "colocation_group": f"group{rng.randrange(self.num_groups)}",
        }

    def _torch_node(self, rng):
        permanent, temporary = rng.randint(0, 6), rng.choice((0, rng.randint(0, 5)))
        peak = permanent + temporary if rng.random() < 0.8 else rng.randint(0, 12)
        return {
            "weight": rng.randint(1, 8 * self.most_duration) / 8,
            "permanent_mem": permanent,
            "temporary_mem": temporary,
            "peak_mem": peak,
            "parameter_mem": rng.choice((0, rng.randint(0, permanent))),
        }

    def _outputs(self, rng, op):
        weights = [rng.randint(0, self.most_transfer) for _ in range(rng.choice((1, 1, 2, 3)))]
        return [{"name": f"{op}:{i}", "weight": weight} for i, weight in enumerate(weights)]

    def _pairs(self, rng):
        """Draw edges from an op to a later one, each pair once."""
        pairs = set()
        for child in range(1, self.num_ops):
            for _ in range(rng.randint(0, self.fan_in)):
                nearest = rng.random() < 0.5
                first = max(0, child - 4) if nearest else 0
                pairs.add((rng.randrange(first, child), child))
        return sorted(pairs)

    def _graph(self, rng, nodes, edges, ids):
        """Insert nodes and edges in any order; remove some edges and insert them again."""
        graph = nx.DiGraph()
        order = list(range(len(nodes)))
        if rng.random() < 0.5:
            rng.shuffle(order)
        for op in order:
            graph.add_node(op, id=op, **nodes[op])
        if rng.random() < 0.7:
            rng.shuffle(edges)
        for parent, child, attributes in edges:
            graph.add_edge(parent, child, **attributes)
        for parent, child, attributes in edges:
            if rng.random() < 0.1:
                graph.remove_edge(parent, child)
                graph.add_edge(parent, child, **attributes)
        self._number_edges(rng, graph, edges, ids)
        return graph

    def _number_edges(self, rng, graph, edges, as_inserted):
        ids = list(range(len(edges)))
        how = "inserted" if as_inserted else rng.choice(("inserted", "shuffled", "none"))
        if how == "shuffled":
            rng.shuffle(ids)
        if how != "none":
            for number, (parent, child, _) in zip(ids, edges, strict=True):
                graph.edges[parent, child]["id"] = number

    def _devices(self, rng, held, whole):
        share = self.tightness * sum(held) / self.num_devices
        graph = nx.DiGraph()
        unequal = rng.random() < 0.5
        for device in range(self.num_devices):
            limit = share * rng.uniform(0.5, 1.5) if unequal else share
            limit = max(limit, rng.choice((0, max(held, default=0))))
            graph.add_node(device, id=device, memory_limit=int(limit) if whole else limit)
        return graph


def small_graph(durations, edges, op_bytes=None, **attributes):
    """Build a graph for all placers: durations by op, (parent, child, comm) edges.

    `op_bytes` is the memory of each op, output and persistent at once; received copies have no
    bytes. Further attributes of nodes are given by op each.
    """
    graph = nx.DiGraph()
    for op, duration in durations.items():
        num_bytes = (op_bytes or {}).get(op, 0)
        node = {
            "weight": duration,
            "temporary_memory": 0,
            "persistent_memory": num_bytes,
            "output_memory": [num_bytes],
            "colocation_group": f"op{op}",
            "temporary_mem": 0,
            "permanent_mem": num_bytes,
            "peak_mem": num_bytes,
            "parameter_mem": 0,
        }
        node |= {name: values[op] for name, values in attributes.items() if op in values}
        graph.add_node(op, id=op, name=f"op{op}", **node)
    for number, (parent, child, comm) in enumerate(edges):
        tensor = {"name": f"{parent}-{child}", "weight": comm, "num_bytes": 0}
        graph.add_edge(parent, child, id=number, weight=comm, requested_bytes=0, tensor=[tensor])
    return graph


@st.composite
def cases(draw, most_ops=14):
    """Draw a case of up to so many ops on one to four devices."""
    num_ops = draw(st.integers(1, most_ops))
    return Case(
        draw(st.integers(0, 10**9)),
        num_ops,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from((1, 2, 4, 12))),
        draw(st.sampled_from((0, 1, 3, 12))),
        draw(st.sampled_from(TIGHTNESS)),
        draw(st.integers(1, num_ops)),
    )


def outcome(place, graph, failures, times=True):
    """Run a placer on a graph; return what it wrote, or None if it failed with one of the errors.

    Without times only the placement and the peaks are returned.
    """
    try:
        place(graph)
    except failures:
        return None
    nodes = graph.nodes(data=True)
    placement = {op: node["p"] for op, node in nodes}
    if not times:
        return placement, graph.graph["peak"]
    starts = {op: (node["start_ts"], node["end_ts"]) for op, node in nodes}
    return placement, graph.graph["peak"], starts, graph.graph["makespan"]
