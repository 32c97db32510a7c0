"""CRIU that stops (SIGSTOP) in the middle of its work where a test requests it: a program in front
of the real one, first on the PATH of a fleet."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rankfold import criu
from support import privileges
from support.leaks import State

# "dump" stops when part of a rank's memory is written, while CRIU's own code is in the rank;
# "restore" when all processes are there and none runs. A hook of CRIU's sees to it that neither
# gets past in the meantime.
_PROGRAM = """\
#!/bin/sh
if mv "{folder}/$1" "{folder}/$1.taken" 2>/dev/null; then
	images=
	for word in "$@"; do
		[ "$last" != -D ] || images=$word
		last=$word
	done
	if [ "$1" = dump ]; then
		(
			while [ ! -s "$images/pages-1.img" ] && kill -0 $$; do :; done
			kill -STOP $$
		) 2>/dev/null &
	fi
	set -- "$@" --action-script "{folder}/halt"
fi
exec "{real}" "$@"
"""
_HALT = """\
#!/bin/sh
case $CRTOOLS_SCRIPT_ACTION in post-dump | post-restore) kill -STOP $PPID ;; esac
"""


class HaltingCriu:
    """`folder` is for the PATH. Each request holds for the first that comes."""

    def __init__(self, state: State):
        privileges.need_criu()
        self.watch, self.folder = state.watch, state.folder / "halting"
        self.folder.mkdir()
        self._write("criu", _PROGRAM.format(folder=self.folder, real=criu.command()))
        self._write("halt", _HALT)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def request(self, action: str) -> None:
        """what: ``dump`` or ``restore``"""
        (self.folder / action).touch()

    def stopped(self, action: str) -> int:
        """The pid of the one that stands still; 0: none does. CRIU forks children of the same
        command line that stop for a moment: those are not meant."""
        for pid in self.watch.new_processes():
            with contextlib.suppress(OSError, ValueError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
                words = line.split(b"\0")
                name = os.path.basename(words[words.index(action.encode()) - 1])
                if state == "T" and name == b"criu":
                    if Path(f"/proc/{parent}/cmdline").read_bytes() != line:
                        return pid
        return 0
