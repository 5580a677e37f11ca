// outside.cpp: a C++ program outside the project: all public headers (all_headers.h is made by the
// script that builds this), and what the likeliest tokens after a prompt are.
//
//     outside MODEL PROMPT TOKENS      prints prompt and text, as `octet run --temp 0` does
#include "all_headers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

struct closer {
    void operator()(oct_model *m) const
    {
        oct_model_close(m);
    }
    void operator()(oct_session *s) const
    {
        oct_session_free(s);
    }
    void operator()(int32_t *ids) const
    {
        std::free(ids);
    }
};

static oct_status generate(const char *path, const std::string &prompt, int n_tokens,
                           oct_error *err)
{
    oct_model *opened = nullptr;
    OCT_TRY(oct_model_open(path, &opened, err));
    std::unique_ptr<oct_model, closer> model(opened);
    oct_session_params params{};
    oct_session *made = nullptr;
    OCT_TRY(oct_session_new(model.get(), &params, &made, err));
    std::unique_ptr<oct_session, closer> session(made);
    int32_t *encoded = nullptr;
    size_t n_ids = 0;
    OCT_TRY(oct_encode(model.get(), prompt.data(), prompt.size(), &encoded, &n_ids, err));
    std::unique_ptr<int32_t, closer> ids(encoded);

    std::vector<float> logits(static_cast<size_t>(oct_model_get_info(model.get())->n_vocab));
    std::string text = prompt;
    oct_batch batch{};
    batch.n = static_cast<int64_t>(n_ids);
    batch.token = ids.get();
    int32_t id = 0;
    for (int i = 0; i < n_tokens; i++) {
        OCT_TRY(oct_eval(session.get(), &batch, logits.data(), err));
        auto best = std::max_element(logits.begin(), logits.end());
        id = static_cast<int32_t>(best - logits.begin());
        size_t n_bytes = 0;
        const char *bytes = oct_token_bytes(model.get(), id, &n_bytes);
        text.append(bytes, n_bytes);
        batch.n = 1;
        batch.token = &id;
    }
    std::puts(text.c_str());
    return OCT_OK;
}

int main(int argc, char **argv)
{
    oct_error err{};
    if (argc == 4 && generate(argv[1], argv[2], std::atoi(argv[3]), &err) == OCT_OK)
        return 0;
    std::fprintf(stderr, "outside: %s\n", err.text);
    return 1;
}
