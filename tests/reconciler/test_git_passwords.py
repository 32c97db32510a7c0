"""Promise: the password of a git URL is for git: no file has it, and nothing shows it."""

from __future__ import annotations

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.reconciler.source.git import masked
from support.command import JOB, POOL, Git, Rankfold, Specs
from support.leaks import State

SECRET = "hunter2-7519"


class WithPassword(http.server.SimpleHTTPRequestHandler):
    """Git's plain protocol over HTTP, for who knows the password."""

    def do_GET(self) -> None:
        told = self.headers.get("Authorization", "")
        if told == "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode():
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server(state: State) -> Iterator[http.server.HTTPServer]:
    repository = Git(state.folder / "repo")
    repository("init", "--quiet", "--initial-branch", "main")
    text = JOB.format(name="gpt", command='["true"]', ranks=1, gpus=1, extra="workdir: /")
    (repository.folder / "job.yaml").write_text(text)
    (repository.folder / "pool.yaml").write_text(POOL)
    repository.commit("first")
    repository("update-server-info")
    serve = functools.partial(WithPassword, directory=str(state.folder / "repo" / ".git"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def files_with(text: str, folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if text.encode() in path.read_bytes()]


def test_a_password_in_a_url_is_never_shown(
    server: http.server.HTTPServer, rankfold: Rankfold, specs: Specs, state: State
) -> None:
    rankfold.environment["no_proxy"] = "127.0.0.1"
    place = f"127.0.0.1:{server.server_port}/"
    process = rankfold.start("watch", "--git", f"http://user:{SECRET}@{place}")
    rankfold.until(lambda: rankfold.job("gpt").get("phase") == "Succeeded")
    status = rankfold("status", "-o", "json")
    assert f"git http://user:***@{place}, branch main" in status
    told = [status, rankfold("status"), rankfold("describe", "gpt"), rankfold("events")]
    refused = rankfold.run("apply", "-f", str(specs.folder))
    assert refused.returncode == 1 and "user:***@" in refused.stderr
    assert files_with(SECRET, state.path) == []
    process.terminate()
    told += [refused.stderr, *process.communicate()]

    wrong = rankfold.run("watch", "--git", f"http://user:{SECRET}-not@{place}")
    assert wrong.returncode == 1 and f"cannot fetch http://user:***@{place}" in wrong.stderr
    gone = rankfold.run("watch", "--git", f"http://user:{SECRET}@127.0.0.1:1/")
    assert gone.returncode == 1 and "cannot fetch http://user:***@127.0.0.1:1/" in gone.stderr
    told += [wrong.stderr, gone.stderr, rankfold("events", "-o", "json")]
    assert not [text for text in told if SECRET in text]
    assert files_with(SECRET, state.folder) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fatal: 'https://me:a:b@c@host/x.git/': no", "fatal: 'https://me:***@host/x.git/': no"),
        ("https://:secret@host/x", "https://:***@host/x"),
        ("https://token@host:8080/x http://t:u@h/", "https://***@host:8080/x http://t:***@h/"),
        ("ssh://git:secret@host/x ssh://git@host/x", "ssh://git:***@host/x ssh://git@host/x"),
        ("git@host:a/b, file:///a:b/c@d, https://host/a:b@c", None),
    ],
)
def test_masked_parts_of_urls(text: str, shown: str | None) -> None:
    assert masked(text) == (text if shown is None else shown)
