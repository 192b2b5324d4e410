/* Fails, cuts or ends at the Nth system call on files below one folder, or the Nth large allocation. Preloaded by
   faults.py, which arms it and says what happens; knows nothing of Python. Every change of a file is written to a journal,
   from which faults.py works out what a power failure would have lost. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPEN, WRITE, SYNC, ENTRY, MAP, ALLOC, CHANGE, KINDS };
enum { ONCE, FROM_THEN_ON, DIE, COPY };

static char root[4096], kept[4096];
static size_t root_length;
static long counts[KINDS], saved;
static int armed, fault_kind = -1, fault_how, fault_error, journal = -1;
static long fault_at;
static size_t least = 1 << 18; /* bytes of an allocation that counts */
static __thread int inside;

void faults_arm(const char *folder, const char *backups, int journal_fd, int kind, long at, int how, int error) {
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
    snprintf(kept, sizeof kept, "%s", backups);
    memset(counts, 0, sizeof counts);
    journal = journal_fd, fault_kind = kind, fault_at = at, fault_how = how, fault_error = error, saved = 0;
    armed = 1;
}
void faults_disarm(void) { armed = 0; }
long faults_count(int kind) { return counts[kind]; }
int faults_present(void) { return 1; }

static int watched(const char *path) { return armed && !inside && path && !strncmp(path, root, root_length); }

static int watched_fd(int fd, char *path) {
    if (!armed || inside || fd < 0) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    if (n <= 0) return 0;
    path[n] = 0;
    return watched(path);
}

static void note(const char *what, long number, const char *a, const char *b) {
    if (journal < 0) return;
    char line[9000];
    int n = snprintf(line, sizeof line, "%s\t%ld\t%s\t%s\n", what, number, a, b ? b : "");
    syscall(SYS_write, journal, line, n);
}

static void copy(long n) { /* of all files, as a kill would leave them here */
    char to[4200];
    snprintf(to, sizeof to, "%s/state-%ld", kept, n);
    note("N", n, "", 0);
    pid_t child;
    char *words[] = {"cp", "-a", root, to, 0}, *nothing[] = {0};
    if (posix_spawn(&child, "/bin/cp", 0, 0, words, nothing)) return; /* a fork of a large process takes long */
    waitpid(child, 0, 0);
}

/* Count one operation; -1 if it fails now. CHANGE stands for any operation after which files may differ: to end before
   any other one leaves what ending before the next of these leaves. */
static int hit(int kind) {
    long n = ++counts[kind];
    if (kind != fault_kind) return 0;
    if (fault_how == COPY) { copy(n); return 0; }
    if (n == fault_at && fault_how == DIE) syscall(SYS_exit_group, 77);
    if (n == fault_at || (n > fault_at && fault_how == FROM_THEN_ON)) { errno = fault_error; return -1; }
    return 0;
}
static int hit_change(int kind) { return hit(CHANGE) || hit(kind); }

static long keep(const char *path) { /* a second name for a file that is about to lose its own */
    char to[4200];
    struct stat s;
    if (!*kept || syscall(SYS_newfstatat, AT_FDCWD, path, &s, AT_SYMLINK_NOFOLLOW) || !S_ISREG(s.st_mode)) return 0;
    snprintf(to, sizeof to, "%s/%ld", kept, ++saved);
    return syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, to, 0) ? 0 : saved;
}

