"""Matrix products in a rank's ring: their order, their errors, and that they move with it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from softgpu.gemm import Gemm, Matrix

from support.formats import R_64F
from support.ring_client import (
    ASYNC_ERROR,
    CHUNK,
    CONTRACT,
    DEV_BASE,
    DEVICE_SYNC,
    GEMM,
    RingClient,
    attach,
    device,
    hand_over,
    leave,
    until,
)

GEMM_CALL = CONTRACT.opcodes["GEMM_CALL"].number
LT, CUBLAS, LISTED = 1, 2, 4  # enum rf_gemm_api
SIDE = 16
ONE, TWO = (Matrix(DEV_BASE + i * CHUNK, 1, SIDE) for i in range(2))
SQUARE = Gemm(SIDE, SIDE, SIDE, ONE, ONE, TWO, TWO)
BACK = replace(SQUARE, a=TWO, b=TWO, c=ONE, d=ONE)


@pytest.fixture
def client() -> Iterator[RingClient]:
    made = RingClient()
    yield made
    made.close()


def matrix(power: int) -> np.ndarray[Any, Any]:
    """A permutation, whose products are exact, to that power."""
    return np.linalg.matrix_power(np.eye(SIDE, dtype=np.int64)[:, np.roll(range(SIDE), 3)], power)


def bits(power: int) -> bytes:
    return matrix(power).T.astype("<f4").tobytes()  # by columns


def test_products_run_in_their_streams_order(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, 2 * CHUNK)
        client.write(DEV_BASE, bits(1))
        for call in (SQUARE, BACK, SQUARE):
            client.post(GEMM, call.record())
        assert client.read(DEV_BASE + CHUNK, 4 * SIDE**2) == bits(8)
        assert client.read(DEV_BASE, 4 * SIDE**2) == bits(4)
        leave(d)


def test_a_rank_moves_between_two_products(client: RingClient) -> None:
    with device() as first, device() as second:
        attach(first, client)
        client.alloc(DEV_BASE, 2 * CHUNK)
        client.write(DEV_BASE, bits(1))
        client.post(GEMM, SQUARE.record())
        hand_over(first, client, 1, second, 2)
        client.post(GEMM, BACK.record())
        assert client.read(DEV_BASE, 4 * SIDE**2) == bits(4)
        leave(second, 2)


@pytest.mark.parametrize(
    "call",
    [
        replace(SQUARE, m=0),
        replace(SQUARE, count=0),
        replace(SQUARE, k=2**31),
        replace(SQUARE, flags=16),
        replace(SQUARE, a=Matrix(DEV_BASE, 1, SIDE - 1)),
        replace(SQUARE, b=Matrix(DEV_BASE, 2, SIDE)),
        replace(SQUARE, d=Matrix(DEV_BASE, 0, 1)),
    ],
)
def test_a_product_of_no_known_form_is_answered(client: RingClient, call: Gemm) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, 2 * CHUNK)
        assert client.call(GEMM, call.record()) == 1
        assert client.call(DEVICE_SYNC) == 0
        leave(d)


def how(api: int, ops: tuple[int, int] = (0, 0), by_rows: int = 0, ld: int = SIDE) -> bytes:
    """struct rf_gemm_how."""
    numbers = (0, 0, *[ld] * 4, api, *ops, by_rows, -1, 0, 0, *[0] * 6, 0)
    return struct.pack("<6Q4B3i6IQ", *numbers)


@pytest.mark.parametrize(
    ("call", "said", "error"),
    [
        (SQUARE, how(CUBLAS), 0),
        (SQUARE, how(LT), 0),
        (SQUARE, how(0), 1),
        (SQUARE, how(8), 1),
        (SQUARE, how(CUBLAS, ops=(3, 0)), 1),
        (SQUARE, how(LISTED), 1),
        (SQUARE, how(CUBLAS, ld=SIDE + 1), 1),
        (SQUARE, how(CUBLAS, ops=(1, 0)), 1),
        (SQUARE, how(CUBLAS, by_rows=4), 1),
        (replace(SQUARE, d=replace(SQUARE.c, address=SQUARE.c.address + 256)), how(CUBLAS), 1),
        (replace(SQUARE, d=replace(SQUARE.c, batch=SIDE), count=2), how(CUBLAS), 1),
        (SQUARE, how(LT, by_rows=1), 1),
    ],
)
def test_a_call_of_another_product_than_is_described_is_refused(
    client: RingClient, call: Gemm, said: bytes, error: int
) -> None:
    """A device makes the call; what it reads and writes is known from the product."""
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, 2 * CHUNK)
        client.post(GEMM_CALL, call.record() + said)
        assert client.call(DEVICE_SYNC) == error
        leave(d)


@pytest.mark.parametrize(
    "call, error",
    [
        (replace(SQUARE, type_ab=R_64F), 801),
        (replace(SQUARE, d=Matrix(DEV_BASE + 2 * CHUNK, 1, SIDE)), 700),
    ],
)
def test_an_unsupported_product_is_the_rank_s_error(
    client: RingClient, call: Gemm, error: int
) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, 2 * CHUNK)
        client.post(GEMM, call.record())
        until(lambda: client.u32(ASYNC_ERROR) == error, d)
        assert client.call(DEVICE_SYNC) == error
        leave(d)
