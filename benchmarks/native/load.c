/* Load generator for nsqd's TCP protocol V2: one thread, one epoll, one JSON line at the end.
 *
 *   load publish   publishers only: done when every PUB or MPUB is answered by OK;
 *                  with --http each is a POST /pub or /mpub
 *   load consume   consumers only: done when messages 0..N-1 came once each and are finished
 *   load pubsub    both, with latencies; --rate paces the publishers
 *   load idle      consumers that stay connected for --hold seconds
 *   load first     a consumer that waits for a server being started, to its first message
 *   load channels  creates --channels channels and ends
 *   load backlog   writes the data folder of an nsqd with --messages in one channel
 *
 * A missing answer, a missing, doubled or changed message, an error frame or a closed
 * connection end it with a line on stderr and exit code 1. */
#include <getopt.h>

#include "body.h"
#include "load.h"

static const struct option names[] = {
    {"host", 1, 0, 'h'},       {"port", 1, 0, 'p'},      {"topic", 1, 0, 't'},
    {"channel", 1, 0, 'c'},    {"publishers", 1, 0, 'P'}, {"consumers", 1, 0, 'C'},
    {"batch", 1, 0, 'b'},      {"window", 1, 0, 'w'},    {"size-min", 1, 0, 'm'},
    {"size-max", 1, 0, 'M'},   {"messages", 1, 0, 'n'},  {"rate", 1, 0, 'r'},
    {"rdy", 1, 0, 'R'},        {"hold", 1, 0, 'H'},      {"heartbeat-ms", 1, 0, 'B'},
    {"unbuffered", 0, 0, 'u'}, {"channels", 1, 0, 'k'},  {"stall", 1, 0, 's'},
    {"pid", 1, 0, 'd'},        {"ahead", 1, 0, 'a'},    {"slow", 1, 0, 'l'},
    {"slow-channel", 1, 0, 'L'}, {"since-ns", 1, 0, 'S'}, {"data-path", 1, 0, 'D'},
    {"http", 0, 0, 'W'},       {"topics", 1, 0, 'T'},
    {0, 0, 0, 0}};

static long number(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0)
        fail("not a number: %s", text);
    return value;
}

static void take(struct options *o, int letter, const char *value) {
    switch (letter) {
    case 'h': o->host = value; break;
    case 't': o->topic = value; break;
    case 'c': o->channel = value; break;
    case 'u': o->unbuffered = true; break;
    case 'W': o->http = true; break;
    case 'p': o->port = (int)number(value); break;
    case 'P': o->publishers = (int)number(value); break;
    case 'C': o->consumers = (int)number(value); break;
    case 'b': o->batch = (uint32_t)number(value); break;
    case 'w': o->window = (uint32_t)number(value); break;
    case 'm': o->size_min = (uint32_t)number(value); break;
    case 'M': o->size_max = (uint32_t)number(value); break;
    case 'n': o->messages = (uint64_t)number(value); break;
    case 'r': o->rate = (double)number(value); break;
    case 'R': o->rdy = (int)number(value); break;
    case 'H': o->hold_s = (int)number(value); break;
    case 'B': o->heartbeat_ms = (int)number(value); break;
    case 'k': o->channels = (int)number(value); break;
    case 's': o->stall_s = (int)number(value); break;
    case 'd': o->pid = (int)number(value); break;
    case 'a': o->ahead = (uint64_t)number(value); break;
    case 'l': o->slow = (int)number(value); break;
    case 'L': o->slow_channel = value; break;
    case 'S': o->since_ns = (uint64_t)number(value); break;
    case 'D': o->data_path = value; break;
    case 'T': o->topics = (int)number(value); break;
    default: fail("unknown option");
    }
}

static struct options parse(int argc, char **argv) {
    struct options o = {.host = "127.0.0.1", .topic = "bench", .channel = "bench",
                        .slow_channel = "slow", .data_path = ".", .port = 4150,
                        .window = 1, .size_min = 200, .size_max = 200, .rdy = 1, .stall_s = 10};
    int letter;
    optind = 2;
    while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1)
        take(&o, letter, optarg);
    if (o.window == 0 || o.size_min < BODY_MIN || o.size_max < o.size_min)
        fail("--window is at least 1, sizes at least %u and in order", BODY_MIN);
    if (o.ahead > 0 && o.ahead < o.batch)
        fail("--ahead leaves no room for a command");
    if (strlen(o.topic) > 64 || strlen(o.channel) > 64 || strlen(o.slow_channel) > 64)
        fail("a name has 64 bytes at most");
    if (o.http)
        http_check(&o);
    return o;
}

