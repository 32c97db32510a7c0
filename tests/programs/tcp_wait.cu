// tcp_wait.cu: ranks that wait for each other outside of CUDA. The last rank launches nothing
// before rank 0 has sent it a byte, which rank 0 does after a kernel; from then on they take
// turns. On one device both go on only if the one that waits gives way.
#include "common.h"

__global__ void count_up(int *counter) { ++*counter; }

static void send_byte(int connection, char byte)
{
    EXPECT(send(connection, &byte, 1, MSG_NOSIGNAL) == 1, "the neighbour is gone");
}

static void await_byte(int connection, char byte)
{
    char got;
    EXPECT(recv(connection, &got, 1, 0) == 1 && got == byte, "no byte from the neighbour");
}

// Rank 0 and the last rank get a connection, the others -1.
static int connect_ends(const World &world)
{
    if (world.rank != 0 && world.rank != world.size - 1)
        return -1;
    if (world.rank != 0)
        return connect_to_master(world);
    int server = listen_on(world), connection = accept(server, nullptr, nullptr);
    EXPECT(connection >= 0, "accept: %s", strerror(errno));
    close(server);
    return connection;
}

static void turn(int *counter, int step)
{
    count_up<<<1, 1>>>(counter);
    int value = report(step, "counter", counter, 1)[0];
    EXPECT(value == step + 1, "the counter is %d", value);
}

int main(int argc, char **argv)
{
    World world = start();
    int steps = argument(argc, argv, 1, 40);
    EXPECT(world.size >= 2, "needs two ranks");
    int connection = connect_ends(world), *counter = nullptr;
    for (int k = 0; k < steps; k++) {
        bool first = (world.rank == 0) == (k % 2 == 0);  // who goes first changes
        if (connection >= 0 && !first)
            await_byte(connection, char(k));
        counter = counter ? counter : on_device<int>(1);
        turn(counter, k);
        if (connection >= 0 && first)
            send_byte(connection, char(k));
    }
    return 0;
}
