"""The stubs hold the public API: every name is there, with the parameters that it has."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import thalweg as tf
from tests.editor.conftest import site_packages
from thalweg import public

Definition = ast.FunctionDef | ast.ClassDef


class Stubs:
    """Stub modules as syntax trees; imports lead to where a name is defined."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019 - lives as long as the tests
    def names(self, path: str) -> dict[str, ast.stmt]:
        """What a module defines or imports for its users. Of overloads the last one counts."""
        place = self._folder.joinpath(*path.split(".")[1:])
        file = place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")
        return dict(_exported(ast.parse(file.read_text())))

    def definition(self, path: str, leaf: str) -> ast.stmt:
        """Where a name is defined."""
        result = self.names(path)[leaf]
        if isinstance(result, ast.ImportFrom) and result.module:
            return self.definition(result.module, result.names[0].name)
        return result


def _exported(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in module.body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
                yield name, node
            case ast.ImportFrom(names=[ast.alias(name, alias)]) if alias == name:
                yield name, node
            case _:
                pass


@pytest.fixture(scope="session")
def stubs(project: Path) -> Stubs:
    return Stubs(site_packages(project) / "thalweg-stubs")


def functions() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Public functions and constructors: module, name, what is called."""
    for name, value in public.namespace().items():
        path, _, leaf = f"thalweg.{name}".rpartition(".")
        if inspect.isfunction(value):
            yield path, leaf, value
        elif isinstance(value, type) and inspect.isfunction(vars(value).get("__init__")):
            yield path, leaf, value.__init__


def parameters(definition: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Name, kind and whether there is a default, as the stub has it."""
    code = compile(ast.Module([_bare(definition)], []), "<stub>", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    return described(names[definition.name])


def _bare(definition: ast.FunctionDef) -> ast.FunctionDef:
    """A function without types, decorators and default values that need other names."""
    copied = ast.parse(ast.unparse(definition)).body[0]
    assert isinstance(copied, ast.FunctionDef)
    copied.decorator_list, copied.returns = [], None
    for node in ast.walk(copied.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    none: ast.expr = ast.Constant(None)
    copied.args.defaults = [none for _ in copied.args.defaults]
    copied.args.kw_defaults = [default and none for default in copied.args.kw_defaults]
    return ast.fix_missing_locations(copied)


def described(function: Callable[..., Any]) -> list[tuple[str, str, bool]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, p.default is not p.empty) for p in found]


def test_modules_have_their_public_names_and_no_others(stubs: Stubs) -> None:
    paths = {name.rpartition(".")[0] for name in public.names()}
    for path in sorted(paths):
        found = {*stubs.names(f"thalweg.{path}".rstrip("."))}
        assert found - {"__version__", "__getattr__"} == public.children(path), path
        # What has the names of another package too must not be an error for the rest of them.
        assert ("__getattr__" in found) == (path in public.packages()), path


def test_functions_have_their_parameters(stubs: Stubs) -> None:
    for path, leaf, function in functions():
        actual = stubs.definition(path, leaf)
        if isinstance(actual, ast.ClassDef):
            inits = [node for node in actual.body if getattr(node, "name", "") == "__init__"]
            actual = inits[-1] if inits else actual
        if isinstance(actual, ast.FunctionDef):
            assert parameters(actual) == described(function), f"{path}.{leaf}"
        else:
            assert isinstance(actual, ast.Assign), f"{path}.{leaf}: the class has another name"


#: What is bare `Any` in a signature, by the reason why. `Structure` and `UserObject` are the names
#: of two more reasons, which stand in the signatures themselves.
ANYTHING = {
    "a value, whose type the program knows": """
        Tensor.eval Tensor.numpy Tensor.item Variable.eval Variable.numpy
        DType.min DType.max Operation.get_attr FlagValues.get_flag_value FlagValues.set_default
        FlagValues.__getattr__ FlagValues.__getitem__ GFile.read GFile.readline GFile.__next__
        HParams.get HParams.get_model_structure evaluate_once
    """,
    "another class for another argument": """
        Graph.as_graph_element OnnxModel.__call__
        convert_to_tensor_or_sparse_tensor get_tensor_from_tensor_info
    """,
    "what the program's own function takes and returns": """
        Function.__init__ Function.__call__ Function.__get__ Function.get_concrete_function
        Template.__call__ SaveableObject.__init__ SaveableObject.restore Initializer.__call__
    """,
    "like one of another package": """
        GraphAssertions.assertProtoEquals GraphAssertions.assertProtoEqualsVersion
        SummaryToEventTransformer.add_run_metadata HoldsDLPack.__dlpack__
    """,
    "of another package, which need not be installed": """
        __getattr__ export load OnnxModel.__init__ OnnxModel.function
    """,
    "a session, monitored or not": "ParameterServer.load ParameterServer.load_table",
    "as Python or TensorFlow has it": "Dimension.__eq__ Dimension.__ne__ Earlier.__getattr__",
    "of packages above the one it is in": """
        OpError.__init__ OpError.at OpError.node_def OpError.op IdTableWithHashBuckets.__init__
        TableInitializerBase.initialize SummaryToEventTransformer.__init__ Dataset.options
        Dataset.with_options StepContext.__init__ StepContext.session
        StepContext.run_with_hooks
    """,
    "of decoders, helpers and attention, whose states and inputs a user's cells define": """
        BaseAttentionMechanism.__init__ BaseAttentionMechanism.alignments_size
        BaseAttentionMechanism.batch_size BaseAttentionMechanism.initial_alignments
        BaseAttentionMechanism.initial_state BaseAttentionMechanism.keys
        BaseAttentionMechanism.state_size BaseAttentionMechanism.values
        AttentionMechanism.alignments_size AttentionMechanism.state_size
        AttentionWrapper.output_size BasicDecoder.batch_size BeamSearchDecoder.finalize
        BeamSearchDecoder.step CustomHelper.next_inputs CustomHelper.sample
        CustomHelper.sample_ids_dtype Decoder.batch_size Decoder.finalize Decoder.initialize
        Decoder.output_dtype Decoder.output_size Decoder.step Helper.batch_size Helper.initialize
        Helper.next_inputs Helper.sample Helper.sample_ids_dtype Helper.sample_ids_shape
        InferenceHelper.sample InferenceHelper.sample_ids_dtype
        ScheduledOutputTrainingHelper.sample TrainingHelper.inputs TrainingHelper.sample
        _IdHelper.sample_ids_dtype monotonic_attention one2many_rnn_seq2seq
    """,
    "of columns, whose features are tensors, sparse or not, or names of them": """
        BucketizedColumn.dense CategoricalColumn.ids DenseColumn.dense DenseColumn.variable_shape
        EmbeddingColumn.__init__ HashedCategoricalColumn.__init__
        IdentityCategoricalColumn.__init__ IndicatorColumn.dense NumericColumn.__init__
        NumericColumn.dense VocabularyCategoricalColumn.__init__
        WeightedCategoricalColumn.__init__ WeightedCategoricalColumn.ids bow_encoder
        embedding_column input_from_feature_columns weighted_sum_from_feature_columns
    """,
    "handed on to what a user gave": """
        MovingAverageOptimizer.apply_gradients MovingAverageOptimizer.compute_gradients
        MovingAverageOptimizer.swapping_saver StagingArea.get StagingArea.put StagingArea.size
        smart_cond all_sum ArrayAssertions.assertBetween StepGraph.build
    """,
    "of linear operators, which multiply and solve for tensors and for operators": """
        LinearOperator.matmul LinearOperator.solve
    """,
    "of the engine, which users hold but do not call": """
        FlagValues.define Function.explain
        LazyTrace.advance LazyTrace.advance_single LazyTrace.cache_child
        LazyTrace.cache_shortcut LazyTrace.child LazyTrace.enter_saved LazyTrace.leaf_value
        Op.__call__ Resources.allocate Resources.get Resources.state StepPlan.__init__
        StepPlan.profile Traits.__init__
        VariableStore.get VariableStore.get_partitioned VariableStore.get_variable KeyRanges.route
        Constant.__init__ Rule.replaced
    """,
}


def signatures(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes, by their names."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield f"{owner}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from signatures(node.body, f"{node.name}.")


def types(function: ast.FunctionDef) -> list[str]:
    """The types of a function's parameters but for variadic ones, which are handed on."""
    taken = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [ast.unparse(p.annotation) for p in taken if p.annotation is not None]


def test_what_may_be_anything_has_a_reason(project: Path) -> None:
    modules = (site_packages(project) / "thalweg-stubs").rglob("*.pyi")
    found = [pair for path in modules for pair in signatures(ast.parse(path.read_text()).body)]
    results = [(name, ast.unparse(f.returns)) for name, f in found if f.returns is not None]
    taken = [(name, text) for name, function in found for text in types(function)]
    unknown = {name for name, text in [*results, *taken] if text == "Any"}
    assert unknown == {name for names in ANYTHING.values() for name in names.split()}
    texts = [text for _, text in taken]
    assert texts.count("Structure") + texts.count("UserObject") < 0.02 * len(texts)
    # Of functions alone: more classes that compute nothing make no type of a tensor worse.
    returned = [text for name, text in results if "." not in name]
    assert returned.count("Tensor") > 0.48 * len(returned)


@pytest.mark.parametrize("name", ["SparseTensor", "IndexedSlices"])
def test_parts_of_composites_are_tensors(stubs: Stubs, name: str) -> None:
    definition = stubs.definition("thalweg", name)
    assert isinstance(definition, ast.ClassDef)
    nodes = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    found = {ast.unparse(node.target): ast.unparse(node.annotation) for node in nodes}
    types = [found[part].removesuffix(" | None") for part in ("values", "indices", "dense_shape")]
    assert types == ["Tensor"] * 3


def test_docstrings_are_there_to_be_hovered_over(stubs: Stubs) -> None:
    bare = [
        f"{path}.{leaf}"
        for path, leaf, function in functions()
        if isinstance(node := stubs.definition(path, leaf), Definition)
        and function.__doc__
        and not ast.get_docstring(node)
    ]
    assert bare == []


def test_versions_of_the_api_are_one() -> None:
    assert isinstance(tf.compat.v1, ModuleType)
    assert tf.compat.v1.nn.relu is tf.nn.relu
