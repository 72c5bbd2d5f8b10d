"""The nodes at the borders of partitions: a Send where a value is made, a Recv where it is used.

A Send hands its input to the step's rendezvous, a Recv is done when the rendezvous has the value.
What is in the memory of one device goes to another one as an array of the host.
A token stands for a control edge: it is sent when a node is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.buffer import Buffer
from thalweg.partition.rendezvous import Key, Received, Rendezvous

_ARRAYS = (np.ndarray, np.generic)


class Transfer(Op, abstract=True):
    """The base of both ends: `tensor_name` is a tensor's, or `^node` for a control edge."""

    stateful = True
    effects = ()  # each value has a key of its own: no order between transfers is asked for
    host_only = True
    not_differentiable = True
    tensor_name: str
    send_device: str
    recv_device: str

    @property
    def key(self) -> Key:
        """What both ends know the value by."""
        return Key(self.tensor_name, self.send_device, self.recv_device)

    def rendezvous(self, context: Any) -> Rendezvous:
        """Where the partitions of the step meet."""
        if context.rendezvous is None:
            raise errors.UnimplementedError(
                None, context.node, f"{self.type_name} runs between the partitions of a step alone"
            )
        return context.rendezvous


class Sending(Transfer, abstract=True):
    """The base of the ends that send."""

    takes_buffers = True

    def shape(self, *tensors: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Any, tensor: Any = ()) -> list[Any]:
        send(self.rendezvous(context), self.key, tensor)
        return []


def send(rendezvous: Rendezvous, key: Key, tensor: Any) -> None:
    """Send what a device has to another one."""
    if not isinstance(tensor, _ARRAYS) and isinstance(tensor, Buffer):
        tensor = tensor.lease() if tensor.device != key.destination else tensor
    rendezvous.send(key, tensor)


class Send(Sending, name="_Send"):
    """Sends a value; a variable's is read at this point of the step."""

    signature = "tensor: T ->"


class SendReference(Sending, name="_SendRef"):
    """Sends a variable itself, to a conditional or a loop whose nodes are on several devices."""

    signature = "tensor: &T ->"


class SendToken(Sending, name="_SendToken"):
    """Sends the token of a control edge."""

    signature = "->"


class Receiving(Transfer, abstract=True):
    """The base of the ends that receive: no thread waits for what is sent."""

    blocking = True
    asynchronous = True

    def kernel(self, context: Any, received: Received) -> None:
        self.rendezvous(context).receive(self.key, received)


class Recv(Receiving, name="_Recv"):
    """Gives the value that was sent, when it is there."""

    signature = "-> tensor: tensor_type"
    tensor_type: DType
    given_shape: TensorShape

    def shape(self) -> TensorShape:
        return self.given_shape


class RecvToken(Receiving, name="_RecvToken"):
    """Is done when the token of a control edge is there."""

    signature = "->"

    def shape(self) -> list[TensorShape]:
        return []
