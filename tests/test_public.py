"""The registry of public names: what it refuses, and where `install` puts each name."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from thalweg import public as registry
from thalweg.public import (
    NotInstalled,
    install,
    names,
    namespace,
    public,
    publish_from,
    publish_lazily,
    publish_package,
    publish_value,
)


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry, "_lazy", {})
    monkeypatch.setattr(registry, "_packages", {})
    monkeypatch.setattr(registry, "_modules", {})
    monkeypatch.setattr(registry, "_namespaces", {})
    monkeypatch.setattr(registry, "_installed", {})


@pytest.fixture
def root() -> Iterator[ModuleType]:
    module = ModuleType("invented")
    module.__path__ = []
    sys.modules["invented"] = module
    yield module
    for name in [name for name in sys.modules if name.split(".")[0] == "invented"]:
        del sys.modules[name]


def test_a_decorated_function_is_returned_unchanged_under_all_its_names(root: ModuleType):
    def tanh() -> str:
        return "tanh"

    assert public("tanh", "math.tanh", "nn.tanh")(tanh) is tanh
    install(root)
    assert root.tanh is root.math.tanh is root.nn.tanh is tanh
    assert names() == ["math.tanh", "nn.tanh", "tanh"]


def test_a_package_is_found_when_it_is_asked_for_and_adds_to_public_names(root: ModuleType):
    package = ModuleType("package")
    package.conv2d = "theirs"
    publish_value("contrib.layers.linear", "ours")
    publish_package("contrib.layers", lambda: package)
    publish_package("keras", lambda: package)
    install(root)
    assert root.contrib.layers.linear == "ours"
    assert root.contrib.layers.conv2d == "theirs"
    assert root.keras is package
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        root.contrib.layers.other


def test_a_package_that_is_not_installed_says_what_to_do(root: ModuleType):
    def load() -> object:
        raise NotInstalled("pip install it.")

    publish_package("keras", load)
    install(root)
    with pytest.raises(AttributeError, match=r"tf\.keras is not here: pip install it\."):
        root.keras


def test_lazy_names_are_made_when_they_are_asked_for(root: ModuleType):
    made: list[str] = []

    def load() -> str:
        made.append("mock")
        return "mock"

    publish_lazily("test.mock", load)
    install(root)
    assert made == []
    assert root.test.mock == root.test.mock == "mock"
    assert made == ["mock"]
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        root.test.other
    with pytest.raises(ValueError, match="bound twice"):
        publish_lazily("test.mock", lambda: "another")


def test_a_declared_name_imports_the_module_that_registers_it(
    root: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "from thalweg.public import public\n@public('rare.one', 'rare.uno')\ndef one(): ...\n"
    (tmp_path / "invented_rare.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    publish_from("invented_rare", "rare.one", "rare.uno")
    install(root)
    assert "invented_rare" not in sys.modules
    assert {"one", "uno"} <= {*dir(root.rare)}
    assert root.rare.one is sys.modules["invented_rare"].one is root.rare.uno
    assert names() == ["rare.one", "rare.uno"]
    del sys.modules["invented_rare"]


@pytest.fixture
def rare_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package below the root that declares names in two namespaces, one of its own name."""
    package = tmp_path / "rare"
    package.mkdir()
    text = "from thalweg.public import public\n@public('rare.one', 'contrib.rare.one')\ndef one(): ...\n"
    (package / "__init__.py").write_text(text)
    yield str(tmp_path)


def test_a_namespace_imports_its_package_when_a_name_is_asked_for(
    root: ModuleType, rare_package: str
):
    root.__path__ = [rare_package]
    publish_from("invented.rare", "rare.*", "contrib.rare.*")
    publish_value("contrib.rare.common", "common")
    install(root)
    assert root.contrib.rare.common == "common"
    assert {"rare", "contrib"} <= {*dir(root)}
    assert not hasattr(root.contrib.rare, "__wrapped__")
    assert "invented.rare" not in sys.modules
    one = root.contrib.rare.one
    assert root.rare is sys.modules["invented.rare"]
    assert one is root.rare.one
    assert "one" in dir(root.rare)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        root.rare.other


def test_a_package_of_a_namespace_can_be_imported_by_its_name(root: ModuleType, rare_package: str):
    root.__path__ = [rare_package]
    publish_from("invented.rare", "rare.*", "contrib.rare.*")
    install(root)
    rare = importlib.import_module("invented.rare")
    assert vars(root.contrib.rare)["one"] is rare.one


def test_all_of_a_namespace_can_be_imported_and_listed(root: ModuleType, rare_package: str):
    root.__path__ = [rare_package]
    publish_from("invented.rare", "contrib.rare.*")
    install(root)
    assert names() == ["contrib.rare.one", "rare.one"]
    found: dict[str, object] = {}
    exec("from invented.contrib.rare import *", found)
    assert found["one"] is root.rare.one


def test_nested_namespaces_can_be_imported(root: ModuleType):
    publish_value("nn.rnn_cell.LSTMCell", "cell")
    publish_value("app.flags.FLAGS", "flags")
    install(root)
    assert importlib.import_module("invented.nn.rnn_cell").LSTMCell == "cell"
    assert importlib.import_module("invented.app.flags").FLAGS == "flags"


def test_names_go_onto_a_real_submodule_when_it_is_imported(root: ModuleType):
    layers = ModuleType("invented.layers")
    sys.modules["invented.layers"] = layers
    publish_value("layers.dense", "dense")
    install(root)
    assert root.layers is layers
    assert layers.dense == "dense"


def test_names_go_onto_a_published_module(root: ModuleType):
    module = ModuleType("invented.deep.inside")
    publish_value("logging", module)
    publish_value("logging.INFO", 20)
    install(root)
    assert root.logging is module
    assert module.INFO == 20


def test_a_module_of_another_package_is_never_written_to(root: ModuleType):
    stranger = ModuleType("logging")
    root.logging = stranger
    publish_value("logging.INFO", 20)
    install(root)
    assert root.logging is not stranger
    assert not hasattr(stranger, "INFO")


def test_the_same_object_may_be_registered_twice_but_a_second_object_may_not():
    publish_value("pi", "three")
    publish_value("pi", "three")
    with pytest.raises(ValueError, match="'pi' is bound to 'three'"):
        publish_value("pi", "four")
    assert namespace() == {"pi": "three"}


@pytest.mark.parametrize("name", ["", "a..b", "not a name", ".a"])
def test_a_name_must_be_a_dotted_identifier(name: str):
    with pytest.raises(ValueError, match="not a dotted Python name"):
        publish_value(name, 1)


def test_public_without_names_is_refused():
    with pytest.raises(ValueError, match="at least one name"):
        public()
