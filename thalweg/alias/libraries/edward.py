"""Edward 1.3.5: not below `tf.`, but mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.alias.libraries.library import Library, Patch, outdated
from thalweg.graph.build import add_node
from thalweg.graph.node import Node
from thalweg.ops.random.random import seeds


def copied_operation(node: Node, name: str, copied: Callable[[Any], Any]) -> Node:
    """A copy of an operation whose inputs are copies, too; what is drawn in it is drawn anew.

    Args:
        node: the operation.
        name: the name of the copy.
        copied: gives the copy of a tensor or an operation.
    """
    inputs = node.grouped([copied(x) for x in node.inputs])
    controls = [copied(before) for before in node.controls]
    attributes = node.op.attributes
    if attributes.get("seed2"):
        attributes["seed2"] = seeds(None)["seed2"] or attributes["seed2"]
    with node.graph.as_default() as graph, graph.control_dependencies(controls):
        return add_node(graph, type(node.op)(**attributes), tuple(inputs), f"{name}/")


LIBRARY = Library(
    package="edward",
    requirement="edward==1.3.5",
    extra="edward",
    places={},
    patches=[
        *outdated("edward"),
        Patch(
            "edward.util.random_variables",
            r"(?m)^    node_def = deepcopy\(op\.node_def\)$",
            "    return __import__('thalweg.alias.libraries.edward', fromlist=['*'])"
            ".copied_operation(op, new_name, "
            "lambda x: copy(x, dict_swap, scope, True, copy_q, False))",
            "it makes operations by hand, whose inputs come later: here nodes never change",
        ),
    ],
)
