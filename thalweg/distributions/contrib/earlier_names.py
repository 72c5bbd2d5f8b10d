"""`tf.contrib.distributions`: the same classes, which also take the parameters' earlier names.

Before 1.0 a normal distribution had `mu` and `sigma`, a density was `pdf`, a mass `pmf`. The
classes here are subclasses, so that divergences and `isinstance` see the originals.
"""

from __future__ import annotations

import inspect
from typing import Any

from thalweg.distributions.base import Distribution
from thalweg.distributions.bernoulli import Bernoulli
from thalweg.distributions.beta import Beta
from thalweg.distributions.categorical import Categorical
from thalweg.distributions.dirichlet import Dirichlet
from thalweg.distributions.dirichlet_multinomial import DirichletMultinomial
from thalweg.distributions.gamma import Exponential, Gamma
from thalweg.distributions.laplace import Laplace
from thalweg.distributions.multinomial import Multinomial
from thalweg.distributions.normal import Normal
from thalweg.distributions.student_t import StudentT
from thalweg.distributions.uniform import Uniform
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.public import publish_value

#: The parameters' names before 1.0, by class.
EARLIER: dict[type[Distribution], dict[str, str]] = {
    Bernoulli: {"p": "probs"},
    Beta: {"a": "concentration1", "b": "concentration0"},
    Categorical: {"p": "probs"},
    Dirichlet: {"alpha": "concentration"},
    DirichletMultinomial: {"n": "total_count", "alpha": "concentration"},
    Exponential: {"lam": "rate"},
    Gamma: {"alpha": "concentration", "beta": "rate"},
    Laplace: {},
    Multinomial: {"n": "total_count", "p": "probs"},
    Normal: {"mu": "loc", "sigma": "scale"},
    StudentT: {"mu": "loc", "sigma": "scale"},
    Uniform: {"a": "low", "b": "high"},
}


class Earlier(Distribution):
    """Method and parameter names of before 1.0, beside today's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = next(EARLIER[kind] for kind in type(self).__mro__ if kind in EARLIER)
        super().__init__(*args, **{names.get(key, key): value for key, value in kwargs.items()})

    def __getattr__(self, name: str) -> Any:
        kinds = [kind for kind in type(self).__mro__ if kind in EARLIER]
        if not kinds or name not in EARLIER[kinds[0]]:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self, EARLIER[kinds[0]][name])

    def sample_n(self, n: TensorLike, seed: int | None = None, name: str = "sample_n") -> Tensor:
        """`n` samples."""
        return self.sample([n], seed, name)

    def pdf(self, value: Any, name: str = "pdf") -> Tensor:
        """The density at `value`."""
        return self.prob(value, name)

    def log_pdf(self, value: Any, name: str = "log_pdf") -> Tensor:
        """The logarithm of the density at `value`."""
        return self.log_prob(value, name)

    def pmf(self, value: Any, name: str = "pmf") -> Tensor:
        """The mass at `value`."""
        return self.prob(value, name)

    def log_pmf(self, value: Any, name: str = "log_pmf") -> Tensor:
        """The logarithm of the mass at `value`."""
        return self.log_prob(value, name)

    def std(self, name: str = "std") -> Tensor:
        """The standard deviation."""
        return self.stddev(name)

    def get_batch_shape(self) -> TensorShape:
        """The shape of the batch, as far as it is known."""
        return self.batch_shape

    def get_event_shape(self) -> TensorShape:
        """The shape of one sample, as far as it is known."""
        return self.event_shape


for _kind in EARLIER:
    _told = {"__doc__": _kind.__doc__, "__signature__": inspect.signature(_kind)}
    _earlier = type(_kind.__name__, (Earlier, _kind), _told)
    publish_value(f"contrib.distributions.{_kind.__name__}", _earlier)
