"""A rank of two that does many things at once and nothing by chance: ``busy_program.py ROUNDS``.

Each round the ranks exchange what they have over TCP, a thread and a child work on it, and it goes
into a database and a file. In the end all of it is printed.
"""

from __future__ import annotations

import hashlib
import os
import queue
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ["RANK"])


def connected() -> socket.socket:
    """With the other rank."""
    port = Path("port")
    if RANK == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            half = Path("port.half")
            half.write_text(str(listener.getsockname()[1]))
            half.rename(port)
            return listener.accept()[0]
    while not port.exists():
        time.sleep(0.01)
    return socket.create_connection(("127.0.0.1", int(port.read_text())))


def work(todo: queue.Queue[bytes], done: queue.Queue[bytes]) -> None:
    while data := todo.get():
        for _ in range(100):
            data = hashlib.sha256(data).digest()
        done.put(data)


def main() -> None:
    rounds, line = int(sys.argv[1]), connected()
    line.settimeout(60)
    todo: queue.Queue[bytes] = queue.Queue()
    done: queue.Queue[bytes] = queue.Queue()
    thread = threading.Thread(target=work, args=(todo, done))
    thread.start()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    database = sqlite3.connect(f"rounds-{RANK}", isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("create table rounds (number integer, text text)")
    value = b"%d" % RANK
    with open(f"log-{RANK}", "a") as log:
        for number in range(rounds):
            todo.put(value)
            mine = done.get()
            line.sendall(mine)
            theirs = line.recv(32, socket.MSG_WAITALL)
            pair = mine + theirs if RANK == 0 else theirs + mine
            child.stdin.write(hashlib.sha256(pair).hexdigest().encode() + b"\n")
            child.stdin.flush()
            value = child.stdout.readline().strip()
            database.execute("insert into rounds values (?, ?)", (number, value.decode()))
            log.write(f"{number} {value.decode()}\n")
            log.flush()
            print(number, value.decode(), flush=True)
            time.sleep(0.03)
    todo.put(b"")
    thread.join()
    child.stdin.close()
    found = database.execute("select number, text from rounds order by rowid").fetchall()
    print(len(found), hashlib.sha256(repr(found).encode()).hexdigest(), child.wait(), flush=True)


if __name__ == "__main__":
    main()
