#!/usr/bin/env python3
"""Fits the 256 tables of 16 int8 that q4g32 and q4g16 pick weights from (quant/q4.h), as quant/q4_table.inc was made:
k-means over groups of 32 int8 weights, of normal rows, rows with heavier tails and the small model's experts, each kind
scaled to its own energy. Prints the rows of the file. The tables are part of the file format: this is a record, not a
step of the build, and another seed or numpy gives other tables. Needs numpy and ml_dtypes; about half an hour.

usage: q4_table.py examples/tiny-grok > tables.inc
"""
import os, pickle, sys
import numpy as np
import ml_dtypes  # noqa: F401
import __main__

class QuantizedWeight8bit: pass
QuantizedWeight8bit.__module__ = '__main__'; __main__.QuantizedWeight8bit = QuantizedWeight8bit
GROUP, STEPS, SAMPLES = 32, 40, 25000

def int8_rows(w):
    return np.rint(w / (np.abs(w).max(1, keepdims=True) / 127))

def training(folder):
    rng = np.random.default_rng(1); tiny = {}
    for line in open(os.path.join(folder, 'index.tsv')):
        name, _, path = line.strip().partition('\t')
        kind = path.split('/')[-2]
        if '/moe/' in path:
            w = pickle.load(open(os.path.join(folder, 'ckpt-0', name), 'rb')).weight
            tiny.setdefault(kind == 'linear_1', []).append(w.transpose(0, 2, 1).reshape(-1, w.shape[1]))
    shape = (160, 6144)
    data = [(1.2, np.concatenate(tiny[False])), (.6, np.concatenate(tiny[True])), (2.5, int8_rows(rng.normal(size=shape))),
            (2.5, int8_rows(rng.standard_t(6, size=shape))), (1.5, int8_rows(rng.standard_t(4, size=shape))),
            (.7, int8_rows(rng.laplace(size=shape)))]
    for weight, rows in data:
        groups = rows.reshape(-1, GROUP)
        groups = groups[rng.permutation(len(groups))[:SAMPLES]].astype(np.float32)
        yield weight / float((groups ** 2).sum()), groups

def step(T, data):
    count, total, error = np.zeros(T.shape), np.zeros(T.shape), 0.0
    values = np.arange(-128, 128)
    near = np.abs(values[None, :, None] - T[:, None, :]).argmin(2)             # [256][256]
    square = (values[None, :] - np.take_along_axis(T, near, 1)).astype(np.float32) ** 2
    for weight, x in data:
        at = x.astype(int) + 128
        cost = np.zeros((len(x), len(T)), np.float32)
        for i in range(GROUP):
            cost += square[:, at[:, i]].T
        best = cost.argmin(1); error += weight * float(cost.min(1).sum())
        k = near[best[:, None], at]
        np.add.at(count, (best[:, None], k), weight); np.add.at(total, (best[:, None], k), weight * x)
    T = np.where(count > 0, total / np.maximum(count, 1e-30), T)
    T[0] = 0
    return np.sort(T, axis=1).clip(-128, 127), error

def main():
    data = list(training(sys.argv[1]))
    grid = np.array([-127, -103, -80, -62, -46, -32, -19, -8, 2, 12, 23, 35, 49, 64, 82, 110.]) # of one table, to begin with
    m = np.geomspace(.05, 1, 127)
    T = np.concatenate([np.zeros((1, 16)), np.outer(m, grid), -np.outer(m, grid)[:, ::-1], [1.05 * grid]]).clip(-128, 127)
    for i in range(STEPS):
        T, error = step(T, data)
        print(i, error, file=sys.stderr, flush=True)
    T = np.rint(T).astype(int)
    rest = sorted(range(1, 256), key=lambda i: (T[i].max() - T[i].min(), T[i].max()))
    for i in [0] + rest:
        print('{' + ', '.join(str(v + 128) for v in T[i]) + '},')

main()
