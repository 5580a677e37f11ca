/* file_map.h: files as memory, on every file system. */
#ifndef OCT_FILE_MAP_H
#define OCT_FILE_MAP_H

#include <stddef.h>
#include <stdint.h>

/* n bytes of an open file from an offset (a multiple of the page size) on, read-only, at a place
 * that is reserved already or (at NULL) anywhere: mapped, shared with all who map the file; privately
 * where the file system refuses that (network mounts, FUSE with direct_io); and where nothing can be
 * mapped, read into memory, if that is at most read_max bytes. NULL, with errno, if none of it is
 * possible. To be unmapped with munmap. Should the file become shorter, or its disk fail, touching
 * what is mapped means SIGBUS. */
void *oct_file_map(void *at, size_t n, int fd, uint64_t offset, size_t read_max);

#endif
