/* The floor: reads and answers the loads of the generator without doing a broker's work.
 *
 * It parses commands, answers OK, and to a subscriber with credit sends either canned messages
 * (--canned N, numbers 0..N-1 shared by all subscribers) or, without them, a copy of whatever is
 * published, past RDY. No topics, channels, queues, ids to look up, timers or limits. What it
 * does in a second is what sockets and parsing cost here, and the generator's own ceiling.
 *
 * --drop-ok, --drop-message and --repeat-message K misbehave once, at the K-th: the tests see by
 * them that the generator notices. */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "body.h"
#include "bytes.h"

enum { EVENTS = 256, READ_BYTES = 256 * 1024, OUT_BYTES = 256 * 1024, FRAME_HEADER = 34 };

static struct {
    uint64_t canned, drop_ok, drop_message, repeat_message;
    uint32_t size_min, size_max;
} options = {.size_min = 200, .size_max = 200};

struct client {
    int fd;
    bool waits_for_room;
    int64_t rdy, in_flight;
    struct buffer in, out;
};

static int epoll;
static struct client *subscriber; /* the one that gets what is published */
static uint64_t next_message, oks, relayed;

static void put_frame(struct buffer *out, uint32_t type, const char *data) {
    uint8_t header[8];
    put_u32(header, (uint32_t)strlen(data) + 4);
    put_u32(header + 4, type);
    buffer_append(out, header, 8);
    buffer_append(out, data, strlen(data));
}

/* Frame, timestamp, attempts and id; returns where the body goes. */
static uint8_t *put_message_header(struct buffer *out, uint64_t id, uint32_t body_size) {
    static const char digits[] = "0123456789abcdef";
    uint8_t *to = buffer_reserve(out, FRAME_HEADER + (size_t)body_size);
    put_u32(to, 30 + body_size);
    put_u32(to + 4, 2);
    memset(to + 8, 0, 9);
    to[17] = 1;
    for (int i = 0; i < 16; i++)
        to[18 + i] = (uint8_t)digits[(id >> (60 - 4 * i)) & 15];
    out->end += FRAME_HEADER + (size_t)body_size;
    return to + FRAME_HEADER;
}

static void deliver_canned(struct client *c) {
    while (c->in_flight < c->rdy && next_message < options.canned &&
           buffer_length(&c->out) < OUT_BYTES) {
        uint64_t number = next_message++;
        uint32_t size = body_size(number, options.size_min, options.size_max);
        if (number + 1 == options.drop_message)
            continue;
        if (number + 1 == options.repeat_message && number > 0)
            number--;
        body_write(put_message_header(&c->out, number, size), number, 0, size);
        c->in_flight++;
    }
}

static void relay(const uint8_t *body, uint32_t size) {
    if (subscriber == NULL || options.canned > 0 || ++relayed == options.drop_message)
        return;
    memcpy(put_message_header(&subscriber->out, relayed, size), body, size);
}

static void answer_ok(struct client *c) {
    if (++oks != options.drop_ok)
        put_frame(&c->out, 0, "OK");
}

static void relay_all(const uint8_t *body, bool many) {
    if (!many) {
        relay(body + 4, get_u32(body));
        return;
    }
    uint32_t count = get_u32(body + 4);
    for (body += 8; count-- > 0; body += 4 + get_u32(body))
        relay(body + 4, get_u32(body));
}

/* A command that has a body; false while it has not wholly come. */
static bool with_body(struct client *c, const char *line, size_t line_size) {
    size_t have = buffer_length(&c->in) - line_size;
    const uint8_t *body = (const uint8_t *)line + line_size;
    if (have < 4 || have - 4 < get_u32(body))
        return false;
    if (line[0] == 'I') {
        put_frame(&c->out, 0, "{}");
    } else {
        if (subscriber != NULL)
            relay_all(body, line[0] == 'M');
        answer_ok(c);
    }
    c->in.start += line_size + 4 + get_u32(body);
    return true;
}

