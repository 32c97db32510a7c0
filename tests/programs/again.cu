// again.cu: a rank that becomes another program (exec), and that another one, each time amid its
// work: TIMES (argument 1) are left. Each has a context, and memory, of its own: MIB (argument 2).
#include "common.h"

#include <string>
#include <unistd.h>

__global__ void add_one(unsigned *numbers, size_t count)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
	     i += gridDim.x * blockDim.x)
		numbers[i]++;
}

int main(int argc, char **argv)
{
	World world = start();
	int times = argument(argc, argv, 1, 1);
	size_t count = size_t(argument(argc, argv, 2, 1)) << 18;
	unsigned *numbers = on_device<unsigned>(count);
	add_one<<<16, 128>>>(numbers, count);
	for (unsigned each : fetch(numbers, count))
		EXPECT(each == 1, "%u instead of 1", each);
	printf("rank %d, %d left\n", world.rank, times);
	fflush(stdout);
	if (!times)
		return 0;
	for (int n = 0; n < 20; n++)
		add_one<<<16, 128>>>(numbers, count);
	std::string left = std::to_string(times - 1);
	execl(argv[0], argv[0], left.c_str(), argv[2], static_cast<char *>(nullptr));
	return 1;
}
