"""A wall clock of the driver that can be moved while it runs, as an operator or NTP moves one.

A small library is loaded before all others into each process of the driver, in C, Java and Python.
It adds the number in a file to the system's time of day. The monotonic clock stays as it is, as
when a real clock is set, and so do waits.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path

_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *moved_s;
static int (*true_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *moved_s, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) moved_s = found;
    close(file);
}

// Libraries that wait until a time of day: the kernel would compare it with the true one.
static int is_waiter(void *caller) {
    Dl_info found;
    if (!dladdr(caller, &found) || !found.dli_fname) return 0;
    return strstr(found.dli_fname, "rdkafka") || strstr(found.dli_fname, "libarrow");
}

static int read_clock(clockid_t which, struct timespec *at, void *caller) {
    if (!true_clock) true_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int done = true_clock(which, at);
    if (done == 0 && which == CLOCK_REALTIME && moved_s && *moved_s
        && !is_waiter(caller))
        at->tv_sec += *moved_s;
    return done;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    return read_clock(which, at, __builtin_return_address(0));
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    read_clock(CLOCK_REALTIME, &now, __builtin_return_address(0));
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    read_clock(CLOCK_REALTIME, &now, __builtin_return_address(0));
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""

_COARSE = 5
"""CLOCK_REALTIME_COARSE: the library does not change it either; it is up to 4 ms old."""

_TAI_AHEAD_S = round(time.clock_gettime(time.CLOCK_TAI) - time.clock_gettime(_COARSE))


def true_time() -> float:
    """The time of day that nobody moves."""
    return time.clock_gettime(time.CLOCK_TAI) - _TAI_AHEAD_S


class Clock:
    """The clock of processes that are started with `environment`."""

    def __init__(self, place: Path) -> None:
        self._file, library = place / "clock", place / "clock.so"
        self._file.write_bytes(bytes(8))
        self.is_there = shutil.which("cc") is not None
        self.environment: dict[str, str] = {}
        if self.is_there:
            command = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
            subprocess.run(command, input=_LIBRARY.encode(), check=True)
            self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """Let it differ from the true time by this much from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))
