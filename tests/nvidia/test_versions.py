"""Promise: a product's result counts as equal to another one's only if the same version of NVIDIA's
library has computed both."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from softgpu.gemm import Gemm, Matrix

from rankfold.proxy.native import EVENT_SAVED
from support.contents import images_of
from support.ring_client import (
    CHUNK,
    CONTRACT,
    DEV_BASE,
    DEVICE_SYNC,
    GEMM,
    RingClient,
    leave,
    settle,
    until,
)
from support.ring_client import device as device_of_ranks

from .fake_driver import Fake
from .test_own_products import LT, ONE, how

GEMM_CALL = CONTRACT.opcodes["GEMM_CALL"].number


@pytest.mark.parametrize("api", [0, LT, ONE])
def test_products_of_another_version_of_the_library_are_other_content(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, api: int
) -> None:
    """Ranks whose products have equal inputs have equal results if one library computes them."""
    monkeypatch.setenv("RANKFOLD_TEST_HAL", "nvidia")
    ranks = [RingClient(rank, 2) for rank in range(2)]
    a, b = (Matrix(DEV_BASE + 512 * place, 1, 4) for place in range(2))
    versions = {1024: (130100, 130100), 1536: (130100, 130200), 2048: (130200, 130200)}
    with device_of_ranks() as native, ExitStack() as stack:
        native.job_open(1, 1, 0, 1, [0, 0], -1)
        for rank in ranks:
            native.rank_attach(1, rank.rank, rank.fd, rank.image)
            rank.alloc(DEV_BASE, CHUNK)
            rank.write(DEV_BASE, bytes(4096))
        for place, each in versions.items():
            c = Matrix(DEV_BASE + place, 1, 4)
            record = Gemm(4, 4, 4, a, b, c, c).record()
            for rank, version in zip(ranks, each, strict=True):
                fake.versions(**{"cublas" if api == ONE else "cublaslt": version})
                if api:
                    rank.post(GEMM_CALL, record + how(api, (4, 4, 4)))
                else:
                    rank.post(GEMM, record)
                assert rank.call(DEVICE_SYNC) == 0
        fake.versions()
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_save(1)
        until(lambda: any(event.kind == EVENT_SAVED for event in native.events()), native)
        first, second = images_of(ranks, stack)
        same = [
            first.content(DEV_BASE + place, 64) == second.content(DEV_BASE + place, 64)
            for place in versions
        ]
        leave(native)
    for rank in ranks:
        rank.close()
    assert same == [True, False, True]
