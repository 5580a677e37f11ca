/* octet info: what is in a model file, and what this machine offers to run it. The facts are
 * gathered into one JSON object; the text for people is printed from it. */
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <octet/convert.h>
#include <octet/gpu.h>
#include <octet/inspect.h>
#include <octet/machine.h>

#include "cli_session.h"
#include "commands.h"

typedef struct info_state {
    oct_cli_session session;
    bool json, tensors, keys, verify;
} info_state;

static int parse(info_state *r, int argc, char **argv)
{
    const oct_opt rows[] = {
        OCT_ROW_TEXT('m', "model", &r->session.model, "FILE",
                     "model file; without one the machine is described only"),
        OCT_ROW_FLAG(0, "verify", &r->verify, "read the whole file and compare every checksum"),
        OCT_ROW_FLAG(0, "tensors", &r->tensors, "list the tensors"),
        OCT_ROW_FLAG(0, "keys", &r->keys, "list the metadata keys"),
        OCT_ROW_FLAG(0, "json", &r->json, "print everything as one JSON object"),
    };
    const oct_cli cli = {
        .name = "info",
        .synopsis = "[-m MODEL] [options]",
        .about =
            "Shows what a model file holds, and the processor, kernels, threads and memory that\n"
            "would run it. The fingerprint is the checksum of the file's header: files with the\n"
            "same one hold the same model.",
        .opts = rows,
        .n_opts = sizeof rows / sizeof *rows,
        .notes = "examples:\n"
                 "  octet info\n"
                 "  octet info -m grok-1.gguf\n"
                 "  octet info -m grok-1.gguf --verify\n"
                 "  OCTET_ISA=avx2 octet info --json | jq .machine.kernels",
        .max_args = 1,
    };
    int first = argc;
    int code = oct_cli_parse(&cli, argc, argv, &first);
    if (code < 0 && first < argc) {
        if (r->session.model) {
            oct_cli_error("info: unexpected argument '%s'", argv[first]);
            return OCT_EXIT_USAGE;
        }
        r->session.model = argv[first];
    }
    return code;
}

/* ---- gathering ------------------------------------------------------------------------------ */

static json_t *text_or_null(const char *s)
{
    json_t *v = json_string(s);
    return v ? v : json_null();
}

