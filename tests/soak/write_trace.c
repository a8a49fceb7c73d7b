/* Writes down what a process writes: LD_PRELOAD, with TRACE_DIR naming the folder and TRACE_FILE the record.

   One record a call: kind, offset, length, length of the path, path, bytes. Kinds: w (bytes at an offset),
   t (length of the file), c (a file was made), d (a folder was made), u (either is gone), r (renamed; the bytes
   are the new path), s (the file's bytes, or the folder's names, so far are on disk). What a disk would keep after
   a power cut is worked out from it afterwards. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
    if (trace < 0) trace = REAL(open)(getenv("TRACE_FILE"), O_WRONLY | O_CREAT | O_APPEND, 0600);
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

static int within(int folder, const char *name, char *path, size_t size) {
    const char *traced = getenv("TRACE_DIR");
    char base[4096] = "";
    if (!traced) return 0;
    if (name[0] != '/' && folder != AT_FDCWD && path_of(folder, base, sizeof base)) {
        snprintf(path, size, "%s/%s", base, name);
    } else {
        snprintf(path, size, "%s", name);
    }
    return strncmp(path, traced, strlen(traced)) == 0;
}

static void record_name(char kind, int folder, const char *name) {
    char path[8192];
    if (within(folder, name, path, sizeof path)) record_path(kind, path, 0, NULL, 0);
}

int unlinkat(int folder, const char *name, int flags) {
    int failed = REAL(unlinkat)(folder, name, flags);
    if (!failed) record_name('u', folder, name);
    return failed;
}

int unlink(const char *name) {
    int failed = REAL(unlink)(name);
    if (!failed) record_name('u', AT_FDCWD, name);
    return failed;
}

int rmdir(const char *name) {
    int failed = REAL(rmdir)(name);
    if (!failed) record_name('u', AT_FDCWD, name);
    return failed;
}

int mkdir(const char *name, mode_t mode) {
    int failed = REAL(mkdir)(name, mode);
    if (!failed) record_name('d', AT_FDCWD, name);
    return failed;
}

int rename(const char *from, const char *to) {
    char path[8192];
    int failed = REAL(rename)(from, to);
    if (!failed && within(AT_FDCWD, from, path, sizeof path)) record_path('r', path, 0, to, strlen(to));
    return failed;
}

static int opened(int fd, int existed, int folder, const char *name, int flags) {
    if (fd >= 0 && (flags & O_CREAT) && !existed) record_name('c', folder, name);
    if (fd >= 0 && (flags & O_TRUNC) && existed) record_name('t', folder, name);
    return fd;
}

/* What is opened for reading leaves no trace and is not looked up. */
#define OPEN(name, call, folder)                                                                   \
    va_list list;                                                                                  \
    va_start(list, flags);                                                                         \
    mode_t mode = (flags & O_CREAT) ? va_arg(list, mode_t) : 0;                                    \
    va_end(list);                                                                                  \
    int existed = (flags & (O_CREAT | O_TRUNC)) && faccessat(folder, name, F_OK, 0) == 0;          \
    return opened(call, existed, folder, name, flags);

int open(const char *name, int flags, ...) { OPEN(name, REAL(open)(name, flags, mode), AT_FDCWD) }
int open64(const char *name, int flags, ...) { OPEN(name, REAL(open64)(name, flags, mode), AT_FDCWD) }
int openat(int folder, const char *name, int flags, ...) { OPEN(name, REAL(openat)(folder, name, flags, mode), folder) }
int openat64(int folder, const char *name, int flags, ...) { OPEN(name, REAL(openat64)(folder, name, flags, mode), folder) }

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
