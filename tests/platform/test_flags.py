"""Flags: all kinds, spellings on the command line, and errors; and `app.run`."""

import enum
import sys

import pytest

from thalweg.platform import app, flags


@pytest.fixture(autouse=True)
def FLAGS(monkeypatch: pytest.MonkeyPatch) -> flags.FlagValues:
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(app, "FLAGS", values)
    monkeypatch.setattr(sys, "argv", ["program"])
    return values


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_defaults_have_the_type_of_the_flag(FLAGS):
    flags.DEFINE_string("text", "a", "help")
    flags.DEFINE_integer("count", "3", "help")
    flags.DEFINE_float("rate", 1, "help")
    flags.DEFINE_boolean("fast", "true", "help")
    flags.DEFINE_string("nothing", None, "help")
    assert (FLAGS.text, FLAGS.count, FLAGS.rate, FLAGS.fast) == ("a", 3, 1, True)
    assert FLAGS.nothing is None


def test_the_keywords_of_the_first_releases_work(FLAGS):
    flags.DEFINE_integer(flag_name="old", default_value=1, docstring="help")
    flags.DEFINE_integer("mixed", 2, docstring="help")
    flags.DEFINE_integer(name="new", default=3, help="help")
    assert (FLAGS.old, FLAGS.mixed, FLAGS.new) == (1, 2, 3)
    assert FLAGS["old"].help == "help"


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="unexpected options"):
        flags.DEFINE_string("text", "a", "help", colour="red")


@pytest.mark.parametrize("arguments", [["--n=7"], ["--n", "7"], ["-n", "7"], ["-n=7"], ["--n=0x7"]])
def test_spellings_of_a_value(FLAGS, arguments):
    flags.DEFINE_integer("n", 0, "help")
    assert FLAGS(["program", *arguments]) == ["program"]
    assert FLAGS.n == 7


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--fast"], True),
        (["--nofast"], False),
        (["--fast=False"], False),
        (["--fast=1"], True),
        (["--fast", "False"], False),
        (["--fast", "True"], True),
    ],
)
def test_spellings_of_a_boolean(FLAGS, arguments, value):
    flags.DEFINE_bool("fast", not value, "help")
    assert FLAGS(["program", *arguments, "rest"]) == ["program", "rest"]
    assert FLAGS.fast is value


def test_a_dash_in_a_name_is_an_underscore(FLAGS):
    flags.DEFINE_boolean("with-dash", True, "help")
    FLAGS(["program", "--nowith-dash"])
    assert FLAGS.with_dash is False


def test_kinds_with_structure(FLAGS):
    flags.DEFINE_list("names", "a,b", "help")
    flags.DEFINE_spaceseplist("words", None, "help")
    flags.DEFINE_enum("mode", "train", ["train", "test"], "help")
    flags.DEFINE_enum_class("colour", Colour.RED, Colour, "help")
    flags.DEFINE_multi_string("file", ["x"], "help")
    flags.DEFINE_multi_integer("size", None, "help")
    flags.DEFINE_multi_float("rate", 0.5, "help")
    flags.DEFINE_multi_enum("part", ["a"], ["a", "b"], "help")
    assert (FLAGS.names, FLAGS.rate) == (["a", "b"], [0.5])
    FLAGS(["program", "--names=c,d", "--words=e\tf", "--mode", "test", "--colour", "BLUE"])
    FLAGS(["program", "--file=y", "--file", "z", "--size=1", "--size=2", "--rate=1", "--part=b"])
    assert (FLAGS.names, FLAGS.words, FLAGS.mode) == (["c", "d"], ["e", "f"], "test")
    assert FLAGS.colour is Colour.BLUE
    assert (FLAGS.file, FLAGS.size, FLAGS.rate) == (["y", "z"], [1, 2], [1.0])
    assert FLAGS.part == ["b"]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--n=x", "--n=x"),
        ("--n=11", "not within"),
        ("--mode=no", "one of <a|b>"),
        ("--fast=maybe", "true or false"),
    ],
)
def test_illegal_values(FLAGS, argument, text):
    flags.DEFINE_integer("n", 0, "help", lower_bound=0, upper_bound=10)
    flags.DEFINE_enum("mode", "a", ["a", "b"], "help")
    flags.DEFINE_bool("fast", False, "help")
    with pytest.raises(flags.IllegalFlagValueError, match=text.replace("|", r"\|")):
        FLAGS(["program", argument])


def test_a_missing_value_is_an_error(FLAGS):
    flags.DEFINE_integer("n", 0, "help")
    with pytest.raises(flags.Error, match="Missing value for flag --n"):
        FLAGS(["program", "--n"])


