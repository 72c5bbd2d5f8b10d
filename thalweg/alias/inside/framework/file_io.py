"""`tensorflow.python.lib.io.file_io`: `tf.gfile` under its older names."""

from __future__ import annotations

from typing import Any

from thalweg.alias import names

tf = names.root()


def FileIO(name: Any, mode: str = "r") -> Any:
    """Open a file."""
    return tf.gfile.GFile(name, mode)


def file_exists(filename: Any) -> bool:
    """Whether there is something at a path."""
    return tf.gfile.Exists(filename)


def delete_file(filename: Any) -> None:
    """Delete a file."""
    tf.gfile.Remove(filename)


def delete_recursively(dirname: Any) -> None:
    """Delete a folder and all in it."""
    tf.gfile.DeleteRecursively(dirname)


def read_file_to_string(filename: Any, binary_mode: bool = False) -> Any:
    """The whole content of a file."""
    with FileIO(filename, "rb" if binary_mode else "r") as file:
        return file.read()


def write_string_to_file(filename: Any, file_content: Any) -> None:
    """Make a file of a text or of bytes."""
    with FileIO(filename, "wb" if isinstance(file_content, bytes) else "w") as file:
        file.write(file_content)


def atomic_write_string_to_file(filename: Any, contents: Any, overwrite: bool = True) -> None:
    """Make a file that is there whole or not at all."""
    if not overwrite and file_exists(filename):
        raise tf.errors.AlreadyExistsError(None, None, f"file already exists: {filename}")
    temporary = f"{filename}.tmp"
    write_string_to_file(temporary, contents)
    rename(temporary, filename, overwrite=True)


def get_matching_files(filename: Any) -> list[str]:
    """The paths that match a pattern."""
    return tf.gfile.Glob(filename)


def create_dir(dirname: Any) -> None:
    """Make a folder."""
    tf.gfile.MkDir(dirname)


def recursive_create_dir(dirname: Any) -> None:
    """Make a folder and those around it."""
    tf.gfile.MakeDirs(dirname)


def copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:
    """Copy a file."""
    tf.gfile.Copy(oldpath, newpath, overwrite)


def rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:
    """Move a file."""
    tf.gfile.Rename(oldname, newname, overwrite)


def is_directory(dirname: Any) -> bool:
    """Whether there is a folder at a path."""
    return tf.gfile.IsDirectory(dirname)


def list_directory(dirname: Any) -> list[str]:
    """The names in a folder."""
    return tf.gfile.ListDirectory(dirname)


def walk(top: Any, in_order: bool = True) -> Any:
    """The folders below a folder, each with its folders and files."""
    return tf.gfile.Walk(top, in_order)


def stat(filename: Any) -> Any:
    """Size and time of a file."""
    return tf.gfile.Stat(filename)


file_exists_v2, delete_file_v2, delete_recursively_v2 = file_exists, delete_file, delete_recursively
get_matching_files_v2, create_dir_v2, recursive_create_dir_v2 = (
    get_matching_files,
    create_dir,
    recursive_create_dir,
)
copy_v2, rename_v2, is_directory_v2, list_directory_v2, walk_v2, stat_v2 = (
    copy,
    rename,
    is_directory,
    list_directory,
    walk,
    stat,
)
