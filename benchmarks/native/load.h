/* The load generator's parts: options, one connection, the roles, the measurements. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>

#include "bytes.h"

struct options {
    const char *host, *topic, *channel;
    int topics;                   /* publishers are spread over so many, named by number; 0: one */
    int port;
    int publishers, consumers;    /* connections of each role */
    int slow;                     /* consumers at RDY 1 that finish nothing */
    const char *slow_channel;     /* where those subscribe */
    uint32_t batch;               /* messages of an MPUB; 0: PUB */
    uint32_t window;              /* commands under way on one connection */
    uint32_t size_min, size_max;  /* bytes of a body */
    uint64_t messages;            /* published (by publishers) and expected (by consumers) */
    uint64_t ahead;               /* published but not delivered at most; 0: no limit */
    double rate;                  /* messages/s over all publishers; 0: as fast as they go */
    int rdy;
    int hold_s;                   /* consumers only stay connected for so long */
    int heartbeat_ms;             /* 0: the server's default */
    bool unbuffered;              /* IDENTIFY with output_buffer_size -1 */
    int channels;                 /* only create so many channels of the topic */
    int stall_s;                  /* no answer for so long: the run failed */
    int pid;                      /* the server's, for CPU and resident memory; 0: unknown */
    uint64_t since_ns;            /* when the server began to start; 0: it runs already */
    const char *data_path;        /* where to write a backlog */
    bool http;                    /* publish by HTTP requests; `port` is that of HTTP */
};

enum role { PUBLISHER, CONSUMER, SLOW };
enum state { IDENTIFYING, SUBSCRIBING, READY, CLOSING, CLOSED };

struct connection {
    int fd;
    enum role role;
    enum state state;
    bool waits_for_room; /* EPOLLOUT is asked for */
    struct buffer in, out;
    uint64_t *sent_ns;   /* ring of the commands under way, `window` long */
    uint32_t oldest, under_way;
};

/* An ever growing list of durations; the percentiles are exact. */
struct samples {
    uint64_t *ns;
    size_t count, capacity;
};

struct run {
    struct options options;
    struct connection *connections;
    int count, epoll, ready, closing_left;
    uint64_t published;     /* messages put into commands */
    uint64_t commands, oks; /* PUB and MPUB sent; answered */
    uint64_t delivered, finished, redelivered, heartbeats, slow_delivered;
    uint8_t *seen;          /* a bit for each expected sequence number */
    uint64_t begin_ns, published_ns, progress_ns;
    uint64_t answered_ns;   /* the first answer of all */
    uint64_t timed;         /* messages that the rate is taken from, and when they were there */
    uint64_t timed_ns;
    struct samples answer, latency, late;
};

/* fail.c */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* connection.c: sockets and frames. All fail() on an error or the end of the stream. */
int connection_dial(const struct options *options);
void connection_open(struct run *run, struct connection *c, enum role role);
void connection_flush(struct run *run, struct connection *c);
void connection_readable(struct run *run, struct connection *c);

/* publisher.c */
void publisher_fill(struct run *run, struct connection *c, uint64_t allowed);
uint64_t publisher_allowed(const struct run *run);
void publisher_answered(struct run *run, struct connection *c, uint64_t at_ns);

/* http.c */
void http_check(const struct options *options);
void http_request(struct run *run, struct connection *c, uint32_t count);
void http_answers(struct run *run, struct connection *c, uint64_t at_ns);

/* consumer.c */
void consumer_message(struct run *run, struct connection *c, const uint8_t *data, uint32_t size,
                      uint64_t at_ns);

/* run.c */
void run_open(struct run *run);
void run_publish(struct run *run);
void run_hold(struct run *run);
void run_first(struct run *run);
void run_create_channels(const struct options *options);

/* backlog.c */
void backlog_write(const struct options *options);

/* measure.c */
void samples_add(struct samples *samples, uint64_t ns);
void samples_print(const char *name, struct samples *samples);
double server_cpu_s(int pid);
long server_resident_bytes(int pid);
double own_cpu_s(void);

#endif
