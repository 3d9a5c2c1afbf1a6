/*
 * Disk faults for a process under test, loaded with LD_PRELOAD.
 *
 * CHAOS_CONTROL names a file of 32-bit words that the test changes while the process runs: first one
 * setting for each fault, then one counter for each fault that this library increments. CHAOS_STATE and
 * CHAOS_SPILL name the folders whose disks fail. The words and their order are those of src/shim.rs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum fault { WEIGHTS_ERROR, WEIGHTS_STALL_MS, STATE_FULL, SYNC_FAILURES, SPILL_FULL, FAULTS };

static _Atomic uint32_t *words;
static const char *state, *spill;

/* The function of the C library that this file replaces. */
#define REAL(name)                                                     \
    ({                                                                 \
        static __typeof__(&name) real;                                 \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);  \
        real;                                                          \
    })

__attribute__((constructor)) static void start(void) {
    /* No server outlives the test that started it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char *path = getenv("CHAOS_CONTROL");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, 2 * FAULTS * sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    state = getenv("CHAOS_STATE");
    spill = getenv("CHAOS_SPILL");
    words = mapped;
}

static int is_set(enum fault fault) { return words && words[fault]; }

static int fail(enum fault fault, int error) {
    words[FAULTS + fault]++;
    errno = error;
    return 1;
}

/* Writes the path of a descriptor, and returns its length; 0 if it has none. */
static size_t path_of(int file, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, size - 1);
    path[length < 0 ? 0 : length] = 0;
    return strlen(path);
}

static int is_below(int file, const char *folder) {
    char path[4096];
    size_t length = folder ? strlen(folder) : 0;
    return length && path_of(file, path, sizeof path) > length && !strncmp(path, folder, length) && path[length] == '/';
}

static int is_weights(int file) {
    static const char ending[] = ".safetensors";
    char path[4096];
    size_t length = path_of(file, path, sizeof path), tail = sizeof ending - 1;
    return length > tail && !strcmp(path + length - tail, ending);
}

static int read_fails(int file) {
    int fails = is_set(WEIGHTS_ERROR), stalls = is_set(WEIGHTS_STALL_MS);
    if (!(fails || stalls) || !is_weights(file)) return 0;
    if (stalls) {
        uint32_t ms = words[WEIGHTS_STALL_MS];
        struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
        words[FAULTS + WEIGHTS_STALL_MS]++;
        nanosleep(&pause, NULL);
    }
    return fails && fail(WEIGHTS_ERROR, EIO);
}

static int write_fails(int file) {
    if (is_set(STATE_FULL) && is_below(file, state)) return fail(STATE_FULL, ENOSPC);
    if (is_set(SPILL_FULL) && is_below(file, spill)) return fail(SPILL_FULL, ENOSPC);
    return 0;
}

/* The setting is the number of calls that are still to fail. */
static int sync_fails(int file) {
    if (!is_set(SYNC_FAILURES) || !is_below(file, state)) return 0;
    uint32_t left = words[SYNC_FAILURES];
    while (left && !__atomic_compare_exchange_n((uint32_t *)&words[SYNC_FAILURES], &left, left - 1, 0,
                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return left && fail(SYNC_FAILURES, EIO);
}

ssize_t read(int file, void *to, size_t count) {
    return read_fails(file) ? -1 : REAL(read)(file, to, count);
}
ssize_t pread(int file, void *to, size_t count, off_t at) {
    return read_fails(file) ? -1 : REAL(pread)(file, to, count, at);
}
ssize_t pread64(int file, void *to, size_t count, off64_t at) {
    return read_fails(file) ? -1 : REAL(pread64)(file, to, count, at);
}
ssize_t preadv(int file, const struct iovec *to, int count, off_t at) {
    return read_fails(file) ? -1 : REAL(preadv)(file, to, count, at);
}
ssize_t preadv64(int file, const struct iovec *to, int count, off64_t at) {
    return read_fails(file) ? -1 : REAL(preadv64)(file, to, count, at);
}
ssize_t write(int file, const void *from, size_t count) {
    return write_fails(file) ? -1 : REAL(write)(file, from, count);
}
ssize_t pwrite(int file, const void *from, size_t count, off_t at) {
    return write_fails(file) ? -1 : REAL(pwrite)(file, from, count, at);
}
ssize_t pwrite64(int file, const void *from, size_t count, off64_t at) {
    return write_fails(file) ? -1 : REAL(pwrite64)(file, from, count, at);
}
ssize_t writev(int file, const struct iovec *from, int count) {
    return write_fails(file) ? -1 : REAL(writev)(file, from, count);
}
int fsync(int file) { return sync_fails(file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return sync_fails(file) ? -1 : REAL(fdatasync)(file); }
