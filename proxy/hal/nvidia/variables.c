/* variables.c: variables of machine code.
 *
 * The code contains the addresses at which the driver has put its module's variables, once for all
 * ranks. So before a launch the rank's own content is copied there, and after it back to the rank's
 * globals, in the launch's stream: they are the rank's memory, which is saved, moved and swapped.
 * Launches that use the variables of one module wait for each other, in whatever streams they are.
 * Nothing is copied to the driver's where the content is known to be there: that of the rank whose
 * launch was the last one, as long as its program has asked for the address of no variable; and
 * constants, as long as no program has.
 *
 * Runs in the device thread.
 */
#include "issue.h"

/* Copies a part to the driver's or back, piece by piece: the globals may cross chunks. */
static enum issued copy(struct hal_stream *s, struct hal_space *space, uint64_t globals,
			const struct nvidia_part *v, bool back)
{
	const struct nvidia_driver *d = s->device->driver;

	for (uint64_t done = 0, n; done < v->bytes; done += n) {
		uint64_t own = globals + v->offset + done;
		CUdeviceptr at;
		CUresult error;

		n = nvidia_space_resolve(space, own, back, &at);
		if (!n) {
			nvidia_space_stray(space, "a variable of machine code", own);
			return FAILED;
		}
		n = n < v->bytes - done ? n : v->bytes - done;
		error = back ? d->cuMemcpyAsync(at, v->at + done, n, s->stream)
			     : d->cuMemcpyAsync(v->at + done, at, n, s->stream);
		if (issue_check(s, space, "a variable of machine code", error) == FAILED)
			return FAILED;
	}
	return ALL;
}

/* Whether launches of the module have anything to copy. */
static bool are_copied(const struct nvidia_variables *variables)
{
	return variables && (variables->differ || variables->changing);
}

enum issued issue_variables_in(struct hal_stream *s, const struct hal_work *w)
{
	struct nvidia_variables *variables = w->kernel.function->variables;
	struct hal_space *space = w->kernel.space;
	enum issued done = ALL;

	if (variables)
		variables->differ |= w->kernel.globals_known;
	if (!are_copied(variables))
		return ALL;
	if (variables->in_use)
		done = issue_check(
			s, space, "waiting for variables",
			s->device->driver->cuStreamWaitEvent(s->stream, variables->copied, 0));
	if (w->kernel.globals_number && variables->number == w->kernel.globals_number &&
	    !w->kernel.globals_known)
		return done;
	variables->number = 0;
	for (uint32_t i = 0; done == ALL && i < variables->count; i++)
		if (!variables->all[i].constant || variables->differ)
			done = copy(s, space, w->kernel.globals_addr, &variables->all[i], false);
	if (done == ALL)
		variables->number = w->kernel.globals_number;
	return done;
}

enum issued issue_variables_out(struct hal_stream *s, const struct hal_work *w)
{
	struct nvidia_variables *variables = w->kernel.function->variables;
	enum issued done = ALL;

	if (!are_copied(variables))
		return ALL;
	for (uint32_t i = 0; done == ALL && i < variables->count; i++)
		if (!variables->all[i].constant)
			done = copy(s, w->kernel.space, w->kernel.globals_addr, &variables->all[i],
				    true);
	variables->in_use = true;
	return issue_check(s, w->kernel.space, "variables",
			   s->device->driver->cuEventRecord(variables->copied, s->stream)) == ALL
		       ? done
		       : FAILED;
}
