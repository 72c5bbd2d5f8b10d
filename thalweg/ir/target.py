"""What lowering asks about hardware, as data.

A `Target` says what computing and moving elements costs on a processor, what its threads gain by
sharing work, and which forms of a kernel it takes. Lowering is given one and knows no processor by
name; a device's own target adds what its code generator must know. The defaults are those of a
server's core with vectors of 512 bits, as measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayoutTimes:
    """What channels first cost, and what it costs to move images to channels last, in nanoseconds
    of float32: of two cores with vectors of 512 bits. Only their ratios matter."""

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
    alignment: int = 64  # bytes: temporaries begin at multiples of it, and a cache line is as long
    stored_bytes: int = 64  # neighbours that a contraction stores at once
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    cores: int = 2  # that may work on a kernel at a time

    # One element, in vector instructions
    load_cost: float = 2.0
    store_cost: float = 3.0
    far_cost: float = 40.0  # store and load of an element that has left the caches meanwhile
    far_bytes: int = 4 << 20  # of others touched meanwhile, after which it has

    # How large a kernel gets. Compiling takes the same up to some 400 expressions, and more from
    # there on. Adding up 400 tensors of a megabyte takes 37 ms by kernels that read 10 of them at a
    # time, 50 ms by 20, 120 ms by 80, 210 ms by 200.
    max_expressions: int = 400
    max_streams: int = 20  # buffers that are read and written
    max_writes: int = 8

    # A launch and its threads, in nanoseconds of one thread; work is some 2 per nanosecond
    operations_per_work: float = 24.0
    bytes_per_work: float = 48.0
    operation_time: float = 0.0056
    byte_time: float = 0.021  # from its own cache
    fetched_byte_time: float = 0.07  # from the cache of another core, which wrote it
    join_time: float = 3_500.0  # until other threads take part and are done
    min_shared_work: float = 1_500.0  # vector instructions of a launch that is worth sharing
    max_work_between_barriers: float = 2e7  # some 10 ms: only at a barrier a step can be stopped

    # Reductions
    reduction_splits: int = 32  # parts of a long reduction to few results, on any number of threads
    min_split_elements: int = 1 << 14  # that make a reduction worth splitting
    min_shared_results: int = 512  # from which threads share the results, a vector of them each
    min_shared_rows: int = 64  # the same where each result is that of a row
    min_rows_with_reduction: int = 8  # of a nest that finds a reduction once for each of its rows
    max_row_at_hand: int = 1 << 62  # elements that are, after a reduction of them
    fuses_rows: bool = False  # threads share a row: what is found of it is at hand for all of them
    pairs_sums: bool = False  # of columns, that read nothing in common: launches are dear
    reads_strided: bool = False  # rows that lie apart as fast as those that follow each other
    stores_again: bool = True  # what is late is stored once more rather than kept: memory is dear
    widens_freely: bool = False  # narrow floats are converted where they are read: fewer bytes move
    prefers_gathers: bool = False  # where an op could scatter as well: threads would meet
    prefers_relaxed: bool = False  # forms that round otherwise, for fewer passes and divisions
    shares_reductions: bool = False  # between the nests that need them, in place of the same again
    min_nested_rows: int = 0  # reductions that others need and that stay inside of those
    min_nested_columns: int = 0  # the same where they do not go along rows
    max_tile_taps: int = 0  # elements of windows that an iteration of a tiled nest reduces; 0: none
    min_tiled_elements: int = 1 << 21  # of a nest's result: threads would be too few
    fuses_attention: bool = False  # a kernel computes scores, probabilities and their products

    # Contractions
    min_contraction_work: int = 2048  # multiplications from which it pays to pack operands
    min_contraction_rows: int = 1  # a sum of products with fewer is a reduction like any other
    min_narrow_rows: int = 4  # for which it pays to widen narrow floats first
    min_merged_contractions: int = 4  # reductions of one form, run as one
    # Measured with weights of 256 by 1024: transposing them once takes as long as some ten products
    # of 16 rows save. Products of a few rows transpose nothing, and many rows make up for it.
    min_pretransposed_uses: int = 12
    min_pretransposed_rows: int = 8
    max_pretransposed_rows: int = 48

    # Large images with fewer channels are packed for convolutions, several pixels to a channel. A
    # CPU reads one element of an image for a vector of outputs: it gains nothing.
    channels_read: int = 1
    min_packed_elements: int = 1 << 20

    # Order and memory
    min_hoisted_bytes: int = 1 << 20  # that a consumer reads, from which it runs right away
    hoisted_shrinkage: int = 16  # times fewer bytes that it writes
    # Updates are hoisted over nests whose checks run before, as soon as what they read is there.
    # CPUs could, too; what their steps gain was not measured.
    hoists_over_checks: bool = False
    min_rematerialized_bytes: int = 1 << 16
    max_strided_phases: int = 64  # nests that a strided write is split into

    # None: code is as fast in the layout that is written, as far as is known
    layout_times: LayoutTimes | None = LayoutTimes()

    def keeps_row(self, length: int) -> bool:
        """Whether a row of so many elements is at hand after a reduction of it."""
        return length <= self.max_row_at_hand

    @property
    def key(self) -> str:
        """Names everything besides its text that a kernel's machine code depends on."""
        return self.name

    @property
    def lanes(self) -> int:
        """How many float32 numbers a vector register holds."""
        return self.vector_bytes // 4
