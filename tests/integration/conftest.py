"""Fixtures: a stack shared by the tests of a run, and logs printed with a failing test."""

import pytest

from harness import Stack

_stacks = []


@pytest.fixture(scope="session")
def stack():
    """The service with its default configuration, shared: tests leave it as they found it."""
    with_all = Stack()
    _stacks.append(with_all)
    yield with_all
    with_all.close()
    _stacks.remove(with_all)


@pytest.fixture
def own_stack():
    """A factory of services that a test may break: own_stack(config_text)."""
    made = []

    def make(config=""):
        one = Stack(config)
        made.append(one)
        _stacks.append(one)
        return one

    yield make
    for one in made:
        one.close()
        _stacks.remove(one)


@pytest.fixture
def client(stack):
    return stack.client


@pytest.fixture
def sandbox(client):
    """A ready sandbox of the base template, gone after the test."""
    one = client.create(template="base")
    yield one
    client.request("DELETE", f"~/{one['id']}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for one in _stacks:
            report.sections.append((f"logs of {one.dir}", one.logs()))
