/* Percentiles, and what the kernel says of the server's CPU time and memory. */
#include <sys/resource.h>
#include <unistd.h>

#include "load.h"

void samples_add(struct samples *samples, uint64_t ns) {
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? samples->capacity * 2 : 4096;
        samples->ns = must_alloc(realloc(samples->ns, samples->capacity * sizeof(uint64_t)));
    }
    samples->ns[samples->count++] = ns;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* `,"name":{"count":..,"p50":..}` in microseconds; nothing without samples. */
void samples_print(const char *name, struct samples *samples) {
    static const struct { const char *name; double part; } points[] = {
        {"p50", 0.50}, {"p90", 0.90}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1.0}};
    if (samples->count == 0)
        return;
    qsort(samples->ns, samples->count, sizeof(uint64_t), ascending);
    printf(",\"%s\":{\"count\":%zu", name, samples->count);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        size_t at = (size_t)(points[i].part * (double)(samples->count - 1) + 0.5);
        printf(",\"%s\":%.1f", points[i].name, (double)samples->ns[at] / 1e3);
    }
    printf("}");
}

/* utime + stime of /proc/PID/stat: of all threads, in steps of a clock tick (10 ms). */
double server_cpu_s(int pid) {
    char path[64], line[1024];
    unsigned long user, system;
    if (pid == 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        fail("%s can't be read: the server has ended", path);
    fclose(file);
    const char *after_name = strrchr(line, ')');
    if (after_name == NULL ||
        sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
               &system) != 2)
        fail("%s has an unknown form", path);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

long server_resident_bytes(int pid) {
    char path[64];
    long resident;
    if (pid == 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%*d %ld", &resident) != 1)
        fail("%s can't be read: the server has ended", path);
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

double own_cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
