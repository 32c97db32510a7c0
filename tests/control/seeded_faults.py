"""Faults seeded into the control protocol."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "rankfold/peers.py": {
        "tests/control/test_peers.py::test_another_user_is_refused_where_the_file_lets_it_in": {
            "any-user": ("if uid not in (os.getuid(), 0):", "if False:"),
        },
        "tests/control/test_peers.py::test_a_process_marked_as_a_rank_s_is_refused": {
            "ranks-let-in": ('if len(limits) < 2 or limits[1] != "unlimited":', "if False:"),
        },
        "tests/control/test_gate.py::test_a_process_of_another_pid_namespace_is_not": {
            "any-namespace": ("if len(namespaces) != 1:", "if False:"),
        },
        "tests/control/test_gate.py::test_the_mark_is_set_whatever_limit_there_was": {
            "no-mark": ("resource.setrlimit(resource.RLIMIT_RTTIME, (soft, limit))", "pass"),
        },
    },
    "rankfold/control.py": {
        (
            "tests/control/test_peers.py::"
            "test_a_message_of_another_version_is_refused_by_a_client_too"
        ): {
            "any-version": ("if head.v != VERSION:", "if False:"),
        },
        "tests/control/test_server.py::test_a_reply_that_is_too_long_is_a_refusal": {
            "replies-of-any-length": ("if len(body) > MESSAGE_BYTES_MAX:", "if False:"),
        },
        (
            "tests/control/test_server.py::"
            "test_an_invalid_message_is_answered_and_closes_its_connection"
        ): {
            "any-depth": (
                "except (msgspec.MsgspecError, RecursionError, UnicodeError)",
                "except (msgspec.MsgspecError, UnicodeError)",
            ),
            "announced-is-enough": (
                "if len(fds) != head.fds or (self._fds and not self._in):",
                "if False:",
            ),
        },
        "tests/control/test_server.py::test_descriptors_that_were_not_announced_are_closed": {
            "descriptors-pile-up": (
                '            frame.close()\n            raise ControlError("fds"',
                '            raise ControlError("fds"',
            ),
        },
    },
    "rankfold/service.py": {
        "tests/control/test_server.py::test_a_fault_of_a_handler_costs_its_connection_alone": {
            "fault-answered-by-silence": (
                'self._end(channel, refusal(number, ControlError("internal", text)))',
                "self._drop(channel)",
            ),
            "fault-not-logged": (
                ('log.exception("%s: an internal error in serving %s", self.path, frame.head.op)'),
                "pass",
            ),
            "faults-keep-connections": (
                "            self._end(channel, refusal(number",
                "            self.post(channel, refusal(number",
            ),
        },
        "tests/control/test_server.py::test_the_silent_and_those_in_mid_message_are_let_go": {
            "silent-ones-stay": (
                "if silent or (visit.hung_since is not None and visit.hung_since < patient):",
                "if False:",
            ),
            "the-silent-stay": ("silent = not visit.spoke and", "silent = False and"),
            "halves-stay": ("if not (channel.partial or", "if not ("),
        },
        "tests/control/test_server.py::test_wrong_fields_are_named_and_the_connection_continues": {
            "unknown-operations-answered": ("if head.op not in self._names:", "if False:"),
            "any-number-of-descriptors": ("if message.takes_fds != len(frame.fds):", "if False:"),
        },
        "tests/control/test_server.py::test_a_removed_socket_is_made_again": {
            "socket-for-all": (
                "os.fchmod(sock.fileno(), 0o600)",
                "os.fchmod(sock.fileno(), 0o666)",
            ),
            "removed-sockets-stay-away": ("if not os.path.lexists(self.path):", "if False:"),
            "old-socket-closed": (
                "        self._sockets.append(sock)\n",
                (
                    "        for each in self._sockets:\n            self.server.remove(each)\n"
                    "        self._sockets.append(sock)\n"
                ),
            ),
        },
        "tests/control/test_server.py::test_a_client_that_does_not_take_replies_delays_no_other": {
            "the-deaf-stay": ("if channel.unsent > UNSENT_BYTES_MAX:", "if False:"),
        },
        ("tests/control/test_server.py::test_without_descriptors_strangers_go_and_the_rest_wait"): {
            "accept-again-at-once": (
                ("        self.server.remove(listening)\n        self.server.after(ACCEPT_AGAIN_S"),
                "        self.server.after(ACCEPT_AGAIN_S",
            ),
            "strangers-keep-descriptors": (
                "            if not visit.spoke:\n",
                "            if False:\n",
            ),
        },
        "tests/control/test_server.py::test_another_servers_socket_is_left_alone": {
            "others-sockets-taken": ("if not os.path.lexists(self.path):", "if True:"),
        },
        ("tests/control/test_server.py::test_a_socket_is_not_made_in_a_folder_of_another_user"): {
            "sockets-in-anybodys-folder": (
                "paths.private_again(self.path.parent)",
                "self.path.parent.mkdir(parents=True, exist_ok=True)",
            ),
        },
        "tests/control/test_server.py::test_a_server_of_what_is_gone_takes_no_name": {
            "names-of-what-is-gone-taken": ("if serves and not serves.is_there():", "if False:"),
        },
        (
            "tests/control/test_server.py::"
            "test_where_ranks_cannot_be_recognised_no_folder_is_made_that_they_would_see"
        ): {
            "sockets-shown-to-ranks": (
                "if not self._folder.is_there() and not peers.identified():",
                "if False:",
            ),
        },
    },
    "interpose/launcher/rank/process.py": {
        "tests/control/test_ranks.py::test_a_rank_gets_nowhere_while_another_job_continues": {
            "rank-not-marked": ("    peers.mark()\n", ""),
        },
    },
    "interpose/launcher/rank/sandbox.py": {
        "tests/control/test_ranks.py::test_a_rank_gets_nowhere_while_another_job_continues": {
            "nothing-hidden": ("    hide(inside.hidden, inside.visible)\n", ""),
        },
    },
    "interpose/launcher/launcher.py": {
        "tests/control/test_ranks.py::test_a_rank_gets_nowhere_while_another_job_continues": {
            "doors-open-for-all": ("return pid > 0 and (", "return True or ("),
        },
    },
    "rankfold/messages.py": {
        "tests/control/test_server.py::test_wrong_fields_are_named_and_the_connection_continues": {
            "any-field": ('tag_field="op", forbid_unknown_fields=True):', 'tag_field="op"):'),
        },
    },
    "proxy/epochs.py": {
        (
            "tests/control/test_conformance.py::"
            "test_a_device_reports_its_jobs_and_the_last_of_thousands"
        ): {
            "all-jobs-told": ("for name in saved[:-SAVED_JOBS]:", "for name in saved[:0]:"),
            "present-jobs-untold": (
                'self.jobs.items() if job.state == "saved"]',
                "self.jobs.items()]",
            ),
        },
    },
    "rankfold/paths.py": {
        ("tests/control/test_server.py::test_a_socket_is_not_made_in_a_folder_of_another_user"): {
            "folders-above-not-looked-at": (
                "in (0, os.getuid()) or shared:",
                "in (0, os.getuid()):",
            ),
        },
    },
}
