/* The consuming side: each message is checked, counted once and finished. */
#include "body.h"
#include "load.h"

/* timestamp (8), attempts (2), id (16) */
enum { MESSAGE_HEADER = 26 };

static void finish(struct run *run, struct connection *c, const uint8_t *id) {
    uint8_t *to = buffer_reserve(&c->out, 21);
    memcpy(to, "FIN ", 4);
    memcpy(to + 4, id, 16);
    to[20] = '\n';
    c->out.end += 21;
    run->finished++;
}

void consumer_message(struct run *run, struct connection *c, const uint8_t *data, uint32_t size,
                      uint64_t at_ns) {
    const struct options *o = &run->options;
    uint64_t sequence, sent_ns;
    if (c->role != CONSUMER || size < MESSAGE_HEADER)
        fail("a message frame of %u bytes where none can be", size);
    uint32_t body = size - MESSAGE_HEADER;
    if (!body_read(data + MESSAGE_HEADER, body, &sequence, &sent_ns))
        fail("a message whose body was never published");
    if (sequence >= o->messages)
        fail("message %llu, but only %llu were published", (unsigned long long)sequence,
             (unsigned long long)o->messages);
    if (body != body_size(sequence, o->size_min, o->size_max))
        fail("message %llu has %u bytes", (unsigned long long)sequence, body);
    if (run->seen[sequence >> 3] & (1u << (sequence & 7)))
        fail("message %llu was delivered twice", (unsigned long long)sequence);
    run->seen[sequence >> 3] |= (uint8_t)(1u << (sequence & 7));
    run->redelivered += data[8] != 0 || data[9] != 1;
    if (++run->delivered == run->timed)
        run->timed_ns = at_ns;
    if (o->publishers > 0)
        samples_add(&run->latency, at_ns - sent_ns);
    finish(run, c, data + 10);
}
