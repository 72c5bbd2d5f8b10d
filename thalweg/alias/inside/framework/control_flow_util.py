"""`tensorflow.python.ops.control_flow_util`: questions about conditionals and loops."""

from __future__ import annotations

from typing import Any

from thalweg.alias.inside.keras.tf_utils import smart_cond

ENABLE_CONTROL_FLOW_V2 = False


def EnableControlFlowV2(graph: Any) -> bool:
    """False: conditionals and loops are of one kind here."""
    return False


def GraphOrParentsInXlaContext(graph: Any) -> bool:
    """False: a step is compiled by Thalweg."""
    return False


IsInXLAContext = GraphOrParentsInXlaContext

__all__ = ["smart_cond"]
