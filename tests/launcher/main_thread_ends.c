/* main_thread_ends FOLDER HOW: the main thread ends by pthread_exit; another one waits for the file
 * "go", and then joins it ("join"), calls exit ("exit"), or just ends ("return").
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_t first;
static const char *how;

static void *continue_running(void *argument)
{
	while (access("go", F_OK) != 0)
		usleep(10000);
	void *result = NULL;
	if (strcmp(how, "join") == 0) {
		int error = pthread_join(first, &result);
		printf("joined %d, %ld\n", error, (long)result);
	}
	if (strcmp(how, "exit") == 0)
		exit(7);
	return argument;
}

static void say_end(void) { puts("the end"); }

/* Nothing of the main thread is left when its own data is destroyed. */
static void say_ready(void *key)
{
	(void)key;
	mkdir("ready", 0700);
}

int main(int argc, char **argv)
{
	pthread_t other;
	pthread_key_t key;
	if (argc != 3 || chdir(argv[1]) != 0)
		return 2;
	how = argv[2];
	first = pthread_self();
	atexit(say_end);
	pthread_key_create(&key, say_ready);
	pthread_setspecific(key, &key);
	if (pthread_create(&other, NULL, continue_running, NULL) != 0)
		return 2;
	pthread_exit((void *)42);
}
