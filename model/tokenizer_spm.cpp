// tokenizer_spm.cpp: the thin shim around libsentencepiece. No exception leaves this file.
#include <sentencepiece_processor.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

extern "C" {
#include "tokenizer.h"
#include "tokenizer_check.h"
}

// Exported by the library, declared in none of its installed headers. Without it the library writes
// to stderr what it also returns as a status.
namespace sentencepiece
{
namespace logging
{
void SetMinLogLevel(int level);
}
} // namespace sentencepiece

struct oct_spm {
    sentencepiece::SentencePieceProcessor spm;
    std::vector<std::string> bytes; // per id: what it adds inside a text
};

namespace
{

// "<0x41>" -> 0x41
char byte_of(const std::string &piece)
{
    return static_cast<char>(std::strtol(piece.substr(3, 2).c_str(), nullptr, 16));
}

std::string text_of(const sentencepiece::SentencePieceProcessor &spm, int id)
{
    if (spm.IsControl(id))
        return {};
    const std::string &piece = spm.IdToPiece(id);
    if (spm.IsByte(id))
        return std::string(1, byte_of(piece));
    static const std::string space = "\xe2\x96\x81"; // U+2581
    std::string out;
    for (size_t i = 0; i < piece.size();) {
        if (piece.compare(i, space.size(), space) == 0) {
            out += ' ';
            i += space.size();
        } else {
            out += piece[i++];
        }
    }
    return out;
}

// Runs f, which returns an oct_status, and turns exceptions into errors.
template <typename F> oct_status guarded(oct_error *err, const char *what, F f)
{
    try {
        return f();
    } catch (const std::bad_alloc &) {
        return oct_fail(err, OCT_ERR_MEMORY, "%s: out of memory", what);
    } catch (const std::exception &e) {
        return oct_fail(err, OCT_ERR_FORMAT, "%s: %s", what, e.what());
    } catch (...) {
        return oct_fail(err, OCT_ERR_FORMAT, "%s: unknown failure in the SentencePiece library",
                        what);
    }
}

oct_status copy_text(const std::string &s, char **text, size_t *n, oct_error *err)
{
    char *out = static_cast<char *>(std::malloc(s.size() + 1));
    if (out == nullptr)
        return oct_fail(err, OCT_ERR_MEMORY, "tokenizer: out of memory for %zu bytes of text",
                        s.size());
    std::memcpy(out, s.data(), s.size());
    out[s.size()] = '\0';
    *text = out;
    *n = s.size();
    return OCT_OK;
}

} // namespace

extern "C" {

oct_status oct_spm_new(const void *bytes, size_t n, oct_spm **out, oct_error *err)
{
    *out = nullptr;
    OCT_TRY(oct_spm_check(bytes, n, err));
    // Refused memory while it parses, protobuf destroys what it has not made: so that is asked for here.
    void *room = n < SIZE_MAX / 64 ? std::malloc(64 * n + (1 << 20)) : nullptr;
    std::free(room);
    if (room == nullptr)
        return oct_fail(err, OCT_ERR_MEMORY, "tokenizer: out of memory for a model of %zu bytes",
                        n);
    return guarded(err, "tokenizer", [&]() -> oct_status {
        sentencepiece::logging::SetMinLogLevel(4); // above "fatal"
        std::unique_ptr<oct_spm> t(new oct_spm);
        const auto status =
            t->spm.LoadFromSerializedProto(absl::string_view(static_cast<const char *>(bytes), n));
        if (!status.ok())
            return oct_fail(err, OCT_ERR_FORMAT,
                            "tokenizer: not a SentencePiece model (%zu bytes): %s", n,
                            status.ToString().c_str());
        const int size = t->spm.GetPieceSize();
        t->bytes.reserve(static_cast<size_t>(size));
        for (int id = 0; id < size; id++)
            t->bytes.push_back(text_of(t->spm, id));
        *out = t.release();
        return OCT_OK;
    });
}

void oct_spm_free(oct_spm *t)
{
    delete t;
}

int32_t oct_spm_size(const oct_spm *t)
{
    return t->spm.GetPieceSize();
}

int32_t oct_spm_pad(const oct_spm *t)
{
    return t->spm.pad_id();
}

int32_t oct_spm_bos(const oct_spm *t)
{
    return t->spm.bos_id();
}

int32_t oct_spm_eos(const oct_spm *t)
{
    return t->spm.eos_id();
}

int32_t oct_spm_unk(const oct_spm *t)
{
    return t->spm.unk_id();
}

const char *oct_spm_piece(const oct_spm *t, int32_t id, size_t *n, float *score,
                          enum oct_spm_type *type)
{
    const std::string &piece = t->spm.IdToPiece(id);
    *n = piece.size();
    *score = t->spm.GetScore(id);
    if (t->spm.IsUnknown(id))
        *type = OCT_SPM_UNKNOWN;
    else if (t->spm.IsControl(id))
        *type = OCT_SPM_CONTROL;
    else if (t->spm.IsByte(id))
        *type = OCT_SPM_BYTE;
    else if (t->spm.IsUnused(id))
        *type = OCT_SPM_UNUSED;
    else
        *type = OCT_SPM_NORMAL; // user-defined pieces too: see the header of export.c
    return piece.c_str();
}

const char *oct_spm_bytes(const oct_spm *t, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || static_cast<size_t>(id) >= t->bytes.size())
        return nullptr;
    *n = t->bytes[static_cast<size_t>(id)].size();
    return t->bytes[static_cast<size_t>(id)].data();
}

oct_status oct_spm_encode(const oct_spm *t, const char *text, size_t n, int32_t **ids,
                          size_t *n_ids, oct_error *err)
{
    *ids = nullptr;
    *n_ids = 0;
    if (n > INT_MAX / 4)
        return oct_fail(err, OCT_ERR_ARG,
                        "tokenizer: text of %zu bytes, at most %d are encoded at once", n,
                        INT_MAX / 4);
    return guarded(err, "tokenizer", [&]() -> oct_status {
        std::vector<int> v;
        const auto status = t->spm.Encode(absl::string_view(text, n), &v);
        if (!status.ok())
            return oct_fail(err, OCT_ERR_ARG, "tokenizer: %s", status.ToString().c_str());
        auto *out = static_cast<int32_t *>(std::malloc((v.size() + 1) * sizeof(int32_t)));
        if (out == nullptr)
            return oct_fail(err, OCT_ERR_MEMORY, "tokenizer: out of memory for %zu ids", v.size());
        for (size_t i = 0; i < v.size(); i++)
            out[i] = v[i];
        *ids = out;
        *n_ids = v.size();
        return OCT_OK;
    });
}

oct_status oct_spm_decode(const oct_spm *t, const int32_t *ids, size_t n_ids, char **text,
                          size_t *n, oct_error *err)
{
    *text = nullptr;
    *n = 0;
    return guarded(err, "tokenizer", [&]() -> oct_status {
        for (size_t i = 0; i < n_ids; i++)
            if (ids[i] < 0 || ids[i] >= t->spm.GetPieceSize())
                return oct_fail(err, OCT_ERR_ARG, "tokenizer: id %d at %zu, expected 0..%d", ids[i],
                                i, t->spm.GetPieceSize() - 1);
        const std::vector<int> v(ids, ids + n_ids);
        std::string s;
        const auto status = t->spm.Decode(v, &s);
        if (!status.ok())
            return oct_fail(err, OCT_ERR_ARG, "tokenizer: %s", status.ToString().c_str());
        return copy_text(s, text, n, err);
    });
}

} // extern "C"
