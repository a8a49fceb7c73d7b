/* Writes down what a process writes: LD_PRELOAD, with TRACE_DIR naming the folder and TRACE_FILE the record.

   One record a call: kind, offset, length, length of the path, path, bytes. Kinds: w (bytes at an offset),
   t (length of the file), u (the file is gone), s (all of the file so far is on disk). What a disk would keep after a power cut is
   worked out from it afterwards. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static ssize_t (*real_write)(int, const void *, size_t);

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    const char *folder = getenv("TRACE_DIR");
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static void record_path(char kind, const char *path, int64_t offset, const void *data, uint64_t length) {
    pthread_mutex_lock(&lock);
    if (trace < 0) trace = open(getenv("TRACE_FILE"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (!real_write) real_write = REAL(write);
    uint64_t size = strlen(path);
    char head[25];
    head[0] = kind;
    memcpy(head + 1, &offset, 8);
    memcpy(head + 9, &length, 8);
    memcpy(head + 17, &size, 8);
    real_write(trace, head, sizeof head);
    real_write(trace, path, size);
    if (data) real_write(trace, data, length);
    pthread_mutex_unlock(&lock);
}

static void record(char kind, int fd, int64_t offset, const void *data, uint64_t length) {
    char path[4096];
    if (path_of(fd, path, sizeof path)) record_path(kind, path, offset, data, length);
}

int unlink(const char *path) {
    const char *folder = getenv("TRACE_DIR");
    int failed = REAL(unlink)(path);
    if (!failed && folder && strncmp(path, folder, strlen(folder)) == 0) record_path('u', path, 0, NULL, 0);
    return failed;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    ssize_t done = REAL(pwrite64)(fd, data, length, offset);
    if (done > 0) record('w', fd, offset, data, (uint64_t)done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    ssize_t done = REAL(pwrite)(fd, data, length, offset);
    if (done > 0) record('w', fd, offset, data, (uint64_t)done);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (!real_write) real_write = REAL(write);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = real_write(fd, data, length);
    if (done > 0 && fd != trace && offset >= 0) record('w', fd, lseek(fd, 0, SEEK_CUR) - done, data, (uint64_t)done);
    return done;
}

int ftruncate64(int fd, off64_t length) {
    int failed = REAL(ftruncate64)(fd, length);
    if (!failed) record('t', fd, length, NULL, 0);
    return failed;
}

int ftruncate(int fd, off_t length) {
    int failed = REAL(ftruncate)(fd, length);
    if (!failed) record('t', fd, length, NULL, 0);
    return failed;
}

int fsync(int fd) {
    int failed = REAL(fsync)(fd);
    if (!failed) record('s', fd, 0, NULL, 0);
    return failed;
}

int fdatasync(int fd) {
    int failed = REAL(fdatasync)(fd);
    if (!failed) record('s', fd, 0, NULL, 0);
    return failed;
}
