#!/usr/bin/env python3
"""Proves `octet export` on a peer: stock llama.cpp runs the exported model and says the same.
Run it by peer_llama.sh, which installs what it needs.

A check for developers, not part of the test suite. It converts the shipped model, exports it, loads
it in llama.cpp and compares with the golden numbers of the original code. Exits with 1 if one of the
limits is missed:

    tokenizer    the ids of all golden vectors
    logits       mean KL(golden || llama.cpp) at most 2e-3 nats, error at most 3 % of their deviation
    perplexity   of the held-out text within 0.2 % of the original's

A model without golden numbers is compared with Octet's own logits: --model model.gguf.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from llama_cpp import llama_cpp as L

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "data", "golden")
TINY = os.path.join(os.path.dirname(HERE), "examples", "tiny-grok")
MAX_KL, MAX_PPL, MAX_ERROR = 2e-3, 0.002, 0.03


class Llama:
    """One model and one context of llama.cpp, on the CPU."""

    def __init__(self, path, n_ctx):
        @L.llama_log_callback
        def log(level, text, _):
            if level in (3, 4):  # warnings, errors
                sys.stderr.write("llama.cpp: " + text.decode("utf-8", "replace"))

        self.log = log  # the library keeps a pointer to it
        L.llama_log_set(log, None)
        L.llama_backend_init()
        params = L.llama_model_default_params()
        # Version 0.3.36 built by GCC 12 crashes in its AMX buffers.
        params.use_extra_bufts = False
        params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"{path}: llama.cpp does not load it")
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        params = L.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self.context = L.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"{path}: llama.cpp makes no context")

    def encode(self, text):
        data = text.encode()
        ids = (L.llama_token * (len(data) + 8))()
        n = L.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:n])

    def logits(self, ids):
        """float32 [len(ids), V] of one sequence."""
        L.llama_memory_clear(L.llama_get_memory(self.context), True)
        batch = L.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = int(token)
            batch.pos[i] = i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        status = L.llama_decode(self.context, batch)
        L.llama_batch_free(batch)
        if status:
            sys.exit(f"llama_decode: {status}")
        flat = np.ctypeslib.as_array(L.llama_get_logits(self.context), (len(ids) * self.n_vocab,))
        return flat.reshape(len(ids), self.n_vocab).copy()


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def compare(golden, llama):
    """KL(golden || llama) per position, and whether the best token is the same."""
    a, b = log_softmax(golden), log_softmax(llama)
    return (np.exp(a) * (a - b)).sum(-1), golden.argmax(-1) == llama.argmax(-1)


class Verdict:
    failed = False

    def tell(self, good, text):
        print(("ok      " if good else "FAILED  ") + text, flush=True)
        self.failed |= not good


def check_tokenizer(llama, verdict):
    with open(os.path.join(GOLDEN, "tokenizer", "tiny-grok.json"), encoding="utf-8") as f:
        vectors = json.load(f)["encode"]
    wrong = [v["text"] for v in vectors if llama.encode(v["text"]) != v["ids"]]
    verdict.tell(not wrong, f"tokenizer: {len(vectors) - len(wrong)} of {len(vectors)} vectors"
                 + (f"; the first wrong one: {wrong[0]!r}" if wrong else ""))
    with open(os.path.join(GOLDEN, "tiny-grok", "heldout.txt"), encoding="utf-8") as f:
        text = f.read()
    ids = np.load(os.path.join(GOLDEN, "tiny-grok", "text_tokens.npy")).ravel()
    same = np.array_equal(llama.encode(text), ids)
    verdict.tell(same, f"tokenizer: held-out text, {len(ids)} ids")


def check_logits(name, tokens, golden, llama, verdict):
    logits = np.stack([llama.logits(row) for row in tokens])
    kl, best = compare(golden, logits)
    # Random models are sure of themselves, and their KL says little: look at the logits as well.
    error = np.sqrt(np.mean((logits - golden) ** 2, -1)) / golden.std(-1)
    verdict.tell(kl.mean() <= MAX_KL and np.median(error) <= MAX_ERROR,
                 f"{name}: {kl.size} positions, KL mean {kl.mean():.2e}, median {np.median(kl):.2e}, "
                 f"largest {kl.max():.2e}; same best token {best.mean():.2%}; "
                 f"error of logits / their deviation, median {np.median(error):.2e}")


def check_perplexity(llama, verdict):
    tokens = np.load(os.path.join(GOLDEN, "tiny-grok", "text_tokens.npy"))
    want = np.exp(np.load(os.path.join(GOLDEN, "tiny-grok", "text_nll.npy")).astype(np.float64).mean())
    nll = [-np.take_along_axis(log_softmax(llama.logits(row)[:-1]), row[1:, None], 1) for row in tokens]
    ppl = np.exp(np.mean(nll))
    verdict.tell(abs(ppl / want - 1) <= MAX_PPL,
                 f"perplexity: {ppl:.3f}, the original's {want:.3f}: {ppl / want - 1:+.3%}")


def octet_logits(octet, model, tokens, folder):
    out = os.path.join(folder, "octet.npy")
    lines = "\n".join(" ".join(map(str, row)) for row in tokens)
    subprocess.run([octet, "logits", "-m", model, "--ids", "-", "-o", out], input=lines.encode(),
                   check=True)
    return np.load(out).reshape(*tokens.shape, -1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("octet", help="the program")
    p.add_argument("--model", help="compare llama.cpp with Octet on this model file instead")
    args = p.parse_args()
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder:
        exported = os.path.join(folder, "llama.gguf")
        model = args.model or os.path.join(folder, "octet.gguf")
        if not args.model:
            subprocess.run([args.octet, "convert", TINY, "-o", model], check=True)
        subprocess.run([args.octet, "export", "--q8_0", model, "-o", exported], check=True)
        llama = Llama(exported, 512 if not args.model else 64)
        if args.model:
            tokens = np.random.default_rng(1).integers(3, llama.n_vocab, (4, 48))
            golden = octet_logits(args.octet, model, tokens, folder)
            check_logits("logits against Octet's", tokens, golden, llama, verdict)
        else:
            tokens = np.load(os.path.join(GOLDEN, "tiny-grok", "tokens.npy"))
            golden = np.load(os.path.join(GOLDEN, "tiny-grok", "logits.npy"))
            check_tokenizer(llama, verdict)
            check_logits("logits", tokens, golden, llama, verdict)
            check_perplexity(llama, verdict)
    return 1 if verdict.failed else 0


if __name__ == "__main__":
    sys.exit(main())
