"""`tensorflow.python.client.device_lib`: the devices of this process."""

from __future__ import annotations

from typing import Any

from thalweg import protos
from thalweg.alias import names

tf = names.root()


def list_local_devices(session_config: Any = None) -> list[Any]:
    """A DeviceAttributes message for each device that a session of this process has."""
    with tf.Session(graph=tf.Graph(), config=session_config) as session:
        found = [
            tf.DeviceSpec.from_string(str(getattr(d, "name", d))) for d in session.list_devices()
        ]
    return [
        protos.DeviceAttributes(
            name=f"/device:{spec.device_type}:{spec.device_index}", device_type=spec.device_type
        )
        for spec in found
    ]
