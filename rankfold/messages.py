"""The messages of the control protocol: the requests to proxies and launchers, and their replies.
(Those of the reconciler are in reconciler/operations.py, those of the compiler in
proxy/hal/soft/compiler/server.py.)

Each message is a length (u32, little endian) and that many bytes of JSON. A request is ``{"v": 1,
"id": n, "op": name, …}``, its reply ``{"v": 1, "id": n, "ok": true, …}`` or ``{"v": 1, "id": n,
"ok": false, "error": {"code": …, "message": …}}``; ``id`` is null if the request could not be read,
and then the connection ends. Replies may come in any order. A message with ``event`` instead is a
notice. Descriptors travel as SCM_RIGHTS with the message whose ``fds`` counts them.

Each request is decoded into its class here and checked, including ranges, before any code acts on
it; unknown fields are refused. Replies may contain more fields than their classes.

Every operation is idempotent: a repeated request gets the same reply. Sizes are in bytes; times
named ``*_at`` are seconds of CLOCK_MONOTONIC unless noted otherwise.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from rankfold.job_limits import DEVICES_MAX, RANKS_MAX

VERSION = 1
FDS_MAX = 16

Number = Annotated[int, Meta(ge=0, le=2**53)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Epoch = Annotated[int, Meta(ge=1, le=2**53)]
Rank = Annotated[int, Meta(ge=0, lt=RANKS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\0]*\Z")]
FolderPath = Annotated[str, Meta(max_length=4095, pattern=r"^/[^\0]*\Z")]
SocketPath = Annotated[str, Meta(max_length=107, pattern=r"^/[^\0]*\Z")]

JobState = Literal["joining", "running", "stopping", "cut", "saved", "failed"]
"""State of a job on a device: "joining" (rendezvous not complete), "running", "stopping" (barrier
requested), "cut" (consistent cut: nothing in flight), "saved", "failed" (its reason says why)."""

RankState = Literal["waiting", "attached", "exited"]
"""State of a rank: "waiting" (its launcher has no channel yet), "attached", "exited"."""

RankAt = Literal["", "host", "device", "turn", "others", "code"]
"""The cause of a rank's wait: its program on the host; work of its own that the device has; its
turn on the device, or what its proxy does for it; what other ranks call. Empty: an older proxy."""


def chunk_bytes() -> int:
    """The size of a chunk. Ranks share whole chunks."""
    from rankfold import records  # takes longer than some commands that do not need it

    return records.channel().constants["RF_CHUNK_BYTES"]


# ---- common to all messages ------------------------------------------------------------------


class Fault(Struct, frozen=True):
    """The reason for a refusal: `code` for programs, `message` for people."""

    code: str
    message: str


class Head(Struct, frozen=True):
    """The fields read first of any message: what it is, and how many descriptors belong to it."""

    v: int
    id: Number | None = None
    op: str | None = None
    ok: bool | None = None
    event: str | None = None
    error: Fault | None = None
    fds: Annotated[int, Meta(ge=0, le=FDS_MAX)] = 0


class Operation(Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """A request."""

    takes_fds: ClassVar[int] = 0  # number of descriptors that come with the request

    v: Literal[1]
    id: Number
    fds: Number = 0


class Done(Struct, frozen=True):
    """A reply without fields."""


# ---- requests to every server ------------------------------------------------------------------


class Hello(Operation, frozen=True, tag="hello"):
    """Identify the server. → ProxyHello, LauncherHello."""


class Status(Operation, frozen=True, tag="status"):
    """Report the server's state. → ProxyStatus, LauncherStatus."""


class Shutdown(Operation, frozen=True, tag="shutdown"):
    """→ Done, then the process exits. Launchers do not take it: they exit with their rank."""


def of_incarnation(incarnation: int) -> dict[str, int]:
    """The incarnation field of a request. The first incarnation is omitted: launchers and proxies
    older than the field would refuse it."""
    return {"incarnation": incarnation} if incarnation > 1 else {}


# ---- a proxy: one server process per device ----------------------------------------------------


OWN_CC = "own"  # instead of a compute capability: that of the GPU


