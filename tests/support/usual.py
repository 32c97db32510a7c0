"""Which cases of a test `make test` runs. A plugin of tests/conftest.py.

``@pytest.mark.usual("3 ranks", "2 ranks")`` above a parametrized test names cases by their id; the
others are slow. A case that does not exist is refused, unless single tests are selected.
"""

from __future__ import annotations

from collections import defaultdict

import pytest


class Usual:
    """Marks the cases that are not named as slow, before pytest selects by marks."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        missing: dict[str, set[str]] = defaultdict(set)
        found: dict[str, set[str]] = defaultdict(set)
        for item in items:
            if named := item.get_closest_marker("usual"):
                test, _, case = item.nodeid.removesuffix("]").partition("[")
                missing[test] |= set(named.args)
                found[test].add(case)
                if case not in named.args:
                    item.add_marker(pytest.mark.slow)
        if any("::" in argument for argument in config.args):
            return
        for test, cases in missing.items():
            if cases - found[test]:
                raise pytest.UsageError(f"{test}: no such cases: {sorted(cases - found[test])}")


def configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Usual())
