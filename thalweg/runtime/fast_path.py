"""The fast path: a step that is one region runs without slots, context or cancellation of its own.

Most steps are one region over feeds and variables. A `FastPath` knows which feeds and variables the
region takes and which of its outputs are fetched. A call looks up the program by input shapes. A
result of None means that the step must take the general path: the shapes are new, a node of the
region cannot be compiled, or native code met an error that only the reference kernels can report.
Sessions, eager code, traced functions and data pipelines all run their steps through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable, Shapes
from thalweg.runtime.fetches import feed_value
from thalweg.runtime.kernels import Context, Instruction
from thalweg.runtime.plan import Plan, Step
from thalweg.runtime.resources import Resources

#: (context, inputs of the region, its variables) -> the fetched values, or None
BoundProgram = Callable[[Any, Sequence[Any], Sequence[VariableCell]], "list[Any] | None"]


@dataclass(eq=False)
class ProgramPath:
    """A step that is one program, looked up by the shapes of the region's inputs.

    Results are fresh arrays, NumPy scalars, and cells for references to variables.
    """

    node: Node
    references: Sequence[Tensor]
    programs: Mapping[Shapes, AnyProgram]
    inputs: list[int]  # for each input, its position among the feeds
    fetches: list[int]  # for each fetch, its position among the outputs
    cells: list[int]  # the fetches that are references to variables
    is_whole: bool  # whether the fetches are the outputs, in order

    def run(
        self, context: Any, arrays: Sequence[Any], cells: Sequence[VariableCell]
    ) -> list[Any] | None:
        """The fetched values for these inputs and variables; None if there is no program."""
        program = self.programs.get(tuple([array.shape for array in arrays]))
        if program is None:
            return None
        results = program(context, arrays, cells)
        if results is None or self.is_whole:
            return results
        return [results[place] for place in self.fetches]

    def bind(self, arrays: Sequence[Any]) -> tuple[BoundProgram, list[tuple[int, ...]]] | None:
        """`run` specialised for arrays of these shapes, and the shapes of its results."""
        program = self.programs.get(tuple([array.shape for array in arrays]))
        if program is None:
            return None
        fetches = self.fetches
        shapes = [program.output_shapes[place] for place in fetches]
        if self.is_whole:
            return program.__call__, shapes  # a bound method is called faster than an object

        def run(context: Any, arrays: Any, cells: Any) -> list[Any] | None:
            results = program(context, arrays, cells)
            return None if results is None else [results[place] for place in fetches]

        return run, shapes


class FastPath(ProgramPath):
    """A step whose only computation is one region."""

    def __init__(self, instruction: Instruction, executable: Executable, plan: Plan) -> None:
        region = executable.region
        fetches = [slot - instruction.output for slot in plan.fetches]
        super().__init__(
            instruction.node,
            region.references,
            executable.programs,
            [plan.feeds.index(tensor) for tensor in region.inputs],
            fetches,
            [n for n, f in enumerate(fetches) if region.outputs[f] in region.roots],
            fetches == list(range(instruction.output_count)),
        )
        self.executable = executable

    def run_rows(self, values: Sequence[Any], is_row: Sequence[bool], count: int) -> Any:
        """The fetched values for each row of the inputs with `is_row`."""
        results = self.executable.run_rows(values, is_row, count)
        return None if results is None else [results[place] for place in self.fetches]

    def compile_like(
        self, programs: Mapping[Shapes, AnyProgram], cells: Sequence[VariableCell]
    ) -> None:
        """Compile for the shapes of the step's other programs that ran: which sizes the next
        program reads at run time depends on all previous shapes."""
        for shapes, program in programs.items():
            if program.has_run:
                self.executable.compile(shapes, cells)


class DeviceFastPath(FastPath):
    """The fast path of a region on a device with memory of its own: results are downloaded."""

    def run(
        self, context: Any, arrays: Sequence[Any], cells: Sequence[VariableCell]
    ) -> list[Any] | None:
        program = self.programs.get(tuple([array.shape for array in arrays]))
        if program is None or (results := program(context, arrays, cells)) is None:
            return None
        if not self.is_whole:
            results = [results[place] for place in self.fetches]
        return results if program.gives_host_values else _downloaded(results)


_ARRAY = np.ndarray
_HOST_VALUES = np.ndarray, np.generic  # tested first: isinstance of an ABC is slower


def _downloaded(results: Sequence[Any]) -> list[Any]:
    return [
        result.snapshot()
        if not isinstance(result, _HOST_VALUES) and isinstance(result, Buffer)
        else result
        for result in results
    ]


def fast_path(plan: Plan, downloads: bool = True) -> FastPath | None:
    """The fast path of a plan: None unless it is one region over variables and feeds.
    `downloads`: results in device memory are copied to the host."""
    calls = [(i, i.call) for i in plan.instructions if isinstance(i.call, Executable)]
    if len(calls) != 1 or plan.may_block:
        return None
    ((instruction, executable),) = calls
    variables = {tensor.op for tensor in executable.region.references}
    results = range(instruction.output, instruction.output + instruction.output_count)
    is_alone = all(i is instruction or i.node in variables for i in plan.instructions)
    if not is_alone or any(slot not in results for slot in plan.fetches):
        return None
    is_fed = set(plan.feeds).issuperset(executable.region.inputs)
    if not is_fed or any(node.inputs or not node.op.has("kernel") for node in variables):
        return None
    kind = DeviceFastPath if downloads and not executable.device.is_host else FastPath
    return kind(instruction, executable, plan)


#: Runs a step without its fast path: (the step, fed values) -> fetched values.
GeneralPath = Callable[["CachedStep", Sequence[Any]], list[Any]]


class CachedStep:
    """A step of a session, with a fast path if it has one. The fast path takes fed arrays without
    checks and looks variables up once."""

    def __init__(
        self,
        path: ProgramPath | None,
        step: Step,
        general: GeneralPath,
        resources: Resources,
        cancellation: Cancellation,
    ) -> None:
        """`cancellation` is shared by all runs on the fast path."""
        self._path, self._general = path, general
        self._feeds = [(n, tensor, _array_dtype(tensor)) for n, tensor in enumerate(step.feeds)]
        self._objects, self._version = resources.objects, -1
        self._cells: list[VariableCell] = []
        if path is not None:
            self._context = Context(path.node, resources, cancellation)
            self._takes_all = path.inputs == list(range(len(step.feeds)))

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The fetched values of a step with these feeds."""
        path = self._path
        if path is None:
            return self._general(self, values)
        arrays = self._arrays(values, path) if values else values
        if self._version != self._objects.version:
            self._look_up(path)
        results = path.run(self._context, arrays, self._cells)
        if results is None:
            return self._general(self, values)
        for place in path.cells:
            results[place] = results[place].snapshot()
        return results

    def _arrays(self, values: Sequence[Any], path: ProgramPath) -> list[Any]:
        """The region's inputs, as arrays."""
        arrays = [
            value
            if type(value := values[place]) is _ARRAY and value.dtype is dtype
            else _array(value, tensor, dtype)
            for place, tensor, dtype in self._feeds
        ]
        return arrays if self._takes_all else [arrays[place] for place in path.inputs]

    def _look_up(self, path: ProgramPath) -> None:
        """Look up the variables' cells, which stay valid until an object is deleted."""
        self._version = self._objects.version
        variables = [tensor.op for tensor in path.references]
        self._cells = [node.op.kernel(self._context.at(node)) for node in variables]

    def replace(self, planned: CachedStep, values: Sequence[Any]) -> list[Any]:
        """Run a restored step whose program cannot serve a call, now and from now on, by its
        plan."""
        restored, path = self._path, planned._path
        self._path = None
        if restored is not None and isinstance(path, FastPath):
            path.compile_like(restored.programs, self._cells)
        return planned.run(values)


def _array_dtype(tensor: Tensor) -> Any:
    """The dtype of arrays that can be fed unconverted; None if there is none."""
    base = tensor.dtype.base_dtype
    return None if base.is_quantized else np.dtype(base.as_numpy_dtype)


def _array(value: Any, tensor: Tensor, dtype: Any) -> Any:
    """A fed value as an array; scalars, which are common, take a shortcut."""
    is_number = type(value) is float and dtype is not None and dtype.kind == "f"
    if is_number or (isinstance(value, np.generic) and cast("Any", value).dtype is dtype):
        return np.array(value, dtype)
    return feed_value(tensor, value)
