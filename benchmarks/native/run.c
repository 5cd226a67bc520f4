/* The course of a run: connect all, start all at once, go on until all is answered. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "load.h"

enum { EVENTS = 256 };

static void check_stall(struct run *run) {
    if (now_ns() - run->progress_ns < (uint64_t)run->options.stall_s * 1000000000u)
        return;
    fail("stalled for %d s: %d of %d connections ready, %llu of %llu commands answered, "
         "%llu of %llu messages delivered, %d CLS open",
         run->options.stall_s, run->ready, run->count, (unsigned long long)run->oks,
         (unsigned long long)run->commands, (unsigned long long)run->delivered,
         (unsigned long long)(run->options.consumers ? run->options.messages : 0),
         run->closing_left);
}

/* One epoll round; true when the pacing timer (an event without a connection) fired. */
static bool turn(struct run *run, int timeout_ms) {
    struct epoll_event events[EVENTS];
    bool timer = false;
    int count = epoll_wait(run->epoll, events, EVENTS, timeout_ms);
    for (int i = 0; i < count; i++) {
        struct connection *c = events[i].data.ptr;
        if (c == NULL) {
            timer = true;
            continue;
        }
        if (events[i].events & EPOLLOUT)
            connection_flush(run, c);
        if (events[i].events & ~(uint32_t)EPOLLOUT)
            connection_readable(run, c);
    }
    return timer;
}

static enum role role_of(const struct options *o, int i) {
    return i < o->publishers ? PUBLISHER : i < o->publishers + o->consumers ? CONSUMER : SLOW;
}

/* Opens every connection and waits until all are identified and subscribed. */
void run_open(struct run *run) {
    const struct options *o = &run->options;
    run->epoll = epoll_create1(0);
    run->count = o->publishers + o->consumers + o->slow;
    run->connections = must_alloc(calloc((size_t)run->count, sizeof *run->connections));
    run->seen = must_alloc(calloc(o->messages / 8 + 1, 1));
    run->progress_ns = now_ns();
    for (int i = 0; i < run->count; i++) {
        connection_open(run, &run->connections[i], role_of(o, i));
        if (i % 64 == 63)
            turn(run, 0);
    }
    while (run->ready < run->count) {
        turn(run, 100);
        check_stall(run);
    }
}

static void start_consumers(struct run *run) {
    char line[32];
    for (int i = run->options.publishers; i < run->count; i++) {
        struct connection *c = &run->connections[i];
        int length = snprintf(line, sizeof line, "RDY %d\n", c->role == SLOW ? 1 : run->options.rdy);
        buffer_append(&c->out, line, (size_t)length);
        connection_flush(run, c);
    }
}

/* CLS is answered after every FIN before it was taken, so its answer ends the run. */
static void close_consumers(struct run *run) {
    run->closing_left = run->options.consumers;
    for (int i = run->options.publishers; i < run->count - run->options.slow; i++) {
        run->connections[i].state = CLOSING;
        buffer_append(&run->connections[i].out, "CLS\n", 4);
        connection_flush(run, &run->connections[i]);
    }
    while (run->closing_left > 0) {
        turn(run, 100);
        check_stall(run);
    }
}

static void arm(int timer, uint64_t due_ns) {
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(due_ns / 1000000000u),
                                         .tv_nsec = (long)(due_ns % 1000000000u)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static uint64_t due_ns(const struct run *run, uint64_t sequence) {
    return run->begin_ns + (uint64_t)((double)sequence * 1e9 / run->options.rate);
}

/* Sends all that is due by the schedule, whatever was answered, and sets the timer again. */
static void pace(struct run *run, int timer) {
    const struct options *o = &run->options;
    uint64_t now = now_ns();
    for (uint64_t next; (next = run->published) < o->messages && due_ns(run, next) <= now;) {
        struct connection *c = &run->connections[next % (uint64_t)o->publishers];
        publisher_fill(run, c, next + 1);
        if (run->published == next)
            fail("%u commands unanswered: the server does not keep up with the rate", o->window);
        samples_add(&run->late, now - due_ns(run, next));
        connection_flush(run, c);
    }
    if (run->published < o->messages)
        arm(timer, due_ns(run, run->published));
}

static void fill_publishers(struct run *run) {
    for (int i = 0; i < run->options.publishers; i++) {
        publisher_fill(run, &run->connections[i], publisher_allowed(run));
        connection_flush(run, &run->connections[i]);
    }
}

/* The last 5 % of a delivery don't count for the rate, only for the check that all came: a
 * server may keep the last few in its output buffer until a timer (250 ms) flushes them. */
static uint64_t timed_messages(const struct options *o) {
    return o->consumers ? o->messages - o->messages / 20 : o->messages;
}

static bool done(struct run *run) {
    const struct options *o = &run->options;
    bool published = o->publishers == 0 || (run->published == o->messages && run->oks == run->commands);
    if (published && run->published_ns == 0)
        run->published_ns = now_ns();
    return published && (o->consumers == 0 || run->delivered == o->messages);
}

/* Publishes, consumes or both, until every command is answered and every message finished. */
void run_publish(struct run *run) {
    const struct options *o = &run->options;
    int timer = -1;
    run->timed = timed_messages(o);
    prctl(PR_SET_TIMERSLACK, 1);
    if (o->rate > 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        epoll_ctl(run->epoll, EPOLL_CTL_ADD, timer, &event);
    }
    run->begin_ns = run->progress_ns = now_ns();
    start_consumers(run);
    if (timer >= 0)
        arm(timer, run->begin_ns + 1);
    else
        fill_publishers(run);
    while (!done(run)) {
        if (turn(run, 100))
            pace(run, timer);
        if (o->ahead > 0)
            fill_publishers(run);
        check_stall(run);
    }
    if (o->consumers == 0)
        run->timed_ns = run->published_ns;
    close_consumers(run);
}

/* From the start of the server, which may not even listen yet, to the first message. */
void run_first(struct run *run) {
    run->begin_ns = run->options.since_ns;
    run->timed = 1;
    start_consumers(run);
    while (run->delivered == 0) {
        turn(run, 100);
        check_stall(run);
    }
    close_consumers(run);
}

/* Stays connected and answers heartbeats; a message would be an error of its own. */
void run_hold(struct run *run) {
    uint64_t left, end_ns;
    run->begin_ns = now_ns();
    end_ns = run->begin_ns + (uint64_t)run->options.hold_s * 1000000000u;
    start_consumers(run);
    while ((left = now_ns()) < end_ns)
        turn(run, (int)((end_ns - left) / 1000000u) + 1);
    if (run->options.heartbeat_ms && run->options.hold_s * 1000 >= run->options.heartbeat_ms &&
        run->heartbeats < (uint64_t)run->count * 9 / 10)
        fail("only %llu heartbeats for %d connections", (unsigned long long)run->heartbeats,
             run->count);
}

/* Creates channels named after --channel by one short subscription each. */
void run_create_channels(const struct options *options) {
    char line[160];
    uint8_t answer[10];
    for (int i = 0; i < options->channels; i++) {
        int fd = connection_dial(options);
        int length = snprintf(line, sizeof line, "SUB %s %s%d\n", options->topic, options->channel, i);
        if (send(fd, line, (size_t)length, MSG_NOSIGNAL) != length)
            fail("send: %s", strerror(errno));
        if (recv(fd, answer, sizeof answer, MSG_WAITALL) != sizeof answer ||
            memcmp(answer, "\0\0\0\6\0\0\0\0OK", sizeof answer) != 0)
            fail("channel %d of %d was not created", i, options->channels);
        close(fd);
    }
}