static json_t *limit(uint64_t bytes)
{
    return bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *list_gpus(void)
{
    oct_gpus g;
    oct_gpus_get(&g);
    json_t *list = json_array();
    for (int i = 0; i < g.n; i++) {
        const oct_gpu *d = &g.gpu[i];
        json_array_append_new(
            list, json_pack("{s:i, s:o, s:o, s:i, s:I, s:I, s:f, s:s}", "index", d->index, "name",
                            text_or_null(d->name), "capability",
                            json_sprintf("%d.%d", d->major, d->minor), "multiprocessors", d->n_sms,
                            "memory", (json_int_t)d->total, "free", (json_int_t)d->free,
                            "link_gb_per_second", d->link / 1e9, "why_not", d->why));
    }
    return json_pack("{s:i, s:s, s:o}", "driver", g.driver, "why_not", g.why, "devices", list);
}

static oct_status gather_machine(json_t *all, oct_error *err)
{
    const char *isa;
    oct_memory have;
    oct_machine *m;
    OCT_TRY(oct_machine_choose_isa(NULL, &isa, err));
    OCT_TRY(oct_machine_load(NULL, &m, err));
    oct_memory_get("", &have);
    const oct_machine_info *i = oct_machine_get_info(m);
    json_t *rows = json_array();
    for (int k = 0; k < i->n_isas; k++)
        json_array_append_new(rows, json_string(i->isas[k]));
    json_object_set_new(all, "version", json_string(oct_version()));
    json_object_set_new(all, "machine",
                        json_pack("{s:o, s:{s:o, s:s}, s:i, s:s, s:i, s:o, s:o}", "cpu",
                                  text_or_null(i->cpu), "kernels", "available", rows, "chosen", isa,
                                  "threads", i->n_threads, "threads_why", i->threads_why,
                                  "numa_nodes", i->n_nodes, "memory_available", limit(have.system),
                                  "memory_cgroup", limit(have.cgroup)));
    json_object_set_new(all, "gpus", list_gpus());
    oct_machine_free(m);
    return OCT_OK;
}

/* Numbers of a model: name in the JSON object, words for people, place. */
typedef struct number_row {
    const char *key, *words;
    size_t at;
    char kind; /* i: int64, u: uint64, f: float, 3: int32 */
} number_row;

#define ROW(field, kind, words)                              \
    {                                                        \
#field, words, offsetof(oct_model_info, field), kind \
    }
static const number_row numbers[] = {
    ROW(n_layers, 'i', "layers"),
    ROW(d_model, 'i', "width"),
    ROW(n_q_heads, 'i', "query heads"),
    ROW(n_kv_heads, 'i', "KV heads"),
    ROW(head_dim, 'i', "head dimension"),
    ROW(d_ff, 'i', "FFN width"),
    ROW(n_experts, 'i', "experts"),
    ROW(n_experts_used, 'i', "experts per token"),
    ROW(n_vocab, 'i', "vocabulary"),
    ROW(n_ctx, 'i', "context"),
    ROW(n_slices, 'i', "slices"),
    ROW(embedding_scale, 'f', "embedding scale"),
    ROW(output_scale, 'f', "logit scale"),
    ROW(attn_scale, 'f', "attention scale"),
    ROW(attn_cap, 'f', "attention softcap"),
    ROW(rope_base, 'f', "RoPE base"),
    ROW(norm_eps, 'f', "norm epsilon"),
    ROW(pad_id, '3', "pad id"),
    ROW(eos_id, '3', "end-of-text id"),
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static json_t *number_value(const oct_model_info *info, const number_row *row)
{
    const char *p = (const char *)info + row->at;
    int64_t i;
    float f;
    int32_t i3;
    switch (row->kind) {
    case 'f': memcpy(&f, p, sizeof f); return json_real((double)f);
    case '3': memcpy(&i3, p, sizeof i3); return json_integer(i3);
    default: memcpy(&i, p, sizeof i); return json_integer(i);
    }
}

static json_t *list_tensors(const oct_model *m)
{
    json_t *list = json_array();
    oct_tensor_info t;
    for (int64_t i = 0; oct_model_get_tensor(m, i, &t); i++) {
        json_t *shape = json_array();
        for (int d = 0; d < t.rank; d++)
            json_array_append_new(shape, json_integer((json_int_t)t.shape[d]));
        json_array_append_new(list,
                              json_pack("{s:o, s:s, s:o, s:I, s:I}", "name", text_or_null(t.name),
                                        "type", t.type, "shape", shape, "offset",
                                        (json_int_t)t.offset, "bytes", (json_int_t)t.bytes));
    }
    return list;
}

static json_t *value_of(const oct_key_info *k)
{
    switch (k->value) {
    case OCT_KEY_ARRAY: return json_sprintf("%llu values", (unsigned long long)k->u64);
    case OCT_KEY_REAL: return json_real((double)k->f32);
    case OCT_KEY_TEXT:
        return strlen(k->text) < 200 ? text_or_null(k->text)
                                     : json_sprintf("%zu bytes", strlen(k->text));
    case OCT_KEY_INTEGER: return json_sprintf("%llu", (unsigned long long)k->u64);
    case OCT_KEY_OTHER: break;
    }
    return json_null();
}

static json_t *list_keys(const oct_model *m)
{
    json_t *list = json_array();
    oct_key_info k;
    for (int64_t i = 0; oct_model_get_key(m, i, &k); i++)
        json_array_append_new(list, json_pack("{s:o, s:s, s:o}", "key", text_or_null(k.key), "type",
                                              k.type, "value", value_of(&k)));
    return list;
}

static json_t *part_of(const oct_model_info *info)
{
    if (info->part_size == 0)
        return json_null();
    return json_pack("{s:i, s:i, s:s}", "rank", info->part_rank, "ranks", info->part_size, "shard",
                     oct_shard_name(info->part_by));
}

static void gather_file(const info_state *r, const oct_model *m, json_t *all)
{
    const oct_model_info *info = oct_model_get_info(m);
    json_t *model = json_object();
    for (int i = 0; i < N_NUMBERS; i++)
        json_object_set_new(model, numbers[i].key, number_value(info, &numbers[i]));
    char print[24];
    snprintf(print, sizeof print, "%016llx", (unsigned long long)info->fingerprint);
    json_object_set_new(all, "file",
                        json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:b, s:s, s:o, s:o}", "path",
                                  text_or_null(r->session.model), "part", part_of(info), "format",
                                  (json_int_t)info->format, "bytes", (json_int_t)info->file_bytes,
                                  "weight_bytes", (json_int_t)info->weight_bytes, "bytes_per_token",
                                  (json_int_t)info->active_bytes, "tokenizer", info->has_tokenizer,
                                  "fingerprint", print, "verified",
                                  r->verify ? json_true() : json_null(), "model", model));
    if (r->tensors || r->json)
        json_object_set_new(all, "tensors", list_tensors(m));
    if (r->keys || r->json)
        json_object_set_new(all, "keys", list_keys(m));
}

