"""The messages of the control protocol: the requests that a proxy and a launcher take, and
their replies. (Those of the reconciler stand in reconciler/operations.py, those of the compiler in
proxy/hal/soft/compiler/server.py.)

Each message is a length (u32, little endian) and that many bytes of JSON. A request is ``{"v": 1,
"id": n, "op": name, …}``, its reply ``{"v": 1, "id": n, "ok": true, …}`` or ``{"v": 1, "id": n,
"ok": false, "error": {"code": …, "message": …}}``; ``id`` is null where the request could not be
read, and then the connection ends. Replies may come in any order. A message with ``event`` instead
is a notice. Descriptors travel as SCM_RIGHTS with the message whose ``fds`` counts them.

A request is decoded into its class here and checked, ranges and all, before anything acts on it;
a field that it does not have is refused. Replies may hold more than their classes know.

Every operation is idempotent: asked twice, it answers twice the same. Sizes are bytes; times named
``*_at`` are seconds of CLOCK_MONOTONIC unless said otherwise.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from rankfold import records

VERSION = 1
FDS_MAX = 16
RANKS_MAX = records.limits()["RANKS_MAX"]
DEVICES_MAX = records.limits()["DEVICES_MAX"]  # of one job
CHUNK_BYTES = records.channel().constants["RF_CHUNK_BYTES"]  # ranks share whole chunks

Number = Annotated[int, Meta(ge=0, le=2**53)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Epoch = Annotated[int, Meta(ge=1, le=2**53)]
Rank = Annotated[int, Meta(ge=0, lt=RANKS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\0]*\Z")]
FolderPath = Annotated[str, Meta(max_length=4095, pattern=r"^/[^\0]*\Z")]
SocketPath = Annotated[str, Meta(max_length=107, pattern=r"^/[^\0]*\Z")]

JobState = Literal["joining", "running", "stopping", "cut", "saved", "failed"]
"""Of a job on a device: "joining" (rendezvous not complete), "running", "stopping" (barrier
requested), "cut" (consistent cut: nothing in flight), "saved", "failed" (its reason says why)."""

RankState = Literal["waiting", "attached", "exited"]
"""Of a rank on a device: "waiting" (its launcher has no channel yet), "attached", "exited"."""

RankAt = Literal["", "host", "device", "turn", "others"]
"""What a rank gets on by next: its program on the host; work of its own that the device has; its
turn on the device, or what its proxy does for it; what other ranks call. Empty: an older proxy."""


# ---- what every message has ------------------------------------------------------------------


class Fault(Struct, frozen=True):
    """Why a request was refused: `code` for programs, `message` for people."""

    code: str
    message: str


class Head(Struct, frozen=True):
    """What is read of any message first: what it is, and what belongs to it."""

    v: int
    id: Number | None = None
    op: str | None = None
    ok: bool | None = None
    event: str | None = None
    error: Fault | None = None
    fds: Annotated[int, Meta(ge=0, le=FDS_MAX)] = 0


class Operation(Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """A request."""

    takes_fds: ClassVar[int] = 0  # descriptors that come with it

    v: Literal[1]
    id: Number
    fds: Number = 0


class Done(Struct, frozen=True):
    """The reply of an operation that has nothing to say."""


# ---- asked of each server ----------------------------------------------------------------------


class Hello(Operation, frozen=True, tag="hello"):
    """Who are you? → ProxyHello, LauncherHello."""


class Status(Operation, frozen=True, tag="status"):
    """How are things? → ProxyStatus, LauncherStatus."""


class Shutdown(Operation, frozen=True, tag="shutdown"):
    """→ Done, then the process ends. Not of a launcher: that ends with its rank."""


def of_life(incarnation: int) -> dict[str, int]:
    """What a request says of its incarnation. A job's first is left out: its launchers and proxies
    may be older than the field, and would refuse it."""
    return {"incarnation": incarnation} if incarnation > 1 else {}


# ---- a proxy: one server process per device ----------------------------------------------------


class ProxyHello(Struct, frozen=True):
    kind: Literal["proxy"]
    device: Name
    type: Name
    memory: Size
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    cc: str = ""  # an older proxy sends none: it is another device than any pool has now
    speed: float = 0.0


class RankFault(Struct, frozen=True):
    """The error that sticks to a rank."""

    code: int
    text: str = ""


class RankTold(Struct, frozen=True):
    """A rank on a device. Counters are since the rank began, ``*_here`` since it came here. Of what
    is shared: ProxyStatus. `quiet_s`: for how long it was not seen to call for anything, nor work
    of it to begin or end."""

    rank: Rank
    state: RankState
    resident: bool = False
    used: Size = 0
    error: RankFault | None = None
    kernels: Size = 0
    kernels_here: Size = 0
    collectives: Size = 0
    collectives_here: Size = 0
    records: Size = 0
    records_here: Size = 0
    switches: Size = 0
    switches_here: Size = 0
    squashed: Size = 0
    squashed_here: Size = 0
    shared: Size = 0
    spared: Size = 0
    spared_here: Size = 0
    copies: Size = 0
    copies_here: Size = 0
    unforeseen: Size = 0
    unforeseen_here: Size = 0
    prepared: Size = 0
    prepared_here: Size = 0
    at: RankAt = ""
    quiet_s: float = 0.0


class RankGone(RankTold, frozen=True, kw_only=True):
    """A rank of a placement that has ended."""

    job: Name
    epoch: Epoch


class Spent(Struct, frozen=True):
    """`seconds` since a job was opened on a device, and in how many of them the device ran nothing
    because it went from rank to rank, because memory was moved or copied for a rank that was to
    run, and because ranks waited for others to come to the same."""

    seconds: float
    switches: float
    copies: float
    waiting: float


class Guarded(Struct, frozen=True):
    """At each `every` collectives what should be equal is compared; `compared` parts were;
    of so many ranks none is any more (`unwatched`), because their kernels do not let them stop.
    Launches of kernels of which nothing is known: so many were `measured`, and so many of them
    do the same for all ranks (`alike`)."""

    every: Size
    compared: Size
    unwatched: Size = 0
    measured: Size = 0
    alike: Size = 0


class JobTold(Struct, frozen=True):
    """A job on a device, and those of its ranks that are placed there. `races`: accesses that its
    program does not order, where that is checked; `alarms`: contents that should be equal and are
    not. `shared`: bytes of chunks that several of these ranks have now, each chunk once.
    `cut_age_s`, `released_age_s`: seconds since its cut, and since its first rank was let go."""

    job: Name
    epoch: Epoch
    state: JobState
    reason: str = ""
    cut_age_s: float | None = None
    released_age_s: float | None = None
    ranks: list[RankTold] = []
    races: list[str] = []
    alarms: list[str] = []
    shared: Size = 0
    spent: Spent | None = None
    guard: Guarded | None = None
    incarnation: Epoch = 1


class ProxyStatus(Struct, frozen=True):
    """`used`: resident chunks; `swap`: host memory that holds content which is not resident;
    `history`: ranks of the last placements that ended; `trouble`: what keeps jobs from leaving;
    `lost`: why the device serves nobody any more, until another proxy has it.
    Counters are since the proxy began: `squashed` operations were done by another rank's; `spared`
    bytes were not moved in or out, because another rank had them here or the host had them already;
    `swapped_alike` of those that were, though another rank held the same at that address;
    `copies` of chunks were made before they were written, `unforeseen` ones while they were.
    `prepared` chunks came before their rank's turn. `shared`: bytes of several ranks now;
    `shares`: whether ranks may share here, null if an older proxy does not say. `loaded`: kernels
    whose code it has."""

    device: Name
    type: Name
    memory: Size
    used: Size
    jobs: list[JobTold]
    swap: Size = 0
    history: list[RankGone] = []
    pid: Number = 0
    trouble: str = ""
    lost: str = ""
    switches: Size = 0
    swapped_in: Size = 0
    swapped_out: Size = 0
    swapped_alike: Size = 0
    kernels: Size = 0
    wakeups: Size = 0
    squashed: Size = 0
    shared: Size = 0
    spared: Size = 0
    copies: Size = 0
    unforeseen: Size = 0
    prepared: Size = 0
    shares: bool | None = None
    loaded: Size = 0


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """A rank of a placement: its device, and the socket of its launcher."""

    rank: Rank
    device: Name
    launcher: SocketPath


class Peered(Struct, frozen=True, forbid_unknown_fields=True):
    """A device of a placement, and the socket of its proxy."""

    device: Name
    socket: SocketPath


class OfJob(Operation, frozen=True):
    """A request about one epoch of a job."""

    job: Name
    epoch: Epoch


class Place(OfJob, frozen=True, tag="place"):
    """→ Done. Serve these ranks: `members` are all of the job, `devices` all that serve one. The
    proxy claims its ranks from their launchers, meets the other devices, and starts to serve as
    soon as all have met. A higher epoch supersedes. Answered when noted; progress is in ``status``.
    Refused as "incarnation" where the job has been placed here in a later one.
    `cc`: the compute capability that the job sees, for which its code is chosen; empty: the
    device's. `check_order`: which accesses that the program does not order are told.
    """

    determinism: Literal["D0", "D1"]
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    members: Annotated[list[Member], Meta(min_length=1, max_length=RANKS_MAX)]
    devices: Annotated[list[Peered], Meta(min_length=1, max_length=DEVICES_MAX)]
    incarnation: Epoch = 1
    cc: Annotated[str, Meta(pattern=r"^([0-9]{1,2}\.[0-9])?\Z")] = ""
    check_order: Literal["none", "certain", "possible"] = "none"

    def __post_init__(self) -> None:
        names = [device.device for device in self.devices]
        if sorted(member.rank for member in self.members) != list(range(self.world_size)):
            raise ValueError("members must name every rank once")
        if len(set(names)) != len(names) or any(m.device not in names for m in self.members):
            raise ValueError("each member's device must be listed once in devices")


class Barrier(OfJob, frozen=True, tag="barrier"):
    """→ Standing. Request: stop at a cut. Withdraw: before it is acquired, or after (acquired, then
    released): go on in place. A new request right away goes to the device that withdrew, or to
    all; a withdrawal at the job's lowest device is known to all when it is answered."""

    action: Literal["request", "withdraw"]