static void without_body(struct client *c, const char *line) {
    if (line[0] == 'F') {
        c->in_flight--;
    } else if (line[0] == 'S') {
        subscriber = c;
        put_frame(&c->out, 0, "OK");
    } else if (line[0] == 'R') {
        c->rdy = strtol(line + 4, NULL, 10);
    } else if (line[0] == 'C') {
        put_frame(&c->out, 0, "CLOSE_WAIT");
    } else if (line[0] != 'N') {
        put_frame(&c->out, 1, "E_INVALID invalid command");
    }
}

static bool command(struct client *c) {
    const char *line = (const char *)c->in.data + c->in.start;
    const char *end = memchr(line, '\n', buffer_length(&c->in));
    if (end == NULL)
        return false;
    size_t size = (size_t)(end - line) + 1;
    if (line[0] == 'P' || line[0] == 'M' || line[0] == 'I')
        return with_body(c, line, size);
    without_body(c, line);
    c->in.start += size;
    return true;
}

static void flush(struct client *c) {
    while (buffer_length(&c->out) > 0) {
        ssize_t sent = send(c->fd, c->out.data + c->out.start, buffer_length(&c->out), MSG_NOSIGNAL);
        if (sent <= 0)
            break;
        c->out.start += (size_t)sent;
    }
    bool wants = buffer_length(&c->out) > 0;
    if (wants == c->waits_for_room)
        return;
    struct epoll_event event = {.events = wants ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->waits_for_room = wants;
}

static void end(struct client *c) {
    if (subscriber == c)
        subscriber = NULL;
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

/* False when the client is gone. */
static bool readable(struct client *c) {
    ssize_t got = recv(c->fd, buffer_reserve(&c->in, READ_BYTES), READ_BYTES, 0);
    if (got <= 0) {
        if (got < 0 && errno == EAGAIN)
            return true;
        end(c);
        return false;
    }
    c->in.end += (size_t)got;
    while (buffer_length(&c->in) > 0 && command(c))
        ;
    return true;
}

static void serve(struct client *c, uint32_t events) {
    if ((events & ~(uint32_t)EPOLLOUT) && !readable(c))
        return;
    deliver_canned(c);
    flush(c);
    if (subscriber != NULL && subscriber != c)
        flush(subscriber);
}

static void accept_client(int listener) {
    int on = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    uint8_t magic[4];
    if (fd < 0)
        return;
    fcntl(fd, F_SETFL, 0);
    if (recv(fd, magic, 4, MSG_WAITALL) != 4) {
        close(fd);
        return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct client *c = must_alloc(calloc(1, sizeof *c));
    c->fd = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int listen_anywhere(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 4096) != 0) {
        perror("floor");
        exit(1);
    }
    getsockname(fd, (struct sockaddr *)&address, &size);
    fprintf(stderr, "TCP: listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    return fd;
}

static void parse(int argc, char **argv) {
    static const struct option names[] = {{"canned", 1, 0, 'c'},       {"size-min", 1, 0, 'm'},
                                          {"size-max", 1, 0, 'M'},     {"drop-ok", 1, 0, 'o'},
                                          {"drop-message", 1, 0, 'd'}, {"repeat-message", 1, 0, 'r'},
                                          {0, 0, 0, 0}};
    int letter;
    while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1) {
        uint64_t value = optarg ? strtoull(optarg, NULL, 10) : 0;
        switch (letter) {
        case 'c': options.canned = value; break;
        case 'm': options.size_min = (uint32_t)value; break;
        case 'M': options.size_max = (uint32_t)value; break;
        case 'o': options.drop_ok = value; break;
        case 'd': options.drop_message = value; break;
        case 'r': options.repeat_message = value; break;
        default: exit(1);
        }
    }
}

int main(int argc, char **argv) {
    parse(argc, argv);
    epoll = epoll_create1(0);
    int listener = listen_anywhere();
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == NULL)
                accept_client(listener);
            else
                serve(events[i].data.ptr, events[i].events);
        }
    }
}
