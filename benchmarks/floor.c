/* What the kernel alone asks for an event here: see floor.py.
 *
 *     floor STREAMS EVENTS_PER_S SECONDS CLIENT_CPU SERVER_CPU
 *
 * One process writes an event at a time to each of many loopback connections, another reads each with its
 * kernel stamp as loadgen/_harvest.pyx does, and does nothing with it. Prints both sides' CPU time in us. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EVENT = 240, READ = 16384, BATCH = 64, GATHER_NS = 500000, TICK_NS = 500000 };

static char buffer[READ];

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static long now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    need(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static void sleep_ns(long ns) {
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

/* Writes what is due every tick, to one stream after the other; says what a write cost. */
static void serve(const int *ends, int streams, double rate, double seconds, int say) {
    long begin = now_ns(CLOCK_MONOTONIC), writes = 0, total = (long)(rate * seconds);
    long cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    while (writes < total) {
        long due = (long)((now_ns(CLOCK_MONOTONIC) - begin) / 1e9 * rate);
        for (; writes < due && writes < total; writes++)
            need(send(ends[writes % streams], buffer, EVENT, 0) == EVENT, "send");
        sleep_ns(TICK_NS);
    }
    double cost = (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e3 / writes;
    double took = (now_ns(CLOCK_MONOTONIC) - begin) / 1e9;
    double said[2] = {cost, writes / took};
    need(write(say, said, sizeof said) == sizeof said, "write");
}

static long receive(int end) {
    char control[64];
    struct iovec part = {buffer, READ};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    return recvmsg(end, &message, MSG_DONTWAIT);
}

/* Reads until the other side is done; returns the cost of an event. */
static double drive(int epoll, int done) {
    struct epoll_event ready[BATCH];
    long bytes = 0, cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int over = 0; !over;) {
        int count = epoll_wait(epoll, ready, BATCH, 0);
        for (int k = 0; k < count; k++) {
            over |= ready[k].data.fd == done;
            long size = ready[k].data.fd == done ? 0 : receive(ready[k].data.fd);
            bytes += size > 0 ? size : 0;
        }
        if (count < BATCH)
            sleep_ns(GATHER_NS);
    }
    return (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1e3 / (bytes / EVENT);
}

int main(int argc, char **argv) {
    need(argc == 6, "usage");
    int streams = atoi(argv[1]), on = 1, told[2];
    double rate = atof(argv[2]), seconds = atof(argv[3]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int *ends = calloc(streams, sizeof *ends);
    need(bind(listener, (void *)&at, size) == 0 && listen(listener, 1024) == 0 && pipe(told) == 0, "listen");
    getsockname(listener, (void *)&at, &size);
    for (int k = 0; k < streams; k++) {
        int own = socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = own};
        need(connect(own, (void *)&at, sizeof at) == 0, "connect");
        need(setsockopt(own, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) == 0, "SO_TIMESTAMPNS");
        need(epoll_ctl(epoll, EPOLL_CTL_ADD, own, &event) == 0, "epoll_ctl");
        need((ends[k] = accept(listener, NULL, NULL)) >= 0, "accept");
        setsockopt(ends[k], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    struct epoll_event over = {.events = EPOLLIN, .data.fd = told[0]};
    need(epoll_ctl(epoll, EPOLL_CTL_ADD, told[0], &over) == 0, "epoll_ctl");
    pid_t server = fork();
    need(server >= 0, "fork");
    if (server == 0) {
        pin(atoi(argv[5]));
        serve(ends, streams, rate, seconds, told[1]);
        return 0;
    }
    pin(atoi(argv[4]));
    double event = drive(epoll, told[0]), said[2];
    need(read(told[0], said, sizeof said) == sizeof said, "read");
    waitpid(server, NULL, 0);
    printf("{\"us_per_event\": %.2f, \"us_per_write\": %.2f, \"events_per_s\": %.0f}\n", event, said[0], said[1]);
    return 0;
}