class Wait(OfJob, frozen=True, tag="wait"):
    """→ Standing, once the job's state is one of these or the time is up; "failed" always ends
    it."""

    states: Annotated[list[JobState], Meta(max_length=16)]
    within_s: Annotated[float, Meta(ge=0, le=86400)]


class Standing(Struct, frozen=True):
    """Where a job stands on this device."""

    state: JobState
    reason: str = ""


class Save(OfJob, frozen=True, tag="save"):
    """→ Saved. Only at a cut, where the job stays: writes each local rank's state and memory into
    the image its launcher holds. The images hold good until the job goes on from the cut; who wants
    to keep them copies them before. A save that fails leaves the job as it was."""


class Saved(Struct, frozen=True):
    """What was written to the images."""

    saved_bytes: Size


class Detach(OfJob, frozen=True, tag="detach"):
    """→ Detached. Only at a cut, unless `discard`: writes each local rank's state and memory into
    the image its launcher holds, releases the ranks, frees the device. With `discard`: releases at
    once, nothing is saved."""

    discard: bool


class Detached(Struct, frozen=True):
    """What was written to the images."""

    saved_bytes: Size


class Peer(OfJob, frozen=True, tag="peer"):
    """→ Done and one descriptor: the job's shared segment, from its lowest device to `device`. The
    connection stays open; its end means that the device is lost."""

    device: Name


