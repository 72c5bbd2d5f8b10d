"""The entry of an attention kernel: a block multiplies its rows with all others, tile by tile.

Products of rows and others stay in registers, are converted to weights there, and become the left
operand of the products with the weighted operand. All sums are in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from thalweg.codegen.cuda.attention.form import Chain, Product
from thalweg.codegen.cuda.attention.schedule import STAGES, TILE_ROWS, Schedule
from thalweg.codegen.cuda.attention.softmax import OnlineSoftmax
from thalweg.codegen.cuda.attention.tiles import Fragments, Pending, RowLoader, RowTile, put
from thalweg.codegen.cuda.attention.weights import (
    ElementEvaluator,
    Known,
    RowElement,
    rows_of_lane,
    scaled,
)
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.space import At, Space
from thalweg.codegen.cuda.contraction.warp_instructions import WarpInstructions
from thalweg.codegen.llvm.builder import FLOAT, I32, I64, Value, constant
from thalweg.codegen.math.conversion import storage_type, to_memory
from thalweg.ir.expr import Expr, Load, Variable
from thalweg.ir.kernel import Store

_WIDTH = 8  # others or columns of a tile of sums
_DEPTH = 16  # terms of a product of tensor cores
_SUMS = 4  # of a lane in a tile

#: The sums of a lane: by tile of rows, tile of columns, and number.
Sums = list[list[list[Value]]]


class AttentionEmitter:
    """Emits the rows of one block."""

    def __init__(self, schedule: Schedule, frame: GridFrame, is_aligned: bool) -> None:
        self.schedule, self.form, self.frame = schedule, schedule.form, frame
        form = self.form
        self.warp = WarpInstructions(frame, frame.at_byte(frame.memory, schedule.exchange))
        self.lane = frame.modulo32(frame.number, 32)
        self.fragments = Fragments(frame, self.warp, self.lane)
        self.batch, self.first = self._place()
        #: the index of a warp's first row in the block
        self.warp_row = frame.times32(frame.over32(frame.number, 32), TILE_ROWS * schedule.tiles)
        rows, others = schedule.row_tile, schedule.other_tile
        self.row_loaders = self._loaders(form.rows_read, form.row, rows, is_aligned)
        self.other_loaders = self._loaders(form.others_read, form.other, others, is_aligned)
        self.dtype = form.rows_read[0].dtype
        self.steps = form.depth.extent // _DEPTH
        self.score, self.softmax = None, None
        if form.softmax is not None:
            self.score, scale = scaled(form.softmax.score)
            self.softmax = OnlineSoftmax(frame, scale, self.lane)

    # The position of the block

    def _place(self) -> tuple[At, Value]:
        """The batch of this block, and its first row (i32). The longest blocks of all batches come
        first, so that the last ones are short."""
        frame, form, number = self.frame, self.form, self.frame.grid.block()
        batches = Space(form.batch).size(frame)
        block = frame.over32(number, batches)
        if form.order == "up to row":
            blocks = frame.chunks32(self._extent(form.row.extent), self.schedule.rows)
            block = frame.b.binary("sub", frame.plus32(blocks, -1), block)
        at, _ = Space(form.batch).at(frame, frame.modulo32(number, batches))
        return at, frame.times32(block, self.schedule.rows)

    def _extent(self, extent: int) -> Value:
        return self.frame.b.convert("trunc", self.frame.integer(extent), "i32")

    def _range(self) -> tuple[Value, Value]:
        """The range of tiles of others that count for the block's rows."""
        frame, form, others = self.frame, self.form, self.schedule.others
        end = self._extent(form.other.extent)
        first = constant(I32, 0)
        if form.order == "up to row":
            end = frame.b.intrinsic("smin", end, frame.plus32(self.first, self.schedule.rows))
        elif form.order == "from row":
            first = frame.over32(self.first, others)
        return frame.wide(first), frame.wide(frame.chunks32(end, others))

    def _loaders(
        self, loads: Sequence[Load], row: Variable, tile: RowTile, is_aligned: bool
    ) -> list[RowLoader]:
        given = (row, self.form.depth), tile, self.batch, is_aligned
        return [RowLoader(self.frame, self.warp, load, *given) for load in loads]

    # The loop over others

    def emit(self) -> None:
        """Loop over all others, and store the sums."""
        frame, b, form = self.frame, self.frame.b, self.form
        first, end = self._range()
        for number, loader in enumerate(self.row_loaders):
            put(loader.begin(self.first, self._row_base(number)))
        put(self._begin(first, constant(I64, 0)))
        rows = self._lane_rows()
        counts = [form.depth.extent // _WIDTH * _SUMS * self.schedule.tiles] * len(form.chains)
        zeros = [constant(FLOAT, 0)] * sum(counts)
        before = [] if self.softmax is None else self.softmax.initial(self.schedule.tiles)
        with b.loop(first, end, 1, [*zeros, *before]) as loop:
            self.warp.wait(0)
            frame.grid.barrier()
            number = frame.subtract(loop.index, first)
            stage = b.binary("urem", number, STAGES)
            after = frame.add(loop.index, constant(I64, 1))
            free = b.binary("sub", constant(I64, STAGES - 1), stage)
            pending = self._begin(after, free)
            sums = self._unflat(loop.carried[: len(zeros)])
            state = loop.carried[len(zeros) :]
            made, state = self._tile(rows, loop.index, self._stage_base(stage), sums, state)
            put(pending)
            loop.next = [*self._flat(made), *state]
        self.warp.wait(0)
        sums = self._unflat(loop.results[: len(zeros)])
        self._store(rows, sums, loop.results[len(zeros) :])

    def _begin(self, tile: Value, stage: Value) -> list[Pending]:
        """Begin to load a tile of others to a stage."""
        frame = self.frame
        row = frame.times32(frame.b.convert("trunc", tile, "i32"), self.schedule.others)
        base = self._stage_base(stage)
        size, pending = self.schedule.other_tile.bytes, list[Pending]()
        for number, loader in enumerate(self.other_loaders):
            pending += loader.begin(row, frame.at_byte(base, number * size))
        self.warp.commit()
        return pending

    def _row_base(self, number: int) -> Value:
        return self.frame.at_byte(self.frame.memory, number * self.schedule.row_tile.bytes)

    def _stage_base(self, stage: Value) -> Value:
        frame = self.frame
        start = frame.at_byte(frame.memory, self.schedule.stages)
        return frame.b.element(start, "i8", frame.multiply(stage, self.schedule.stage_bytes))

    def _lane_rows(self) -> list[list[RowElement]]:
        """The rows that this lane has sums of, by tile."""
        frame, form = self.frame, self.form
        values = [chain.weight for chain in form.chains]
        values = values if form.softmax is None else [form.softmax.score]
        result: list[list[RowElement]] = []
        for tile in range(self.schedule.tiles):
            row = frame.plus32(self.warp_row, TILE_ROWS * tile)
            row = frame.plus32(frame.plus32(self.first, row), frame.over32(self.lane, 4))
            result.append(rows_of_lane(frame, form, row, self.batch, values))
        return result

    # One tile of others

    def _tile(
        self,
        rows: list[list[RowElement]],
        tile: Value,
        base: Value,
        sums: list[Sums],
        state: Sequence[Value],
    ) -> tuple[list[Sums], list[Value]]:
        frame, form = self.frame, self.form
        first = frame.times32(frame.b.convert("trunc", tile, "i32"), self.schedule.others)
        products = {each: self._multiplied(each, base) for each in form.products}
        pairs = self._pairs(rows, first)
        if self.softmax is not None and self.score is not None:
            scores = self._values(self.score, products, pairs, first, -float("inf"))
            weights, factors, state = self.softmax.step(scores, state)
            sums = [[self._scaled(t, factors[n]) for n, t in enumerate(each)] for each in sums]
            every = [weights] * len(form.chains)
        else:
            every = [
                self._values(chain.weight, products, pairs, first, 0.0) for chain in form.chains
            ]
        made = [self._weighted(*each, base) for each in zip(form.chains, every, sums, strict=True)]
        return made, list(state)

    def _multiplied(self, of: Product, base: Value) -> Sums:
        """The products of the warp's rows and a tile of others."""
        frame, schedule = self.frame, self.schedule
        number = self.form.rows_read.index(of.x)
        right = frame.at_byte(base, self._other_place(of.y))
        across = schedule.others // _WIDTH
        zero = [constant(FLOAT, 0)] * _SUMS
        sums: Sums = [[zero for _ in range(across)] for _ in range(schedule.tiles)]
        for step in range(self.steps):
            lefts = [
                self.fragments.left(
                    schedule.row_tile,
                    self._row_base(number),
                    frame.plus32(self.warp_row, TILE_ROWS * tile),
                    step,
                )
                for tile in range(schedule.tiles)
            ]
            for pair in range(across // 2):
                row = frame.i32(2 * _WIDTH * pair)
                sides = self.fragments.right(schedule.other_tile, right, row, step)
                for half, side in enumerate(sides):
                    for tile, left in enumerate(lefts):
                        at = sums[tile][2 * pair + half]
                        made = self.warp.multiply(self.dtype, left, side, at)
                        sums[tile][2 * pair + half] = made
        return sums

    def _other_place(self, load: Load) -> int:
        return self.form.others_read.index(load) * self.schedule.other_tile.bytes

    def _values(
        self,
        value: Expr,
        products: dict[Product, Sums],
        pairs: Sequence[tuple[RowElement, Value]],
        first: Value,
        outside: float,
    ) -> Sums:
        """An elementwise value of all pairs of a tile; another one for masked pairs. `first` (i32)
        is the first other of the tile."""
        b, made = self.frame.b, list[Value]()
        for (tile, across, number), pair in zip(self._places(), pairs, strict=True):
            known: Known = {p.total: s[tile][across][number] for p, s in products.items()}
            made.append(self._value(value, known, *pair))
        other = constant(FLOAT, outside)

        def masked() -> list[Value]:
            counted = zip(pairs, made, strict=True)
            return [b.select(self._counts(*pair), each, other) for pair, each in counted]

        found = iter(b.choose_all(self._has_border(first), masked, lambda: made))
        across = self.schedule.others // _WIDTH
        return [
            [[next(found) for _ in range(_SUMS)] for _ in range(across)]
            for _ in range(self.schedule.tiles)
        ]

    def _pairs(self, rows: list[list[RowElement]], first: Value) -> list[tuple[RowElement, Value]]:
        """The row and the other (i32) of each of a lane's values."""
        frame = self.frame
        column = frame.plus32(first, frame.times32(frame.modulo32(self.lane, 4), 2))
        return [
            (rows[tile][number // 2], frame.plus32(column, _WIDTH * across + number % 2))
            for tile, across, number in self._places()
        ]

    def _places(self) -> list[tuple[int, int, int]]:
        """The indices of a lane's values: tile of rows, tile of others, number."""
        across = self.schedule.others // _WIDTH
        return list(product(range(self.schedule.tiles), range(across), range(_SUMS)))

    def _has_border(self, first: Value) -> Value:
        """Whether some pairs of the block's rows and a tile of others may be masked."""
        frame, b, schedule = self.frame, self.frame.b, self.schedule
        last = frame.plus32(first, schedule.others - 1)
        beyond = b.compare("sge", last, self._extent(self.form.other.extent))
        if self.form.order == "all":
            return beyond
        if self.form.order == "up to row":
            crosses = b.compare("sgt", last, self.first)
        else:
            crosses = b.compare("slt", first, frame.plus32(self.first, schedule.rows - 1))
        return b.binary("or", beyond, crosses)

    def _value(self, value: Expr, known: Known, row: RowElement, other: Value) -> Value:
        frame, form = self.frame, self.form
        last = frame.plus32(self._extent(form.other.extent), -1)
        clamped = frame.wide(frame.b.intrinsic("smin", other, last))
        at = {**row.at, form.other: clamped}
        return ElementEvaluator(frame, at, {**row.known, **known}).value(value)

    def _counts(self, row: RowElement, other: Value) -> Value:
        """Whether a pair of a row and another is not masked."""
        b, form = self.frame.b, self.form
        exists = b.compare("slt", other, self._extent(form.other.extent))
        if form.order == "all":
            return exists
        predicate = "sle" if form.order == "up to row" else "sge"
        return self.frame.both(exists, b.compare(predicate, other, row.index))

    def _scaled(self, tiles: list[list[Value]], factors: Sequence[Value]) -> list[list[Value]]:
        """Sums of two rows, each times a factor."""
        b = self.frame.b
        return [
            [b.binary("fmul", value, factors[number // 2]) for number, value in enumerate(four)]
            for four in tiles
        ]

    def _weighted(self, chain: Chain, weights: Sums, sums: Sums, base: Value) -> Sums:
        """Add the weighted sums of a tile of others to a chain's sums."""
        frame, schedule = self.frame, self.schedule
        place = frame.at_byte(base, self._other_place(self.form.along_depth(chain.z)))
        result = [list(line) for line in sums]
        for step in range(schedule.others // _DEPTH):
            lefts = [self._left(line[2 * step], line[2 * step + 1]) for line in weights]
            row = frame.i32(_DEPTH * step)
            for pair in range(self.form.depth.extent // _DEPTH):
                sides = self.fragments.weighted(schedule.other_tile, place, row, pair)
                for half, side in enumerate(sides):
                    for tile, left in enumerate(lefts):
                        at = result[tile][2 * pair + half]
                        result[tile][2 * pair + half] = self.warp.multiply(
                            self.dtype, left, side, at
                        )
        return result

    def _left(self, first: Sequence[Value], second: Sequence[Value]) -> list[Value]:
        """Two tiles of weights as a left operand."""
        pairs = first[:2], first[2:], second[:2], second[2:]
        return [self._packed(pair) for pair in pairs]

    def _packed(self, pair: Sequence[Value]) -> Value:
        """Two rounded numbers in a register."""
        b = self.frame.b
        raw = to_memory(b, self.frame.b.vector(pair), self.dtype)
        return b.emit(I32, f"bitcast {raw} to i32")

    # Results

    def _store(
        self, rows: list[list[RowElement]], sums: list[Sums], state: Sequence[Value]
    ) -> None:
        form, frame = self.form, self.frame
        totals = None if self.softmax is None else self.softmax.totals(state)
        for tile, pair in enumerate(rows):
            for half, row in enumerate(pair):
                known: dict[Expr, Value] = {}
                if totals is not None and form.softmax is not None:
                    largest, total = totals[tile][half]
                    known = {form.softmax.largest: largest, form.softmax.total: total}
                with frame.b.when(row.exists):
                    for store in form.stores:
                        self._store_row(store, row, known, [s[tile] for s in sums], half)

    def _store_row(
        self,
        store: Store,
        row: RowElement,
        known: Known,
        sums: list[list[list[Value]]],
        half: int,
    ) -> None:
        """Store a lane's results of a row."""
        frame, b, form = self.frame, self.frame.b, self.form
        if form.column not in store.variables:
            with b.when(b.compare("eq", frame.modulo32(self.lane, 4), frame.i32(0))):
                value = ElementEvaluator(frame, row.at, known).value_as(
                    store.value, store.buffer.dtype
                )
                self._put(store, row.at, [value])
            return
        first = frame.times32(frame.modulo32(self.lane, 4), 2)
        for across in range(form.column.extent // _WIDTH):
            column = frame.wide(frame.plus32(first, _WIDTH * across))
            pair: list[Value] = []
            for number in range(2):
                mine = {
                    chain.total: each[across][2 * half + number]
                    for chain, each in zip(form.chains, sums, strict=True)
                }
                at = {**row.at, form.column: frame.add(column, constant(I64, number))}
                evaluator = ElementEvaluator(frame, at, {**known, **mine})
                pair.append(evaluator.value_as(store.value, store.buffer.dtype))
            self._put(store, {**row.at, form.column: column}, pair)

    def _put(self, store: Store, at: At, values: Sequence[Value]) -> None:
        """Store values that are adjacent along the columns."""
        frame, b = self.frame, self.frame.b
        kind = storage_type(store.buffer.dtype)
        place = frame.evaluate(store.offset, at)
        base = b.element(frame.pointers[store.buffer], kind.scalar, place)
        raw = [to_memory(b, value, store.buffer.dtype) for value in values]
        step = store.offset.factor(self.form.column)
        for number, value in enumerate(raw):
            offset = frame.multiply(constant(I64, number), step)
            b.store(value, b.element(base, kind.scalar, offset))

    # Loop-carried values

    def _flat(self, sums: list[Sums]) -> list[Value]:
        return [v for each in sums for line in each for four in line for v in four]

    def _unflat(self, values: Sequence[Value]) -> list[Sums]:
        tiles, across = self.schedule.tiles, self.form.depth.extent // _WIDTH
        result, at = list[Sums](), 0
        for _ in self.form.chains:
            sums: Sums = []
            for _ in range(tiles):
                fours = [list(values[at + _SUMS * n : at + _SUMS * (n + 1)]) for n in range(across)]
                sums.append(fours)
                at += _SUMS * across
            result.append(sums)
        return result