static void report(struct run *run, double cpu_s, double own_s, long resident_before) {
    uint64_t end_ns = now_ns();
    double seconds = (double)(end_ns - run->begin_ns) / 1e9;
    printf("{\"messages\":%llu,\"commands\":%llu,\"oks\":%llu,\"delivered\":%llu,"
           "\"finished\":%llu,\"redelivered\":%llu,\"heartbeats\":%llu,\"connections\":%d,"
           "\"slow_delivered\":%llu,\"answered_seconds\":%.6f,"
           "\"seconds\":%.6f,\"timed_messages\":%llu,\"timed_seconds\":%.6f,\"publish_seconds\":%.6f,\"cpu_seconds\":%.2f,"
           "\"generator_cpu_seconds\":%.6f,\"resident_before\":%ld,\"resident_after\":%ld",
           (unsigned long long)run->options.messages, (unsigned long long)run->commands,
           (unsigned long long)run->oks, (unsigned long long)run->delivered,
           (unsigned long long)run->finished, (unsigned long long)run->redelivered,
           (unsigned long long)run->heartbeats, run->count,
           (unsigned long long)run->slow_delivered,
           run->options.since_ns ? (double)(run->answered_ns - run->options.since_ns) / 1e9 : 0.0,
           seconds,
           (unsigned long long)run->timed,
           run->timed_ns ? (double)(run->timed_ns - run->begin_ns) / 1e9 : 0.0,
           run->published_ns ? (double)(run->published_ns - run->begin_ns) / 1e9 : 0.0,
           server_cpu_s(run->options.pid) - cpu_s, own_cpu_s() - own_s, resident_before,
           server_resident_bytes(run->options.pid));
    samples_print("answer_us", &run->answer);
    samples_print("latency_us", &run->latency);
    samples_print("late_us", &run->late);
    puts("}");
}

/* The roles that a scenario must have, so that a mistyped command can't measure nothing. */
static void check_roles(const char *scenario, const struct options *o) {
    bool both = strcmp(scenario, "pubsub") == 0;
    bool publishes = both || strcmp(scenario, "publish") == 0;
    bool first = strcmp(scenario, "first") == 0;
    bool consumes = both || first || strcmp(scenario, "consume") == 0 ||
                    strcmp(scenario, "idle") == 0;
    if (!publishes && !consumes)
        fail("unknown scenario: %s", scenario);
    if (publishes != (o->publishers > 0) || consumes != (o->consumers > 0))
        fail("%s: wrong --publishers or --consumers", scenario);
    if (first != (o->since_ns > 0))
        fail("%s: --since-ns is for first, and first needs it", scenario);
    if (o->messages == 0 && strcmp(scenario, "idle") != 0)
        fail("%s: --messages is missing", scenario);
}

int main(int argc, char **argv) {
    if (argc < 2)
        fail("usage: load publish|consume|pubsub|idle|first|channels|backlog [options]");
    struct run run = {.options = parse(argc, argv)};
    if (strcmp(argv[1], "channels") == 0) {
        run_create_channels(&run.options);
        printf("{\"channels\":%d}\n", run.options.channels);
        return 0;
    }
    if (strcmp(argv[1], "backlog") == 0) {
        backlog_write(&run.options);
        printf("{\"messages\":%llu}\n", (unsigned long long)run.options.messages);
        return 0;
    }
    check_roles(argv[1], &run.options);
    long resident_before = server_resident_bytes(run.options.pid);
    run_open(&run);
    double cpu_s = server_cpu_s(run.options.pid), own_s = own_cpu_s();
    if (strcmp(argv[1], "idle") == 0)
        run_hold(&run);
    else if (strcmp(argv[1], "first") == 0)
        run_first(&run);
    else
        run_publish(&run);
    report(&run, cpu_s, own_s, resident_before);
    return 0;
}
