/* sockets.c: sockets, what they are set to, and what is in them. */
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include "objects.h"

static int stream[2], datagrams[2], sequence[2], carrier[2], shut[2];

static void put(int fd, const char *text)
{
	need(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text), "send");
}

static void make_stream(void)
{
	need(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, stream) == 0, "socketpair");
	put(stream[0], "there");
	put(stream[1], "back");
}
static void use_stream(void)
{
	say_content(stream[1]);
	say_content(stream[0]);
	put(stream[0], "again");
	say_content(stream[1]);
}
static void make_datagrams(void)
{
	need(socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) == 0, "socketpair");
	put(datagrams[0], "one");
	put(datagrams[0], "two");
}
static void use_datagrams(void)
{
	say_content(datagrams[1]);
	say_content(datagrams[1]);
}
static void make_sequence(void)
{
	need(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sequence) == 0, "socketpair");
	put(sequence[0], "one");
	put(sequence[0], "two");
}
static void use_sequence(void)
{
	say_content(sequence[1]);
	say_content(sequence[1]);
}
static void make_shut(void)
{
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, shut) == 0, "socketpair");
	put(shut[0], "last");
	shutdown(shut[0], SHUT_WR);
}
static void use_shut(void)
{
	char byte;
	say_content(shut[1]);
	say("%zd", recv(shut[1], &byte, 1, MSG_DONTWAIT));
	put(shut[1], "still");
	say_content(shut[0]);
}

/* A descriptor on its way: the read end of a pipe. */
static void make_carried(void)
{
	int ends[2];
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {{0}};
	struct iovec data = {"x", 1};
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof control};
	need(pipe(ends) == 0 && write(ends[1], "carried", 7) == 7, "pipe");
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, carrier) == 0, "socketpair");
	control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.head), &ends[0], sizeof(int));
	need(sendmsg(carrier[0], &message, 0) == 1, "sendmsg");
	close(ends[0]);
}
static void use_carried(void)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data,
				 .msg_iovlen = 1,
				 .msg_control = room,
				 .msg_controllen = sizeof room};
	need(recvmsg(carrier[1], &message, MSG_DONTWAIT) == 1, "recvmsg");
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	int fd = -1;
	if (head && head->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(head), sizeof fd);
	say_content(fd);
}