class ProxyHello(Struct, frozen=True):
    kind: Literal["proxy"]
    device: Name
    type: Name
    memory: Size
    pid: Annotated[int, Meta(ge=1, le=2**31)]
    cc: str = ""  # an older proxy sends none: its device then equals none of a pool
    speed: float = 0.0
    core_count: int = 0  # of type cpu: as its pool describes it, and the numbers of the cores
    first_core: int = 0
    cores: list[int] = []
    # numbers of a real GPU that ranks see: fields of struct rf_device
    facts: dict[str, Annotated[int, Meta(ge=1, lt=2**31)]] = {}
    runtime: Annotated[str, Meta(pattern=r"^(proxy|elastic)?\Z")] = ""  # as its pool describes it
    gpu: str = ""  # for CUDA_VISIBLE_DEVICES, if the processes of jobs use the GPU directly
    # the GPU's own compute capability, if `cc` is OWN_CC
    own_cc: Annotated[str, Meta(pattern=r"^([0-9]{1,3}\.[0-9])?\Z")] = ""


class RankFault(Struct, frozen=True):
    """The persistent error of a rank."""

    code: int
    text: str = ""


class RankReport(Struct, frozen=True):
    """A rank on a device. Counters run from the start of the rank; ``*_here``, from its arrival on
    this device. ProxyStatus describes those about sharing. `quiet_s`: seconds since the rank last
    made a request and since work of it last began or ended."""

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


class EndedRank(RankReport, frozen=True, kw_only=True):
    """A rank of a placement that has ended."""

    job: Name
    epoch: Epoch


class Spent(Struct, frozen=True):
    """`seconds` since a job was opened on a device, and for how many of them the device was idle:
    `switches`, because it changed ranks; `copies`, because memory was moved or copied for the next
    rank; `waiting`, because ranks waited for others to reach the same point."""

    seconds: float
    switches: float
    copies: float
    waiting: float


class CrossCheck(Struct, frozen=True):
    """The cross-check, which runs once per `every` collectives. `compared`: parts compared.
    `unwatched`: ranks that are no longer checked, because their kernels cannot be stopped. Launches
    of opaque kernels: `measured` counts them, and `alike` those that do the same for all ranks."""

    every: Size
    compared: Size
    unwatched: Size = 0
    measured: Size = 0
    alike: Size = 0


class JobReport(Struct, frozen=True):
    """A job on a device, and its ranks that are placed there. `races`: accesses that the program
    does not order, where that is checked. `alarms`: contents that should be equal and are not.
    `shared`: bytes of chunks that several of these ranks share now, each chunk counted once.
    `cut_age_s`, `released_age_s`: seconds since its cut, and since its first rank was released.
    `readers`: devices that read this one's memory directly. `indirect`: devices of type nvidia
    whose memory this one reads through host memory, and why. `direct`, `through_host`: bytes that
    collectives have left for other devices, from device to device and in host memory. `links`,
    `links_refused`: at determinism D0, communicators whose sums between devices NCCL computes, and
    those where it does not, with the last reason, `links_why_not`; `links_bytes`: bytes that this
    device has given to NCCL."""

    job: Name
    epoch: Epoch
    state: JobState
    reason: str = ""
    cut_age_s: float | None = None
    released_age_s: float | None = None
    ranks: list[RankReport] = []
    races: list[str] = []
    alarms: list[str] = []
    shared: Size = 0
    spent: Spent | None = None
    guard: CrossCheck | None = None
    incarnation: Epoch = 1
    readers: list[Name] = []
    indirect: dict[str, str] = {}
    direct: Size = 0
    through_host: Size = 0
    links: Size = 0
    links_refused: Size = 0
    links_bytes: Size = 0
    links_why_not: str = ""


class ProxyStatus(Struct, frozen=True):
    """The state of a proxy and its device.

    `used`: resident chunks. `swap`: host memory with content that is not resident. `history`: ranks
    of the last placements that ended. `trouble`: what prevents jobs from leaving. `lost`: why the
    device serves no jobs any more, until another proxy takes it over. `loaded`: kernels whose code
    is loaded. `shared`: bytes that several ranks share now. `shares`: whether ranks may share
    memory here; null from an older proxy.

    Counters run from the start of the proxy. `squashed`: operations done by another rank's.
    `spared`: bytes not swapped in or out, because another rank had them here or the host had them
    already. `swapped_alike`: bytes that were swapped though another rank had the same content at
    that address. `copies`: chunks copied before they were written; `unforeseen`: chunks copied
    while they were written. `prepared`: chunks prefetched before their rank's turn.
    """

    device: Name
    type: Name
    memory: Size
    used: Size
    jobs: list[JobReport]
    swap: Size = 0
    history: list[EndedRank] = []
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
    """A device of a placement, and the socket of its proxy; the cores that it has, if it reports
    any; the GPU that processes use directly, if there is one, and how many bytes of it."""

    device: Name
    socket: SocketPath
    cores: list[int] = []
    gpu: str = ""
    memory: Size = 0


