#!/usr/bin/env python3
"""How much other formats of 4 bits lose on the small model's experts: weight error, and KL to the int8 model over
the held-out text. Each is made by its published definition, with a search for the best scale of every block where the
format leaves it open, so that it is at least as good as what its tools make.

usage: q4_peers.py CHECKPOINT TOKENS.npy [FORMAT ...]        needs numpy and ml_dtypes
  q4_peers.py examples/tiny-grok tests/data/golden/tiny-grok/text_tokens.npy
"""
import json, os, pickle, sys
import numpy as np
import ml_dtypes  # noqa: F401  (the scales' type in pickles)
import __main__

class QuantizedWeight8bit: pass
QuantizedWeight8bit.__module__ = '__main__'; __main__.QuantizedWeight8bit = QuantizedWeight8bit
f32 = np.float32

# ---- the model, in f32 ----
def load(folder):
    P = {}
    for line in open(os.path.join(folder, 'index.tsv')):
        name, _, path = line.strip().partition('\t')
        v = pickle.load(open(os.path.join(folder, 'ckpt-0', name), 'rb'))
        P[path] = (v.weight, np.asarray(v.scales, f32)) if hasattr(v, 'weight') else np.asarray(v, f32)
    return P, json.load(open(os.path.join(folder, 'config.json')))

def dequantise(p):
    w, s = p
    return w.astype(f32) * np.repeat(s, w.shape[-2] // s.shape[-2], axis=-2)

def bf16(x): return x.astype(ml_dtypes.bfloat16).astype(f32)
def rms(x, g): return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * g
def gelu(x): return 0.5 * x * (1 + np.tanh(f32(np.sqrt(2 / np.pi)) * (x + f32(0.044715) * x ** 3)))
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True)); return e / e.sum(-1, keepdims=True)

def rope(x):
    h = x.shape[-1] // 2
    a = np.arange(x.shape[1])[:, None] / 1e4 ** (np.arange(h) / h)
    c, s = np.cos(a)[None, :, None].astype(f32), np.sin(a)[None, :, None].astype(f32)
    return np.concatenate([x[..., :h] * c - x[..., h:] * s, x[..., h:] * c + x[..., :h] * s], -1)

