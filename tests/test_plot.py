"""The pictures: what is in them, not how they look."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="drawing needs the extra 'plot'")

from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, example_instances, example_trace
from specfit_opt.errors import InvalidInputError
from specfit_opt.plot import plot_replay, plot_tree, save_figure
from specfit_opt.replay import replay
from specfit_opt.solve import solve_instance
from specfit_opt.tree import DraftTree


@pytest.fixture
def instance():
    return example_instances()[0]


@pytest.fixture
def ax():
    # Not through pyplot, which would keep every figure of the test run.
    return Figure().subplots()


def drawn_nodes(ax):
    """Return (positions of the filled nodes, positions of the hollow ones), as sets."""
    filled, hollow = set(), set()
    for nodes in ax.collections:
        if isinstance(nodes, PathCollection):
            white = np.allclose(nodes.get_facecolor(), to_rgba("white"))
            (hollow if white else filled).update(map(tuple, nodes.get_offsets().tolist()))
    return filled, hollow


def test_the_chosen_nodes_are_filled_and_every_edge_is_drawn(instance, ax):
    tree = instance.tree
    solution = solve_instance(instance)
    assert plot_tree(tree, solution, ax=ax) is ax
    filled, hollow = drawn_nodes(ax)
    assert len(filled) == solution.n_selected
    assert len(hollow) == tree.n_nodes - solution.n_selected
    edges = [c for c in ax.collections if isinstance(c, LineCollection)]
    assert sum(len(c.get_segments()) for c in edges) == tree.n_nodes - 1
    assert sorted(x for x, _ in filled) == sorted(tree.depth[solution.mask])
    assert str(solution.n_selected) in ax.get_title()
    assert "optimal" in ax.get_title()


def test_small_trees_carry_labels_large_ones_do_not(ax):
    tree = DraftTree([-1, 0, 0, 0], [1.0, 0.25, 0.004, 0.0001])
    plot_tree(tree, ax=ax)
    assert [text.get_text() for text in ax.texts] == ["100", "25", "0.4", "<0.1"]
    ax.clear()
    n = 600
    plot_tree(DraftTree(np.maximum(np.arange(-1, n - 1) // 3, -1), np.ones(n)), ax=ax)
    assert not ax.texts


def test_areas_follow_the_path_probability(ax):
    plot_tree(DraftTree([-1, 0, 0], [1.0, 0.8, 0.4]), ax=ax)
    (nodes,) = [c for c in ax.collections if isinstance(c, PathCollection) if len(c.get_sizes())]
    sizes = nodes.get_sizes()
    assert sizes / sizes[0] == pytest.approx([1.0, 0.8, 0.4])


@pytest.mark.parametrize("n_roots", [1, 4])
def test_roots_alone_can_be_drawn(n_roots, ax):
    plot_tree(DraftTree([-1] * n_roots, [1.0] * n_roots), ax=ax)
    assert len(drawn_nodes(ax)[0]) == n_roots


def test_a_solution_of_another_tree_is_refused(instance, ax):
    solution = solve_instance(instance)
    with pytest.raises(InvalidInputError, match="of a tree of 69 nodes, this one has 2"):
        plot_tree(DraftTree([-1, 0], [1.0, 0.5]), solution, ax=ax)


def test_a_new_figure_has_a_fitting_size(instance):
    import matplotlib.pyplot as plt

    large, small = (plot_tree(tree).figure for tree in (instance.tree, DraftTree([-1], [1.0])))
    try:
        assert (large.get_size_inches() > small.get_size_inches()).all()
    finally:
        plt.close(large)
        plt.close(small)


def test_a_replay_has_a_panel_per_cell_and_a_bar_per_policy():
    import matplotlib.pyplot as plt

    results = replay(
        example_trace(),
        policies=["ar", "chain-1", "ratio"],
        cache=[8, 16, 32],
        expert_bytes=EXAMPLE_EXPERT_BYTES,
    )
    figure = plot_replay(results)
    try:
        panels = [panel for panel in figure.axes if panel.get_visible()]
        assert len(panels) == 3
        for slots, panel in zip((8, 16, 32), panels, strict=True):
            widths = [bar.get_width() for bar in panel.patches]
            assert widths == [r.tokens_per_second for r in results if r.slots == slots]
            assert f"{slots} of 64 experts" in panel.get_title()
            bold = [t.get_text() for t in panel.texts if t.get_fontweight() == "bold"]
            assert bold == [f"{max(widths):.1f}"]
        labels = [label.get_text() for label in panels[0].get_yticklabels()]
        assert labels == ["ar", "chain-1", "ratio"]
    finally:
        plt.close(figure)


def test_a_replay_without_counted_passes_says_so():
    import matplotlib.pyplot as plt

    results = replay(example_trace(), policies=["ar"], cache=8, expert_bytes=1000, warmup=10_000)
    figure = plot_replay(results)
    try:
        assert [t.get_text() for t in figure.axes[0].texts] == ["no counted pass"]
    finally:
        plt.close(figure)


def test_no_results_are_refused():
    with pytest.raises(InvalidInputError, match="no replay results"):
        plot_replay([])


def test_saving_replaces_a_file_whole_and_refuses_unknown_formats(tmp_path, instance, ax):
    plot_tree(instance.tree, ax=ax)
    path = tmp_path / "tree.svg"
    path.write_text("older")
    save_figure(ax.figure, path)
    text = path.read_text()
    assert text.startswith("<?xml")
    assert text.rstrip().endswith("</svg>")
    with pytest.raises(InvalidInputError, match="'txt' is no picture format"):
        save_figure(ax.figure, tmp_path / "tree.txt")
    assert list(tmp_path.iterdir()) == [path]
