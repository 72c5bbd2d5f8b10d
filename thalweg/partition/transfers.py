"""Transfer ops between partitions: a Send where a value is computed, a Recv where it is used.

A Send passes its input to the step's rendezvous; a Recv completes when the rendezvous has the
value. Buffers of a device are sent to other devices as host arrays. A control edge between devices
is a token, sent when its node has completed.
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
    """The base of all transfers: `tensor_name` is a tensor's, or `^node` for a control edge."""

    stateful = True
    effects = ()  # each transfer has a key of its own, so transfers need no order
    host_only = True
    not_differentiable = True
    tensor_name: str
    send_device: str
    recv_device: str

    @property
    def key(self) -> Key:
        """The key of the transfer in the rendezvous."""
        return Key(self.tensor_name, self.send_device, self.recv_device)

    def shape(self, *tensors: Tensor) -> TensorShape | list[TensorShape]:
        return []

    def rendezvous(self, context: Any) -> Rendezvous:
        """The rendezvous of the step."""
        if context.rendezvous is None:
            raise errors.UnimplementedError(
                None, context.node, f"{self.type_name} runs between the partitions of a step alone"
            )
        return context.rendezvous


class Sending(Transfer, abstract=True):
    """The base of Sends."""

    takes_buffers = True

    def kernel(self, context: Any, tensor: Any = ()) -> list[Any]:
        send(self.rendezvous(context), self.key, tensor)
        return []


def send(rendezvous: Rendezvous, key: Key, tensor: Any) -> None:
    """Send a value; a buffer of another device than the destination's is leased as an array."""
    if not isinstance(tensor, _ARRAYS) and isinstance(tensor, Buffer):
        tensor = tensor.lease() if tensor.device != key.recv_device else tensor
    rendezvous.send(key, tensor)


class Send(Sending, name="_Send"):
    """Sends a value; a variable is read when the Send runs."""

    signature = "tensor: T ->"


class SendReference(Sending, name="_SendRef"):
    """Sends a reference to a variable, to a conditional or loop that spans devices."""

    signature = "tensor: &T ->"


class SendToken(Sending, name="_SendToken"):
    """Sends the token of a control edge."""

    signature = "->"


class Receiving(Transfer, abstract=True):
    """The base of Recvs: they complete by a callback and block no thread."""

    blocking = True

    def kernel(self, context: Any, received: Received) -> None:
        self.rendezvous(context).receive(self.key, received)


class Recv(Receiving, name="_Recv"):
    """Receives a value."""

    signature = "-> tensor: tensor_type"
    tensor_type: DType
    given_shape: TensorShape

    def shape(self) -> TensorShape:
        return self.given_shape


class RecvToken(Receiving, name="_RecvToken"):
    """Completes when the token of a control edge arrives."""

    signature = "->"
