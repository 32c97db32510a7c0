"""How long the reconciler waits for others, in seconds, and why that long.

What nobody can miss is answered within a turn of the loop; what takes its time runs beside it. A
process that is merely slow must never be taken for one that is gone: only its lock says that.
"""

from __future__ import annotations

# A look at all proxies and launchers waits this long for those it has just queried. One that takes
# longer answers a later look; it costs the loop this once, so it is what a process that stops
# can hold another job's change up by.
LOOK_WITHIN_S = 0.2

# Without an answer for this long a process is shown as one that does not answer. Busy machines
# have kept one off the CPU for a second; nothing is lost if it answers after all.
SILENT_AFTER_S = 2.0

# A command fails when the reconciler has not answered for this long (with HUNG_LOOK_S, within five
# seconds); one that computes, or waits for a disk, gets so much more.
RECONCILER_ANSWERS_S = 3.0
BUSY_ANSWERS_S = 30.0

# `place`, `barrier` and `shutdown` are noted and answered at once; who has not answered by then has
# stopped between our look and our request. The action is requested again.
TELL_S = 10.0

# `detach` writes a device's whole memory to the host, or waits for a kernel to end.
DETACH_S = 120.0

# What starts a job's launchers imports Python; each makes namespaces and starts its rank. A hundred
# jobs may do so at once.
LAUNCH_S, LAUNCH_EACH_S = 30.0, 1.0

# A proxy that has just been started is waited for this long before it is told to end: it would
# outlive the reconciler unheard of. It loads libraries and opens its device meanwhile.
STARTING_S = 10.0

# A launcher freezes or lets go of its rank at once, unless a process of it is in the kernel.
FREEZE_S = 30.0

# A snapshot writes all memory of a rank to disk, a restore reads it. The job stands meanwhile.
SNAPSHOT_S = 600.0

# A launcher that is at work answers what it is asked meanwhile. One that has not for so long is
# given up on, since its job may stand still for it; it is looked at this often.
HUNG_S = 10.0
HUNG_LOOK_S = 1.0

# A launcher whose rank has ended tells of it, and then ends itself; one that does so right now is
# waited for, and nobody need hear that it had not.
GONE_S = 2.0
GONE_LOOK_S = 0.01

# What brings snapshots into the store goes to the background, or says why not; it imports Python,
# and opens a store that may be far away.
TRANSFER_S = 60.0

# Within so long it gets on by 4 MiB, the largest piece, over any line that is of use. A process
# ends at once by SIGKILL, unless it is in the kernel.
STUCK_S = 300.0
KILLED_S = 10.0

# A store that is new to the fleet is begun, or found to be its own, within this; s3fs alone tries
# for minutes. A person waits for it.
STORE_ANSWERS_S = 30.0

# A job that rested goes on when the store has said that it goes on nowhere else; after this,
# without. So much longer for each further job that is asked about with it.
TAKEN_ANSWERS_S = 10.0
TAKEN_EACH_S = 0.1

# Who rests for less is not asked about: somebody would have had to take it over meanwhile.
RESTED_S = 5.0
