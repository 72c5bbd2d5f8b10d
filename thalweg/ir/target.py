"""Hardware as lowering sees it, as data.

A `Target` has the costs of computing and moving elements on a processor, of sharing work between
threads, and which forms of kernels it prefers. Lowering knows no processor by name; a device's own
target adds what its code generator needs. The defaults are those of a server core with 512-bit
vectors, as measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayoutTimes:
    """The extra cost of channels first, and the cost of converting images to channels last, in
    nanoseconds per float32 element, on two cores with 512-bit vectors. Only ratios matter."""

    move: float = 0.25  # to transpose an element
    window: float = 0.004  # of channels first, for each flop of a convolution with windows
    dense: float = 0.0005  # the same of 1x1
    adjoint: float = 0.0024  # the same of its adjoint in the image, where windows move by one
    pool: float = 0.07  # of channels first, for each element
    pool_grad: float = 0.4


@dataclass(frozen=True, kw_only=True)
class Target:
    """A processor, as lowering sees it."""

    name: str

    vector_bytes: int = 16
    registers: int = 16  # vector registers
    alignment: int = 64  # bytes, of temporaries; also the length of a cache line
    stored_bytes: int = 64  # contiguous bytes that a contraction stores at once
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    cores: int = 2  # that may share a kernel

    # Costs per element, in vector instructions
    load_cost: float = 2.0
    store_cost: float = 3.0
    far_cost: float = 40.0  # store and load of an element that was evicted in between
    far_bytes: int = 4 << 20  # accessed in between that evict it

    # Limits on the size of a kernel. Compile time per expression grows past some 400. A sum of 400
    # tensors of 1 MB takes 37 ms by kernels of 10 inputs, 50 ms by 20, 120 ms by 80, 210 ms by 200.
    max_expressions: int = 400
    max_streams: int = 20  # buffers read and written
    max_writes: int = 8

    # Launches and threads, in nanoseconds of one thread; a unit of work is about 0.5 ns
    operations_per_work: float = 24.0
    bytes_per_work: float = 48.0
    operation_time: float = 0.0056
    byte_time: float = 0.021  # from its own cache
    fetched_byte_time: float = 0.07  # from the cache of another core
    join_time: float = 3_500.0  # to wake and join other threads
    min_shared_work: float = 1_500.0  # vector instructions of a launch worth sharing
    max_work_between_barriers: float = 2e7  # some 10 ms: a step stops only at barriers

    # Reductions
    reduction_splits: int = 32  # parts of a long reduction to few results
    min_split_elements: int = 1 << 14  # of a reduction worth splitting
    min_shared_results: int = 512  # from which threads share results rather than a reduction
    min_shared_rows: int = 64  # the same where each result is of a contiguous row
    min_rows_with_reduction: int = 8  # of a nest that computes a reduction per row
    max_row_at_hand: int = 1 << 62  # elements of a row that is still cached after its reduction
    fuses_rows: bool = False  # threads share a row: its reductions are available to all of them
    pairs_sums: bool = False  # fuses column sums without a common input: launches are expensive
    reads_strided: bool = False  # strided rows as fast as contiguous ones
    stores_again: bool = True  # late uses get a value stored again rather than kept, to save memory
    widens_freely: bool = False  # narrow floats are converted by their readers: fewer bytes move
    prefers_relaxed: bool = False  # loop forms that round differently, with fewer passes
    shares_reductions: bool = False  # between nests, instead of computing them again
    min_nested_rows: int = 0  # results of a reduction that stays nested in another one
    min_nested_columns: int = 0  # the same where it is not along contiguous rows
    max_tile_taps: int = 0  # inputs that an iteration of a tiled nest reduces; 0: no tiling
    min_tiled_elements: int = 1 << 21  # of a tiled nest's result, to keep enough threads
    fuses_attention: bool = False  # one kernel for scores, softmax and their product

    # Contractions
    min_contraction_work: int = 2048  # products from which packing pays
    min_contraction_rows: int = 1  # with fewer it is lowered as a reduction
    min_narrow_rows: int = 4  # from which widening narrow floats first pays
    min_merged_contractions: int = 4  # of one form, merged into a batched one
    # Measured with weights of 256 by 1024: transposing them once costs what some ten products of 16
    # rows save. Products of fewer rows do not transpose at all; for many rows it is negligible.
    min_pretransposed_uses: int = 12
    min_pretransposed_rows: int = 8
    max_pretransposed_rows: int = 48

    # Images with fewer channels are packed for convolutions, several pixels per channel. CPUs gain
    # nothing: they read one input element per vector of outputs.
    channels_read: int = 1
    min_packed_elements: int = 1 << 20

    # Order and memory
    min_hoisted_bytes: int = 1 << 20  # read by a consumer that is hoisted to its producer
    hoisted_shrinkage: int = 16  # how many times fewer bytes it must write
    min_rematerialized_bytes: int = 1 << 16
    max_strided_phases: int = 64  # of nests that a strided write is split into

    # None: no layout is known to be faster than the one written
    layout_times: LayoutTimes | None = LayoutTimes()

    def holds(self, expressions: int, streams: int, writes: int = 0) -> bool:
        """Whether a kernel may have so many expressions, buffers and writes."""
        fits = expressions <= self.max_expressions and streams <= self.max_streams
        return fits and writes <= self.max_writes

    def keeps_row(self, length: int) -> bool:
        """Whether a row of `length` elements is still cached after a reduction of it."""
        return length <= self.max_row_at_hand

    @property
    def key(self) -> str:
        """All that a kernel's machine code depends on besides its LLVM text."""
        return self.name

    @property
    def lanes(self) -> int:
        """How many float32 numbers a vector register holds."""
        return self.vector_bytes // 4