/* ---- printing ------------------------------------------------------------------------------- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "?";
}

static uint64_t uint_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? (uint64_t)json_integer_value(v) : UINT64_MAX;
}

static void print_file(const json_t *file)
{
    char b[24];
    oct_cli_outf("file                 %s\n", text_of(file, "path"));
    const json_t *part = json_object_get(file, "part");
    if (json_is_object(part))
        oct_cli_outf("  part               rank %llu of %llu by %s\n",
                     (unsigned long long)uint_of(part, "rank"),
                     (unsigned long long)uint_of(part, "ranks"), text_of(part, "shard"));
    oct_cli_outf("  format             %llu\n", (unsigned long long)uint_of(file, "format"));
    oct_cli_outf("  size               %s\n", oct_memory_text(uint_of(file, "bytes"), b));
    oct_cli_outf("  weights            %s%s\n", oct_memory_text(uint_of(file, "weight_bytes"), b),
                 json_is_object(part) ? " in the whole model" : "");
    oct_cli_outf("  read per token     %s\n", oct_memory_text(uint_of(file, "bytes_per_token"), b));
    oct_cli_outf("  tokenizer          %s\n",
                 json_is_true(json_object_get(file, "tokenizer")) ? "inside" : "none");
    oct_cli_outf("  fingerprint        %s\n", text_of(file, "fingerprint"));
    oct_cli_outf("  checksums          %s\n",
                 json_is_true(json_object_get(file, "verified"))
                     ? (json_is_object(part) ? "the whole part agrees" : "all tensors agree")
                     : "header agrees; --verify reads the tensors too");
    oct_cli_outf("model\n");
    const json_t *model = json_object_get(file, "model");
    for (int i = 0; i < N_NUMBERS; i++) {
        const json_t *v = json_object_get(model, numbers[i].key);
        if (json_is_integer(v))
            oct_cli_outf("  %-18s %lld\n", numbers[i].words, (long long)json_integer_value(v));
        else
            oct_cli_outf("  %-18s %.7g\n", numbers[i].words, json_number_value(v));
    }
}

static void print_lists(const json_t *all)
{
    size_t i;
    json_t *v;
    char shape[96];
    if (json_object_get(all, "tensors"))
        oct_cli_outf("tensors\n");
    json_array_foreach(json_object_get(all, "tensors"), i, v)
    {
        json_t *dims = json_object_get(v, "shape");
        size_t n = 0;
        shape[0] = 0;
        for (size_t d = 0; d < json_array_size(dims) && n < sizeof shape - 24; d++)
            n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%lld", d ? " x " : "",
                                  (long long)json_integer_value(json_array_get(dims, d)));
        oct_cli_outf("  %-32s %-5s %-28s %12lld bytes at %lld\n", text_of(v, "name"),
                     text_of(v, "type"), shape, (long long)uint_of(v, "bytes"),
                     (long long)uint_of(v, "offset"));
    }
    if (json_object_get(all, "keys"))
        oct_cli_outf("keys\n");
    json_array_foreach(json_object_get(all, "keys"), i, v)
    {
        char *value =
            json_dumps(json_object_get(v, "value"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        oct_cli_outf("  %-40s %-7s %s\n", text_of(v, "key"), text_of(v, "type"),
                     value ? value : "?");
        free(value);
    }
}

static void print_machine(const json_t *all)
{
    const json_t *machine = json_object_get(all, "machine");
    const json_t *kernels = json_object_get(machine, "kernels");
    uint64_t cgroup = uint_of(machine, "memory_cgroup");
    size_t i;
    json_t *v;
    char b[24];
    oct_cli_outf("machine\n");
    oct_cli_outf("  cpu                %s\n", text_of(machine, "cpu"));
    oct_cli_outf("  kernels            %s, of", text_of(kernels, "chosen"));
    json_array_foreach(json_object_get(kernels, "available"), i, v)
        oct_cli_outf(" %s", json_string_value(v));
    oct_cli_outf("\n  threads            %llu (%s)\n",
                 (unsigned long long)uint_of(machine, "threads"), text_of(machine, "threads_why"));
    oct_cli_outf("  memory             %s available",
                 oct_memory_text(uint_of(machine, "memory_available"), b));
    if (cgroup != UINT64_MAX)
        oct_cli_outf(", %s left in the cgroup limit", oct_memory_text(cgroup, b));
    oct_cli_outf("\n  octet              %s\n", text_of(all, "version"));
}

static void print_gpus(const json_t *gpus)
{
    size_t i;
    json_t *d;
    char a[24], b[24];
    const json_t *devices = json_object_get(gpus, "devices");
    const int driver = (int)json_integer_value(json_object_get(gpus, "driver"));
    oct_cli_outf("GPUs\n");
    if (json_array_size(devices) == 0)
        oct_cli_outf("  none               %s\n", text_of(gpus, "why_not"));
    else
        oct_cli_outf("  driver             of CUDA %d.%d\n", driver / 1000, driver % 1000 / 10);
    json_array_foreach(devices, i, d)
    {
        oct_cli_outf("  %-18llu %s, compute capability %s, %llu multiprocessors\n",
                     (unsigned long long)uint_of(d, "index"), text_of(d, "name"),
                     text_of(d, "capability"), (unsigned long long)uint_of(d, "multiprocessors"));
        if (*text_of(d, "why_not"))
            oct_cli_outf("                     not used: %s\n", text_of(d, "why_not"));
        else
            oct_cli_outf("                     %s of %s free, %.1f GB/s from the host\n",
                         oct_memory_text(uint_of(d, "free"), a),
                         oct_memory_text(uint_of(d, "memory"), b),
                         json_number_value(json_object_get(d, "link_gb_per_second")));
    }
}

static int print(const info_state *r, const json_t *all)
{
    if (r->json)
        return oct_cli_out_json(all, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (!oct_cli_json_whole(all))
        return OCT_EXIT_ERROR;
    if (json_object_get(all, "file"))
        print_file(json_object_get(all, "file"));
    print_lists(all);
    print_machine(all);
    print_gpus(json_object_get(all, "gpus"));
    return oct_cli_out_end();
}

int oct_cmd_info(int argc, char **argv)
{
    info_state r = {0};
    oct_error err = {0};
    oct_model *m = NULL;
    int code = parse(&r, argc, argv);
    if (code < 0 && !r.session.model && (r.verify || r.tensors || r.keys)) {
        oct_cli_error("info: --verify, --tensors and --keys need a model (-m)");
        return OCT_EXIT_USAGE;
    }
    /* Before the model is opened, whose tokenizer could be what is damaged. */
    if (code < 0 && r.verify && oct_cli_verify(r.session.model, &err) != OCT_OK)
        code = oct_cli_fail(&err);
    if (code < 0 && r.session.model)
        code = oct_cli_open(&r.session, "info", false, &m);
    if (code >= 0)
        return code;
    json_t *all = json_object();
    if (m)
        gather_file(&r, m, all);
    code = gather_machine(all, &err) == OCT_OK ? print(&r, all) : oct_cli_fail(&err);
    json_decref(all);
    oct_model_close(m);
    return code;
}
