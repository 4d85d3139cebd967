"""Solve a draft tree that another program keeps as a NetworkX graph, and mark what was chosen.

Run it with ``python examples/networkx_tree.py``; it needs the extra ``graph``.
"""

from __future__ import annotations

import networkx as nx

from specfit_opt import CostModel, DraftTree, ExpertRouting, solve


def draft() -> nx.DiGraph:
    """Return a drafted tree: its nodes are texts, its edges point from parent to child."""
    graph = nx.DiGraph()
    graph.add_node("The", experts=[0, 1])  # the root: its path probability is 1
    for parent, child, prob, experts in [
        ("The", "The cat", 0.6, [0, 2]),
        ("The", "The dog", 0.3, [1, 3]),
        ("The cat", "The cat sat", 0.5, [2, 1]),
        ("The cat", "The cat ran", 0.1, [4, 5]),
        ("The dog", "The dog sat", 0.1, [6, 7]),
    ]:
        graph.add_node(child, path_prob=prob, experts=experts)
        graph.add_edge(parent, child)
    return graph


def main() -> None:
    """Choose the subtree to verify."""
    graph = draft()
    tree, labels = DraftTree.from_networkx(graph)
    # Routing is given in the tree's order: one layer, two experts per token.
    experts = [[graph.nodes[label]["experts"]] for label in labels]
    in_memory = [[expert < 2 for expert in range(8)]]
    routing = ExpertRouting(experts, n_experts=8, resident=in_memory)
    cost = CostModel(fixed_time=0.025, node_time=0.001, expert_time=0.004)  # seconds

    solution = solve(tree, routing, cost)
    chosen = {labels[v] for v in solution.nodes.tolist()}
    nx.set_node_attributes(graph, {label: label in chosen for label in graph}, "chosen")
    for label in nx.dfs_preorder_nodes(graph, "The"):
        print("verify" if graph.nodes[label]["chosen"] else "  skip", label)
    plain = solve(tree, routing, cost, method="root")
    print(
        f"{solution.throughput:.1f} tokens/s predicted, {plain.throughput:.1f} without speculation"
    )


if __name__ == "__main__":
    main()
