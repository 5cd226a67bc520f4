/* The publishing side: PUB and MPUB commands up to the window, and their answers. */
#include "body.h"
#include "load.h"

/* `size` big endian and the body; returns the bytes written. */
static size_t put_message(uint8_t *to, const struct options *o, uint64_t sequence, uint64_t at_ns) {
    uint32_t size = body_size(sequence, o->size_min, o->size_max);
    put_u32(to, size);
    body_write(to + 4, sequence, at_ns, size);
    return 4 + (size_t)size;
}

/* One command of `count` messages, or a PUB when --batch is 0. */
static void command(struct run *run, struct connection *c, uint32_t count, uint64_t at_ns) {
    const struct options *o = &run->options;
    uint8_t *start = buffer_reserve(&c->out, 256 + (size_t)count * (4 + o->size_max));
    uint8_t *to = start;
    to += sprintf((char *)to, "%s %s", o->batch ? "MPUB" : "PUB", o->topic);
    if (o->topics > 0)
        to += sprintf((char *)to, "%d", (int)((c - run->connections) % o->topics));
    *to++ = '\n';
    uint8_t *body = to;
    if (o->batch)
        to += 8;
    for (uint32_t i = 0; i < count; i++)
        to += put_message(to, o, run->published++, at_ns);
    if (o->batch) {
        put_u32(body, (uint32_t)(to - body - 4));
        put_u32(body + 4, count);
    }
    c->out.end += (size_t)(to - start);
}

/* How many messages may be out now: all, or --ahead more than were delivered. */
uint64_t publisher_allowed(const struct run *run) {
    const struct options *o = &run->options;
    uint64_t allowed = run->delivered + o->ahead;
    return o->ahead == 0 || allowed > o->messages ? o->messages : allowed;
}

/* Sends commands until the window is full or `allowed` messages (of all connections) are out.
 * Only the very last command may be shorter than the others. */
void publisher_fill(struct run *run, struct connection *c, uint64_t allowed) {
    const struct options *o = &run->options;
    uint32_t each = o->batch ? o->batch : 1;
    while (c->under_way < o->window && run->published < allowed) {
        uint64_t left = allowed - run->published, at_ns = now_ns();
        if (left < each && allowed < o->messages)
            break;
        if (o->http)
            http_request(run, c, left < each ? (uint32_t)left : each);
        else
            command(run, c, left < each ? (uint32_t)left : each, at_ns);
        c->sent_ns[(c->oldest + c->under_way++) % o->window] = at_ns;
        run->commands++;
    }
}

void publisher_answered(struct run *run, struct connection *c, uint64_t at_ns) {
    if (c->under_way == 0)
        fail("an OK that nobody asked for");
    samples_add(&run->answer, at_ns - c->sent_ns[c->oldest]);
    c->oldest = (c->oldest + 1) % run->options.window;
    c->under_way--;
    run->oks++;
    if (run->options.rate == 0)
        publisher_fill(run, c, publisher_allowed(run));
}