class Dump(Operation, frozen=True, tag="dump"):
    """→ {text}: what the loop sees now, for people who look for a fault."""


# ---- a launcher: one per rank ------------------------------------------------------------------


class LauncherHello(Struct, frozen=True):
    """`pid`: of the rank, as the machine's first namespace sees it; null while there is none.
    `incarnation`: how often the job has been restored, and 1."""

    kind: Literal["launcher"]
    job: Name
    rank: Rank
    pid: Annotated[int, Meta(ge=1, le=2**31)] | None
    namespaced: bool
    incarnation: Epoch = 1


class LauncherStatus(Struct, frozen=True):
    """`channel`: the rank's program has made one. `epoch`: last claimed, 0: never. `state`:
    "frozen": all of the rank's processes stand still; "empty": there is no rank. `stopped`: those
    that a signal has stopped, each as "name (pid N)"."""

    state: Literal["running", "frozen", "empty", "exited"]
    channel: bool
    epoch: Number
    exit_status: int | None
    stopped: list[str] = []


class OfRank(Operation, frozen=True, kw_only=True):
    """A request about a launcher's rank, in an incarnation of its job. Refused as "incarnation" by
    a launcher that was begun for another; what ends a rank, only for an earlier one."""

    ends: ClassVar[bool] = False

    incarnation: Epoch = 1


