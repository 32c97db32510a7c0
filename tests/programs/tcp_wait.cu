// tcp_wait.cu: ranks that wait for each other outside of CUDA. The others launch nothing before
// rank 0 has sent them a byte, which rank 0 does after a kernel; from then on it takes turns
// with them. On one device they continue only if waiting ranks yield.
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

// Rank 0 gets a connection to each other rank, the others one to rank 0.
static std::vector<int> connect_all(const World &world)
{
    if (world.rank != 0)
        return {connect_to_master(world)};
    int server = listen_on(world);
    std::vector<int> connections;
    for (int other = 1; other < world.size; other++) {
        connections.push_back(accept(server, nullptr, nullptr));
        EXPECT(connections.back() >= 0, "accept: %s", strerror(errno));
    }
    close(server);
    return connections;
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
    const std::vector<int> connections = connect_all(world);
    int *counter = nullptr;
    for (int k = 0; k < steps; k++) {
        bool first = (world.rank == 0) == (k % 2 == 0);  // who goes first changes
        for (int connection : connections)
            if (!first)
                await_byte(connection, char(k));
        counter = counter ? counter : on_device<int>(1);
        turn(counter, k);
        for (int connection : connections)
            if (first)
                send_byte(connection, char(k));
    }
    return 0;
}
