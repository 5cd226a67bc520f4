/* The message bodies of the load: their sequence number, their time and a check at the end. */
#ifndef BODY_H
#define BODY_H

#include <stdint.h>
#include <string.h>

/* sequence (8), time (8), filler, check (8): a body can't be shorter than this. */
#define BODY_MIN 24u
#define BODY_CHECK 0x9e3779b97f4a7c15u

static inline uint64_t body_mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 29)) * BODY_CHECK;
    return x ^ (x >> 32);
}

/* Size of the body of message `sequence`: the same for whoever asks, spread over min..max. */
static inline uint32_t body_size(uint64_t sequence, uint32_t min, uint32_t max) {
    return min == max ? min : min + (uint32_t)(body_mix(sequence) % (max - min + 1));
}

static inline void body_write(uint8_t *to, uint64_t sequence, uint64_t time_ns, uint32_t size) {
    uint64_t check = sequence ^ BODY_CHECK;
    memcpy(to, &sequence, 8);
    memcpy(to + 8, &time_ns, 8);
    memset(to + 16, 'n', size - BODY_MIN);
    memcpy(to + size - 8, &check, 8);
}

/* 0 when the body is not one that body_write made. */
static inline int body_read(const uint8_t *from, uint32_t size, uint64_t *sequence,
                            uint64_t *time_ns) {
    uint64_t check;
    if (size < BODY_MIN)
        return 0;
    memcpy(sequence, from, 8);
    memcpy(time_ns, from + 8, 8);
    memcpy(&check, from + size - 8, 8);
    return check == (*sequence ^ BODY_CHECK);
}

#endif
