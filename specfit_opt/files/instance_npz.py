"""The exchange format of instances: a ``.npz`` archive of plain arrays.

========================  ======================  ================================================
array                     dtype, shape            meaning
========================  ======================  ================================================
``parent``                int32 (n,)              parent of every node, -1 for a root
``path_prob``             float64 (n,)            path probability
``experts``               int16 (n, L, k)         expert ids, -1 pads; int32 where ids exceed int16
``n_experts``             integer                 experts per layer, E
``resident``              bool (L, E)             experts in fast memory
``fixed_time``            real                    seconds
``node_time``             float64 (n + 1,)        seconds by number of nodes, inf: not allowed
``expert_time``           float64 (L, E)          seconds to bring in an expert
``resident_time``         real                    seconds that a resident expert costs
========================  ======================  ================================================

Forests have several roots. Nothing else may be in the archive, and pickles are never read.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..cost import CostModel
from ..instance import Instance
from ..routing import ExpertRouting
from ..tree import DraftTree
from .archive import Field, named, read_archive
from .atomic import atomic_write

FIELDS = (
    Field("parent", ("int32",), ("n",)),
    Field("path_prob", ("float64",), ("n",)),
    Field("experts", ("int16", "int32"), ("n", "L", "k")),
    Field.count("n_experts", sets="E"),
    Field("resident", ("bool",), ("L", "E")),
    Field.real("fixed_time"),
    Field("node_time", ("float64",), ("n+1",)),
    Field("expert_time", ("float64",), ("L", "E")),
    Field.real("resident_time"),
)


def load_npz(path: str | os.PathLike[str]) -> Instance:
    """Load an instance from a ``.npz`` archive; see :func:`specfit_opt.load_instance`.

    ``node_time`` stays the table that the file holds, even where it is affine: a slope would
    round differently at some sizes.
    """
    arrays = read_archive(path, FIELDS, "an instance file", "specfit_opt.save_instance")
    with named(path):
        return Instance(
            DraftTree(arrays["parent"], arrays["path_prob"]),
            ExpertRouting(arrays["experts"], int(arrays["n_experts"]), arrays["resident"]),
            CostModel(
                float(arrays["fixed_time"]),
                arrays["node_time"],
                arrays["expert_time"],
                float(arrays["resident_time"]),
            ),
            name=Path(path).stem,
        )


def save_npz(path: str | os.PathLike[str], instance: Instance) -> None:
    """Save an instance as a ``.npz`` archive; see :func:`specfit_opt.save_instance`."""
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    n_layers, n_experts = routing.n_layers, routing.n_experts
    narrow = n_experts - 1 <= np.iinfo(np.int16).max
    with atomic_write(path) as handle:
        np.savez_compressed(
            handle,
            parent=tree.parent,
            path_prob=tree.path_prob,
            experts=routing.experts.astype(np.int16 if narrow else np.int32),
            n_experts=np.int64(n_experts),
            resident=routing.resident,
            fixed_time=np.float64(cost.fixed_time),
            node_time=cost.node_table(tree.n_nodes),
            expert_time=cost.expert_table(n_layers, n_experts),
            resident_time=np.float64(cost.resident_time),
        )
