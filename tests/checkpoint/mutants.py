"""Faults seeded into the store, one at a time, each with the test that notices it."""

from __future__ import annotations

from faults.tree import Mutant

SAVE, STORE, COLLECT, LIVES, READING, FILES, DOCUMENTS = (
    f"checkpoint/store/{name}.py"
    for name in ("save", "store", "collect", "lives", "reading", "files", "documents")
)
BEFORE, ON_DIFFERENCES = (
    "checkpoint/store/before.py",
    "tests/checkpoint/test_differences.py::",
)
UPLOAD, FETCH, BACKGROUND, FOLDER = (
    f"checkpoint/{name}.py" for name in ("upload", "fetch", "background", "snapshot/folder")
)
ON_UPLOADING = "tests/checkpoint/test_uploading.py::"
ON_FAULTS, ON_REFUSALS = "tests/checkpoint/test_faults.py::", "tests/checkpoint/test_refusals.py::"
WITHIN = "tests/checkpoint/test_together.py::test_within_a_collection[%s]"
ON_DURABLE, ON_SAVING = "tests/checkpoint/test_durable.py::", "tests/checkpoint/test_saving.py::"
IMAGE, ELSEWHERE = (
    "rankfold/image.py",
    "tests/checkpoint/test_snapshot.py::"
    "test_what_lies_in_the_image_of_another_rank_is_stored_with_each",
)
WRITING, ON_SNAPSHOT = "checkpoint/snapshot/writing.py", "tests/checkpoint/test_snapshot.py::"
RESTORED_JOB = ON_SNAPSHOT + "test_a_job_goes_on_from_the_store_to_the_same_bits"
PARTLY = ON_SNAPSHOT + (
    "test_of_what_ranks_hold_alike_the_first_image_has_all_and_others_the_rest"
)
ORDERS = "tests/checkpoint/test_together.py::test_in_some_orders[%s]"
BESIDE, RESTORED, TWO = (
    ORDERS % name for name in ("collections_beside_saves",
                               "a_job_is_restored_while_an_old_uploader_goes_on",
                               "two_uploaders_of_one_job")
)  # fmt: skip
IN_TIME = ON_DURABLE + "test_the_manifest_comes_when_all_that_it_names_is_durable"
LATE = ON_REFUSALS + "test_what_an_old_incarnation_still_writes_does_not_count"

