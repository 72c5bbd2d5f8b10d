"""Command-line flags: `DEFINE_*` declares them, `FLAGS` parses the command line and holds values.

The command line is parsed when a value is first read, or by `app.run`; unknown flags are left to
the program. Both `--name=value` and `--name value` work; booleans also take `--name` and
`--noname`.
"""

import enum
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from thalweg.public import public, publish_value

Parse = Callable[[str], Any]
Check = Callable[[Any], bool]
Checker = TypeVar("Checker", bound=Check)

_BOOLEANS: Final = {
    **dict.fromkeys(("true", "t", "1", "yes", "y"), True),
    **dict.fromkeys(("false", "f", "0", "no", "n"), False),
}


@public("flags.Error", "app.flags.Error")
class Error(Exception):
    """The base class of errors of flags."""


@public("flags.DuplicateFlagError", "app.flags.DuplicateFlagError")
class DuplicateFlagError(Error):
    """A flag with this name is defined already."""


@public("flags.IllegalFlagValueError", "app.flags.IllegalFlagValueError")
class IllegalFlagValueError(Error):
    """The value of a flag has another type, is out of range or fails a validator."""


@public("flags.UnrecognizedFlagError", "app.flags.UnrecognizedFlagError")
class UnrecognizedFlagError(Error):
    """The command line has a flag that is not defined."""


@public("flags.ValidationError", "app.flags.ValidationError")
class ValidationError(Error):
    """A check over one or more flags failed."""


@dataclass
class Flag:
    """One flag: how its text is parsed, and its value."""

    name: str
    default: Any
    help: str | None
    parse: Parse
    boolean: bool = False
    many: bool = False
    short_name: str | None = None
    present: int = 0
    value: Any = field(init=False)

    def __post_init__(self) -> None:
        self.set_default(self.default)

    def set_default(self, default: Any) -> None:
        """Set the default, which is the value unless the command line has one."""
        self.default = self._parsed_default(default)
        if not self.present:
            self.value = self.default

    def take(self, text: str) -> None:
        """Set the value from the command line; a multi-value flag collects them."""
        parsed = self.parsed(text)
        self.value = [*(self.value if self.present else []), parsed] if self.many else parsed
        self.present += 1

    def parsed(self, text: str) -> Any:
        """The value of a text."""
        try:
            return self.parse(text)
        except (ValueError, KeyError) as error:
            raise IllegalFlagValueError(f"flag --{self.name}={text}: {error}") from error

    def _parsed_default(self, default: Any) -> Any:
        if default is None:
            return None
        if self.many:
            values = [default] if isinstance(default, str | int | float) else list(default)
            return [self.parsed(v) if isinstance(v, str) else v for v in values]
        return self.parsed(default) if isinstance(default, str) else default


