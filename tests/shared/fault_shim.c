/* Counts the calls that change files below a folder, and fails or kills the process at one of them (LD_PRELOAD).

   After fault_arm, every call is one line of the journal: its number, its name, its path. Whatever fsync has flushed is
   copied to a folder of snapshots: the content of a file as f<inode>, the names in a folder as d<inode>. */
#define _GNU_SOURCE
#define LONG_PATH (2 * PATH_MAX)
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char root[PATH_MAX], snapshots[PATH_MAX];
static long fault_at, calls;
static int armed, kills, from_there_on, journal = -1;


static int raw_open(const char *path, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0644); }
static void raw_write(int fd, const char *data, size_t size) {
    if (syscall(SYS_write, fd, data, size) < 0) abort();
}

int fault_arm(const char *folder, long at, int sticky, int kill_at, const char *journal_path, const char *snap) {
    if (!realpath(folder, root)) return -1;
    strcpy(snapshots, snap);
    journal = raw_open(journal_path, O_WRONLY | O_CREAT | O_TRUNC);
    fault_at = at, from_there_on = sticky, kills = kill_at, calls = 0, armed = 1;
    return journal;
}

/* The absolute path of a name relative to a folder's descriptor; without a name, of the descriptor. */
static void full_path(int fd, const char *name, char *out) {
    char link[64];
    out[0] = 0;
    if (!name || name[0] != '/') {
        ssize_t length = 0;
        if (fd == AT_FDCWD) strcpy(link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        length = readlink(link, out, PATH_MAX - 1);
        out[length < 0 ? 0 : length] = 0;
        if (!name) return;
        strncat(out, "/", PATH_MAX - strlen(out) - 1);
    }
    strncat(out, name, PATH_MAX - strlen(out) - 1);
}

/* Whether the call fails; kills the process if this is the call to die at. A write is then half done. */
static int fails(const char *call, int fd, const char *name, const char *data, size_t size) {
    char path[PATH_MAX], line[PATH_MAX + 64];
    if (!armed) return 0;
    full_path(fd, name, path);
    if (strncmp(path, root, strlen(root))) return 0;
    calls++;
    int length = snprintf(line, sizeof line, "%ld %s %s\n", calls, call, path + strlen(root));
    raw_write(journal, line, length);
    if (calls != fault_at && !(from_there_on && fault_at && calls > fault_at)) return 0;
    if (kills) {
        if (data && size) raw_write(fd, data, size / 2);
        raise(SIGKILL);
    }
    errno = ENOSPC;
    return 1;
}

static void snapshot_path(char *out, char kind, ino_t inode) { snprintf(out, LONG_PATH, "%s/%c%lu", snapshots, kind, inode); }

static void forget(ino_t inode) {
    char path[LONG_PATH];
    snapshot_path(path, 'f', inode), syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    snapshot_path(path, 'd', inode), syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static void keep(int fd) {
    char source[64], path[LONG_PATH], buffer[1 << 16];
    struct stat found;
    ssize_t length;
    if (fstat(fd, &found)) return;
    snapshot_path(path, S_ISDIR(found.st_mode) ? 'd' : 'f', found.st_ino);
    int out = raw_open(path, O_WRONLY | O_CREAT | O_TRUNC);
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    if (S_ISDIR(found.st_mode)) {
        DIR *folder = opendir(source);
        struct dirent *entry;
        while (folder && (entry = readdir(folder)))
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
                length = snprintf(buffer, sizeof buffer, "%lu %d %s\n", entry->d_ino, entry->d_type == DT_DIR, entry->d_name);
                raw_write(out, buffer, length);
            }
        if (folder) closedir(folder);
    } else {
        int in = raw_open(source, O_RDONLY);
        while ((length = syscall(SYS_read, in, buffer, sizeof buffer)) > 0) raw_write(out, buffer, length);
        syscall(SYS_close, in);
    }
    syscall(SYS_close, out);
}

static int opened(int fd, const char *name, int flags, mode_t mode) {
    struct stat found;
    int changes = (flags & (O_CREAT | O_TRUNC)) != 0;
    if (changes && fails("open", fd, name, NULL, 0)) return -1;
    int result = (int)syscall(SYS_openat, fd, name, flags, mode);
    if (armed && changes && result >= 0 && (flags & O_EXCL) && !fstat(result, &found)) forget(found.st_ino);
    return result;
}

#define OPENED(fd, name)                                                                                                \
    va_list rest;                                                                                                       \
    va_start(rest, flags);                                                                                              \
    mode_t mode = va_arg(rest, mode_t);                                                                                 \
    va_end(rest);                                                                                                       \
    return opened(fd, name, flags, mode)

int open(const char *path, int flags, ...) { OPENED(AT_FDCWD, path); }
int open64(const char *path, int flags, ...) { OPENED(AT_FDCWD, path); }
int openat(int fd, const char *path, int flags, ...) { OPENED(fd, path); }
int openat64(int fd, const char *path, int flags, ...) { OPENED(fd, path); }

ssize_t write(int fd, const void *data, size_t size) {
    return fails("write", fd, NULL, data, size) ? -1 : syscall(SYS_write, fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return fails("pwrite", fd, NULL, NULL, 0) ? -1 : syscall(SYS_pwrite64, fd, data, size, offset);
}
int ftruncate64(int fd, off64_t size) { return fails("ftruncate", fd, NULL, NULL, 0) ? -1 : (int)syscall(SYS_ftruncate, fd, size); }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int truncate64(const char *path, off64_t size) {
    return fails("truncate", AT_FDCWD, path, NULL, 0) ? -1 : (int)syscall(SYS_truncate, path, size);
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }

int fsync(int fd) {
    if (fails("fsync", fd, NULL, NULL, 0)) return -1;
    int result = (int)syscall(SYS_fsync, fd);
    if (armed && !result) keep(fd);
    return result;
}
int fdatasync(int fd) { return fsync(fd); }

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    return fails("rename", to_fd, to, NULL, 0) ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    return fails("link", to_fd, to, NULL, 0) ? -1 : (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int fd, const char *path, mode_t mode) {
    struct stat found;
    if (fails("mkdir", fd, path, NULL, 0)) return -1;
    int result = (int)syscall(SYS_mkdirat, fd, path, mode);
    if (armed && !result && !fstatat(fd, path, &found, 0)) forget(found.st_ino);
    return result;
}
/* From fault_jump_clock on, the wall clock jumps by a day, back and forth, at every call. */
static int jumps;
static long clock_calls;
void fault_jump_clock(void) { jumps = 1; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (jumps && clock == CLOCK_REALTIME) now->tv_sec += clock_calls++ % 2 ? 86400 : -86400;
    return result;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
