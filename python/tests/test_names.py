"""What can be done with a client can be done with that of asyncio, by the same names: they once parted."""

import inspect

import pytest

import holdfast
from holdfast import aio

PAIRS = [
    (holdfast.Client, aio.AsyncClient),
    (holdfast.Table, aio.AsyncTable),
    (holdfast.Log, aio.AsyncLog),
    (holdfast.Scribe, aio.AsyncScribe),
    (holdfast.Items, aio.AsyncItems),
    (holdfast.Ride, aio.AsyncRide),
    (holdfast.Records, aio.AsyncRecords),
]
#: What one of them has alone, and why.
ALONE = {
    # `open` has a mode there; here a file that is written is another class.
    (aio.AsyncClient, "create"),
}
#: Calls with other parameters.
OTHERWISE = {"open"}


def public(of):
    """The public names of a class and what they are; not those of its objects' attributes."""
    return {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize("blocking, awaited", PAIRS, ids=lambda of: of.__name__)
def test_names_are_the_same(blocking, awaited):
    here = {name for name in public(awaited) if (awaited, name) not in ALONE}
    # Attributes that are set when an object is made.
    made = {"log", "reached", "scribe"}
    assert here - made == set(public(blocking)) - made


@pytest.mark.parametrize("blocking, awaited", PAIRS, ids=lambda of: of.__name__)
def test_parameters_are_the_same(blocking, awaited):
    for name, call in public(awaited).items():
        other = getattr(blocking, name, None)
        if not inspect.isfunction(call) or not inspect.isfunction(other) or name in OTHERWISE:
            continue
        here, there = ([(one.name, one.kind) for one in inspect.signature(of).parameters.values()] for of in (call, other))
        # What is handed on is the other's.
        if here[-1][1] is inspect.Parameter.VAR_KEYWORD and here[-1] not in there:
            here.pop()
            there = there[: len(here)]
        assert here == there, name


def test_every_call_says_what_it_does():
    for pair in PAIRS:
        for of in pair:
            for name, call in public(of).items():
                assert inspect.getdoc(call), f"{of.__name__}.{name}"


def test_stubs_name_what_there_is():
    """Of each class that is made in Rust the same names, and of what they take the same parameters."""
    import ast
    import pathlib

    from holdfast import _holdfast

    stubs = ast.parse(pathlib.Path(_holdfast.__file__).with_name("_holdfast.pyi").read_text())
    classes = {one.name: one for one in stubs.body if isinstance(one, ast.ClassDef)}
    made = {name: one for name, one in vars(_holdfast).items() if inspect.isclass(one)}
    assert set(classes) == set(made)
    for name, stub in classes.items():
        calls = {call.name: call.args for call in stub.body if isinstance(call, ast.FunctionDef)}
        assert set(calls) - {"__init__"} == set(public(made[name])), name
        for call, taken in calls.items():
            of = made[name] if call == "__init__" else getattr(made[name], call)
            if callable(of):
                named = [one.arg for one in (*taken.args, *taken.kwonlyargs) if one.arg != "self"]
                assert named == [one for one in inspect.signature(of).parameters if one != "self"], f"{name}.{call}"