class FlagValues:
    """The flags of a program and their values, read as attributes: `FLAGS.learning_rate`."""

    def __init__(self) -> None:
        self.__dict__.update(_flags={}, _others={}, _checks=[], _parsed=False)

    _flags: dict[str, Flag]
    _others: dict[str, Any]
    _checks: list[Callable[[], None]]
    _parsed: bool

    def define(self, flag: Flag, allow_override: bool = False) -> None:
        """Add a flag; a second one with the same name is an error."""
        for name in filter(None, (flag.name, flag.short_name)):
            if name in self and not allow_override:
                raise DuplicateFlagError(
                    f"The flag '{name}' is defined twice: first as {self[name].help!r}, "
                    f"now as {flag.help!r}."
                )
            self._flags[_attribute(name)] = flag

    def add_check(self, check: Callable[[], None]) -> None:
        """Run `check` after each parse (and now, if the command line is parsed already)."""
        self._checks.append(check)
        if self._parsed:
            check()

    def __call__(self, argv: Sequence[str], known_only: bool = False) -> list[str]:
        """Parse `argv`, whose first entry is the program; return the other arguments."""
        rest = _CommandLine(self._flags, argv[1:]).parse(known_only)
        self.__dict__["_parsed"] = True
        for check in self._checks:
            check()
        return [*argv[:1], *rest]

    def _parse_flags(self, args: Sequence[str] | None = None) -> list[str]:
        """Parse `args` (by default the command line) and return the other arguments."""
        return self(["", *(sys.argv[1:] if args is None else args)], known_only=True)[1:]

    def is_parsed(self) -> bool:
        """Whether a command line was parsed."""
        return self._parsed

    def mark_as_parsed(self) -> None:
        """Keep the defaults: do not parse the command line."""
        self.__dict__["_parsed"] = True

    def unparse_flags(self) -> None:
        """Discard the values of the command line; the next read parses it again."""
        for flag in self._flags.values():
            flag.present, flag.value = 0, flag.default
        self.__dict__["_parsed"] = False

    def set_default(self, name: str, value: Any) -> None:
        """Change the default of a flag."""
        self[name].set_default(value)

    def flag_values_dict(self) -> dict[str, Any]:
        """Name -> value of all flags."""
        self._ensure_parsed()
        return {flag.name: flag.value for flag in self._flags.values()} | self._others

    def flags_into_string(self) -> str:
        """The values as lines of a command line."""
        values = self.flag_values_dict().items()
        return "".join(f"--{name}={value}\n" for name, value in values if value is not None)

    def get_flag_value(self, name: str, default: Any) -> Any:
        """The value of a flag, or `default` where it is None or not defined."""
        value = self.flag_values_dict().get(name)
        return default if value is None else value

    def get_help(self, prefix: str = "") -> str:
        """A text that lists the flags, one to a line."""
        unique = {flag.name: flag for flag in self._flags.values()}
        return "\n".join(
            f"{prefix}--{name}: {flag.help or ''} (default: {flag.default!r})"
            for name, flag in sorted(unique.items())
        )

    def __getattr__(self, name: str) -> Any:
        if name == "__flags":  # where programs of the first releases looked for all values
            return self.flag_values_dict()
        self._ensure_parsed()
        if name in self._others:
            return self._others[name]
        if name not in self._flags:
            raise AttributeError(f"No flag is named '{name}'.")
        return self._flags[name].value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._flags:
            self._others[name] = value
            return
        self._ensure_parsed()
        flag = self._flags[name]
        flag.value, flag.present = value, flag.present + 1

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"No flag is named '{name}'.")
        self._others.pop(name, None)
        removed = self._flags.pop(_attribute(name), None)
        for alias in [key for key, flag in self._flags.items() if flag is removed]:
            del self._flags[alias]

    def __getitem__(self, name: str) -> Flag:
        return self._flags[_attribute(name)]

    def __contains__(self, name: str) -> bool:
        return _attribute(name) in self._flags or name in self._others

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._flags))

    def __len__(self) -> int:
        return len(self._flags)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self._flags, *self._others])

    def _ensure_parsed(self) -> None:
        if not self._parsed:
            self._parse_flags()