class OfJob(Operation, frozen=True):
    """A request about one epoch of a job."""

    job: Name
    epoch: Epoch


class Place(OfJob, frozen=True, tag="place"):
    """→ Done. Serve these ranks.

    `members` are all ranks of the job, `devices` all devices that serve one. The proxy claims its
    ranks from their launchers, connects to the other devices, and starts to serve when all have
    connected. A higher epoch supersedes. The reply comes when the request is noted; ``status``
    reports progress. Refused as "incarnation" if the job has been placed here in a later one. `cc`:
    the compute capability that the job sees, for which its code is chosen; empty: the device's.
    `check_order`: which accesses that the program does not order are reported.
    """

    determinism: Literal["D0", "D1", "D2"]
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
    """→ Standing. "request": stop at a cut. "withdraw": continue in place, before the cut is
    reached or after. A new request right away goes to the device that withdrew, or to all devices;
    when a withdrawal at the job's lowest device is answered, all devices know of it."""

    action: Literal["request", "withdraw"]


class Wait(OfJob, frozen=True, tag="wait"):
    """→ Standing, once the job's state is one of `states` or the time is up; the state "failed"
    always ends the wait."""

    states: Annotated[list[JobState], Meta(max_length=16)]
    within_s: Annotated[float, Meta(ge=0, le=86400)]


class JobStatus(Struct, frozen=True):
    """The state of a job on this device."""

    state: JobState
    reason: str = ""


class Save(OfJob, frozen=True, tag="save"):
    """→ Saved. Only at a cut, when the job stays: writes each local rank's state and memory to the
    image that its launcher holds. The images are valid until the job continues from the cut; a
    caller that needs them copies them before. If a save fails, the job stays as it was."""


class Saved(Struct, frozen=True):
    """The bytes written to the images."""

    saved_bytes: Size


class Detach(OfJob, frozen=True, tag="detach"):
    """→ Detached. Only at a cut, unless `discard`: writes each local rank's state and memory to the
    image that its launcher holds, releases the ranks, and frees the device. With `discard`:
    releases the ranks immediately and saves nothing."""

    discard: bool


class Detached(Struct, frozen=True):
    """The bytes written to the images."""

    saved_bytes: Size


class Peer(OfJob, frozen=True, tag="peer"):
    """→ Done and one descriptor: the job's shared segment, which its lowest device sends to
    `device`. The connection stays open; its end means that the device is lost."""

    device: Name


class Outbox(OfJob, frozen=True, tag="outbox"):
    """→ OutboxMemory and one descriptor: memory of this device from which `device`, another one of
    the job, may read results of collectives directly. Refused as "unavailable", with the reason:
    they are read through host memory then."""

    device: Name


class OutboxMemory(Struct, frozen=True):
    """`gpu`: the GPU that has it, as 32 hexadecimal digits; the same on all proxies."""

    bytes: Size
    gpu: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class DebugText(Operation, frozen=True, tag="dump"):
    """→ {text}: the current state of the loop, for debugging."""


# ---- a launcher: one per rank ------------------------------------------------------------------


class LauncherHello(Struct, frozen=True):
    """`pid`: of the rank, as the machine's first namespace numbers it; null while there is none.
    `incarnation`: of the job; each start from the beginning or restore begins a new one."""

    kind: Literal["launcher"]
    job: Name
    rank: Rank
    pid: Annotated[int, Meta(ge=1, le=2**31)] | None
    namespaced: bool
    incarnation: Epoch = 1


