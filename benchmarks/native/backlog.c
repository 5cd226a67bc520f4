/* Writes what an nsqd leaves on disk: the files of a channel's queue, its meta file, nsqd.dat.
 *
 * The last file is one that does not exist yet, so a server never writes into those made here and
 * they may be linked into several data folders. */
#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "body.h"
#include "load.h"

/* length (4), timestamp (8), attempts (2), id (16) */
enum { RECORD_HEADER = 30 };
static const uint64_t FILE_BYTES = 100u * 1024 * 1024;

static FILE *must_create(const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL)
        fail("%s: %s", path, strerror(errno));
    return file;
}

/* Ends on the disk itself, so that no later fsync has to wait for it. */
static void must_keep(FILE *file, const char *path) {
    if (fflush(file) != 0 || fsync(fileno(file)) != 0 || fclose(file) != 0)
        fail("%s: %s", path, strerror(errno));
}

static size_t put_record(uint8_t *to, uint64_t sequence, uint32_t size, uint64_t wall_ns) {
    char id[17];
    put_u32(to, RECORD_HEADER - 4 + size);
    put_u32(to + 4, (uint32_t)(wall_ns >> 32));
    put_u32(to + 8, (uint32_t)wall_ns);
    memset(to + 12, 0, 2);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)sequence + 1);
    memcpy(to + 14, id, 16);
    body_write(to + RECORD_HEADER, sequence, 0, size);
    return RECORD_HEADER + (size_t)size;
}

/* Numbered files, none above the size at which nsqd begins the next; returns how many. */
static int write_records(const struct options *o, uint64_t wall_ns) {
    char path[PATH_MAX];
    uint8_t *record = must_alloc(malloc(RECORD_HEADER + (size_t)o->size_max));
    FILE *file = NULL;
    uint64_t in_file = 0;
    int files = 0;
    for (uint64_t i = 0; i < o->messages; i++) {
        size_t size = put_record(record, i, body_size(i, o->size_min, o->size_max), wall_ns);
        if (file != NULL && in_file + size > FILE_BYTES) {
            must_keep(file, path);
            file = NULL;
        }
        if (file == NULL) {
            snprintf(path, sizeof path, "%s/%s:%s.diskqueue.%06d.dat", o->data_path, o->topic,
                     o->channel, files++);
            file = must_create(path);
            in_file = 0;
        }
        if (fwrite(record, size, 1, file) != 1)
            fail("%s: %s", path, strerror(errno));
        in_file += size;
    }
    if (file != NULL)
        must_keep(file, path);
    free(record);
    return files;
}

void backlog_write(const struct options *o) {
    char path[PATH_MAX];
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int files = write_records(o, (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec);
    snprintf(path, sizeof path, "%s/%s:%s.diskqueue.meta.dat", o->data_path, o->topic, o->channel);
    FILE *meta = must_create(path);
    fprintf(meta, "%llu\n0,0\n%d,0\n", (unsigned long long)o->messages, files);
    must_keep(meta, path);
    snprintf(path, sizeof path, "%s/nsqd.dat", o->data_path);
    FILE *names = must_create(path);
    fprintf(names, "{\"topics\":[{\"name\":\"%s\",\"paused\":false,\"channels\":[{\"name\":\"%s\","
                   "\"paused\":false}]}],\"version\":\"1.3.0\"}", o->topic, o->channel);
    must_keep(names, path);
}
