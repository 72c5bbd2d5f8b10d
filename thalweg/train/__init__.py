"""What users train with: optimizers, schedules, averages, clipping."""

from thalweg.train import (
    adadelta,
    adagrad,
    adagrad_da,
    adam,
    averages,
    clipping,
    device_setter,
    ftrl,
    global_steps,
    gradient_descent,
    momentum,
    optimizer,
    proximal,
    rmsprop,
    schedules,
    slots,
)

__all__ = [
    "adadelta",
    "adagrad",
    "adagrad_da",
    "adam",
    "averages",
    "clipping",
    "device_setter",
    "ftrl",
    "global_steps",
    "gradient_descent",
    "momentum",
    "optimizer",
    "proximal",
    "rmsprop",
    "schedules",
    "slots",
]
