// rendezvous.h: a process's place among the ranks, and how all of them get rank 0's ncclUniqueId.
//
// The environment is the one that torchrun and most launchers set: RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT. Rank 0 listens on MASTER_PORT; the other ranks connect and read.
#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "check.h"

struct World {
	int rank, size, local_rank;
	std::string address, port;
};

inline int env_int(const char *name, int fallback)
{
	const char *text = getenv(name);
	return text ? atoi(text) : fallback;
}

inline World world_from_env()
{
	const char *address = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
	int rank = env_int("RANK", 0);
	return {rank, env_int("WORLD_SIZE", 1), env_int("LOCAL_RANK", rank),
		address ? address : "127.0.0.1", port ? port : "29500"};
}

inline int listen_on(const World &world)
{
	int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	sockaddr_in any = {};
	any.sin_family = AF_INET;
	any.sin_port = htons(uint16_t(atoi(world.port.c_str())));
	any.sin_addr.s_addr = htonl(INADDR_ANY);
	setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (server < 0 || bind(server, reinterpret_cast<sockaddr *>(&any), sizeof any) < 0 ||
	    listen(server, world.size) < 0)
		die("cannot listen on port %s: %s", world.port.c_str(), strerror(errno));
	return server;
}

inline void serve(const World &world, const void *data, size_t bytes)
{
	int server = listen_on(world);
	for (int peer = 1; peer < world.size; peer++) {
		int connection = accept(server, nullptr, nullptr);
		if (connection < 0 || send(connection, data, bytes, MSG_NOSIGNAL) != ssize_t(bytes))
			die("cannot serve a peer: %s", strerror(errno));
		close(connection);
	}
	close(server);
}

inline int connect_to_master(const World &world)
{
	addrinfo hints = {}, *found = nullptr;
	hints.ai_family = AF_INET;
	hints.ai_socktype = SOCK_STREAM;
	int error = getaddrinfo(world.address.c_str(), world.port.c_str(), &hints, &found);
	if (error)
		die("%s: %s", world.address.c_str(), gai_strerror(error));
	for (int tries = 0; tries < 6000; tries++) { // a minute: rank 0 may start later
		int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(connection, found->ai_addr, found->ai_addrlen) == 0) {
			freeaddrinfo(found);
			return connection;
		}
		close(connection);
		usleep(10000);
	}
	die("no answer from rank 0 at %s:%s", world.address.c_str(), world.port.c_str());
}

// Copies rank 0's `data` to all ranks.
inline void share(const World &world, void *data, size_t bytes)
{
	if (world.rank == 0) {
		serve(world, data, bytes);
		return;
	}
	int connection = connect_to_master(world);
	if (recv(connection, data, bytes, MSG_WAITALL) != ssize_t(bytes))
		die("rank 0 hung up");
	close(connection);
}