class Claim(OfRank, frozen=True, tag="claim"):
    """→ Done and two descriptors: the rank's channel and its image. Deferred until the rank has
    made its channel. The image is a sparse memfd of the launcher's that outlives the proxies: swap
    space while the rank is served, its saved state while it is not. Refused as "stale" for an
    epoch lower than one already claimed, and as "exited" once the rank has ended. The connection
    stays open for notices."""

    epoch: Epoch
    device: Name


class Signal(OfRank, frozen=True, tag="signal"):
    """→ Done. To the rank and all its children; if they are frozen, it waits for the thaw, but for
    SIGKILL."""

    ends = True

    signum: Annotated[int, Meta(ge=1, le=64)]


class Freeze(OfRank, frozen=True, tag="freeze"):
    """→ Done, once all of the rank's processes stand still; no signal reaches them. Refused as
    "unavailable" where the machine or our privileges do not allow it, with the reason."""


class Thaw(OfRank, frozen=True, tag="thaw"):
    """→ Done. The rank's processes go on."""


class Snapshot(OfRank, frozen=True, tag="snapshot"):
    """→ Snapshotted. Only of a frozen rank, which stays so: writes its processes, its channel and
    its image to `folder`, made anew. `beside`: the rank will go on where it is, and the image may
    be copied meanwhile; the folder is locked until that is over. Refused as "undumpable", which
    names a process and what to do, as "unavailable" (no CRIU, no privileges), or as "failed"; then
    the rank is as it was."""

    folder: FolderPath
    beside: bool = False


class Snapshotted(Struct, frozen=True):
    """What a snapshot takes on disk."""

    bytes: Size


class Examine(OfRank, frozen=True, tag="examine"):
    """→ Examined. Of a rank that runs, which notices nothing: what keeps it from being saved, as
    far as is known without trying. Refused as "busy" where it is not left to run meanwhile."""


class Examined(Struct, frozen=True):
    """Each with its process and what to do; none: nothing is known."""

    hindrances: list[str]


class Vacate(OfRank, frozen=True, tag="vacate"):
    """→ Done, once the rank is seen gone: its processes are killed, frozen or not, its channel and
    its image are let go. The launcher lives on, empty, and writes no exit file."""

    ends = True


class Restore(OfRank, frozen=True, tag="restore"):
    """→ Restored. Only of an empty launcher, or of one whose rank is back from that folder and
    still frozen: the rank of the snapshot in `folder` is here, with channel and image. Refused as
    "snapshot" where something does not fit, which is named, or as "unavailable"; then nothing has
    been started."""

    folder: FolderPath


class Named(Struct, frozen=True):
    """Files: the first, and of how many."""

    first: list[str]
    count: Size


class Restored(Struct, frozen=True):
    """Files with which something is amiss, of all ranks restored here so far. `stay`: were there
    before the job, which first wrote to or removed them after the snapshot, so that nobody has what
    they were. `renewed`: ranks have them open for writing, and they are other files by their
    numbers."""

    stay: Named
    renewed: Named


class End(OfRank, frozen=True, tag="end"):
    """→ Done, then an empty launcher ends, without an exit file."""

    ends = True


class Exited(Struct, frozen=True, tag_field="event", tag="exited"):
    """To who claimed: the rank has ended. `exit_status` negative: killed by that signal."""

    exit_status: int


class ChannelReplaced(Struct, frozen=True, tag_field="event", tag="channel"):
    """To who claimed: another process of the rank has made a channel. Claim again, same epoch."""


Notice = Exited | ChannelReplaced
