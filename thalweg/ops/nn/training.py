"""TensorFlow's fused training ops: one node updates a variable and its slots by a gradient.

Thalweg's own optimizers are graphs of plain ops; these blocks run imported graphs with fused ones.
A block is its update rule, for arrays and for elements: a function from values and hyperparameters
to new values. The sparse form of a rule is the same rule on the rows of `indices`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ir.either import absolute, maximum, power, sign, square_root
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays.indexing import check_within
from thalweg.ops.core.context import Context, VariableCell
from thalweg.ops.state.variable_uses import HostUse
from thalweg.platform.arrays import Array


def _signature(inputs: str) -> str:
    """`"var accum | lr grad"`: references, then values, as a signature line."""
    references, _, values = inputs.partition("|")
    parts = [f"{name}: &T" for name in references.split()]
    kinds = {"indices": "I", "global_step": "int64"}
    parts += [f"{name}: {kinds.get(name, 'T')}" for name in values.split()]
    index = ", I: index" if "indices" in values else ""
    return f"{', '.join(parts)} -> out: &T; T: numeric{index}"


class TrainingOp(Op, abstract=True):
    """Sets references to a function of their values, hyperparameters and a gradient."""

    stateful = True
    not_differentiable = True
    use_locking: bool = False
    #: the inputs with the shape of the variable; the others are scalars
    gradients: ClassVar[tuple[str, ...]] = ("grad", "delta")
    #: (self, *values, *others) -> new values, in the order of the inputs
    rule: ClassVar[Callable[..., Any]]

    def shape(self, *inputs: Tensor) -> TensorShape:
        names = [argument.name for argument in self.parsed.inputs]
        shape = inputs[0].shape
        for argument, tensor in zip(self.parsed.inputs, inputs, strict=True):
            if argument.is_ref or (argument.name in self.gradients and "indices" not in names):
                shape = shape.merge_with(tensor.shape)
            elif argument.name not in ("indices", *self.gradients):
                tensor.shape.assert_is_compatible_with(scalar())
        return shape

    def kernel(self, context: Context, *inputs: Any) -> VariableCell:
        named = {a.name: value for a, value in zip(self.parsed.inputs, inputs, strict=True)}
        cells: list[VariableCell] = [named.pop(a.name) for a in self.parsed.inputs if a.is_ref]
        indices = named.pop("indices", None)
        if "global_step" in named:
            kind = cells[0].dtype.as_numpy_dtype
            named["global_step"] = np.asarray(named["global_step"]).astype(kind)
        with HostUse(cells, writes=True):
            if indices is None:
                self._change_all(cells, list(named.values()))
            else:
                self._change_rows(cells, indices, named)
        return cells[0]

    def _change_all(self, cells: Sequence[VariableCell], others: Sequence[Array]) -> None:
        values = [cell.read() for cell in cells]
        changed = self.rule(*values, *others)
        for value, fresh in zip(values, changed, strict=True):
            if np.shape(fresh) != value.shape:
                raise errors.invalid(
                    f"var and grad do not have the same shape: {list(value.shape)} "
                    f"{list(np.shape(fresh))}"
                )
        for cell, fresh in zip(cells, changed, strict=True):
            cell.assign(fresh)

    def _change_rows(
        self, cells: Sequence[VariableCell], indices: Array, others: dict[str, Array]
    ) -> None:
        values = [cell.read() for cell in cells]
        check_within(indices, values[0].shape[0])
        if others["grad"].shape != indices.shape + values[0].shape[1:]:
            raise errors.invalid(
                f"grad must have shape indices.shape + var.shape[1:], got {others['grad'].shape} "
                f"for indices of shape {indices.shape} and a variable of {values[0].shape}"
            )
        changed = [value.copy() for value in values]
        for rows in _rounds(indices):
            where = indices[rows]
            picked = others | {"grad": others["grad"][rows]}
            fresh = self.rule(*[value[where] for value in changed], *picked.values())
            for value, new in zip(changed, fresh, strict=True):
                value[where] = new
        for cell, value in zip(cells, changed, strict=True):
            cell.assign(value)


class Dense(TrainingOp, abstract=True):
    """A rule on whole variables; `at.output` is the index of the reference."""

    def loop(self, at: IndexTuple, *operands: Operand) -> Expr:
        kind = operands[0].dtype
        elements = [operand.broadcast(at) for operand in operands]
        for index, argument in enumerate(self.parsed.inputs):
            if argument.name == "global_step":
                elements[index] = elements[index].cast(kind)
        return self.rule(*elements)[at.output]


class Sparse(TrainingOp, abstract=True):
    """A rule on the rows of `indices`; repeated rows are updated repeatedly, in order."""

    host_only = True


def _rounds(indices: Array) -> list[Array]:
    """Partition positions into rounds without repeated indices; repeats are applied in order."""
    rounds: list[list[int]] = []
    seen: dict[int, int] = {}
    for position, index in enumerate(indices.tolist()):
        number = seen[index] = seen.get(index, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(position)
    return [np.array(positions) for positions in rounds]


def _shrink(value: Any, by: Any) -> Any:
    return sign(value) * maximum(absolute(value) - by, 0)


class ApplyGradientDescent(Dense):
    """var − alpha·delta"""

    signature = _signature("var | alpha delta")

    def rule(self, var: Array, alpha: Array, delta: Array) -> Any:
        return (var - alpha * delta,)


class ApplyProximalGradientDescent(Dense):
    """shrink(var − alpha·delta, alpha·l1) / (1 + alpha·l2)"""

    signature = _signature("var | alpha l1 l2 delta")

    def rule(self, var: Array, alpha: Array, l1: Array, l2: Array, delta: Array) -> Any:
        return (_shrink(var - alpha * delta, alpha * l1) / (1 + alpha * l2),)


class SparseApplyProximalGradientDescent(Sparse):
    """As ApplyProximalGradientDescent, on rows."""

    signature = _signature("var | alpha l1 l2 grad indices")
    rule = ApplyProximalGradientDescent.rule


class ApplyAdadelta(Dense):
    """Adadelta: steps in the units of the variable."""

    signature = _signature("var accum accum_update | lr rho epsilon grad")

    def rule(
        self,
        var: Array,
        accum: Array,
        accum_update: Array,
        lr: Array,
        rho: Array,
        epsilon: Array,
        grad: Array,
    ) -> Any:
        accum = rho * accum + (1 - rho) * grad * grad
        update = square_root(accum_update + epsilon) / square_root(accum + epsilon) * grad
        return var - lr * update, accum, rho * accum_update + (1 - rho) * update * update


class SparseApplyAdadelta(Sparse):
    """As ApplyAdadelta, on rows."""

    signature = _signature("var accum accum_update | lr rho epsilon grad indices")
    rule = ApplyAdadelta.rule


class ApplyAdagrad(Dense):
    """accum + grad²;  var − lr·grad / √accum"""

    signature = _signature("var accum | lr grad")

    def rule(self, var: Array, accum: Array, lr: Array, grad: Array) -> Any:
        accum = accum + grad * grad
        return var - lr * grad / square_root(accum), accum


class SparseApplyAdagrad(Sparse):
    """As ApplyAdagrad, on rows."""

    signature = _signature("var accum | lr grad indices")
    rule = ApplyAdagrad.rule


class ApplyProximalAdagrad(Dense):
    """Adagrad, then the exact minimiser of the penalties."""

    signature = _signature("var accum | lr l1 l2 grad")

    def rule(self, var: Array, accum: Array, lr: Array, l1: Array, l2: Array, grad: Array) -> Any:
        accum = accum + grad * grad
        rate = lr / square_root(accum)
        return _shrink(var - rate * grad, rate * l1) / (1 + rate * l2), accum


class SparseApplyProximalAdagrad(Sparse):
    """As ApplyProximalAdagrad, on rows."""

    signature = _signature("var accum | lr l1 l2 grad indices")
    rule = ApplyProximalAdagrad.rule


class ApplyAdagradDA(Dense):
    """Adagrad dual averaging."""

    signature = _signature(
        "var gradient_accumulator gradient_squared_accumulator | grad lr l1 l2 global_step"
    )

    def rule(
        self,
        var: Array,
        total: Array,
        squares: Array,
        grad: Array,
        lr: Array,
        l1: Array,
        l2: Array,
        global_step: Array,
    ) -> Any:
        total, squares = total + grad, squares + grad * grad
        scale = l2 * global_step * lr + square_root(squares)
        return -lr * _shrink(total, l1 * global_step) / scale, total, squares


class SparseApplyAdagradDA(Sparse):
    """As ApplyAdagradDA, on rows."""

    signature = _signature(
        "var gradient_accumulator gradient_squared_accumulator | grad indices lr l1 l2 global_step"
    )
    rule = ApplyAdagradDA.rule


class ApplyFtrl(Dense):
    """FTRL-proximal."""

    signature = _signature("var accum linear | grad lr l1 l2 lr_power")

    def rule(
        self,
        var: Array,
        accum: Array,
        linear: Array,
        grad: Array,
        lr: Array,
        l1: Array,
        l2: Array,
        lr_power: Array,
    ) -> Any:
        total = accum + grad * grad
        linear = linear + grad - (power(total, -lr_power) - power(accum, -lr_power)) / lr * var
        return -_shrink(linear, l1) / (power(total, -lr_power) / lr + 2 * l2), total, linear


class SparseApplyFtrl(Sparse):
    """As ApplyFtrl, on rows."""

    signature = _signature("var accum linear | grad indices lr l1 l2 lr_power")
    rule = ApplyFtrl.rule


class ApplyMomentum(Dense):
    """accum·momentum + grad;  var − lr·accum"""

    signature = _signature("var accum | lr grad momentum")
    use_nesterov: bool = False

    def rule(self, var: Array, accum: Array, lr: Array, grad: Array, momentum: Array) -> Any:
        accum = accum * momentum + grad
        step = grad * lr + accum * momentum * lr if self.use_nesterov else accum * lr
        return var - step, accum


class SparseApplyMomentum(Sparse):
    """As ApplyMomentum, on rows."""

    signature = _signature("var accum | lr grad indices momentum")
    use_nesterov: bool = False
    rule = ApplyMomentum.rule


class ApplyAdam(Dense):
    """Adam; the powers of the betas are inputs."""

    signature = _signature("var m v | beta1_power beta2_power lr beta1 beta2 epsilon grad")
    use_nesterov: bool = False

    def rule(
        self,
        var: Array,
        m: Array,
        v: Array,
        beta1_power: Array,
        beta2_power: Array,
        lr: Array,
        beta1: Array,
        beta2: Array,
        epsilon: Array,
        grad: Array,
    ) -> Any:
        rate = lr * square_root(1 - beta2_power) / (1 - beta1_power)
        m = m + (grad - m) * (1 - beta1)
        v = v + (grad * grad - v) * (1 - beta2)
        ahead = m * beta1 + (1 - beta1) * grad if self.use_nesterov else m
        return var - rate * ahead / (square_root(v) + epsilon), m, v


class ApplyRMSProp(Dense):
    """RMSProp with momentum."""

    signature = _signature("var ms mom | lr rho momentum epsilon grad")

    def rule(
        self,
        var: Array,
        ms: Array,
        mom: Array,
        lr: Array,
        rho: Array,
        momentum: Array,
        epsilon: Array,
        grad: Array,
    ) -> Any:
        ms = ms + (grad * grad - ms) * (1 - rho)
        mom = mom * momentum + lr * grad / square_root(ms + epsilon)
        return var - mom, ms, mom


class SparseApplyRMSProp(Sparse):
    """As ApplyRMSProp, on rows."""

    signature = _signature("var ms mom | lr rho momentum epsilon grad indices")
    rule = ApplyRMSProp.rule


class ApplyCenteredRMSProp(Dense):
    """RMSProp over the variance of the gradients."""

    signature = _signature("var mg ms mom | lr rho momentum epsilon grad")

    def rule(
        self,
        var: Array,
        mg: Array,
        ms: Array,
        mom: Array,
        lr: Array,
        rho: Array,
        momentum: Array,
        epsilon: Array,
        grad: Array,
    ) -> Any:
        ms = ms + (grad * grad - ms) * (1 - rho)
        mg = mg + (grad - mg) * (1 - rho)
        mom = mom * momentum + lr * grad / square_root(ms - mg * mg + epsilon)
        return var - mom, mg, ms, mom


class SparseApplyCenteredRMSProp(Sparse):
    """As ApplyCenteredRMSProp, on rows."""

    signature = _signature("var mg ms mom | lr rho momentum epsilon grad indices")
    rule = ApplyCenteredRMSProp.rule
