"""Fixtures: a stack shared by the tests of a run, and logs printed with a failing test.

The suite runs once through each web server, which PADDOCK_WEB names. Two marks say what that is
for. `any_web`: the web server is no part of what is proved (start refusals, the command line, the
inside of a guest), so the test runs with lighttpd, the first, alone. `web("nginx", ...)`: it proves
what only the named ones do. What has no mark runs through all of them.
"""

import pytest

from harness import WEB, Stack, take_sanitizer_reports

_stacks = []


def pytest_configure(config):
    config.addinivalue_line("markers", "any_web: runs through one web server only")
    config.addinivalue_line("markers", "web(name, ...): runs through these web servers only")


def runs_here(item):
    only = item.get_closest_marker("web")
    if item.get_closest_marker("any_web"):
        return WEB == "lighttpd"
    return only is None or WEB in only.args


def pytest_collection_modifyitems(config, items):
    others = [item for item in items if not runs_here(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if runs_here(item)]


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
    """A factory of services that a test may break: own_stack(config_text, **options of Stack)."""
    made = []

    def make(config="", **options):
        one = Stack(config, **options)
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
    # Some come at a process's end, and so with the test that ends its service.
    found = take_sanitizer_reports() if call.when == "teardown" else []
    if found:
        report.outcome = "failed"
        report.longrepr = "\n\n".join(["a sanitizer reported:", *found])
    if report.failed:
        for one in _stacks:
            report.sections.append((f"logs of {one.dir}", one.logs()))
