/* file_map.h: files as memory, on every file system, and pieces of them. */
#ifndef OCT_FILE_MAP_H
#define OCT_FILE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* n bytes of an open file from an offset (a multiple of the page size) on, read-only, at a place
 * that is reserved already or (at NULL) anywhere: mapped, shared with all who map the file;
 * privately where the file system refuses that (network mounts, FUSE with direct_io); and where
 * nothing can be mapped, read into memory, if that is at most read_max bytes. NULL, with errno, if
 * none of it is possible. To be unmapped with munmap. Should the file become shorter, or its disk
 * fail, touching what is mapped means SIGBUS. */
void *oct_file_map(void *at, size_t n, int fd, uint64_t offset, size_t read_max);

/* Reads n bytes of an open file at an offset, however often it is interrupted or given a part of
 * them. Returns how many there were: n, or fewer where the file ends; -1, with errno, if reading
 * failed. Moves no position: safe from several threads. */
int64_t oct_file_read(int fd, void *to, size_t n, uint64_t at);

/* All n of them. OCT_ERR_IO, by the file's name, if it fails or the file has ended. */
OCT_MUST_CHECK oct_status oct_file_read_all(int fd, const char *path, void *to, size_t n,
                                            uint64_t at, oct_error *err);

#endif
