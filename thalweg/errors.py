"""The exceptions of failed operations, one class per status code.

Kernels raise them with a message alone; whoever runs the node binds the error to it with
`OpError.at`, after which the text also says which op failed and where it was created.
"""

from typing import Any, ClassVar, Self

from thalweg.public import public, publish_value

OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16


@public("OpError")
class OpError(Exception):
    """An operation failed; sessions raise the subclass that says how."""

    code: ClassVar[int] = UNKNOWN

    def __init__(self, node_def: Any, op: Any, message: str, error_code: int | None = None) -> None:
        error_code = self.code if error_code is None else error_code
        super().__init__(node_def, op, message, error_code)
        self._node_def = node_def
        self._op = op
        self._message = message
        self._error_code = error_code

    @property
    def node_def(self) -> Any:
        """The serialized form of the node that failed, or None."""
        if self._node_def is not None:
            return self._node_def
        return getattr(self._op, "node_def", None)

    @property
    def op(self) -> Any:
        """The operation that failed, or None."""
        return self._op

    @property
    def message(self) -> str:
        """What went wrong."""
        return self._message

    @property
    def error_code(self) -> int:
        """The status code, such as INVALID_ARGUMENT."""
        return self._error_code

    def at(self, node: Any) -> Self:
        """The same error bound to `node`, cause and traceback included."""
        bound = type(self).__new__(type(self), *self.args)
        bound.__dict__.update(self.__dict__, _op=node, _node_def=None)
        bound.__cause__ = self.__cause__
        return bound.with_traceback(self.__traceback__)

    def __str__(self) -> str:
        origin = getattr(self._op, "origin", None)
        if not origin:
            return self._message
        kind = getattr(self._op, "type", "unknown type")
        return f"{self._message}\n  in op {self._op.name!r} ({kind}), created at {origin}"


class CancelledError(OpError):
    """The operation or the step was cancelled, such as by closing a queue or a session.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node that failed, or None.
        message: what happened.
        error_code: the number of the kind of error; that of the class if None.

    Example:
        >>> queue = tf.FIFOQueue(2, tf.float32)
        >>> sess.run(queue.close())
        >>> try:
        ...     sess.run(queue.enqueue(1.0))
        ... except tf.errors.CancelledError:
        ...     print("closed")
        closed
    """

    code = CANCELLED


class UnknownError(OpError):
    """The failure fits no other class, or came with a code that has none."""

    code = UNKNOWN


class InvalidArgumentError(OpError):
    """An operation got an argument it can never accept, whatever the state.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node that failed, or None.
        message: what happened.
        error_code: the number of the kind of error; that of the class if None.

    Example:
        >>> x = tf.placeholder(tf.float32)
        >>> try:
        ...     sess.run(x)
        ... except tf.errors.InvalidArgumentError as error:
        ...     print(error.message.splitlines()[0][:36])
        You must feed a value for placeholde
    """

    code = INVALID_ARGUMENT


class DeadlineExceededError(OpError):
    """The operation did not finish in the time it was given.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node.
        message: what went wrong.
        error_code: the code, where it is not this class's.

    Example:
        >>> queue = tf.FIFOQueue(1, [tf.int32])
        >>> try:
        ...     sess.run(queue.dequeue(), options=tf.RunOptions(timeout_in_ms=1))
        ... except tf.errors.DeadlineExceededError as error:
        ...     print(error.error_code == tf.errors.DEADLINE_EXCEEDED)
        True
    """

    code = DEADLINE_EXCEEDED


class NotFoundError(OpError):
    """Something asked for, such as a file, does not exist.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node that failed, or None.
        message: what happened.
        error_code: the number of the kind of error; that of the class if None.

    Example:
        >>> try:
        ...     tf.gfile.GFile("missing.txt").read()
        ... except tf.errors.NotFoundError:
        ...     print("missing")
        missing
    """

    code = NOT_FOUND


class AlreadyExistsError(OpError):
    """Something to be made, such as a file, already exists."""

    code = ALREADY_EXISTS


class PermissionDeniedError(OpError):
    """The caller may not do this."""

    code = PERMISSION_DENIED


class UnauthenticatedError(OpError):
    """The caller has not shown who it is."""

    code = UNAUTHENTICATED


class ResourceExhaustedError(OpError):
    """Memory, disk or a quota ran out.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node.
        message: what went wrong.
        error_code: the code, where it is not this class's.

    Example:
        >>> try:
        ...     raise tf.errors.ResourceExhaustedError(None, None, "no memory is left")
        ... except tf.errors.OpError as error:
        ...     print(error.message)
        no memory is left
    """

    code = RESOURCE_EXHAUSTED


class FailedPreconditionError(OpError):
    """The state does not allow this, such as reading an uninitialized variable."""

    code = FAILED_PRECONDITION


class AbortedError(OpError):
    """The operation was given up, usually since another one interfered.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node that failed, or None.
        message: what happened.
        error_code: the number of the kind of error; that of the class if None.

    Example:
        >>> issubclass(tf.errors.AbortedError, tf.errors.OpError)
        True
    """

    code = ABORTED


class OutOfRangeError(OpError):
    """The operation ran past the valid range, such as the end of a file, queue or dataset.

    Args:
        node_def: the NodeDef of the node that failed, or None.
        op: the node that failed, or None.
        message: what happened.
        error_code: the number of the kind of error; that of the class if None.

    Example:
        >>> number = tf.data.Dataset.range(2).make_one_shot_iterator().get_next()
        >>> try:
        ...     while True:
        ...         print(sess.run(number))
        ... except tf.errors.OutOfRangeError:
        ...     print("done")
        0
        1
        done
    """

    code = OUT_OF_RANGE


class UnimplementedError(OpError):
    """The operation does not exist for these types or this device."""

    code = UNIMPLEMENTED


class InternalError(OpError):
    """The system broke one of its own invariants."""

    code = INTERNAL


class UnavailableError(OpError):
    """The runtime cannot be reached at the moment; trying again may help."""

    code = UNAVAILABLE


class DataLossError(OpError):
    """Data was lost or corrupted beyond recovery."""

    code = DATA_LOSS


def invalid(message: str) -> InvalidArgumentError:
    """The error of a kernel for a bad value; whoever runs the node adds it."""
    return InvalidArgumentError(None, None, message)


_EXCEPTIONS: dict[int, type[OpError]] = {cls.code: cls for cls in OpError.__subclasses__()}


def of_code(code: int, op: Any, message: str) -> OpError:
    """The error of a status code, an UnknownError for a code that is not known here."""
    return _EXCEPTIONS.get(code, UnknownError)(None, op, message)


@public("errors.exception_type_from_error_code")
def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """The exception class of a status code; a KeyError for OK and unknown codes."""
    return _EXCEPTIONS[error_code]


@public("errors.error_code_from_exception_type")
def error_code_from_exception_type(cls: type[OpError]) -> int:
    """The status code of an exception class; a KeyError for OpError itself and other classes."""
    if _EXCEPTIONS.get(cls.code) is not cls:
        raise KeyError(cls)
    return cls.code


for _error in (OpError, *OpError.__subclasses__()):
    publish_value(f"errors.{_error.__name__}", _error)
for _name, _code in list(vars().items()):
    if _name.isupper() and isinstance(_code, int):
        publish_value(f"errors.{_name}", _code)
