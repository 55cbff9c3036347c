import highspy


def lp_favorites(op_graph, threshold):
    """Solve the linear program of SCT and return its optimum and the ids of the favorite edges."""
    model = highspy.Highs()
    for option, value in {
        "output_flag": False, "solver": "simplex", "simplex_strategy": 1, "threads": 1,
        "parallel": "off", "presolve": "on",
    }.items():
        model.setOptionValue(option, value)
    inf = highspy.kHighsInf
    edges = list(op_graph.edges(data=True))
    start = {op: len(edges) + k for k, op in enumerate(op_graph.nodes)}
    edge_column = {(u, v): k for k, (u, v, _) in enumerate(edges)}
    makespan = len(edges) + len(start)
    for _ in edges:
        model.addCol(0.0, 0.0, 1.0, 0, [], [])
    for _ in start:
        model.addCol(0.0, 0.0, inf, 0, [], [])
    model.addCol(1.0, 0.0, inf, 0, [], [])
    for u, v, edge in edges:
        w = op_graph.nodes[u]["weight"]
        model.addRow(w, inf, 3, [start[v], start[u], edge_column[u, v]], [1.0, -1.0, -float(edge["weight"])])
    for op in op_graph.nodes:
        children = [edge_column[op, c] for c in op_graph.successors(op)]
        parents = [edge_column[p, op] for p in op_graph.predecessors(op)]
        for columns in (children, parents):
            if columns:
                model.addRow(len(columns) - 1, inf, len(columns), columns, [1.0] * len(columns))
        model.addRow(op_graph.nodes[op]["weight"], inf, 2, [makespan, start[op]], [1.0, -1.0])
    model.run()
    values = model.getSolution().col_value
    fav = [e["id"] for k, (_, _, e) in enumerate(edges) if round(values[k] - threshold + 0.5) == 0]
    return model.getInfo().objective_function_value, fav


def assign_favorites(op_graph, favorite_edges):
    """Turn favorite edges into one favorite child per op."""
    chosen = set(favorite_edges)
    favorites, parent_of = {}, {}
    for a, b, edge in op_graph.edges(data=True):
        if edge["id"] not in chosen:
            continue
        favorites[a] = b
        if b in parent_of:
            favorites.pop(parent_of[b], None)
        parent_of[b] = a
    return favorites
