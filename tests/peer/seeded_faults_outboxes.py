"""Faults seeded into outboxes in the memory of devices."""

from __future__ import annotations

import os
from collections.abc import Callable

from peer.test_peer import (
    DEVICES,
    load,
    test_bytes_outside_a_second_outbox_are_refused,
    test_readers_that_have_opened_the_second_outbox_get_what_is_for_them_there,
)
from support.seeding import Check, Copy, Table


def second_outbox(copy: Copy) -> Callable[[], None]:
    library = load(copy.folder, copy.changed)

    def check() -> None:
        fd = library[1].peer_segment_create(DEVICES)
        try:
            test_bytes_outside_a_second_outbox_are_refused(library, fd)
            test_readers_that_have_opened_the_second_outbox_get_what_is_for_them_there(library, fd)
        finally:
            os.close(fd)

    return check


TABLE: Table = {
    "proxy/core/peer/peer.c": {
        Check(second_outbox, quick=True): {
            "the-outbox-of-the-next-device": (
                "p->second[device].addr + offset - PEER_OUTBOX_BYTES",
                "p->second[(device + 1) % p->count].addr + offset - PEER_OUTBOX_BYTES",
            ),
            "one-reader-is-enough": ("!(readers & ~p->readers)", "(readers & p->readers)"),
            "a-range-goes-back-to-the-other-outbox": (
                "ranges_give(&p->direct, offset - PEER_OUTBOX_BYTES, size);",
                "ranges_give(&p->host, offset - PEER_OUTBOX_BYTES, size);",
            ),
            "bytes-after-the-end-of-an-outbox": (
                "is_within(offset - PEER_OUTBOX_BYTES, bytes, p->second[device].bytes)",
                "is_within(offset - PEER_OUTBOX_BYTES, bytes, PEER_OUTBOX_BYTES)",
            ),
        },
    },
}