MUTANTS = [
    Mutant(
        "manifest-first",
        SAVE,
        "            self._drain()\n            manifest",
        "            manifest",
        ON_FAULTS + "test_a_slow_store_is_waited_for",
    ),
    Mutant(
        "folders-not-synced",
        SAVE,
        'self.files.settle([f"{folder}/objects", f"{folder}/packs"])',
        "pass",
        IN_TIME,
    ),
    Mutant(
        "manifests-not-synced",
        SAVE,
        "self.files.settle([names.manifest(self.job)])",
        "pass",
        IN_TIME,
    ),
    Mutant("files-not-synced", FILES, "            os.fsync(file)\n", "", IN_TIME),
    Mutant(
        "folders-above-not-synced",
        FILES,
        "*(up for up in path.parents if up.is_relative_to(root))",
        "",
        IN_TIME,
    ),
    Mutant(
        "unit-not-verified",
        READING,
        "                if units.digest_of(pack[digest]) != digest:",
        "                if False:",
        ON_FAULTS + "test_a_restore_verifies_every_unit",
    ),
    Mutant(
        "table-not-verified",
        READING,
        "        if units.digest_of(data) != digest:\n            raise",
        "        if False:\n            raise",
        ON_FAULTS + "test_no_flipped_bit_gets_through",
    ),
    Mutant(
        "check-does-not-look",
        READING,
        "                if units.digest_of(data) != digest:\n                    return",
        "                if False:\n                    return",
        ON_FAULTS + "test_a_restore_verifies_every_unit",
    ),
    Mutant(
        "damage-counted-on",
        STORE,
        "if not marked & manifest.files.keys():",
        "if True:",
        "tests/checkpoint/test_commands.py::test_what_is_wrong_is_said_of_each",
    ),
    Mutant(
        "damaged-ones-are-kept",
        COLLECT,
        "and not marked & manifest.files.keys():",
        "and True:",
        ON_FAULTS + "test_damaged_ones_are_not_among_the_last_that_are_kept",
    ),
    Mutant(
        "lacking-ones-are-kept",
        COLLECT,
        "good += manifest.files.items() <= data.items()",
        "good += 1",
        ON_FAULTS + "test_ones_that_lack_something_are_not_among_the_last_that_are_kept",
    ),
    Mutant(
        "numbers-used-again",
        STORE,
        "return given_up if lost.number and (found is None or found.number < lost) else found",
        "return found",
        ON_FAULTS + "test_a_number_that_was_used_is_not_used_again",
    ),
    Mutant(
        "running-saves-collected",
        COLLECT,
        "{claim.folder for claim in first.running + second.running}",
        "set()",
        BESIDE,
    ),
    Mutant(
        "claims-not-read-again",
        COLLECT,
        "claims = lives.claims(store.files, job, fence.holds)",
        "claims = before.claims if before else lives.claims(store.files, job, fence.holds)",
        WITHIN % "a_save_begins",
    ),
    Mutant(
        "late-manifests-not-seen",
        COLLECT,
        "    counted += second.manifests.values()\n",
        "",
        WITHIN % "a_save_comes_and_goes",
    ),
    Mutant(
        "pins-go",
        COLLECT,
        "    for each in first.pins() | second.pins():\n        with",
        "    for each in ():\n        with",
        WITHIN % "a_save_begins",
    ),
    Mutant(
        "origin-goes",
        COLLECT,
        "            found.add(life.origin)\n",
        "            pass\n",
        WITHIN % "the_job_is_restored",
    ),
    Mutant(
        "gone-before-it-is-doomed",
        COLLECT,
        "    store.files.create(names.doomed(job, each), data)\n",
        "",
        ON_DURABLE + "test_a_doomed_manifest_is_there_before_the_other_goes",
    ),
    Mutant(
        "newer-formats-collected",
        COLLECT,
        "        except Refused as error:",
        "        except RuntimeError as error:",
        ON_REFUSALS + "test_a_newer_format",
    ),
    Mutant(
        "old-incarnation-let-go",
        LIVES,
        "if now.incarnation > incarnation:",
        "if False:",
        ON_REFUSALS + "test_incarnations",
    ),
    Mutant(
        "old-incarnation-finishes",
        SAVE,
        "            self._permitted()\n            name, data",
        "            name, data",
        ON_REFUSALS + "test_incarnations",
    ),
    Mutant(
        "late-ones-count",
        LIVES,
        "return self.known is None or each >= self.since or each in self.known",
        "return True",
        LATE,
    ),
    Mutant(
        "overtaken-ones-finish",
        SAVE,
        "        if not self._holds():\n            self._overtaken()",
        "        if False:\n            self._overtaken()",
        ON_FAULTS + "test_who_is_overtaken_finishes_nothing",
    ),
    Mutant(
        "uploaded-again",
        STORE,
        "        if resumed:\n            own",
        "        if False:\n            own",
        ON_FAULTS + "test_what_was_uploaded_is_not_uploaded_again",
    ),
    Mutant(
        "replicas-stored-each",
        SAVE,
        "if digest in self._where or digest in self._pending:\n                return",
        "if False:\n                return",
        ON_SAVING + "test_what_two_threads_give_at_once_is_stored_once",
    ),
    Mutant(
        "what-is-found-is-not-used",
        SAVE,
        "if digest in self._where or digest in self._pending:\n                self.progress.found",
        "if False:\n                self.progress.found",
        ON_DIFFERENCES + "test_what_comes_back_is_found",
    ),
    Mutant(
        "any-fleet",
        STORE,
        "    if found != fleet:",
        "    if False:",
        ON_REFUSALS + "test_another_fleet_s_store",
    ),
    Mutant(
        "any-folder",
        STORE,
        "not in (None, names.ROOT):",
        "in ():",
        ON_REFUSALS + "test_a_folder_with_other_things",
    ),
    Mutant(
        "any-version",
        DOCUMENTS,
        "and version > VERSION:",
        "and False:",
        ON_REFUSALS + "test_a_newer_format",
    ),
    Mutant(
        "any-document",
        DOCUMENTS,
        "    if fault := _fault(kind, document):\n        raise Damaged",
        "    if fault := None:\n        raise Damaged",
        ON_REFUSALS + "test_a_manifest_that_the_schema_does_not_allow",
    ),
    Mutant(
        "any-digest",
        DOCUMENTS,
        'if document.get("digest") != _digest(document):',
        "if False:",
        ON_REFUSALS + "test_a_digest_that_is_another_documents",
    ),
    Mutant(
        "written-in-place",
        FILES,
        '                os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)',
        '                os.link(f"/proc/self/fd/{file}", name + ".part", dst_dir_fd=folder)\n'
        '                os.rename(name + ".part", name, src_dir_fd=folder, dst_dir_fd=folder)',
        ON_DURABLE + "test_one_of_several_makes_a_file",
    ),
    Mutant(
        "a-flipped-bit-is-newer",
        DOCUMENTS,
        '        if kind == "root":',
        "        if True:",
        ON_REFUSALS + "test_a_flipped_bit_makes_nothing_newer",
    ),
    Mutant(
        "saved-twice",
        UPLOAD,
        "_finished(store, place) if place.before.token else None",
        "None",
        ON_UPLOADING + "test_a_save_that_was_finished_unseen_is_not_saved_twice",
    ),
    Mutant(
        "modules-stay-behind",
        UPLOAD,
        "        modules.give(save, loaded)\n",
        "",
        ON_UPLOADING + "test_modules_travel_along",
    ),
    Mutant(
        "stored-though-it-may-be-lost",
        UPLOAD,
        'if snapshot.about.get("boot", place.state.boot) != place.state.boot:',
        "if False:",
        ON_UPLOADING + "test_a_snapshot_that_is_none_is_not_stored",
    ),
    Mutant(
        "fetched-of-two",
        FETCH,
        "if place.before.id != str(each):",
        "if False:",
        ON_UPLOADING + "test_what_was_fetched_of_another_checkpoint_does_not_stay",
    ),
    Mutant(
        "fetched-before-the-machine-stopped",
        BACKGROUND,
        "if place.before.boot != place.state.boot and not work.durable:",
        "if False:",
        ON_UPLOADING + "test_what_a_machine_had_fetched_before_it_stopped_is_fetched_again",
    ),
    Mutant(
        "pages-cut-off",
        FOLDER,
        "        if size != pagemap.size:",
        "        if False:",
        "tests/checkpoint/test_snapshot.py::test_pages_that_are_cut_off_are_refused",
    ),
    Mutant("an-image-that-is-copied-not-waited-for", UPLOAD,
           "while copied := images_on_their_way(folders):", "while copied := False:",
           ON_UPLOADING + "test_an_image_that_is_still_copied_is_waited_for"),
    Mutant("no-image-taken-for-no-channel", FOLDER,
           'if self.about.get("has_channel") and not (folder / IMAGE).exists():', "if False:",
           ON_UPLOADING + "test_a_snapshot_that_is_none_is_not_stored"),
    Mutant("image-cut-off", FOLDER, 'if size != self.about.get("image_bytes", size):', "if False:",
           "tests/checkpoint/test_snapshot.py::test_an_image_that_is_cut_off_is_refused"),
    Mutant(
        "memory-of-another-read-from-here",
        FOLDER,
        "os.pread(files[who], end - begin, begin)",
        "os.pread(files[None], end - begin, begin)",
        ELSEWHERE,
    ),
    Mutant(
        "stored-as-if-it-lay-elsewhere",
        FOLDER,
        "(image.whole(each) if n == 0 else each for n, each in enumerate(state))",
        "state",
        ELSEWHERE,
    ),
    Mutant(
        "memory-of-before-travels",
        IMAGE,
        " for other, begin, end in pieces if other is None]",
        " for other, begin, end in pieces]",
        ELSEWHERE,
    ),
    Mutant(
        "brought-and-still-elsewhere", IMAGE, 'if not header["elsewhere"]:', "if False:", ELSEWHERE
    ),
    Mutant(
        "more-elsewhere-than-is-said",
        IMAGE,
        'elif header["elsewhere"] != len(elsewhere):',
        "elif False:",
        "tests/checkpoint/test_snapshot.py::test_a_state_that_nobody_wrote_is_refused",
    ),
    Mutant("left-out-wherever-it-lies", WRITING, "lies.setdefault(at, part.rank)",
           "lies.setdefault(0, part.rank)",
           ON_SNAPSHOT + "test_a_buffer_that_replicas_share_is_stored_once"),
    Mutant("left-out-and-not-noted", WRITING,
           "            image.note(self._path(part, IMAGE), _joined(sorted(found)))\n",
           "            pass\n", RESTORED_JOB),
    Mutant("taken-for-the-unit-before", WRITING, "                    unit, lies = data, {}\n",
           "                    unit = data\n", RESTORED_JOB),
    Mutant("noted-with-what-lies-between", WRITING,
           "if (last.end, last.rank) != (each.begin, each.rank):", "if last.rank != each.rank:",
           PARTLY),
    Mutant("noted-and-not-filled-in", "interpose/launcher/snapshots.py",
           "                    if each.rank == rank:\n", "                    if False:\n",
           RESTORED_JOB),
    Mutant("notes-that-overlap", IMAGE, "        at = each.end\n    return found\n",
           "    return found\n", ON_SNAPSHOT + "test_a_note_of_another_form_is_refused"),
    Mutant("named-without-what-it-refers-to", SAVE,
           "                used.setdefault(self._where[digest], 0)", "                pass",
           ON_DIFFERENCES + "test_a_pack_is_kept_with_all_that_it_refers_to"),
    Mutant("references-not-counted", SAVE,
           "self._used.setdefault(*self._references[digest])", "pass",
           ON_DIFFERENCES + "test_what_comes_back_is_found"),
    Mutant("new-references-not-counted", SAVE, "self._used.setdefault(*differs[1])", "pass",
           ON_DIFFERENCES + "test_a_pack_is_kept_with_all_that_it_refers_to"),
    Mutant("differences-of-differences", SAVE, "self._references.get(before, (before, 0))[0]",
           "before", ON_DIFFERENCES + "test_a_page_that_was_edited_takes_little"),
    Mutant("differences-however-large", SAVE, "ALIKE = 1 / 8", "ALIKE = 1",
           ON_DIFFERENCES + "test_what_has_little_in_common_is_stored_as_it_is"),
    Mutant("differences-without-what-they-refer-to", STORE, "_complete(packs)", "packs",
           ON_DIFFERENCES + "test_what_differs_from_what_is_given_up_is_stored_anew"),
    Mutant("read-without-end", BEFORE, "checkpoint.bytes_read > READ_BYTES_MAX", "False",
           ON_DIFFERENCES + "test_nobody_reads_more_than_is_worth_it"),
    Mutant("saves-fail-for-what-was-before", BEFORE, "        except StoreError:",
           "        except ZeroDivisionError:",
           ON_DIFFERENCES + "test_what_cannot_be_read_is_done_without"),
    Mutant("reference-not-verified", READING, "if units.digest_of(data) != other_digest:",
           "if False:", ON_DIFFERENCES + "test_the_file_with_the_reference_is_named"),
    Mutant("blamed-for-another-file", READING,
           "return error.what if error.name == self._name(place) else None", "return error.what",
           ON_DIFFERENCES + "test_the_file_with_the_reference_is_named"),
    Mutant("who-needs-a-reference-not-told", READING, "                files |= {\n",
           "                files & {\n",
           ON_DIFFERENCES + "test_who_needs_a_reference_is_told"),
    Mutant("any-reference", READING, "if other[0] is None or other[1] != reference[1] or",
           "if other[0] is None or",
           ON_DIFFERENCES + "test_a_reference_of_another_length_is_refused"),
    Mutant("references-that-are-differences", READING, " or self._references(other[0]):", ":",
           ON_DIFFERENCES + "test_a_difference_of_a_difference_is_refused"),
    Mutant("read-where-it-differs", READING, "key=lambda pack: not pack[1].references",
           "key=lambda pack: bool(pack[1].references)",
           ON_DIFFERENCES + "test_what_is_there_twice_is_read_where_it_is_itself"),
    Mutant("saved-without-what-is-noted", FOLDER, "*image.noted(path)]", "*[]]", ELSEWHERE),
]
