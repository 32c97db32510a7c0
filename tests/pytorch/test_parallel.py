"""Programs of four ranks on fewer devices than ranks: PyTorch's ways to train in parallel, forms of
its collectives, and models of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from guests import installed
from guests.runner import Place, Results, Way, folded, moved
from guests.table import Guest

from support.command import Rankfold, Specs
from support.leaks import State


def transformers(_: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(installed.packages(Path(__file__).with_name("transformers.txt"), "3.13")),
        "HF_HUB_OFFLINE": "1",
    }


PARALLEL = Guest(
    "torch-parallel",
    "tests/pytorch/parallel.py",
    (),
    ranks=4,
    lines=3,
    interpreter="build/torch/python",
    capability="9.0",
    memory="1GiB",
)
FORMS = Guest(
    "torch-collective-forms",
    "tests/pytorch/collective_forms.py",
    (),
    ranks=4,
    lines=100,
    interpreter="build/torch/python",
    capability="9.0",
    memory="1GiB",
)
MODELS = Guest(
    "torch-models",
    "tests/pytorch/models.py",
    ("2",),
    ranks=4,
    lines=3,
    env=transformers,
    interpreter="build/torch/python",
    capability="9.0",
    memory="1GiB",
)


def halved(place: Place) -> Results:
    """Two ranks on each device from the beginning."""
    job = place.job()
    job.apply(gpus=place.guest.ranks // 2)
    return job.results()


@pytest.fixture(scope="module")
def expected() -> dict[str, Results]:
    """The results of each program's undisturbed run, once a test has made that run."""
    return {}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", [folded, halved, moved], ids=lambda way: way.__name__)
@pytest.mark.parametrize("guest", [PARALLEL, FORMS, MODELS], ids=str)
def test_a_program_gives_the_same_bits_on_fewer_devices(
    guest: Guest,
    way: Way,
    expected: dict[str, Results],
    torch: Path,
    state: State,
    rankfold: Rankfold,
    specs: Specs,
) -> None:
    place = Place(guest, state, rankfold, specs)
    if guest.name not in expected:
        expected[guest.name] = place.undisturbed()
    assert way(place) == expected[guest.name]
