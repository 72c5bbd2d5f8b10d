"""The slice of a partitioned variable that a variable is, as checkpoints write it."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg import protos


def with_scope(name: str, scope: str | None) -> str:
    """`name` inside a name scope."""
    return f"{scope.rstrip('/')}/{name}" if scope else name


def strip_scope(name: str, scope: str | None) -> str:
    """`name` without the prefix of its name scope."""
    prefix = f"{scope.rstrip('/')}/" if scope else ""
    return name.removeprefix(prefix)


class SaveSliceInfo:
    """A slice: the full variable's name and shape, the slice's offset and shape."""

    def __init__(
        self,
        full_name: str = "",
        full_shape: Sequence[int] = (),
        var_offset: Sequence[int] = (),
        var_shape: Sequence[int] = (),
        save_slice_info_def: protos.SaveSliceInfoDef | None = None,
        import_scope: str | None = None,
    ) -> None:
        if save_slice_info_def is not None:
            full_name = with_scope(save_slice_info_def.full_name, import_scope)
            full_shape = save_slice_info_def.full_shape
            var_offset = save_slice_info_def.var_offset
            var_shape = save_slice_info_def.var_shape
        self.full_name = full_name
        self.full_shape = list(full_shape)
        self.var_offset = list(var_offset)
        self.var_shape = list(var_shape)

    @property
    def spec(self) -> str:
        """The slice as checkpoints write it: `"10 20 0,10:5,5"`."""
        full = "".join(f"{size} " for size in self.full_shape)
        parts = zip(self.var_offset, self.var_shape, strict=True)
        return full + ":".join(f"{offset},{size}" for offset, size in parts)

    def to_proto(self, export_scope: str | None = None) -> protos.SaveSliceInfoDef | None:
        """A SaveSliceInfoDef, or None if the variable is outside `export_scope`."""
        if export_scope is not None and not self.full_name.startswith(export_scope):
            return None
        definition = protos.SaveSliceInfoDef()
        definition.full_name = strip_scope(self.full_name, export_scope)
        definition.full_shape.extend(self.full_shape)
        definition.var_offset.extend(self.var_offset)
        definition.var_shape.extend(self.var_shape)
        return definition
