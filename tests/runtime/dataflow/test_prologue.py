"""Which graphs have a prologue."""

from dataclasses import replace
from typing import Any

import thalweg as tf
from thalweg.device.local import local_devices
from thalweg.runtime.dataflow.prologue import Prologue
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.dataflow.tokens import Known, Loop, Source, TokenGraph, Vertex, VertexKind
from thalweg.runtime.plan import Step, plan


def sending() -> TokenGraph:
    """The graph of a device that sends a sum with a variable."""
    with tf.device("/cpu:1"):
        total = tf.Variable(tf.zeros([3])) + 1.0
    with tf.device("/cpu:0"):
        fetch = tf.square(total)
    parts = plan(Step((fetch,), (), ()), local_devices({"CPU": 2})).partitions
    return parts[1].plan.dataflow.graph


def has_prologue(graph: TokenGraph) -> bool:
    context: Any = None
    return Prologue(Dataflow(graph), (), context).is_usable


def with_a_loop_before(graph: TokenGraph) -> TokenGraph:
    """A graph whose vertices follow those of a loop without iterations."""
    loop = [
        Vertex(VertexKind.PASS, (Known(0),)),
        Vertex(VertexKind.ENTER, (Source(0),), loop=Loop("loop", 1)),
        Vertex(VertexKind.EXIT, (Source(1),)),
    ]
    later = [
        vertex._replace(
            inputs=tuple(Source(s.vertex + len(loop), s.output) for s in vertex.inputs),
            controls=tuple(place + len(loop) for place in vertex.controls),
        )
        for vertex in graph.vertices
    ]
    return replace(graph, vertices=(*loop, *later))


def test_a_graph_of_calls_alone_has_a_prologue() -> None:
    with tf.Graph().as_default():
        graph = sending()
    assert has_prologue(graph)
    assert not has_prologue(with_a_loop_before(graph))
    sums = Source(len(graph.vertices) - 1)
    merge = Vertex(VertexKind.MERGE, (sums,))
    assert not has_prologue(replace(graph, vertices=(*graph.vertices, merge)))
