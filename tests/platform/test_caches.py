"""Every cache is bounded and listed."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import thalweg as tf
from tests.sources import texts, tree
from thalweg.platform.caches import Bounded, caches, memoized

#: The limits of the bounded dictionaries, by name.
LIMITS = {
    "calls of a function": 4,
    "calls of a session": 1_000,
    "devices that nobody has": 1_000,
    "ended steps of a task": 10_000,
    "fallbacks of a region": 128,
    "flops and bytes of kernels": 2_000,
    "forms of a region": 64,
    "GPUs of this process": 64,
    "inputs of a bijector": 16,
    "kernels in memory": 1 << 13,
    "keys of sent values": 4_096,
    "kernels of a GPU": 1 << 13,
    "numbers as operands": 1_000,
    "plans of a session": 1_000,
    "plans of eager code": 256,
    "programs of a loop or conditional": 64,
    "programs of a region": 128,
    "prologues of parts": 512,
    "random streams": 1_000,
    "runs without a program": 1_024,
    "schedules that won": 1 << 13,
    "tapes of a Python function": 10_000,
}

#: Module-level containers that functions change but that are not caches: their size is bounded by
#: the program or its current activity.
REGISTRIES = {
    "autodiff/registry.py:_functions": "gradients by op, which users register",
    "alias/early.py:MEANINGS": "names that meant something else in TensorFlow 0.12",
    "alias/early.py:_replaced": "what these names are bound to otherwise",
    "alias/inside/util/deprecation.py:_warned": "functions of libraries that were warned of",
    "alias/inside/framework/ops.py:_dense_types": "types that pass for tensors, by users",
    "alias/switch.py:_finders": "the finders of the alias, two at most",
    "codegen/cache.py:_process": "the one cache of kernels",
    "codegen/llvm/compile.py:_linkers": "the linker that takes the next library",
    "codegen/cache.py:_saved_intervals": "switch intervals, while kernels are compiled",
    "codegen/contraction/tune.py:_process": "the one store of schedules",
    "device/workers.py:_idle": "threads that wait for work",
    "data/watching.py:_live": "pipelines that run now",
    "distributions/divergence.py:_formulas": "formulas by types, which users register",
    "functions/devices.py:_options": "how the devices of eager code are found",
    "functions/devices.py:generation": "a counter",
    "functions/replay.py:_wrappers": "functions of the library",
    "functions/tensors.py:value_reads": "a counter",
    "graph/convert.py:_conversions": "conversions, which users register",
    "graph/dtypes.py:_by_value": "dtypes",
    "graph/graph.py:global_graph": "the one graph of a process",
    "graph/node.py:operators": "operators of tensors",
    "graph/op.py:REGISTRY": "ops by name",
    "onnx/exporting.py:WRITERS": "how ops are written, by op",
    "onnx/registry.py:TABLE": "translations of ONNX operators",
    "optimize/custom.py:_passes": "passes of the optimiser, which users register",
    "optimize/custom.py:_rules": "rules of the optimiser, which users register",
    "ops/core/library.py:_loaded": "modules that users load",
    "ops/io/saving.py:_deferred": "files that are not written yet",
    "platform/caches.py:_functions": "functions that are memoized",
    "platform/disk_cache.py:_refused": "folders that were warned of",
    "platform/depth.py:_saved_limits": "an entry for each open block",
    "platform/spans.py:_watchers": "a function for each module that watches",
    "platform/spans.py:_open_spans": "open spans",
    "protos/classes.py:_loaded": "the files of the package",
    "public.py:_installed": "the public modules",
    "public.py:_lazy": "public names",
    "public.py:_modules": "public names",
    "public.py:_namespaces": "the namespaces that packages declare",
    "public.py:_packages": "public modules of other packages",
    "public.py:_registry": "public names",
    "runtime/fetches.py:_conversions": "types to fetch, which users register",
    "saved/collection_protos.py:_conversions": "conversions, which users register",
}

#: Containers that are bounded, or whose entries end with their keys.
BOUNDED = ("Bounded", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "weakref.Weak")
CHANGES = {"add", "append", "extend", "insert", "setdefault", "update"}


def test_the_oldest_entries_are_evicted() -> None:
    cache = Bounded[int, str]("test", 3)
    for number in range(5):
        cache[number] = str(number)
    assert list(cache) == [2, 3, 4]
    cache.renew(2)
    assert cache.setdefault(5, "5") == "5"
    assert cache.setdefault(5, "6") == "5"
    assert list(cache) == [4, 2, 5]
    cache[4] = "again"
    assert list(cache.items()) == [(4, "again"), (2, "2"), (5, "5")]


def test_all_insertions_respect_the_limit() -> None:
    many = dict.fromkeys(range(10), "x")
    updated = Bounded[int, str]("test", 3)
    updated.update(many)
    merged = Bounded[int, str]("test", 3)
    merged |= many
    defaulted = Bounded[int, str]("test", 3)
    for number in many:
        defaulted.setdefault(number, "x")
    assert list(updated) == list(merged) == list(defaulted) == [7, 8, 9]


def test_lookups_are_those_of_a_dict() -> None:
    assert Bounded.get is dict.get
    assert Bounded.__getitem__ is dict.__getitem__
    assert Bounded.__contains__ is dict.__contains__


def test_concurrent_insertions() -> None:
    cache = Bounded[int, int]("test", 50)

    def fill(first: int) -> None:
        for number in range(first, first + 5_000):
            cache[number] = number

    threads = [threading.Thread(target=fill, args=(5_000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) <= 50 + len(threads)


def test_a_full_cache_evicts_entries_in_batches(monkeypatch: pytest.MonkeyPatch):
    """Iteration to the first entry of a dictionary skips all removed ones: an eviction per
    insertion would take time proportional to the limit."""
    looks = list[int]()
    drop = Bounded[int, None]._evict
    monkeypatch.setattr(Bounded, "_evict", lambda self: (looks.append(1), drop(self)))
    cache = Bounded[int, None]("test", 1000)
    for number in range(3000):
        cache[number] = None
        assert len(cache) <= 1000
    assert len(looks) <= 2000 / 15
    assert len(cache) >= 980 and [*cache] == [*range(3000 - len(cache), 3000)]


def test_live_caches_are_listed() -> None:
    cache = Bounded[int, int]("short-lived", 3)
    cache[1] = 1
    assert [(c.size, c.limit) for c in caches() if c.name == "short-lived"] == [(1, 3)]
    del cache
    assert not any(c.name == "short-lived" for c in caches())


def test_memoized_functions_are_listed() -> None:
    @memoized(2)
    def doubled(number: int) -> int:
        return 2 * number

    assert [doubled(n) for n in (1, 2, 3, 3)] == [2, 4, 6, 6]
    (found,) = [c for c in caches() if c.name.endswith("doubled")]
    assert (found.size, found.limit) == (2, 2)
    found.clear()
    assert doubled.cache_info().currsize == 0  # pyright: ignore[reportFunctionMemberAccess]


def test_limits_are_those_listed() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None])
        y = tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y * x), (0, x))[1]
        session.run(tf.tanh(y), {x: np.ones(3, np.float32)})
        actual = {c.name: c for c in caches() if "." not in c.name}
    assert {name: actual[name].limit for name in actual if name in LIMITS}.items() <= LIMITS.items()
    assert actual.keys() <= LIMITS.keys() | {"test", "short-lived"}
    assert {
        "programs of a region",
        "plans of a session",
        "flops and bytes of kernels",
    } <= actual.keys()
    assert all(c.limit and c.size <= c.limit for c in caches())


def test_all_names_of_bounded_dictionaries_are_listed() -> None:
    named = re.compile(r"\bBounded(?:\[.*\])?\(\s*\"([^\"]+)\"")
    found = {name for text in texts().values() for name in named.findall(text)}
    assert found - {"squares"} == LIMITS.keys()  # which a docstring makes


def test_no_function_is_memoized_without_a_limit() -> None:
    found: list[str] = []
    for name in (name for name, text in texts().items() if "cache" in text):
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef) and _has_parameters(node):
                words = [ast.unparse(decorator) for decorator in node.decorator_list]
                if any(w.endswith(".cache") or w == "cache" or "lru_cache" in w for w in words):
                    found.append(f"{name}:{node.name}")
    assert not found, "use thalweg.platform.caches.memoized"


def _has_parameters(function: ast.FunctionDef) -> bool:
    given = function.args
    return bool(given.args or given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg)


def test_module_level_containers_are_bounded_or_listed() -> None:
    container = re.compile(r"^\w+[^=\n]*= *([\[{]|dict|list|set|defaultdict|\w+\()", re.MULTILINE)
    holding = [name for name, text in texts().items() if container.search(text)]
    actual = {f"{name}:{held}" for name in holding for held in _unbounded(tree(name))}
    assert actual == REGISTRIES.keys()


def _unbounded(tree: ast.Module) -> set[str]:
    """The module-level containers that functions of a module insert into."""
    held = {name for name, value in _assigned(tree) if _holds_any_number(value)}
    return held & _changed(tree)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if isinstance(target, ast.Name) and value is not None:
                yield target.id, value


def _holds_any_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return True
    made = ast.unparse(value)
    kinds = ("dict", "list", "set", "defaultdict", "OrderedDict", "deque", "Counter")
    return isinstance(value, ast.Call) and made.startswith(kinds) and not made.startswith(BOUNDED)


def _changed(tree: ast.Module) -> set[str]:
    result: set[str] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                result |= _names(node.value)
            elif isinstance(node, ast.AugAssign):
                result |= _names(node.target)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                result |= _names(node.func.value) if node.func.attr in CHANGES else set()
    return result


def _names(node: ast.expr) -> set[str]:
    return {node.id} if isinstance(node, ast.Name) else set()
