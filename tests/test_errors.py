import pickle

import pytest

from sparknet import errors

MISTAKES = {"ConfigError", "SourceError", "ShardError", "LabelError", "SampleError", "JavaError", "RunError"}
FAILURES = {"SparkNetError", "DecodeError", "SessionError", "DivergedError"}
ALL = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.SparkNetError)
}


def test_a_mistake_exits_with_2_and_a_failure_with_1() -> None:
    assert {name for name, kind in ALL.items() if kind.exit_status == 2} == MISTAKES
    assert {name for name, kind in ALL.items() if kind.exit_status == 1} == FAILURES


@pytest.mark.parametrize("kind", ALL.values(), ids=list(ALL))
def test_each_is_of_the_one_tree_and_travels_by_pickle(kind: type[errors.SparkNetError]) -> None:
    error = pickle.loads(pickle.dumps(kind("tau must be at least 1, got 0")))
    assert isinstance(error, errors.SparkNetError)
    assert type(error) is kind
    assert str(error) == "tau must be at least 1, got 0"


def test_who_knows_only_python_can_catch_a_config_error() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.ShardError, errors.SourceError)


TRACES = [
    (
        "java.io.IOException: a\n\tat x.Errors.y(Errors.java:1)\nCaused by: java.net.ConnectException: refused\n\tat z",
        "java.net.ConnectException: refused",
    ),
    (
        "An error occurred.\n: java.io.IOException: Failed under [].\n\tat org.x(U.scala:1)",
        "java.io.IOException: Failed under [].",
    ),
    (
        'Exception in thread "main" x.SparkException: no master\n\tat y',
        'Exception in thread "main" x.SparkException: no master',
    ),
    (
        "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module 'x'\n",
        "ModuleNotFoundError: No module 'x'",
    ),
    ("nothing of that kind", None),
]


@pytest.mark.parametrize(("text", "cause"), TRACES)
def test_the_cause_in_a_stack_trace(text: str, cause: str | None) -> None:
    assert errors.cause_in(text) == cause
