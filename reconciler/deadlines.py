"""How long the reconciler waits for other processes, in seconds, and why that long.

Requests that every process can answer at once are waited for within a turn of the loop; requests
that take time run concurrently. A process that is merely slow must never be taken for one that has
ended: only its lock decides that.
"""

from __future__ import annotations

# Each observation waits at most this long for the proxies and launchers that it has just queried; a
# later observation gets a later reply. A process that stops delays the loop only once, so this is
# also the most that it delays a change of another job.
LOOK_WITHIN_S = 0.2

# After this long without an answer, a process is reported as unresponsive. Busy machines have kept
# a process off the CPU for a second; nothing is lost if it answers later.
SILENT_AFTER_S = 2.0

# A command fails when the reconciler has not answered for this long (with HUNG_LOOK_S, within five
# seconds). A reconciler that computes, or waits for a disk, gets this much more time.
RECONCILER_ANSWERS_S = 3.0
BUSY_ANSWERS_S = 30.0

# `place`, `barrier` and `shutdown` are answered as soon as they are noted. A process that has not
# answered by then has stopped between the observation and the request. The action is repeated.
REQUEST_S = 10.0

# `detach` writes all of the device's memory to the host, or waits for a kernel to end.
DETACH_S = 120.0

# The process that starts a job's launchers imports Python; each launcher makes namespaces and
# starts its rank. A hundred jobs may do so at once.
LAUNCH_S, LAUNCH_EACH_S = 30.0, 1.0

# A proxy that has just been started gets this long to accept the request to end; without the
# request it would outlive the reconciler. It loads libraries and opens its device in this time.
STARTING_S = 10.0

# A launcher freezes or thaws its rank at once, unless a process of the rank is in the kernel.
FREEZE_S = 30.0

# A snapshot writes all memory of a rank to disk, a restore reads it. The job is paused meanwhile.
SNAPSHOT_S = 600.0

# A launcher answers other requests while it works on one. If it has not answered for HUNG_S, its
# request fails, since its job may be paused for it. HUNG_LOOK_S is the interval between checks,
# also of a command that waits for the reconciler.
HUNG_S = 10.0
HUNG_LOOK_S = 1.0

# A launcher whose rank has ended reports that, and then ends itself. The reconciler waits this long
# for a launcher that is just ending, before it reports that the launcher has not ended.
LAUNCHERS_END_S = 2.0
LAUNCHERS_POLL_S = 0.01

# An uploader or fetcher moves to the background, or reports why it cannot; it imports Python and
# opens a store that may be remote.
TRANSFER_S = 60.0

# A process ends at once on SIGKILL, unless it is in the kernel.
KILLED_S = 10.0

# Within this time a store that is new to the fleet is created, or recognised as the fleet's own;
# s3fs alone retries for minutes. A person waits for it.
STORE_ANSWERS_S = 30.0

# A command that reads a store reports that it waits when the store has completed no operation for
# this long. After RANKFOLD_STUCK it fails.
STORE_SILENT_S = 10.0

# A job that rested resumes when the store has confirmed that no other owner has taken it over, or
# after this time without an answer. Each further job in the same request adds TAKEN_EACH_S.
OWNERSHIP_ANSWERS_S = 10.0
OWNERSHIP_EACH_S = 0.1

# For a job that rested for less than this the store is not queried: another owner would have had to
# take it over in that time.
RESTED_S = 5.0
