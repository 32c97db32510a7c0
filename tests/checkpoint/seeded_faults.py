"""Faults seeded into the checkpoint store."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "checkpoint/store/save.py": {
        "tests/checkpoint/test_faults.py::test_a_slow_store_is_waited_for": {
            "manifest-first": (
                "            self._drain()\n            manifest",
                "            manifest",
            ),
        },
        (
            "tests/checkpoint/test_durable.py::"
            "test_the_manifest_comes_when_all_that_it_names_is_durable"
        ): {
            "folders-not-synced": (
                'self.files.sync([f"{folder}/objects", f"{folder}/packs"])',
                "pass",
            ),
            "manifests-not-synced": ("self.files.sync([names.manifest(self.job)])", "pass"),
        },
        "tests/checkpoint/test_refusals.py::test_incarnations": {
            "old-incarnation-finishes": (
                "            self._check_not_overtaken()\n            name, data",
                "            name, data",
            ),
        },
        "tests/checkpoint/test_faults.py::test_a_save_that_is_overtaken_finishes_nothing": {
            "overtaken-ones-finish": (
                "        if not self._is_newest_claim():\n            self._raise_overtaken()",
                "        if False:\n            self._raise_overtaken()",
            ),
        },
        "tests/checkpoint/test_saving.py::test_equal_units_of_two_threads_are_stored_once": {
            "replicas-stored-each": (
                "if digest in self._places or digest in self._pending:\n                return",
                "if False:\n                return",
            ),
        },
        "tests/checkpoint/test_differences.py::test_content_that_returns_is_found": {
            "what-is-found-is-not-used": (
                (
                    "if digest in self._places or digest in self._pending:\n"
                    "                self.progress.found"
                ),
                "if False:\n                self.progress.found",
            ),
            "references-not-counted": ("self._used.setdefault(*self._references[digest])", "pass"),
        },
        "tests/checkpoint/test_saving.py::test_units_in_one_place_are_read_once": {
            "read-though-it-was-read": (
                "digest = self._digests.get(name) if name is not None",
                "digest = None if name is not None",
            ),
        },
        "tests/checkpoint/test_differences.py::test_a_pack_is_kept_with_all_that_it_refers_to": {
            "named-without-what-it-refers-to": (
                "                used.setdefault(self._places[digest], 0)",
                "                pass",
            ),
            "new-references-not-counted": ("self._used.setdefault(*stored_difference[1])", "pass"),
        },
        "tests/checkpoint/test_differences.py::test_a_page_that_was_edited_takes_little": {
            "differences-of-differences": (
                "self._references.get(predecessor, (predecessor, 0))[0]",
                "predecessor",
            ),
        },
        ("tests/checkpoint/test_differences.py::test_a_unit_that_differs_much_is_stored_whole"): {
            "differences-however-large": ("ALIKE = 1 / 8", "ALIKE = 1"),
        },
    },
    "checkpoint/store/files.py": {
        (
            "tests/checkpoint/test_durable.py::"
            "test_the_manifest_comes_when_all_that_it_names_is_durable"
        ): {
            "files-not-synced": ("            os.fsync(file)\n", ""),
            "folders-above-not-synced": (
                "*(up for up in path.parents if up.is_relative_to(root))",
                "",
            ),
        },
        "tests/checkpoint/test_durable.py::test_one_of_several_makes_a_file": {
            "written-in-place": (
                '                os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)',
                (
                    '                os.link(f"/proc/self/fd/{file}", name + ".part", '
                    "dst_dir_fd=folder)\n"
                    '                os.rename(name + ".part", name, src_dir_fd=folder, '
                    "dst_dir_fd=folder)"
                ),
            ),
        },
    },
    "checkpoint/store/reading.py": {
        "tests/checkpoint/test_faults.py::test_a_restore_verifies_every_unit": {
            "unit-not-verified": (
                "                if units.digest_of(pack[digest]) != digest:",
                "                if False:",
            ),
            "check-does-not-look": (
                ("                if units.digest_of(data) != digest:\n                    return"),
                "                if False:\n                    return",
            ),
        },
        "tests/checkpoint/test_faults.py::test_no_flipped_bit_gets_through": {
            "table-not-verified": (
                "        if units.digest_of(data) != digest:\n            raise",
                "        if False:\n            raise",
            ),
        },
        "tests/checkpoint/test_differences.py::test_the_file_with_the_reference_is_named": {
            "reference-not-verified": ("if units.digest_of(data) != other_digest:", "if False:"),
            "blamed-for-another-file": (
                "return error.what if error.name == self._name(place) else None",
                "return error.what",
            ),
        },
        "tests/checkpoint/test_differences.py::test_the_ranks_that_need_a_reference_are_listed": {
            "who-needs-a-reference-not-told": (
                "                files |= {where",
                "                files & {where",
            ),
        },
        "tests/checkpoint/test_differences.py::test_a_reference_that_is_nowhere_is_a_fault": {
            "references-taken-to-be-there": (
                " for digest in others if digest in where}",
                " for digest in others}",
            ),
        },
        "tests/checkpoint/test_differences.py::test_a_reference_of_another_length_is_refused": {
            "any-reference": (
                "if other[0] is None or other[1] != reference[1] or",
                "if other[0] is None or",
            ),
        },
        "tests/checkpoint/test_differences.py::test_a_difference_of_a_difference_is_refused": {
            "references-that-are-differences": (" or self._references(other[0]):", ":"),
        },
        ("tests/checkpoint/test_differences.py::test_a_unit_is_read_where_it_is_stored_whole"): {
            "read-where-it-differs": (
                "key=lambda pack: not pack[1].references",
                "key=lambda pack: bool(pack[1].references)",
            ),
        },
    },
    "checkpoint/store/store.py": {
        "tests/checkpoint/test_commands.py::test_check_reports_the_damage_of_each_checkpoint": {
            "damage-counted-on": ("if not marked & manifest.files.keys():", "if True:"),
        },
        "tests/checkpoint/test_faults.py::test_a_number_that_was_used_is_not_used_again": {
            "numbers-used-again": (
                (
                    "return abandoned if last.number and (claim is None or claim.number < last) "
                    "else claim"
                ),
                "return claim",
            ),
        },
        "tests/checkpoint/test_faults.py::test_uploaded_units_are_not_uploaded_again": {
            "uploaded-again": (
                "        if resumed:\n            own",
                "        if False:\n            own",
            ),
        },
        "tests/checkpoint/test_refusals.py::test_another_fleet_s_store": {
            "any-fleet": ("    if found != fleet:", "    if False:"),
        },
        "tests/checkpoint/test_refusals.py::test_a_folder_with_other_things": {
            "any-folder": ("not in (None, names.ROOT):", "in ():"),
        },
        (
            "tests/checkpoint/test_differences.py::"
            "test_a_difference_from_an_abandoned_pack_is_stored_whole"
        ): {
            "differences-without-what-they-refer-to": ("_complete(packs)", "packs"),
        },
    },
    "checkpoint/store/collect.py": {
        (
            "tests/checkpoint/test_faults.py::"
            "test_damaged_ones_are_not_among_the_last_that_are_kept"
        ): {
            "damaged-ones-are-kept": ("and not marked & manifest.files.keys():", "and True:"),
        },
        (
            "tests/checkpoint/test_faults.py::"
            "test_ones_that_lack_something_are_not_among_the_last_that_are_kept"
        ): {
            "lacking-ones-are-kept": (
                "good += manifest.files.items() <= data.items()",
                "good += 1",
            ),
        },
        "tests/checkpoint/test_together.py::test_in_some_orders[collections_during_saves]": {
            "running-saves-collected": (
                "{claim.folder for claim in first.running + second.running}",
                "set()",
            ),
        },
        "tests/checkpoint/test_together.py::test_within_a_collection[a_save_begins]": {
            "claims-not-read-again": (
                "claims = incarnations.claims(store.files, job, fence.oldest_running)",
                (
                    "claims = before.claims if before else incarnations.claims(store.files, job, "
                    "fence.oldest_running)"
                ),
            ),
            "pins-go": (
                "    for each in first.pins() | second.pins():\n        with",
                "    for each in ():\n        with",
            ),
        },
        "tests/checkpoint/test_together.py::test_within_a_collection[a_save_comes_and_goes]": {
            "late-manifests-not-seen": ("    counted += second.manifests.values()\n", ""),
        },
        "tests/checkpoint/test_together.py::test_within_a_collection[the_job_is_restored]": {
            "origin-goes": ("            pinned.add(newest.origin)\n", "            pass\n"),
        },
        "tests/checkpoint/test_together.py::test_a_restore_within_two_collections": {
            "doomed-by-another-collection": (
                "        pins |= _list(store, job, second).pins()\n",
                "        pass\n",
            ),
        },
        (
            "tests/checkpoint/test_durable.py::"
            "test_a_doomed_manifest_is_there_before_the_other_goes"
        ): {
            "gone-before-it-is-doomed": (
                "    store.files.create(names.doomed(job, each), data)\n",
                "",
            ),
        },
        "tests/checkpoint/test_refusals.py::test_a_newer_format": {
            "newer-formats-collected": (
                "        except Refused as error:",
                "        except RuntimeError as error:",
            ),
        },
    },
    "checkpoint/store/incarnations.py": {
        "tests/checkpoint/test_refusals.py::test_incarnations": {
            "old-incarnation-let-go": ("if now.incarnation > incarnation:", "if False:"),
        },
        (
            "tests/checkpoint/test_refusals.py::test_late_writes_of_an_old_incarnation_do_not_count"
        ): {
            "late-ones-count": (
                "return self.known is None or each >= self.since or each in self.known",
                "return True",
            ),
        },
    },
    "checkpoint/store/documents.py": {
        "tests/checkpoint/test_refusals.py::test_a_newer_format": {
            "any-version": ("and version > VERSION:", "and False:"),
        },
        "tests/checkpoint/test_refusals.py::test_a_manifest_that_the_schema_does_not_allow": {
            "any-document": (
                "    if fault := _fault(kind, document):\n        raise Damaged",
                "    if fault := None:\n        raise Damaged",
            ),
        },
        "tests/checkpoint/test_refusals.py::test_a_digest_that_is_another_documents": {
            "any-digest": ('if document.get("digest") != _digest(document):', "if False:"),
        },
        "tests/checkpoint/test_refusals.py::test_a_flipped_bit_makes_nothing_newer": {
            "a-flipped-bit-is-newer": ('        if kind == "root":', "        if True:"),
        },
    },
    "checkpoint/upload.py": {
        (
            "tests/checkpoint/test_uploading.py::"
            "test_a_save_that_was_finished_unseen_is_not_saved_twice"
        ): {
            "saved-twice": (
                "_finished(store, work_folder) if work_folder.previous.token else None",
                "None",
            ),
        },
        "tests/checkpoint/test_uploading.py::test_modules_travel_along": {
            "modules-stay-behind": ("        modules.add_to(save, loaded)\n", ""),
        },
        "tests/checkpoint/test_uploading.py::test_a_snapshot_that_is_none_is_not_stored": {
            "stored-though-it-may-be-lost": (
                'if snapshot.about.get("boot", work_folder.state.boot) != work_folder.state.boot:',
                "if False:",
            ),
        },
        "tests/checkpoint/test_uploading.py::test_an_image_that_is_still_copied_is_waited_for": {
            "an-image-that-is-copied-not-waited-for": (
                "while copied := images_being_copied(folders):",
                "while copied := False:",
            ),
        },
    },
    "checkpoint/fetch.py": {
        (
            "tests/checkpoint/test_uploading.py::"
            "test_files_of_another_fetched_checkpoint_are_removed"
        ): {
            "fetched-of-two": ("if work_folder.previous.id != str(each):", "if False:"),
        },
    },
    "checkpoint/background.py": {
        ("tests/checkpoint/test_uploading.py::test_a_fetch_from_before_a_reboot_is_repeated"): {
            "fetched-before-the-machine-stopped": (
                "if work_folder.previous.boot != work_folder.state.boot and not work.durable:",
                "if False:",
            ),
        },
    },
    "checkpoint/snapshot/folder.py": {
        "tests/checkpoint/test_snapshot.py::test_pages_that_are_cut_off_are_refused": {
            "pages-cut-off": ("        if size != pagemap.size:", "        if False:"),
        },
        "tests/checkpoint/test_uploading.py::test_a_snapshot_that_is_none_is_not_stored": {
            "no-image-taken-for-no-channel": (
                'if self.about.get("has_channel") and not (folder / IMAGE).exists():',
                "if False:",
            ),
        },
        "tests/checkpoint/test_snapshot.py::test_an_image_that_is_cut_off_is_refused": {
            "image-cut-off": ('if size != self.about.get("image_bytes", size):', "if False:"),
        },
        (
            "tests/checkpoint/test_snapshot.py::"
            "test_content_in_the_image_of_another_rank_is_stored_with_each"
        ): {
            "memory-of-another-read-from-here": (
                "os.pread(files[rank], end - begin, begin)",
                "os.pread(files[None], end - begin, begin)",
            ),
            "stored-as-if-it-lay-elsewhere": (
                "(image.self_contained(each) if n == 0 else each for n, each in enumerate(state))",
                "state",
            ),
        },
        "tests/checkpoint/test_snapshot.py::test_each_byte_is_read_where_it_is_stored": {
            "taken-for-its-own-of-the-same-place": (
                'folder if rank is None else folder.with_name(f"rank-{rank}")',
                "Path()",
            ),
            "places-in-parts": (
                "if parts and parts[-1][0] == where and parts[-1][2] == begin:",
                "if False:",
            ),
        },
        "tests/checkpoint/test_snapshot.py::test_known_content_is_named_by_its_key": {
            "known-wherever-in-its-chunk": (
                "parts.append((key, first - chunk, last - chunk))",
                "parts.append((key, 0, last - first))",
            ),
        },
        (
            "tests/checkpoint/test_snapshot.py::"
            "test_content_that_is_in_host_memory_too_is_stored_once"
        ): {
            "small-buffers-whole": (
                "save.buffers(rank, SMALL, small, PAGE)",
                "save.buffers(rank, SMALL, small)",
            ),
        },
        (
            "tests/checkpoint/test_snapshot.py::"
            "test_content_that_ranks_share_is_in_the_first_image_only"
        ): {
            "saved-without-what-is-noted": ("*image.noted(path)]", "*[]]"),
        },
    },
    "rankfold/image.py": {
        (
            "tests/checkpoint/test_snapshot.py::"
            "test_content_in_the_image_of_another_rank_is_stored_with_each"
        ): {
            "memory-of-before-travels": (
                " for other, begin, end in pieces if other is None]",
                " for other, begin, end in pieces]",
            ),
            "brought-and-still-elsewhere": ('if not header["elsewhere"]:', "if False:"),
        },
        "tests/checkpoint/test_snapshot.py::test_a_state_that_no_proxy_wrote_is_refused": {
            "more-elsewhere-than-is-said": (
                'elif header["elsewhere"] != len(elsewhere):',
                "elif False:",
            ),
        },
        "tests/checkpoint/test_snapshot.py::test_a_note_of_another_form_is_refused": {
            "notes-that-overlap": (
                "        offset = each.end\n    return runs\n",
                "    return runs\n",
            ),
        },
        (
            "tests/checkpoint/test_snapshot.py::"
            "test_equal_content_on_two_devices_is_read_once[True]"
        ): {
            "read-for-each-device": ('if any(found["key"]):', "if False:"),
        },
        "tests/checkpoint/test_snapshot.py::test_known_content_is_named_by_its_key": {
            "known-beyond-its-chunk": (
                "max(offset, begin),\n                min(offset + size, end)",
                "max(offset, begin),\n                end",
            ),
        },
    },
    "checkpoint/snapshot/writing.py": {
        "tests/checkpoint/test_snapshot.py::test_a_buffer_that_replicas_share_is_stored_once": {
            "left-out-wherever-it-lies": (
                "ranks_at.setdefault(position, part.rank)",
                "ranks_at.setdefault(0, part.rank)",
            ),
        },
        (
            "tests/checkpoint/test_snapshot.py::test_a_job_continues_from_the_store_to_the_same_bits"
        ): {
            "left-out-and-not-noted": (
                "            image.note(path, _joined(sorted(others)))\n",
                "            pass\n",
            ),
            "taken-for-the-unit-before": (
                "                    unit, ranks_at = data, {}\n",
                "                    unit = data\n",
            ),
        },
        (
            "tests/checkpoint/test_snapshot.py::"
            "test_content_that_ranks_share_is_in_the_first_image_only"
        ): {
            "noted-with-what-lies-between": (
                "if (last.end, last.rank) != (each.begin, each.rank):",
                "if last.rank != each.rank:",
            ),
            "noted-for-the-last-part-alone": (
                "elsewhere[self._path(part, IMAGE)].append(shared)",
                "elsewhere[self._path(part, IMAGE)] = [shared]",
            ),
        },
        "tests/checkpoint/test_snapshot.py::test_files_that_ranks_share_are_read_once": {
            "files-read-for-each-rank": (
                "if group and sum(each.size for each in group) + part.size > GROUP_BYTES:",
                "if group:",
            ),
            "however-many-places": ("+ part.size > GROUP_BYTES:", "+ part.size < 0:"),
        },
    },
    "interpose/launcher/snapshot/snapshot.py": {
        (
            "tests/checkpoint/test_snapshot.py::test_a_job_continues_from_the_store_to_the_same_bits"
        ): {
            "noted-and-not-filled-in": (
                "                    if each.rank == rank:\n",
                "                    if False:\n",
            ),
        },
    },
    "checkpoint/store/predecessor.py": {
        "tests/checkpoint/test_differences.py::test_a_reader_reads_no_more_than_is_worth_it": {
            "read-without-end": ("checkpoint.bytes_read > READ_BYTES_MAX", "False"),
        },
        "tests/checkpoint/test_differences.py::test_unreadable_references_are_not_used": {
            "saves-fail-for-what-was-before": (
                "        except StoreError:",
                "        except ZeroDivisionError:",
            ),
        },
    },
}
