/* Big endian integers, byte buffers and the clock: what generator and floor both need. */
#ifndef BYTES_H
#define BYTES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void put_u32(uint8_t *to, uint32_t value) {
    uint32_t be = __builtin_bswap32(value);
    memcpy(to, &be, 4);
}

static inline uint32_t get_u32(const uint8_t *from) {
    uint32_t be;
    memcpy(&be, from, 4);
    return __builtin_bswap32(be);
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void *must_alloc(void *memory) {
    if (memory == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* A FIFO of bytes: written at `end`, read at `start`. */
struct buffer {
    uint8_t *data;
    size_t start, end, capacity;
};

static inline size_t buffer_length(const struct buffer *b) { return b->end - b->start; }

/* Room for `size` more bytes; the caller advances `end` by what it wrote. */
static inline uint8_t *buffer_reserve(struct buffer *b, size_t size) {
    if (b->start == b->end)
        b->start = b->end = 0;
    if (b->capacity - b->end < size && b->start > 0) {
        memmove(b->data, b->data + b->start, buffer_length(b));
        b->end -= b->start;
        b->start = 0;
    }
    if (b->capacity - b->end < size) {
        size_t capacity = b->capacity ? b->capacity : 1024;
        while (capacity - b->end < size)
            capacity *= 2;
        b->data = must_alloc(realloc(b->data, capacity));
        b->capacity = capacity;
    }
    return b->data + b->end;
}

static inline void buffer_append(struct buffer *b, const void *bytes, size_t size) {
    memcpy(buffer_reserve(b, size), bytes, size);
    b->end += size;
}

#endif