class LauncherStatus(Struct, frozen=True):
    """`channel`: whether the rank's program has made one. `epoch`: last claimed, 0: never. `state`:
    "frozen": all of the rank's processes are frozen; "empty": there is no rank. `stopped`:
    processes that a signal has stopped, each as "name (pid N)"."""

    state: Literal["running", "frozen", "empty", "exited"]
    channel: bool
    epoch: Number
    exit_status: int | None
    stopped: list[str] = []


class OfRank(Operation, frozen=True, kw_only=True):
    """A request about a launcher's rank, in an incarnation of its job. A launcher of another
    incarnation refuses it as "incarnation"; a request that ends the rank, only if it is for an
    earlier one."""

    ends: ClassVar[bool] = False

    incarnation: Epoch = 1


class Claim(OfRank, frozen=True, tag="claim"):
    """→ Done and two descriptors: the rank's channel and its image. The reply is deferred until the
    rank has made its channel. The image is a sparse memfd of the launcher that outlives the
    proxies: it is swap space while the rank is served, and has its saved state while it is not.
    Refused as "stale" for an epoch lower than one already claimed, and as "exited" once the rank
    has ended. The connection stays open for notices."""

    epoch: Epoch
    device: Name


class Signal(OfRank, frozen=True, tag="signal"):
    """→ Done. Sends a signal to the rank and all its children. While they are frozen, any signal
    except SIGKILL takes effect at the thaw."""

    ends = True

    signum: Annotated[int, Meta(ge=1, le=64)]


class Freeze(OfRank, frozen=True, tag="freeze"):
    """→ Done, once all of the rank's processes are frozen; no signal reaches them. Refused as
    "unavailable", with the reason, if the machine or our privileges do not allow it."""


class Thaw(OfRank, frozen=True, tag="thaw"):
    """→ Done. The rank's processes continue."""


class Snapshot(OfRank, frozen=True, tag="snapshot"):
    """→ Snapshotted. Only of a frozen rank, which stays frozen: writes its processes, its channel
    and its image to `folder`, which is made anew. `beside`: the rank will continue in place, and
    its image may be copied while it runs; the folder is locked until that copy ends. Refused as
    "undumpable", naming a process and a remedy; as "unavailable" (no CRIU, no privileges); or as
    "failed". Then the rank is as it was."""

    folder: FolderPath
    beside: bool = False


class Snapshotted(Struct, frozen=True):
    """The size of a snapshot on disk."""

    bytes: Size


class Examine(OfRank, frozen=True, tag="examine"):
    """→ Examined. For a running rank, which does not notice: what prevents it from being saved, as
    far as is known without trying. Refused as "busy" if the rank is frozen or in another
    operation."""


class Examined(Struct, frozen=True):
    """Each hindrance names a process and a remedy; an empty list means that none is known."""

    hindrances: list[str]


class Vacate(OfRank, frozen=True, tag="vacate"):
    """→ Done, once the rank is gone: its processes, frozen or not, are killed, its channel and its
    image are released. The launcher stays, empty, and writes no exit file."""

    ends = True


class Restore(OfRank, frozen=True, tag="restore"):
    """→ Restored. Brings back the rank of the snapshot in `folder`, with channel and image, frozen.
    Only for an empty launcher, or for one whose rank was restored from that folder and is still
    frozen. Refused as "snapshot", naming what does not fit, or as "unavailable"; then nothing has
    been started."""

    folder: FolderPath


class Named(Struct, frozen=True):
    """Names of files: the first few, and how many there are."""

    first: list[str]
    count: Size


class Restored(Struct, frozen=True):
    """Problems with files, of all ranks restored here so far. `stay`: files that existed before the
    job, which first wrote or removed them after the snapshot, so that their old content is lost.
    `renewed`: files that ranks have open for writing, and that are other files now by their inode
    numbers."""

    stay: Named
    renewed: Named


class End(OfRank, frozen=True, tag="end"):
    """→ Done, then an empty launcher exits, without an exit file."""

    ends = True


class Exited(Struct, frozen=True, tag_field="event", tag="exited"):
    """To proxies that claimed the rank: it has ended. `exit_status` negative: killed by that
    signal."""

    exit_status: int


class ChannelReplaced(Struct, frozen=True, tag_field="event", tag="channel"):
    """To proxies that claimed the rank: another process of it has made a channel. Claim again, same
    epoch."""


Notice = Exited | ChannelReplaced
