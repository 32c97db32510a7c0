"""Each fault that could be seeded into the store is noticed by the fast test that is named."""

from __future__ import annotations

import pytest
from faults.tree import Mutant, Tree, source

from checkpoint.mutants import MUTANTS


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree.copy(tmp_path_factory.mktemp("tree") / "rankfold")


def test_they_fit_the_source() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert source(mutant).replace(mutant.old, mutant.new) != source(mutant)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_fault_all_of_them_pass(tree: Tree) -> None:
    done = tree.test(sorted({mutant.noticed_by for mutant in MUTANTS}))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_noticed(tree: Tree, mutant: Mutant) -> None:
    with tree.with_fault(mutant):
        done = tree.test([mutant.noticed_by])
    assert done.returncode == 1, f"{mutant.noticed_by} ended with {done.returncode}:\n{done.stdout}"
