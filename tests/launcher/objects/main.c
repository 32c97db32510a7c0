/* objects FOLDER NAME…: makes these objects, writes the file "ready", waits for the file "go", and
 * prints what it finds of each. Without a name: lists all names.
 */
#include "objects.h"

static const struct object *const tables[] = {timers,   events, pipes,  sockets, files,
					      settings, memory, unseen, refused};

static const char *current = "";

void say(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	putchar(' ');
	vprintf(format, arguments);
	va_end(arguments);
}

void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "%s: %s: %s\n", current, what, strerror(errno));
	exit(1);
}

static void write_file(const char *name)
{
	int fd = open(name, O_CREAT | O_WRONLY, 0600);
	need(fd >= 0, name);
	close(fd);
}

void lack(void)
{
	printf("none: %s\n", current);
	fflush(stdout);
	write_file("ready");
	exit(0);
}

int readable_within(int fd, int ms)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};
	int got;
	do
		got = poll(&one, 1, ms);
	while (got < 0 && errno == EINTR);
	return got == 1 && one.revents & POLLIN;
}

int readable(int fd) { return readable_within(fd, 10000); }

void say_content(int fd)
{
	char text[256];
	ssize_t got = readable_within(fd, 0) ? read(fd, text, sizeof text) : -1;
	if (got < 0)
		say("(nothing)");
	else
		say("'%.*s'", (int)got, text);
}

pid_t sleeping_child(void)
{
	pid_t child = fork();
	need(child >= 0, "fork");
	if (child == 0)
		for (;;)
			pause();
	return child;
}

static const struct object *find(const char *name)
{
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
		for (const struct object *each = tables[t]; each->name; each++)
			if (strcmp(each->name, name) == 0)
				return each;
	fprintf(stderr, "there is no object %s\n", name);
	exit(2);
}

static void list(void)
{
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
		for (const struct object *each = tables[t]; each->name; each++)
			puts(each->name);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		list();
		return 0;
	}
	need(chdir(argv[1]) == 0, argv[1]);
	for (int i = 2; i < argc; i++) {
		current = argv[i];
		find(argv[i])->make();
	}
	write_file("ready");
	while (access("go", F_OK) != 0)
		usleep(10000);
	for (int i = 2; i < argc; i++) {
		current = argv[i];
		printf("%s:", argv[i]);
		find(argv[i])->use();
		putchar('\n');
		fflush(stdout);
	}
	fflush(stdout);
	_exit(0);
}
