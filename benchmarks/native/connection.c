/* One connection to the server: the handshake, frames in, bytes out. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"

enum { READ_BYTES = 256 * 1024, FRAME_RESPONSE = 0, FRAME_ERROR = 1, FRAME_MESSAGE = 2 };
/* The original's largest frame is max-msg-size and a header; more is a broken stream. */
enum { MAX_FRAME_BYTES = 2 * 1024 * 1024 };

static int must_open(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        fail("socket: %s", strerror(errno));
    return fd;
}

/* A blocking socket that said its magic, if there is one. A server that is being started refuses for a while. */
int connection_dial(const struct options *options) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options->port)};
    int on = 1, fd;
    uint64_t give_up_ns = options->since_ns + (uint64_t)options->stall_s * 1000000000u;
    if (inet_pton(AF_INET, options->host, &address.sin_addr) != 1)
        fail("--host wants an IPv4 address, not %s", options->host);
    while (fd = must_open(), connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == ECONNREFUSED && now_ns() < give_up_ns) {
            close(fd);
            usleep(500);
            continue;
        }
        fail("connect to %s:%d: %s", options->host, options->port, strerror(errno));
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!options->http && send(fd, "  V2", 4, MSG_NOSIGNAL) != 4)
        fail("send of the magic: %s", strerror(errno));
    return fd;
}

static void become_ready(struct run *run, struct connection *c) {
    c->state = READY;
    run->ready++;
}

static void identify(struct run *run, struct connection *c) {
    char json[256];
    uint8_t size[4];
    int length = snprintf(json, sizeof json,
                          "{\"client_id\":\"load\",\"hostname\":\"load\",\"user_agent\":\"load/1\","
                          "\"feature_negotiation\":true,\"heartbeat_interval\":%d%s}",
                          run->options.heartbeat_ms,
                          run->options.unbuffered ? ",\"output_buffer_size\":-1" : "");
    buffer_append(&c->out, "IDENTIFY\n", 9);
    put_u32(size, (uint32_t)length);
    buffer_append(&c->out, size, 4);
    buffer_append(&c->out, json, (size_t)length);
}

/* Connects and asks; the answers are taken by the loop until the connection is READY. */
void connection_open(struct run *run, struct connection *c, enum role role) {
    c->fd = connection_dial(&run->options);
    c->role = role;
    c->state = IDENTIFYING;
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (role == PUBLISHER)
        c->sent_ns = must_alloc(calloc(run->options.window, sizeof(uint64_t)));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(run->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0)
        fail("epoll_ctl: %s", strerror(errno));
    if (run->options.http) {
        become_ready(run, c);
        return;
    }
    identify(run, c);
    connection_flush(run, c);
}

/* Writes what the socket takes and asks for EPOLLOUT while something is left. */
void connection_flush(struct run *run, struct connection *c) {
    while (buffer_length(&c->out) > 0) {
        ssize_t sent = send(c->fd, c->out.data + c->out.start, buffer_length(&c->out), MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0)
            fail("send: %s", strerror(errno));
        c->out.start += (size_t)sent;
    }
    bool wants = buffer_length(&c->out) > 0;
    if (wants == c->waits_for_room)
        return;
    struct epoll_event event = {.events = wants ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    epoll_ctl(run->epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->waits_for_room = wants;
}

static bool is(const uint8_t *data, uint32_t size, const char *text) {
    return size == strlen(text) && memcmp(data, text, size) == 0;
}

static void response(struct run *run, struct connection *c, const uint8_t *data, uint32_t size,
                     uint64_t at_ns) {
    if (run->answered_ns == 0)
        run->answered_ns = at_ns;
    if (is(data, size, "_heartbeat_")) {
        run->heartbeats++;
        buffer_append(&c->out, "NOP\n", 4);
    } else if (c->state == IDENTIFYING && c->role == PUBLISHER) {
        become_ready(run, c);
    } else if (c->state == IDENTIFYING) {
        char line[160];
        int length = snprintf(line, sizeof line, "SUB %s %s\n", run->options.topic,
                              c->role == SLOW ? run->options.slow_channel : run->options.channel);
        buffer_append(&c->out, line, (size_t)length);
        c->state = SUBSCRIBING;
    } else if (c->state == SUBSCRIBING && is(data, size, "OK")) {
        become_ready(run, c);
    } else if (c->state == CLOSING && is(data, size, "CLOSE_WAIT")) {
        c->state = CLOSED;
        run->closing_left--;
    } else if (c->role == PUBLISHER && is(data, size, "OK")) {
        publisher_answered(run, c, at_ns);
    } else {
        fail("unexpected response: %.*s", (int)size, (const char *)data);
    }
}

static void frame(struct run *run, struct connection *c, const uint8_t *at, uint32_t size,
                  uint64_t at_ns) {
    uint32_t type = get_u32(at);
    const uint8_t *data = at + 4;
    size -= 4;
    if (type == FRAME_MESSAGE && c->role == SLOW)
        run->slow_delivered++;
    else if (type == FRAME_MESSAGE)
        consumer_message(run, c, data, size, at_ns);
    else if (type == FRAME_RESPONSE)
        response(run, c, data, size, at_ns);
    else if (type == FRAME_ERROR)
        fail("the server answered an error: %.*s", (int)size, (const char *)data);
    else
        fail("unknown frame type %u", type);
}

/* One read and all its whole frames; what they make us say goes out in one write. */
void connection_readable(struct run *run, struct connection *c) {
    uint8_t *room = buffer_reserve(&c->in, READ_BYTES);
    ssize_t got = recv(c->fd, room, READ_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        fail("the server closed a connection: %s", got < 0 ? strerror(errno) : "end of stream");
    c->in.end += (size_t)got;
    uint64_t at_ns = now_ns();
    run->progress_ns = at_ns;
    if (run->options.http)
        http_answers(run, c, at_ns);
    while (!run->options.http && buffer_length(&c->in) >= 4) {
        const uint8_t *at = c->in.data + c->in.start;
        uint32_t size = get_u32(at);
        if (size < 4 || size > MAX_FRAME_BYTES)
            fail("a frame of %u bytes", size);
        if (buffer_length(&c->in) < 4 + (size_t)size)
            break;
        frame(run, c, at + 4, size, at_ns);
        c->in.start += 4 + (size_t)size;
    }
    connection_flush(run, c);
}