def hidden(P, C, X, tok):
    B, T = tok.shape; H, K, D = C['num_q_heads'], C['num_kv_heads'], C['key_size']
    h = bf16(P['language_model/in_out_embed/embeddings'])[tok] * f32(C['embedding_multiplier_scale'])
    mask = np.tril(np.ones((T, T), bool))
    for i in range(C['num_layers']):
        b = f'transformer/decoder_layer_{i}/'; att = b + 'multi_head_attention/'
        a = rms(h, P[b + 'rms_norm/scale'])
        q, k, v = (a @ dequantise(P[att + n + '/w']) for n in ('query', 'key', 'value'))
        q, k, v = rope(q.reshape(B, T, H, D)), rope(k.reshape(B, T, K, D)), v.reshape(B, T, K, D)
        o = np.empty((B, T, H, D), f32)
        for j in range(H):
            s = q[:, :, j] @ k[:, :, j * K // H].transpose(0, 2, 1) * f32(C['attn_output_multiplier'])
            p = np.exp(30 * np.tanh(s / 30)) * mask
            o[:, :, j] = (p @ v[:, :, j * K // H]) / p.sum(-1, keepdims=True)
        h = h + rms(o.reshape(B, T, -1) @ dequantise(P[att + 'linear/w']), P[b + 'rms_norm_1/scale'])
        m = rms(h, P[b + 'rms_norm_2/scale']).reshape(B * T, -1)
        p = softmax(m @ P[b + 'router/w'])
        used = np.argsort(-p, axis=-1, kind='stable')[:, :C['num_selected_experts']]
        y = np.zeros_like(m)
        for e in range(C['num_experts']):
            r = np.nonzero((used == e).any(1))[0]; x = m[r]
            t = gelu(x @ X[i, 'linear'][e]) * (x @ X[i, 'linear_v'][e])
            y[r] += p[r, e][:, None] * (t @ X[i, 'linear_1'][e])
        h = h + rms(y.reshape(B, T, -1), P[b + 'rms_norm_3/scale'])
    return rms(h, P['language_model/rms_norm/scale'])

def log_softmax(z, P, C):
    l = z @ bf16(P['language_model/in_out_embed/embeddings']).T * f32(C['output_multiplier_scale'])
    l = l - l.max(-1, keepdims=True)
    return l - np.log(np.exp(l).sum(-1, keepdims=True))

# ---- formats: rows of blocks x[n][block] to what they stand for ----
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], f32)
FP4 = np.array([-6, -4, -3, -2, -1.5, -1, -.5, 0, .5, 1, 1.5, 2, 3, 4, 6], f32)
def f16(x): return x.astype(np.float16).astype(f32)
def pick(grid, x):
    return grid[np.searchsorted((grid[1:] + grid[:-1]) / 2, x)]

def searched(x, grid, factors, rounding):
    """The best scale of each block: amax * factor / reach, rounded, and once fitted by least squares."""
    amax = np.abs(x).max(1, keepdims=True); best = np.zeros_like(x); err = (x * x).sum(1)
    for f in factors:
        s = rounding(amax * f32(f)); s[s == 0] = 1
        for _ in range(2):
            y = pick(grid, x / s)
            e = ((x - y * s) ** 2).sum(1); better = e < err
            best[better] = (y * s)[better]; err[better] = e[better]
            s = rounding((x * y).sum(1, keepdims=True) / np.maximum((y * y).sum(1, keepdims=True), 1e-30)); s[s == 0] = 1
    return best

def q4_0(x):
    i = np.abs(x).argmax(1); d = f16(x[np.arange(len(x)), i] / -8)[:, None]
    return np.clip(np.floor(np.divide(x, d, out=np.zeros_like(x), where=d != 0) + 8.5), 0, 15) * d - 8 * d

def symmetric(x): return searched(x, np.arange(-8, 8).astype(f32), np.r_[np.linspace(.1, .17, 9), -np.linspace(.1, .17, 9)], f16)
def iq4_nl(x): return searched(x, IQ4, np.r_[1 / np.linspace(100, 150, 15), -1 / np.linspace(100, 150, 15)], f16)
def mxfp4(x):
    amax = np.abs(x).max(1, keepdims=True); amax[amax == 0] = 1
    s = 2.0 ** (np.floor(np.log2(amax)) - 2)
    return pick(FP4, x / s) * s
def nvfp4(x):
    whole = np.abs(x).max() / (6 * 448)
    s = (np.abs(x).max(1, keepdims=True) / 6 / whole).astype(ml_dtypes.float8_e4m3fn).astype(f32) * whole; s[s == 0] = 1
    return pick(FP4, x / s) * s

def q4_k(x):
    """256 weights: 8 blocks of 32 with 6-bit scales and minima under two f16."""
    b = x.reshape(-1, 32); lo0 = np.minimum(b.min(1, keepdims=True), 0); hi0 = b.max(1, keepdims=True)
    err = np.full(len(b), np.inf); scale = np.zeros((len(b), 1), f32); low = scale.copy()
    for f in np.linspace(.75, 1.05, 13):
        s = np.maximum((hi0 - lo0) * f32(f) / 15, 1e-20); m = -lo0
        for _ in range(3):
            q = np.clip(np.rint((b + m) / s), 0, 15)
            e = ((q * s - m - b) ** 2).sum(1); better = (e < err) & (m[:, 0] >= 0) & (s[:, 0] > 0)
            err[better] = e[better]; scale[better] = s[better]; low[better] = m[better]
            qm, bm = q.mean(1, keepdims=True), b.mean(1, keepdims=True)
            var = ((q - qm) ** 2).sum(1, keepdims=True)
            s = np.maximum(((q - qm) * (b - bm)).sum(1, keepdims=True) / np.maximum(var, 1e-20), 1e-20); m = np.maximum(s * qm - bm, 0)
    scale, low = scale.reshape(-1, 8), low.reshape(-1, 8)
    d, dm = f16(scale.max(1, keepdims=True) / 63), f16(low.max(1, keepdims=True) / 63)
    div = lambda a, c: np.divide(a, c, out=np.zeros_like(a), where=c != 0)
    s = (np.clip(np.rint(div(scale, d)), 0, 63) * d).reshape(-1, 1); m = (np.clip(np.rint(div(low, dm)), 0, 63) * dm).reshape(-1, 1)
    return (np.clip(np.rint(div(b + m, np.broadcast_to(s, b.shape))), 0, 15) * s - m).reshape(x.shape)

FORMATS = {'Q4_0': (4.5, 32, q4_0), 'symmetric g32': (4.5, 32, symmetric), 'MXFP4': (4.25, 32, mxfp4), 'NVFP4': (4.5, 16, nvfp4),
           'IQ4_NL': (4.5, 32, iq4_nl), 'Q4_K': (4.5, 256, q4_k)}

def main():
    P, C = load(sys.argv[1]); tok = np.load(sys.argv[2])
    W = {(i, k): dequantise(P[f'transformer/decoder_layer_{i}/moe/{k}/w'])
         for i in range(C['num_layers']) for k in ('linear', 'linear_v', 'linear_1')}
    ref = hidden(P, C, W, tok)
    print('| format | bits | weight error | KL | same likeliest token | perplexity |\n|---|---|---|---|---|---|')
    for name in sys.argv[3:] or FORMATS:
        bits, block, make = FORMATS[name]; X = {}; err = norm = 0.0
        for key, w in W.items():
            rows = np.ascontiguousarray(w.transpose(0, 2, 1)).reshape(-1, block)
            y = make(rows).astype(f32); err += float(((y - rows) ** 2).sum()); norm += float((rows ** 2).sum())
            X[key] = np.ascontiguousarray(y.reshape(w.shape[0], w.shape[2], w.shape[1]).transpose(0, 2, 1))
        z = hidden(P, C, X, tok); kl = same = nll = n = 0.0
        for b in range(len(tok)):
            a, c = log_softmax(ref[b], P, C), log_softmax(z[b], P, C)
            kl += float((np.exp(a) * (a - c)).sum()); same += int((a.argmax(-1) == c.argmax(-1)).sum()); n += len(a)
            nll -= float(c[np.arange(len(a) - 1), tok[b, 1:]].sum())
        print(f'| {name} | {bits} | {100 * (err / norm) ** .5:.2f} % | {kl / n:.4f} | {100 * same / n:.2f} % | '
              f'{np.exp(nll / (n - len(tok))):.3f} |', flush=True)

main()