static int opened(const char *path, int flags, mode_t mode) {
    if (watched(path)) {
        if (flags & (O_CREAT | O_TRUNC) ? hit_change(OPEN) : hit(OPEN)) return -1;
        int there = !syscall(SYS_faccessat, AT_FDCWD, path, F_OK);
        int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
        if (fd >= 0 && !there && (flags & O_CREAT)) note("C", 0, path, 0);
        else if (fd >= 0 && (flags & O_TRUNC)) note("W", 0, path, 0);
        return fd;
    }
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list l; va_start(l, flags); mode = va_arg(l, int); va_end(l); }
int open(const char *path, int flags, ...) { MODE return opened(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(path, flags, mode); }
int openat(int d, const char *path, int flags, ...) { MODE return *path == '/' ? opened(path, flags, mode) : syscall(SYS_openat, d, path, flags, mode); }
int openat64(int d, const char *path, int flags, ...) { MODE return *path == '/' ? opened(path, flags, mode) : syscall(SYS_openat, d, path, flags, mode); }

static void wrote(int fd, const char *path, long at) {
    struct stat s;
    if (at < 0) {
        int flags = syscall(SYS_fcntl, fd, F_GETFL);
        at = flags & O_APPEND ? (fstat(fd, &s) ? 0 : s.st_size) : syscall(SYS_lseek, fd, 0L, SEEK_CUR);
    }
    note("W", at, path, 0);
}
ssize_t write(int fd, const void *data, size_t n) {
    char path[4096];
    if (watched_fd(fd, path)) {
        wrote(fd, path, -1);
        if (hit_change(WRITE)) { /* half of it arrives, as on a full disk */
            int error = errno;
            long half = n > 1 && fault_how == FROM_THEN_ON && counts[WRITE] == fault_at ? syscall(SYS_write, fd, data, n / 2) : -1;
            errno = error;
            return half > 0 ? half : -1;
        }
    }
    return syscall(SYS_write, fd, data, n);
}
static ssize_t pwritten(int fd, const void *data, size_t n, off_t at) {
    char path[4096];
    if (watched_fd(fd, path)) { wrote(fd, path, at); if (hit_change(WRITE)) return -1; }
    return syscall(SYS_pwrite64, fd, data, n, at);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwritten(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return pwritten(fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *v, int n) {
    char path[4096];
    if (watched_fd(fd, path)) { wrote(fd, path, -1); if (hit_change(WRITE)) return -1; }
    return syscall(SYS_writev, fd, v, n);
}
static int truncated(int fd, off_t size) {
    char path[4096];
    if (watched_fd(fd, path)) { note("W", size, path, 0); if (hit_change(WRITE)) return -1; }
    return syscall(SYS_ftruncate, fd, size);
}
int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off_t size) { return truncated(fd, size); }

static int synced(int fd, long call) {
    char path[4096];
    int seen = watched_fd(fd, path);
    if (seen && hit_change(SYNC)) return -1;
    if (seen) { note("S", 0, path, 0); return 0; } /* the simulated disk has it; the real one need not */
    return syscall(call, fd);
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int renamed(const char *from, const char *to) {
    if (watched(from) || watched(to)) {
        if (hit_change(ENTRY)) return -1;
        long old = keep(to);
        int done = syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
        if (!done) note("R", old, from, to);
        return done;
    }
    return syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}
int rename(const char *from, const char *to) { return renamed(from, to); }
int unlink(const char *path) {
    if (watched(path)) {
        if (hit_change(ENTRY)) return -1;
        long old = keep(path);
        int done = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
        if (!done) note("U", old, path, 0);
        return done;
    }
    return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int mkdir(const char *path, mode_t mode) {
    if (watched(path)) {
        if (hit_change(ENTRY)) return -1;
        int done = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
        if (!done) note("M", 0, path, 0);
        return done;
    }
    return syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

static void *mapped(void *where, size_t n, int how, int flags, int fd, off_t at) {
    char path[4096];
    if (fd >= 0 && watched_fd(fd, path)) {
        if (hit(MAP)) return MAP_FAILED;
        if ((how & PROT_WRITE) && (flags & MAP_SHARED)) note("W", 0, path, 0);
    }
    return (void *)syscall(SYS_mmap, where, n, how, flags, fd, at);
}
void *mmap(void *where, size_t n, int how, int flags, int fd, off_t at) { return mapped(where, n, how, flags, fd, at); }
void *mmap64(void *where, size_t n, int how, int flags, int fd, off_t at) { return mapped(where, n, how, flags, fd, at); }

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
static int none_left(size_t n) {
    if (!armed || n < least || inside) return 0;
    inside = 1;
    int bad = hit(ALLOC);
    inside = 0;
    if (bad) errno = ENOMEM;
    return bad;
}
void *malloc(size_t n) { return none_left(n) ? 0 : __libc_malloc(n); }
void *calloc(size_t n, size_t of) { return none_left(n * of) ? 0 : __libc_calloc(n, of); }
void *realloc(void *p, size_t n) { return none_left(n) ? 0 : __libc_realloc(p, n); }
int posix_memalign(void **p, size_t align, size_t n) {
    if (none_left(n)) return ENOMEM;
    void *found = __libc_memalign(align, n);
    if (!found) return ENOMEM;
    *p = found;
    return 0;
}
void *aligned_alloc(size_t align, size_t n) { return none_left(n) ? 0 : __libc_memalign(align, n); }
