/* The one way a run ends badly: a line on stderr and exit code 1. */
#include <stdarg.h>

#include "load.h"

_Noreturn void fail(const char *format, ...) {
    va_list arguments;
    fputs("load: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}
