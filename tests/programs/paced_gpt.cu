// paced_gpt.cu: the GPT of examples/gpt. It pauses after each step, as if its input were slow, so
// that a job lasts as long as a test needs at little cost. Tests wait for early steps, and the late
// ones are to last, so each pause is longer than the one before: after step 20 n it is n
// milliseconds for each byte of the file "pace" next to its working directory. That file is never
// opened, so a checkpoint does not contain it.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

static int flush_and_pause(FILE *output)
{
    static long steps;
    int result = fflush(output);
    struct stat pace;
    steps++;
    if (stat("../pace", &pace) == 0)
        usleep(useconds_t(pace.st_size * steps * 1000 / 20));
    return result;
}

#define fflush flush_and_pause
#include "../../examples/gpt/train_gpt.cu"