static int listener, abstract;
static struct sockaddr_un at = {AF_UNIX, "listening"}, hidden = {AF_UNIX, ""};
static void make_listener(void)
{
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	need(bind(listener, (struct sockaddr *)&at, sizeof at) == 0, "bind");
	need(listen(listener, 3) == 0, "listen");
	abstract = socket(AF_UNIX, SOCK_DGRAM, 0);
	// An abstract name that no other test has, but each rank of this one: its folder.
	need(getcwd(hidden.sun_path + 1, sizeof hidden.sun_path - 1) != NULL, "getcwd");
	need(bind(abstract, (struct sockaddr *)&hidden, sizeof hidden) == 0, "bind");
	int on = 1;
	setsockopt(abstract, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
}
static void use_listener(void)
{
	int near = socket(AF_UNIX, SOCK_STREAM, 0);
	need(connect(near, (struct sockaddr *)&at, sizeof at) == 0, "connect");
	int far = accept(listener, NULL, NULL);
	put(near, "accepted");
	say_content(far);
	struct ucred who = {0};
	socklen_t size = sizeof who;
	getsockopt(far, SOL_SOCKET, SO_PEERCRED, &who, &size);
	say("from %d", who.pid == getpid());
	int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
	need(sendto(sender, "hidden", 6, 0, (struct sockaddr *)&hidden, sizeof hidden) == 6, "to");
	say_content(abstract);
	int on = 0;
	size = sizeof on;
	getsockopt(abstract, SOL_SOCKET, SO_PASSCRED, &on, &size);
	say("credentials %d", on);
	unlink(at.sun_path);
}
/* A connection that no process has accepted yet. */
static int crowded, waiting;
static struct sockaddr_un crowded_at = {AF_UNIX, "crowded"};
static void make_unaccepted(void)
{
	crowded = socket(AF_UNIX, SOCK_STREAM, 0);
	need(bind(crowded, (struct sockaddr *)&crowded_at, sizeof at) == 0, "bind");
	need(listen(crowded, 3) == 0, "listen");
	waiting = socket(AF_UNIX, SOCK_STREAM, 0);
	need(connect(waiting, (struct sockaddr *)&crowded_at, sizeof at) == 0, "connect");
	put(waiting, "before");
}
static void use_unaccepted(void)
{
	int far = readable_within(crowded, 0) ? accept(crowded, NULL, NULL) : -1;
	say("accepted %d", far >= 0);
	say_content(far);
	unlink(crowded_at.sun_path);
}

/* ---- the network's ---- */

static int tcp_listener, near, far, tcp_unaccepted, tcp_waiting, udp;

static int bound(int type, struct sockaddr_in *name)
{
	int fd = socket(AF_INET, type, 0);
	socklen_t size = sizeof *name;
	*name = (struct sockaddr_in){.sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	need(bind(fd, (struct sockaddr *)name, size) == 0, "bind");
	need(getsockname(fd, (struct sockaddr *)name, &size) == 0, "getsockname");
	return fd;
}

static int connected(const struct sockaddr_in *name)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	need(connect(fd, (const struct sockaddr *)name, sizeof *name) == 0, "connect");
	return fd;
}

static struct sockaddr_in tcp_name, udp_name;
static void make_tcp(void)
{
	tcp_listener = bound(SOCK_STREAM, &tcp_name);
	need(listen(tcp_listener, 7) == 0, "listen");
	near = connected(&tcp_name);
	far = accept(tcp_listener, NULL, NULL);
	put(near, "there");
	put(far, "back");
	need(readable(near) && readable(far), "tcp");
}
static void use_tcp(void)
{
	say_content(far);
	say_content(near);
	int again = connected(&tcp_name), accepted = accept(tcp_listener, NULL, NULL);
	put(again, "again");
	need(readable(accepted), "tcp");
	say_content(accepted);
	close(near);
	char byte;
	say("end %zd", recv(far, &byte, 1, 0));
}
static void make_tcp_unaccepted(void)
{
	struct sockaddr_in name;
	tcp_unaccepted = bound(SOCK_STREAM, &name);
	need(listen(tcp_unaccepted, 7) == 0, "listen");
	tcp_waiting = connected(&name);
	put(tcp_waiting, "before");
	need(readable(tcp_unaccepted), "tcp");
}
static void use_tcp_unaccepted(void)
{
	int fd = readable_within(tcp_unaccepted, 0) ? accept(tcp_unaccepted, NULL, NULL) : -1;
	say("accepted %d", fd >= 0);
	say_content(fd);
}
static void make_udp(void) { udp = bound(SOCK_DGRAM, &udp_name); }
static void use_udp(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	need(sendto(fd, "sent", 4, 0, (struct sockaddr *)&udp_name, sizeof udp_name) == 4,
	     "sendto");
	need(readable(udp), "udp");
	say_content(udp);
}

static int link_socket;
static void make_netlink(void)
{
	struct sockaddr_nl name = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
	link_socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	need(bind(link_socket, (struct sockaddr *)&name, sizeof name) == 0, "bind");
}
static void use_netlink(void)
{
	struct {
		struct nlmsghdr head;
		struct ifinfomsg info;
	} ask = {{sizeof ask, RTM_GETLINK, NLM_F_REQUEST, 1, 0}, {.ifi_index = 1}};
	char answer[8192];
	need(send(link_socket, &ask, sizeof ask, 0) == sizeof ask, "send");
	ssize_t got = readable(link_socket) ? recv(link_socket, answer, sizeof answer, 0) : -1;
	struct sockaddr_nl name = {0};
	socklen_t size = sizeof name;
	getsockname(link_socket, (struct sockaddr *)&name, &size);
	say("answer %d, groups %x", got > (ssize_t)sizeof(struct nlmsghdr), name.nl_groups);
}

/* ---- settings ---- */

struct setting {
	int level, option, value;
	const char *name;
};

static const struct setting of_tcp[] = {
	{SOL_SOCKET, SO_KEEPALIVE, 1, "keepalive"},
	{IPPROTO_TCP, TCP_NODELAY, 1, "nodelay"},
	{IPPROTO_TCP, TCP_KEEPIDLE, 77, "keepidle"},
	{IPPROTO_TCP, TCP_KEEPINTVL, 13, "keepintvl"},
	{IPPROTO_TCP, TCP_KEEPCNT, 5, "keepcnt"},
	{IPPROTO_TCP, TCP_USER_TIMEOUT, 30000, "user_timeout"},
	{IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384, "notsent_lowat"},
	{IPPROTO_TCP, TCP_SYNCNT, 3, "syncnt"},
	{IPPROTO_TCP, TCP_LINGER2, 9, "linger2"},
	{IPPROTO_IP, IP_TOS, 0x10, "tos"},
	{IPPROTO_IP, IP_TTL, 33, "ttl"},
	{SOL_SOCKET, SO_PRIORITY, 4, "priority"},
	{SOL_SOCKET, SO_RCVLOWAT, 2, "rcvlowat"},
	{SOL_SOCKET, SO_SNDBUF, 99999, "sndbuf"},
	{SOL_SOCKET, SO_RCVBUF, 88888, "rcvbuf"},
	{SOL_SOCKET, SO_OOBINLINE, 1, "oobinline"},
	{SOL_SOCKET, SO_TIMESTAMP, 1, "timestamp"},
	{SOL_SOCKET, SO_ZEROCOPY, 1, "zerocopy"},
	{SOL_SOCKET, SO_BUSY_POLL, 50, "busy_poll"},
	{SOL_SOCKET, SO_MARK, 9, "mark"},
	{0, 0, 0, NULL},
};
static const struct setting of_listener[] = {
	{SOL_SOCKET, SO_REUSEADDR, 1, "reuseaddr"},
	{SOL_SOCKET, SO_REUSEPORT, 1, "reuseport"},
	{IPPROTO_TCP, TCP_DEFER_ACCEPT, 3, "defer_accept"},
	{IPPROTO_TCP, TCP_FASTOPEN, 5, "fastopen"},
	{0, 0, 0, NULL},
};
static const struct setting of_udp[] = {
	{SOL_SOCKET, SO_BROADCAST, 1, "broadcast"},
	{IPPROTO_IP, IP_MULTICAST_TTL, 7, "multicast_ttl"},
	{IPPROTO_IP, IP_MULTICAST_LOOP, 0, "multicast_loop"},
	{IPPROTO_IP, IP_PKTINFO, 1, "pktinfo"},
	{IPPROTO_IP, IP_RECVERR, 1, "recverr"},
	{IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "mtu_discover"},
	{0, 0, 0, NULL},
};

static void change(int fd, const struct setting *each)
{
	for (; each->name; each++)
		if (setsockopt(fd, each->level, each->option, &each->value, sizeof each->value))
			need(errno == EPERM || errno == ENOPROTOOPT, each->name);
}
static void say_settings(int fd, const struct setting *each)
{
	for (; each->name; each++) {
		int value = -1;
		socklen_t size = sizeof value;
		getsockopt(fd, each->level, each->option, &value, &size);
		say("%s %d", each->name, value);
	}
}

static int set_tcp, set_listener, set_udp;
static void make_tcp_settings(void)
{
	struct sockaddr_in name;
	int fd = bound(SOCK_STREAM, &name);
	need(listen(fd, 1) == 0, "listen");
	set_tcp = connected(&name);
	need(accept(fd, NULL, NULL) >= 0, "accept");
	change(set_tcp, of_tcp);
	struct linger linger = {1, 12};
	struct timeval wait = {3, 250000}, longer = {4, 500000};
	setsockopt(set_tcp, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
	setsockopt(set_tcp, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	setsockopt(set_tcp, SOL_SOCKET, SO_SNDTIMEO, &longer, sizeof longer);
	need(setsockopt(set_tcp, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0, "reno");
}
static void use_tcp_settings(void)
{
	say_settings(set_tcp, of_tcp);
	struct linger linger = {0};
	struct timeval wait = {0}, longer = {0};
	char congestion[16] = "";
	socklen_t size = sizeof linger;
	getsockopt(set_tcp, SOL_SOCKET, SO_LINGER, &linger, &size);
	size = sizeof wait;
	getsockopt(set_tcp, SOL_SOCKET, SO_RCVTIMEO, &wait, &size);
	size = sizeof longer;
	getsockopt(set_tcp, SOL_SOCKET, SO_SNDTIMEO, &longer, &size);
	size = sizeof congestion;
	getsockopt(set_tcp, IPPROTO_TCP, TCP_CONGESTION, congestion, &size);
	say("linger %d %d", linger.l_onoff, linger.l_linger);
	say("timeouts %ld %ld", (long)wait.tv_sec * 1000000 + wait.tv_usec,
	    (long)longer.tv_sec * 1000000 + longer.tv_usec);
	say("congestion %s", congestion);
}
static void make_listener_settings(void)
{
	struct sockaddr_in name;
	set_listener = bound(SOCK_STREAM, &name);
	change(set_listener, of_listener);
	need(listen(set_listener, 7) == 0, "listen");
}
static void use_listener_settings(void) { say_settings(set_listener, of_listener); }
static void make_udp_settings(void)
{
	struct sockaddr_in name;
	set_udp = bound(SOCK_DGRAM, &name);
	change(set_udp, of_udp);
}
static void use_udp_settings(void) { say_settings(set_udp, of_udp); }

const struct object sockets[] = {
	{"stream", make_stream, use_stream},
	{"datagrams", make_datagrams, use_datagrams},
	{"sequence", make_sequence, use_sequence},
	{"shut", make_shut, use_shut},
	{"carried", make_carried, use_carried},
	{"listener", make_listener, use_listener},
	{"unaccepted", make_unaccepted, use_unaccepted},
	{"tcp", make_tcp, use_tcp},
	{"tcp_unaccepted", make_tcp_unaccepted, use_tcp_unaccepted},
	{"udp", make_udp, use_udp},
	{"netlink", make_netlink, use_netlink},
	{"tcp_settings", make_tcp_settings, use_tcp_settings},
	{"listener_settings", make_listener_settings, use_listener_settings},
	{"udp_settings", make_udp_settings, use_udp_settings},
	{0},
};
