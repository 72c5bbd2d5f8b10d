"""Distributions whose parameters may be any numbers: softplus or |·| makes them positive."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from thalweg.distributions.base import Distribution
from thalweg.distributions.beta import Beta
from thalweg.distributions.contrib.inverse_gamma import Chi2, InverseGamma
from thalweg.distributions.gamma import Exponential, Gamma
from thalweg.distributions.laplace import Laplace
from thalweg.distributions.normal import Normal
from thalweg.distributions.parameters import floats
from thalweg.distributions.student_t import StudentT
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.math import rounding
from thalweg.ops.nn.activation import softplus
from thalweg.public import publish_value


def _softplus(x: Any) -> Tensor:
    return softplus(floats(x)[0])


def _whole(x: Any) -> Tensor:
    return rounding.floor(abs(floats(x)[0]))


_SCALE = {"scale": _softplus}
_SHAPE_AND_RATE = {"concentration": _softplus, "rate": _softplus}

#: name: (class, what is done to its parameters)
CONSTRAINED: dict[str, tuple[type[Distribution], Mapping[str, Callable[[Any], Tensor]]]] = {
    "BetaWithSoftplusConcentration": (
        Beta,
        {"concentration1": _softplus, "concentration0": _softplus},
    ),
    "Chi2WithAbsDf": (Chi2, {"df": _whole}),
    "ExponentialWithSoftplusRate": (Exponential, {"rate": _softplus}),
    "GammaWithSoftplusConcentrationRate": (Gamma, _SHAPE_AND_RATE),
    "InverseGammaWithSoftplusConcentrationRate": (InverseGamma, _SHAPE_AND_RATE),
    "LaplaceWithSoftplusScale": (Laplace, _SCALE),
    "NormalWithSoftplusScale": (Normal, _SCALE),
    "StudentTWithAbsDfSoftplusScale": (StudentT, {"df": _whole, **_SCALE}),
}


def _constrained(
    name: str, kind: type[Distribution], changes: Mapping[str, Callable[[Any], Tensor]]
) -> type[Distribution]:
    signature = inspect.signature(kind)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - of the class below
        bound = signature.bind(*args, **{"name": name, **kwargs})
        bound.apply_defaults()
        given: dict[str, Any] = dict(bound.arguments)
        with name_scope(given["name"]) as scope:
            changed: dict[str, Any] = {key: change(given[key]) for key, change in changes.items()}
            changed["name"] = scope
            kind.__init__(self, **(given | changed))
        self._parameters = given

    what = ", ".join(f"{change.__name__.strip('_')}({key})" for key, change in changes.items())
    about = f"As `{kind.__name__}`, with {what} for its parameters"
    members = {"__init__": __init__, "__doc__": about, "__signature__": signature}
    return type(name, (kind,), members)


for _name, _row in CONSTRAINED.items():
    publish_value(f"contrib.distributions.{_name}", _constrained(_name, *_row))
