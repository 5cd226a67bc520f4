/* Publishing over HTTP/1.1 on connections that stay open: POST /pub, or /mpub a line a message. */
#define _GNU_SOURCE

#include "load.h"

enum { HEAD_BYTES = 256, HEAD_BYTES_MAX = 8192, LINE_MIN = 16 };

/* A body without newlines: the sequence number in hex, and filler. */
static size_t put_text(uint8_t *to, const struct options *o, uint64_t sequence) {
    uint32_t size = o->size_min;
    memset(to, 'n', size);
    for (int i = 0; i < LINE_MIN; i++)
        to[i] = (uint8_t) "0123456789abcdef"[(sequence >> (60 - 4 * i)) & 15];
    return size;
}

/* One request of `count` messages, or /pub when --batch is 0. */
void http_request(struct run *run, struct connection *c, uint32_t count) {
    const struct options *o = &run->options;
    size_t content = (size_t)count * (o->size_min + 1) - 1;
    uint8_t *start = buffer_reserve(&c->out, HEAD_BYTES + content), *to = start;
    to += sprintf((char *)to,
                  "POST /%s?topic=%s HTTP/1.1\r\nHost: %s:%d\r\nUser-Agent: load/1\r\n"
                  "Content-Length: %zu\r\n\r\n",
                  o->batch ? "mpub" : "pub", o->topic, o->host, o->port, content);
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0)
            *to++ = '\n';
        to += put_text(to, o, run->published++);
    }
    c->out.end += (size_t)(to - start);
}

/* The value of Content-Length in a head that ends with a zero byte. */
static size_t content_length(const char *head) {
    const char *line = strcasestr(head, "\r\ncontent-length:");
    if (line == NULL)
        fail("an answer without content-length: %s", head);
    return strtoul(line + strlen("\r\ncontent-length:"), NULL, 10);
}

/* Takes one answer, which must be 200 OK; false while it has not wholly come. */
static bool answer(struct run *run, struct connection *c, uint64_t at_ns) {
    char head[HEAD_BYTES_MAX + 1];
    const uint8_t *data = c->in.data + c->in.start;
    size_t have = buffer_length(&c->in);
    const uint8_t *end = memmem(data, have, "\r\n\r\n", 4);
    if (end == NULL && have < HEAD_BYTES_MAX)
        return false;
    if (end == NULL || end - data > HEAD_BYTES_MAX)
        fail("an answer whose head has more than %d bytes", HEAD_BYTES_MAX);
    memcpy(head, data, (size_t)(end - data));
    head[end - data] = '\0';
    size_t all = (size_t)(end - data) + 4 + content_length(head);
    if (have < all)
        return false;
    if (strncmp(head, "HTTP/1.1 200", 12) != 0 || memcmp(data + all - 2, "OK", 2) != 0)
        fail("the server answered: %.*s", (int)all, (const char *)data);
    c->in.start += all;
    publisher_answered(run, c, at_ns);
    return true;
}

void http_answers(struct run *run, struct connection *c, uint64_t at_ns) {
    while (buffer_length(&c->in) > 0 && answer(run, c, at_ns))
        ;
}

void http_check(const struct options *o) {
    if (o->consumers > 0 || o->slow > 0 || o->rate > 0)
        fail("--http is for publish only");
    if (o->size_min != o->size_max)
        fail("--http wants bodies of one size");
}
