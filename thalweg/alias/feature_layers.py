"""What is computed of feature columns: one matrix of all of them, or a linear model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.alias import names

tf = names.root()


class InputLayer:
    """Concatenates dense columns, in the order of their names, to [batch, size].

    Calls share the variables.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        weight_collections: Any = None,
        trainable: bool = True,
        cols_to_vars: dict[Any, Any] | None = None,
        name: str = "feature_column_input_layer",
        create_scope_now: bool = True,
        **_: Any,
    ) -> None:
        self.columns = _ordered(feature_columns)
        self.trainable, self.weight_collections = trainable, weight_collections
        self._cols_to_vars = cols_to_vars
        self._template = tf.make_template(name, self._build, create_scope_now_=create_scope_now)

    @property
    def name(self) -> str:
        """The name of the scope."""
        return self._template.name

    def __call__(self, features: Mapping[str, Any], **_: Any) -> Any:
        """The matrix."""
        return self._template(features)

    def _build(self, features: Mapping[str, Any]) -> Any:
        return _matrix(features, self.columns, self)

    def note(self, column: Any, variables: list[Any]) -> None:
        """Tell the caller which variables a column has."""
        if self._cols_to_vars is not None:
            self._cols_to_vars[column] = variables

    def scope(self, column: Any) -> Any:
        """The scope of the variables of a column."""
        return tf.variable_scope(None, default_name=column.var_scope_name)


def _matrix(features: Mapping[str, Any], columns: list[Any], layer: Any) -> Any:
    parts: list[Any] = []
    for column in columns:
        with layer.scope(column) as scope:
            if not hasattr(column, "dense"):
                raise ValueError(
                    "Items of feature_columns must be dense: wrap a categorical column with an "
                    f"embedding_column or an indicator_column. Given: {column}"
                )
            dense = column.dense(features, layer.trainable, _collections(layer.weight_collections))
            parts.append(tf.reshape(dense, [-1, column.variable_shape.num_elements()]))
            layer.note(column, tf.global_variables(scope.name))
    return tf.concat(parts, 1)


def _collections(given: Any) -> Any:
    if not given:
        return None
    return list(dict.fromkeys([*given, tf.GraphKeys.GLOBAL_VARIABLES]))


def _ordered(feature_columns: Iterable[Any]) -> list[Any]:
    columns = list(feature_columns)
    if not columns:
        raise ValueError("feature_columns must not be empty.")
    found = [column.name for column in columns]
    if len(set(found)) != len(found):
        raise ValueError(f"Duplicate feature column name found for columns: {sorted(found)}")
    return sorted(columns, key=lambda column: column.name)


def input_layer(
    features: Mapping[str, Any],
    feature_columns: Iterable[Any],
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
    cols_to_output_tensors: dict[Any, Any] | None = None,
) -> Any:
    """Dense columns side by side, in the order of their names."""
    return InputLayer(
        feature_columns,
        weight_collections,
        trainable,
        cols_to_vars,
        "input_layer",
        create_scope_now=False,
    )(features)


class LinearModel:
    """A weighted sum of all columns, and a bias; calls share the variables."""

    def __init__(
        self,
        feature_columns: Iterable[Any],
        units: int = 1,
        sparse_combiner: str = "sum",
        weight_collections: Any = None,
        trainable: bool = True,
        name: str = "linear_model",
        **_: Any,
    ) -> None:
        self.columns = _ordered(feature_columns)
        self.units, self.combiner, self.trainable = units, sparse_combiner, trainable
        self.weight_collections = weight_collections
        self._cols_to_vars: dict[Any, Any] = {}
        self.bias: Any = None
        self._template = tf.make_template(name, self._build)

    def cols_to_vars(self) -> dict[Any, Any]:
        """The variables of each column, and `bias`."""
        return self._cols_to_vars

    @property
    def variables(self) -> list[Any]:
        """All variables."""
        return [v for found in self._cols_to_vars.values() for v in found]

    def __call__(self, features: Mapping[str, Any], **_: Any) -> Any:
        """The sums: [batch, units]."""
        return self._template(features)

    def _build(self, features: Mapping[str, Any]) -> Any:
        sums: list[Any] = []
        for column in self.columns:
            with tf.variable_scope(None, default_name=column.var_scope_name) as scope:
                sums.append(self._weighted(column, features))
                self._cols_to_vars[column] = tf.global_variables(scope.name)
        self.bias = tf.get_variable(
            "bias_weights",
            [self.units],
            initializer=tf.zeros_initializer(),
            trainable=self.trainable,
            collections=_collections(self.weight_collections),
        )
        self._cols_to_vars["bias"] = [self.bias]
        return tf.nn.bias_add(tf.add_n(sums), self.bias)

    def _weighted(self, column: Any, features: Mapping[str, Any]) -> Any:
        collections = _collections(self.weight_collections)
        if hasattr(column, "ids"):
            size = column.num_buckets
        else:
            size = column.variable_shape.num_elements()
        weights = tf.get_variable(
            "weights",
            [size, self.units],
            initializer=tf.zeros_initializer(),
            trainable=self.trainable,
            collections=collections,
        )
        if not hasattr(column, "ids"):
            dense = column.dense(features, self.trainable, collections)
            return tf.matmul(tf.reshape(dense, [-1, size]), weights)
        return tf.nn.safe_embedding_lookup_sparse(
            weights, column.ids(features), column.weights(features), combiner=self.combiner
        )


def linear_model(
    features: Mapping[str, Any],
    feature_columns: Iterable[Any],
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
) -> Any:
    """A weighted sum of all columns, and a bias."""
    model = LinearModel(feature_columns, units, sparse_combiner, weight_collections, trainable)
    result = model(features)
    if cols_to_vars is not None:
        cols_to_vars.update(model.cols_to_vars())
    return result
