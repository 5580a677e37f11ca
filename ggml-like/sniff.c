/* sniff.c: the usual accidents, see sniff.h. */
#include "sniff.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

enum { ZEROS = 16 }; /* so many of them in front mean that nothing was written */

static const char pickle[] = "a pickle; octet convert takes the folder of a checkpoint";

static const struct {
    const char *start, *what;
} texts[] =
    {
        {"<!doctype", "an HTML page, saved in place of the file"},
        {"<html", "an HTML page, saved in place of the file"},
        {"<?xml", "an XML page of an error, saved in place of the file"},
        {"version https://git-lfs", "a Git LFS pointer; the file itself was not downloaded"},
        {"d8:announce", "a torrent's description; a torrent client downloads what it names"},
        {"{", "JSON text"},
},
  binaries[] = {
      {"GGUF", "a GGUF file"},
      {"GGML", "an older format than GGUF"},
      {"lmgg", "an older format than GGUF"},
      {"fmgg", "an older format than GGUF"},
      {"tjgg", "an older format than GGUF"},
      {"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"},
      {"\x1f\x8b", "a gzip archive; it has to be unpacked first"},
      {"(\xb5/\xfd", "a zstd archive; it has to be unpacked first"},
      {"\x93NUMPY", "a .npy file"},
      {"\x80\x02", pickle},
      {"\x80\x03", pickle},
      {"\x80\x04", pickle},
      {"\x80\x05", pickle},
};

/* Text may begin with a byte order mark and blanks. */
static const char *sniff_text(const uint8_t *b, size_t n)
{
    if (n >= 3 && !memcmp(b, "\xef\xbb\xbf", 3)) {
        b += 3;
        n -= 3;
    }
    while (n && (*b == ' ' || *b == '\n' || *b == '\r' || *b == '\t')) {
        b++;
        n--;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t k = strlen(texts[i].start);
        if (n >= k && !strncasecmp((const char *)b, texts[i].start, k))
            return texts[i].what;
    }
    return NULL;
}

const char *oct_sniff(const void *bytes, size_t n)
{
    static const uint8_t zeros[ZEROS];
    const uint8_t *b = bytes;

    if (n >= ZEROS && !memcmp(b, zeros, ZEROS))
        return "zeros, as a download leaves that was never finished";
    for (size_t i = 0; i < sizeof binaries / sizeof *binaries; i++) {
        size_t k = strlen(binaries[i].start);
        if (n >= k && !memcmp(b, binaries[i].start, k))
            return binaries[i].what;
    }
    if (n > 8 && b[8] == '{')
        return "a safetensors file";
    return sniff_text(b, n);
}
