"""Methods by name, built in and from other packages."""

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from mergepipe.errors import RecipeError, UsageError
from mergepipe.operators import registry


@dataclass(frozen=True)
class Method:
    """As much of an operator as the registry looks at."""

    name: str
    version: str
    parameters: tuple[object, ...] = ()


@dataclass
class Plugin:
    """What a test's entry points load, by `module:attribute`; counts the loads."""

    objects: dict[str, Any]
    loaded: list[str] = field(default_factory=list)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that packages with these entry points (name, value, object) are installed."""

    def pretend(*entries: tuple[str, str, Any]) -> Plugin:
        plugin = Plugin({value: loaded for _, value, loaded in entries})

        def load(entry: EntryPoint) -> Any:
            plugin.loaded.append(entry.value)
            found = plugin.objects[entry.value]
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(EntryPoint, "load", load)
        points = [EntryPoint(name, value, registry.GROUP) for name, value, _ in entries]
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])
        registry._plugins.cache_clear()
        return plugin

    yield pretend
    registry._plugins.cache_clear()


@pytest.mark.parametrize("name", registry.MERGEKIT_METHODS)
def test_mergekits_methods_are_found(name: str) -> None:
    """Every method that mergekit registers is there under its name, its default being mergekit's form."""
    assert name in registry.names()
    found = registry.operator(name)
    assert found.name == name
    assert found.version.partition("@")[0] == name
    assert found is registry.operator(found.version)
    assert registry.variants(name)[0] == found.version.partition("@")[2] == "mergekit"


def test_names_are_sorted_and_unique() -> None:
    """The list does not depend on the order in which modules are found."""
    assert list(registry.names()) == sorted(set(registry.names()))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("tise", "ties"), ("TIES", "ties"), ("task-arithmetic", "task_arithmetic"), ("dareties", "dare_ties")],
)
def test_a_misspelt_method_gets_the_nearest_name(typed: str, meant: str) -> None:
    """An unknown method is an error that offers the nearest one."""
    with pytest.raises(RecipeError, match=f'unknown method "{typed}".*did you mean "{meant}"'):
        registry.operator(typed)


def test_an_unknown_variant_is_an_error() -> None:
    """A variant that a method does not have is refused with those it has."""
    with pytest.raises(RecipeError, match=r'ties has no variant "papr".*it has: '):
        registry.operator("ties", "papr")
    with pytest.raises(RecipeError, match="ties has no variant"):
        registry.operator("ties@nothing")


def test_name_and_variant_may_not_contradict() -> None:
    """A full name with another variant beside it is an error."""
    with pytest.raises(RecipeError, match="contradict"):
        registry.operator("ties@mergekit", "paper")


def test_another_packages_method_is_found_and_loaded_on_demand(install: Any) -> None:
    """An entry point adds a method; listing names loads nothing, and neither do other methods."""
    mine: object = Method("mine", "mine@1")
    plugin = install(("mine", "package.mine:MINE", mine))
    assert "mine" in registry.names()
    registry.operator("linear")
    assert plugin.loaded == []
    assert registry.operator("mine") is mine
    assert plugin.loaded == ["package.mine:MINE"]


def test_a_package_may_offer_variants(install: Any) -> None:
    """An entry's object may be several variants; the first is the default."""
    first: object = Method("mine", "mine@a")
    second: object = Method("mine", "mine@b")
    install(("mine", "package:ALL", (first, second)))
    assert registry.variants("mine") == ("a", "b")
    assert registry.operator("mine") is first
    assert registry.operator("mine", "b") is second
    assert registry.operator("mine@b") is second


@pytest.mark.parametrize(
    "loaded",
    [
        ImportError("no module named torch"),
        Method("other", "other@1"),
        (),
        "text",
        (Method("mine", "m@1"), Method("mine", "m@1")),
    ],
)
def test_a_faulty_plug_in_is_named_and_stops_only_its_own_method(install: Any, loaded: Any) -> None:
    """What cannot be loaded, has another name, or is no operator is an error naming the entry."""
    install(("mine", "package.mine:MINE", loaded))
    with pytest.raises(UsageError, match=r'"mine" of .*package\.mine:MINE'):
        registry.operator("mine")
    assert registry.operator("ties").name == "ties"


def test_two_methods_of_one_name_are_an_error(install: Any) -> None:
    """Neither a built-in method nor another package's is replaced in silence."""
    install(("ties", "package:TIES", Method("ties", "ties@other")))
    with pytest.raises(UsageError, match="two merge methods"):
        registry.operator("ties")
    install(("mine", "one:MINE", Method("mine", "mine@1")), ("mine", "two:MINE", Method("mine", "mine@2")))
    with pytest.raises(UsageError, match=r"one:MINE.*two:MINE"):
        registry.operator("mine")
