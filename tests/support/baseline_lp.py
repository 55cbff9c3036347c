"""The favorite children of SCT: the linear program, its rounding, its conflicts."""

import highspy


def lp_favorites(op_graph, threshold):
    """Solve the linear program of SCT: per op, one child and one parent may need no transfer.

    The optimum is unique, its vertex is not: the order of columns and rows is part of the result.

    Returns:
        The optimum (the makespan on infinitely many devices) and the ids of the favorite edges.
    """
    edges = sorted(op_graph.edges(data=True), key=lambda edge: edge[2]["id"])
    x_of = {(parent, child): column for column, (parent, child, _) in enumerate(edges)}
    start_of = {op: len(edges) + number for number, op in enumerate(op_graph.nodes)}
    makespan = len(edges) + len(start_of)
    model = highspy.Highs()
    for option, value in (("output_flag", False), ("solver", "simplex"), ("threads", 1)):
        model.setOptionValue(option, value)
    for column in range(makespan + 1):
        upper = 1.0 if column < len(edges) else highspy.kHighsInf
        model.addCol(float(column == makespan), 0.0, upper, 0, [], [])

    def at_least(bound, terms):
        columns, values = list(terms), [float(value) for value in terms.values()]
        model.addRow(float(bound), highspy.kHighsInf, len(columns), columns, values)

    for parent, child, edge in edges:
        x = x_of[parent, child]
        at_least(
            op_graph.nodes[parent]["weight"],
            {start_of[child]: 1, start_of[parent]: -1, x: -edge["weight"]},
        )
    for op in op_graph.nodes:
        if op_graph.succ[op]:
            at_least(
                len(op_graph.succ[op]) - 1, {x_of[op, child]: 1 for child in op_graph.succ[op]}
            )
    for op in op_graph.nodes:
        if op_graph.pred[op]:
            at_least(
                len(op_graph.pred[op]) - 1, {x_of[parent, op]: 1 for parent in op_graph.pred[op]}
            )
    for op, node in op_graph.nodes(data=True):
        at_least(node["weight"], {makespan: 1, start_of[op]: -1})
    model.run()
    values = model.getSolution().col_value
    favorite_edges = [
        edge["id"]
        for parent, child, edge in edges
        if is_favorite(values[x_of[parent, child]], threshold)
    ]
    return model.getInfo().objective_function_value, favorite_edges


def is_favorite(value, threshold):
    """Round the LP value of an edge: halves go to the even number, so the threshold is included."""
    return round(value - threshold + 0.5) == 0


def assign_favorites(op_graph, favorite_edges):
    """Turn favorite edges into at most one favorite child per op.

    An op that loses a child to a later parent loses whatever favorite it has by then, as in the
    original: edges 0-2, 0-3, 1-2 leave op 0 without one.
    """
    favorite_edges = set(favorite_edges)
    favorites, parent_of = {}, {}
    for parent, child, edge in op_graph.edges(data=True):
        if edge["id"] in favorite_edges:
            favorites[parent] = child
            if child in parent_of:
                favorites.pop(parent_of[child], None)
            parent_of[child] = parent
    return favorites