class _CommandLine:
    """One parse of a command line: sets the values of flags, and collects the other arguments."""

    def __init__(self, flags: dict[str, Flag], arguments: Sequence[str]) -> None:
        self.flags = flags
        self.pending = list(reversed(arguments))
        self.rest: list[str] = []

    def parse(self, known_only: bool) -> list[str]:
        while self.pending:
            argument = self.pending.pop()
            if argument == "--":
                return [*self.rest, *reversed(self.pending)]
            if not self._take_flag(argument):
                self._keep(argument, known_only)
        return self.rest

    def _take_flag(self, argument: str) -> bool:
        match = re.fullmatch(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", argument, re.DOTALL)
        if not match:
            return False
        name, text = _attribute(match[1]), match[2]
        if name in self.flags:
            self._take_value(self.flags[name], text)
            return True
        if name in ("help", "helpfull", "helpshort", "h"):
            _print_help_and_exit()
        return self._take_negation(name, text)

    def _take_value(self, flag: Flag, text: str | None) -> None:
        if text is None and flag.boolean:
            follows = bool(self.pending) and self.pending[-1].lower() in ("true", "false")
            text = self.pending.pop() if follows else "true"
        elif text is None:
            if not self.pending:
                raise Error(f"Missing value for flag --{flag.name}")
            text = self.pending.pop()
        flag.take(text)

    def _take_negation(self, name: str, text: str | None) -> bool:
        flag = self.flags.get(name[2:]) if name.startswith("no") else None
        if flag is None or not flag.boolean or text is not None:
            return False
        flag.take("false")
        return True

    def _keep(self, argument: str, known_only: bool) -> None:
        if argument.startswith("--") and not known_only:
            raise UnrecognizedFlagError(f"Unknown command line flag '{argument.lstrip('-')}'")
        self.rest.append(argument)


FLAGS: Final = FlagValues()
publish_value("flags.FLAGS", FLAGS)
publish_value("app.flags.FLAGS", FLAGS)


def _attribute(name: str) -> str:
    return name.replace("-", "_")


def _print_help_and_exit() -> NoReturn:
    main_doc = getattr(sys.modules.get("__main__"), "__doc__", None)
    print(f"{main_doc or sys.argv[0]}\n\nflags:\n{FLAGS.get_help('  ')}")
    sys.exit(1)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("a boolean is true or false")
    return _BOOLEANS[text.lower()]


def _integer(text: str) -> int:
    return int(text, 0) if re.match(r"[+-]?0[xob]", text, re.IGNORECASE) else int(text)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _within(parse: Parse, lower: float | None, upper: float | None) -> Parse:
    def parse_within(text: str) -> Any:
        value = parse(text)
        if (lower is not None and value < lower) or (upper is not None and value > upper):
            raise ValueError(f"{value} is not within [{lower}, {upper}]")
        return value

    return parse_within


def _one_of(allowed: Iterable[str], case_sensitive: bool = True) -> Parse:
    values = list(allowed)
    keys = {value if case_sensitive else value.lower(): value for value in values}

    def parse(text: str) -> str:
        key = text if case_sensitive else text.lower()
        if key not in keys:
            raise ValueError(f"value should be one of <{'|'.join(values)}>")
        return keys[key]

    return parse


def _define(
    parse: Parse, positional: tuple[Any, ...], options: dict[str, Any], **properties: bool
) -> None:
    """Define a flag from (name, default, help), also by the keywords of the first releases."""
    keywords = (("name", "flag_name"), ("default", "default_value"), ("help", "docstring"))
    values = list(positional)
    for new, old in keywords[len(values) :]:
        values.append(options.pop(new) if new in options else options.pop(old, None))
    name, default, text = values
    required = options.pop("required", False)
    allow_override = options.pop("allow_override", False)
    short_name = options.pop("short_name", None)
    if options:
        raise TypeError(f"flag '{name}': unexpected options {sorted(options)}")
    flag = Flag(name, default, text, parse, short_name=short_name, **properties)
    FLAGS.define(flag, allow_override)
    if required:
        mark_flag_as_required(name)


@public("flags.DEFINE_string", "app.flags.DEFINE_string")
def DEFINE_string(*args: str | None, **options: Any) -> None:
    """Define a text flag of the command line: `DEFINE_string(name, default, help)`.

    Args:
        args: the name, the default and the help text.
        options: the same by name, and `required`, `short_name` and so on.

    Example:
        >>> tf.flags.DEFINE_string("data_folder", "/tmp/data", "where the data is")
        >>> rest = tf.flags.FLAGS(["program", "--data_folder=/data"])
        >>> tf.flags.FLAGS.data_folder
        '/data'
    """
    _define(str, args, options)


@public("flags.DEFINE_integer", "app.flags.DEFINE_integer")
def DEFINE_integer(
    *args: str | int | None,
    lower_bound: int | None = None,
    upper_bound: int | None = None,
    **options: Any,
) -> None:
    """Define an integer flag: `DEFINE_integer(name, default, help)`.

    Args:
        args: the name, the default and the help text.
        lower_bound, upper_bound: the least and the greatest value.
        options: as for `DEFINE_string`.

    Example:
        >>> tf.flags.DEFINE_integer("training_steps", 100, "how many steps to train")
        >>> rest = tf.flags.FLAGS(["program", "--training_steps=5"])
        >>> tf.flags.FLAGS.training_steps
        5
    """
    _define(_within(_integer, lower_bound, upper_bound), args, options)


@public("flags.DEFINE_float", "app.flags.DEFINE_float")
def DEFINE_float(
    *args: str | float | None,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    **options: Any,
) -> None:
    """Define a number flag: `DEFINE_float(name, default, help)`.

    Args:
        args: the name, the default and the help text.
        lower_bound, upper_bound: the least and the greatest value.
        options: as for `DEFINE_string`.

    Example:
        >>> tf.flags.DEFINE_float("initial_rate", 0.1, "the learning rate")
        >>> rest = tf.flags.FLAGS(["program", "--initial_rate", "0.5"])
        >>> tf.flags.FLAGS.initial_rate
        0.5
    """
    _define(_within(float, lower_bound, upper_bound), args, options)


@public(
    "flags.DEFINE_boolean",
    "flags.DEFINE_bool",
    "app.flags.DEFINE_boolean",
    "app.flags.DEFINE_bool",
)
def DEFINE_boolean(*args: str | bool | None, **options: Any) -> None:
    """Define a boolean flag: `DEFINE_boolean(name, default, help)`.

    Args:
        args: the name, the default and the help text.
        options: as for `DEFINE_string`.

    Example:
        >>> tf.flags.DEFINE_boolean("write_images", True, "whether images are written")
        >>> rest = tf.flags.FLAGS(["program", "--nowrite_images"])
        >>> tf.flags.FLAGS.write_images
        False
    """
    _define(_boolean, args, options, boolean=True)


DEFINE_bool = DEFINE_boolean


@public("flags.DEFINE_list", "app.flags.DEFINE_list")
def DEFINE_list(*args: str | Sequence[str] | None, **options: Any) -> None:
    """Define a flag whose value is a list, written with commas."""
    _define(_list, args, options)


@public("flags.DEFINE_spaceseplist", "app.flags.DEFINE_spaceseplist")
def DEFINE_spaceseplist(
    *args: str | Sequence[str] | None, comma_compat: bool = False, **options: Any
) -> None:
    """Define a flag whose value is a list, written with spaces (and commas if `comma_compat`)."""
    separator = r"[\s,]+" if comma_compat else r"\s+"
    _define(lambda text: [part for part in re.split(separator, text) if part], args, options)


@public("flags.DEFINE_enum", "app.flags.DEFINE_enum")
def DEFINE_enum(
    name: str,
    default: str | None,
    enum_values: Sequence[str],
    help: str | None = None,
    case_sensitive: bool = True,
    **options: Any,
) -> None:
    """Define a flag that takes one of `enum_values`."""
    _define(_one_of(enum_values, case_sensitive), (name, default, help), options)


@public("flags.DEFINE_enum_class", "app.flags.DEFINE_enum_class")
def DEFINE_enum_class(
    name: str,
    default: enum.Enum | str | None,
    enum_class: type[enum.Enum],
    help: str | None = None,
    **options: Any,
) -> None:
    """Define a flag that takes the name of a member of `enum_class`."""
    parse = _one_of(enum_class.__members__)
    _define(lambda text: enum_class[parse(text)], (name, default, help), options)


@public("flags.DEFINE_multi_string", "app.flags.DEFINE_multi_string")
def DEFINE_multi_string(*args: str | Sequence[str] | None, **options: Any) -> None:
    """Define a text flag that may be repeated; its value is a list."""
    _define(str, args, options, many=True)


@public("flags.DEFINE_multi_integer", "app.flags.DEFINE_multi_integer")
def DEFINE_multi_integer(
    *args: str | int | Sequence[int] | None,
    lower_bound: int | None = None,
    upper_bound: int | None = None,
    **options: Any,
) -> None:
    """Define an integer flag that may be repeated; its value is a list."""
    _define(_within(_integer, lower_bound, upper_bound), args, options, many=True)


@public("flags.DEFINE_multi_float", "app.flags.DEFINE_multi_float")
def DEFINE_multi_float(
    *args: str | float | Sequence[float] | None,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    **options: Any,
) -> None:
    """Define a number flag that may be repeated; its value is a list."""
    _define(_within(float, lower_bound, upper_bound), args, options, many=True)


@public("flags.DEFINE_multi_enum", "app.flags.DEFINE_multi_enum")
def DEFINE_multi_enum(
    name: str,
    default: str | Sequence[str] | None,
    enum_values: Sequence[str],
    help: str | None = None,
    case_sensitive: bool = True,
    **options: Any,
) -> None:
    """Define a flag that takes some of `enum_values`, one at a time; its value is a list."""
    _define(_one_of(enum_values, case_sensitive), (name, default, help), options, many=True)


@public("flags.DEFINE_alias", "app.flags.DEFINE_alias")
def DEFINE_alias(name: str, original_name: str) -> None:
    """Give a defined flag a second name."""
    if original_name not in FLAGS:
        raise UnrecognizedFlagError(f"No flag is named '{original_name}'.")
    if name in FLAGS:
        raise DuplicateFlagError(f"The flag '{name}' is defined twice.")
    FLAGS._flags[_attribute(name)] = FLAGS[original_name]  # pyright: ignore[reportPrivateUsage] - the table is this module's


@public("flags.register_validator", "app.flags.register_validator")
def register_validator(
    flag_name: str, checker: Check, message: str = "Flag validation failed"
) -> None:
    """Reject a command line for which `checker(value of the flag)` is false."""

    def check() -> None:
        value = FLAGS[flag_name].value
        if not checker(value):
            raise IllegalFlagValueError(f"flag --{flag_name}={value}: {message}")

    FLAGS.add_check(check)


@public("flags.validator", "app.flags.validator")
def validator(
    flag_name: str, message: str = "Flag validation failed"
) -> Callable[[Checker], Checker]:
    """`register_validator` as a decorator."""

    def register(checker: Checker) -> Checker:
        register_validator(flag_name, checker, message)
        return checker

    return register


@public("flags.register_multi_flags_validator", "app.flags.register_multi_flags_validator")
def register_multi_flags_validator(
    flag_names: Sequence[str],
    multi_flags_checker: Callable[[dict[str, Any]], bool],
    message: str = "Flags validation failed",
) -> None:
    """Reject a command line for which the checker, given {name: value}, is false."""

    def check() -> None:
        if not multi_flags_checker({name: FLAGS[name].value for name in flag_names}):
            raise ValidationError(f"flags {', '.join(flag_names)}: {message}")

    FLAGS.add_check(check)


@public("flags.mark_flag_as_required", "app.flags.mark_flag_as_required")
def mark_flag_as_required(flag_name: str) -> None:
    """Reject a command line that leaves the flag None."""
    register_validator(
        flag_name, lambda value: value is not None, "Flag must have a value other than None."
    )


@public("flags.mark_flags_as_required", "app.flags.mark_flags_as_required")
def mark_flags_as_required(flag_names: Iterable[str]) -> None:
    """Reject a command line that leaves one of the flags None."""
    for name in flag_names:
        mark_flag_as_required(name)


@public("flags.mark_flags_as_mutual_exclusive", "app.flags.mark_flags_as_mutual_exclusive")
def mark_flags_as_mutual_exclusive(flag_names: Sequence[str], required: bool = False) -> None:
    """Reject a command line that sets more than one of the flags (or none, if `required`)."""

    def at_most_one(values: dict[str, Any]) -> bool:
        count = sum(value is not None for value in values.values())
        return count == 1 if required else count <= 1

    register_multi_flags_validator(
        flag_names, at_most_one, f"{'exactly' if required else 'at most'} one may have a value"
    )