def test_unknown_flags_are_kept_or_refused(FLAGS):
    flags.DEFINE_integer("n", 0, "help")
    arguments = ["program", "--other=1", "word", "--n=2", "--", "--n=3"]
    assert FLAGS(arguments, known_only=True) == ["program", "--other=1", "word", "--n=3"]
    assert FLAGS.n == 2
    with pytest.raises(flags.UnrecognizedFlagError, match="other=1"):
        FLAGS(arguments)


def test_a_second_flag_of_the_same_name_is_refused(FLAGS):
    flags.DEFINE_integer("n", 0, "help")
    with pytest.raises(flags.DuplicateFlagError, match="'n' is defined twice"):
        flags.DEFINE_string("n", "", "help")
    flags.DEFINE_string("n", "new", "help", allow_override=True)
    assert FLAGS.n == "new"


def test_the_command_line_is_parsed_on_first_use(FLAGS, monkeypatch):
    flags.DEFINE_integer("n", 0, "help")
    monkeypatch.setattr(sys, "argv", ["program", "--n=5", "--unknown"])
    assert not FLAGS.is_parsed()
    assert FLAGS.n == 5
    assert FLAGS._parse_flags() == ["--unknown"]
    FLAGS.unparse_flags()
    monkeypatch.setattr(sys, "argv", ["program"])
    assert FLAGS.n == 0


def test_values_can_be_assigned_and_listed(FLAGS):
    flags.DEFINE_integer("n", 0, "help")
    FLAGS.n = 9
    FLAGS.not_defined = "too"
    assert FLAGS.flag_values_dict() == {"n": 9, "not_defined": "too"}
    assert sorted(getattr(FLAGS, "__flags").items()) == [("n", 9), ("not_defined", "too")]
    assert "n" in FLAGS and "m" not in FLAGS and not hasattr(FLAGS, "m")
    assert list(FLAGS) == ["n"] and len(FLAGS) == 1
    assert FLAGS.flags_into_string() == "--n=9\n--not_defined=too\n"
    assert FLAGS.get_flag_value("m", 4) == 4
    del FLAGS.n
    with pytest.raises(AttributeError, match="No flag is named 'n'"):
        FLAGS.n


def test_defaults_can_change_until_the_command_line_sets_the_flag(FLAGS):
    flags.DEFINE_integer("n", 0, "help")
    FLAGS.set_default("n", 4)
    assert FLAGS.n == 4
    FLAGS(["program", "--n=5"])
    FLAGS.set_default("n", 6)
    assert FLAGS.n == 5


def test_an_alias_shares_the_value(FLAGS):
    flags.DEFINE_integer("n", 0, "help", short_name="s")
    flags.DEFINE_alias("number", "n")
    FLAGS(["program", "--number=5"])
    assert FLAGS.n == FLAGS.number == FLAGS.s == 5


def test_required_flags_and_validators(FLAGS):
    flags.DEFINE_integer("n", None, "help", required=True)
    flags.DEFINE_integer("even", 2, "help")
    flags.register_validator("even", lambda value: value % 2 == 0, "must be even")
    with pytest.raises(flags.IllegalFlagValueError, match="--n=None"):
        FLAGS(["program"])
    with pytest.raises(flags.IllegalFlagValueError, match="must be even"):
        FLAGS(["program", "--n=1", "--even=3"])
    FLAGS(["program", "--n=1", "--even=4"])


def test_exclusive_flags(FLAGS):
    flags.DEFINE_integer("a", None, "help")
    flags.DEFINE_integer("b", None, "help")
    flags.mark_flags_as_mutual_exclusive(["a", "b"])
    FLAGS(["program", "--a=1"])
    with pytest.raises(flags.ValidationError, match="at most one"):
        FLAGS(["program", "--b=1"])


def test_run_passes_other_arguments_to_main_and_exits_with_its_result(FLAGS):
    flags.DEFINE_integer("n", 0, "help")
    seen = []

    def main(argv):
        seen.append((argv, FLAGS.n))
        return 3

    with pytest.raises(SystemExit) as exit:
        app.run(main, ["program", "--n=4", "--unknown", "word"])
    assert exit.value.code == 3
    assert seen == [(["program", "--unknown", "word"], 4)]


def test_run_finds_main_in_the_program(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "main", lambda argv: argv, raising=False)
    with pytest.raises(SystemExit) as exit:
        app.run()
    assert exit.value.code == ["program"]


def test_run_explains_a_bad_flag(capsys):
    flags.DEFINE_integer("n", 0, "help")
    with pytest.raises(SystemExit) as exit:
        app.run(lambda argv: None, ["program", "--n=x"])
    assert exit.value.code == 1
    assert "flag --n=x" in capsys.readouterr().err


def test_help_lists_the_flags(capsys):
    flags.DEFINE_integer("n", 4, "how many")
    with pytest.raises(SystemExit):
        app.run(lambda argv: None, ["program", "--help"])
    assert "--n: how many (default: 4)" in capsys.readouterr().out
