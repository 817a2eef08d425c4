#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads a GGUF file that train.py wrote and computes with it in numpy alone.

    ./check.py MODEL.gguf --prompt "Hacker:" --tokens 120 [--temperature 0.8 --seed 1]
    ./check.py MODEL.gguf --checkpoint OUT/best.pt     compares its logits with the torch model's

The arithmetic is float32 over the dequantised weights. An engine that also rounds activations may
choose another token where two are almost equally likely.
"""
import argparse
import struct
import sys

import numpy as np

import bpe
import gguf_writer as gguf

SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Reader:
    """Keys in .keys, dequantised tensors as float32 {rows, columns} in .tensors."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 0
        if self.take(4) != b"GGUF" or self.scalar("<I") != 3:
            raise ValueError(f"{path}: not a GGUF file of version 3")
        tensors, keys = self.scalar("<Q"), self.scalar("<Q")
        self.keys = {}
        for _ in range(keys):
            name = self.string()
            self.keys[name] = self.value(self.scalar("<I"))
        infos = []
        for _ in range(tensors):
            name = self.string()
            shape = [self.scalar("<Q") for _ in range(self.scalar("<I"))]
            infos.append((name, shape[::-1], self.scalar("<I"), self.scalar("<Q")))
        base = self.at + -self.at % self.keys.get("general.alignment", 32)
        self.tensors = {name: self.tensor(base + offset, shape, kind) for name, shape, kind, offset in infos}

    def take(self, count):
        self.at += count
        if self.at > len(self.data):
            raise ValueError(f"the file ends within its first {self.at} bytes")
        return self.data[self.at - count:self.at]

    def scalar(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.scalar("<Q")).decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(SCALARS[kind])

    def tensor(self, offset, shape, kind):
        if kind == gguf.F32:
            return np.frombuffer(self.data, "<f4", int(np.prod(shape)), offset).reshape(shape)
        if kind != gguf.Q5_0:
            raise ValueError(f"tensor type {kind}: this reader knows F32 (0) and Q5_0 (6)")
        return gguf.dequantize_q5_0(self.data, shape, offset)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Qwen3:
    """One sequence, token by token, with a growing cache of keys and values."""

    def __init__(self, reader):
        k = {name.removeprefix("qwen3."): v for name, v in reader.keys.items()}
        self.t = reader.tensors
        self.blocks, self.heads, self.kv = k["block_count"], k["attention.head_count"], k["attention.head_count_kv"]
        self.dim, self.eps = k["attention.key_length"], k["attention.layer_norm_rms_epsilon"]
        self.context = k["context_length"]
        self.rates = k["rope.freq_base"] ** (-np.arange(0, self.dim, 2) / self.dim)
        self.cache = [([], []) for _ in range(self.blocks)]

    def rotate(self, x, position):
        cos, sin = (f(position * self.rates).astype(np.float32) for f in (np.cos, np.sin))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    def attention(self, i, n, position):
        w = lambda name: self.t[f"blk.{i}.{name}.weight"]
        q = rms_norm((w("attn_q") @ n).reshape(self.heads, self.dim), w("attn_q_norm"), self.eps)
        k = rms_norm((w("attn_k") @ n).reshape(self.kv, self.dim), w("attn_k_norm"), self.eps)
        keys, values = self.cache[i]
        keys.append(self.rotate(k, position))
        values.append((w("attn_v") @ n).reshape(self.kv, self.dim))
        q = self.rotate(q, position).reshape(self.kv, -1, self.dim)
        scores = np.einsum("ghd,tgd->ght", q, np.array(keys)) / np.sqrt(np.float32(self.dim))
        return w("attn_output") @ np.einsum("ght,tgd->ghd", softmax(scores), np.array(values)).reshape(-1)

    def step(self, token):
        """Returns the logits after one more token."""
        position = len(self.cache[0][0])
        x = self.t["token_embd.weight"][token]
        for i in range(self.blocks):
            w = lambda name: self.t[f"blk.{i}.{name}.weight"]
            x = x + self.attention(i, rms_norm(x, w("attn_norm"), self.eps), position)
            n = rms_norm(x, w("ffn_norm"), self.eps)
            gate = w("ffn_gate") @ n
            x = x + w("ffn_down") @ (gate / (1 + np.exp(-gate)) * (w("ffn_up") @ n))
        return self.t["token_embd.weight"] @ rms_norm(x, self.t["output_norm.weight"], self.eps)


def tokenizer_of(reader):
    tokenizer = bpe.Tokenizer(m.split(" ") for m in reader.keys["tokenizer.ggml.merges"])
    if tokenizer.tokens != reader.keys["tokenizer.ggml.tokens"]:
        raise ValueError("the merges do not give the tokens of the file")
    return tokenizer


def generate(reader, prompt, count, temperature, seed):
    tokenizer, model, random = tokenizer_of(reader), Qwen3(reader), np.random.default_rng(seed)
    ids = tokenizer.encode(prompt)
    for i in ids:
        logits = model.step(i)
    for _ in range(min(count, model.context - len(ids))):
        if temperature == 0:
            chosen = int(logits.argmax())
        else:
            chosen = int(random.choice(len(logits), p=softmax(logits.astype(np.float64) / temperature)))
        if chosen == tokenizer.eos:
            break
        ids.append(chosen)
        logits = model.step(chosen)
    return tokenizer.decode(ids)


def compare(reader, checkpoint):
    """Largest and mean difference of the log-probabilities along a text, and how often the best token agrees."""
    import torch

    import model as net
    tokenizer = tokenizer_of(reader)
    reference = net.Model(net.Shape(vocab=len(tokenizer.tokens)), 0)
    reference.weights = torch.load(checkpoint, weights_only=True)["model"]
    net.round_weights(reference)
    ids = tokenizer.encode(generate(reader, "Hacker:", 120, 0, 0))
    with torch.no_grad():
        theirs = reference.forward(reference.weights, torch.tensor([ids]))[0].log_softmax(-1).numpy()
    model = Qwen3(reader)
    ours = np.log(softmax(np.array([model.step(i) for i in ids])))
    second, first = np.sort(theirs, axis=-1)[:, -2:].T
    clear = first - second > 0.1
    agree = (ours.argmax(-1) == theirs.argmax(-1))[clear].mean()
    likely = theirs > np.log(1e-4)
    difference = np.abs(ours - theirs)[likely]
    print(f"{len(ids)} tokens: log-probabilities above 1e-4 differ by at most {difference.max():.4f}, on average "
          f"{difference.mean():.4f}; where one token is clearly best, it is the same for {100 * agree:.1f} %")
    return difference.mean() < 0.05 and agree > 0.99


def main():
    parser = argparse.ArgumentParser(description="Compute with a GGUF file of train.py in numpy.")
    parser.add_argument("model")
    parser.add_argument("--prompt", default="Hacker:")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", help="best.pt of the run: compare with it instead")
    options = parser.parse_args()
    reader = Reader(options.model)
    if options.checkpoint:
        sys.exit(0 if compare(reader, options.checkpoint) else 1)
    print(generate(reader, options.prompt, options.tokens, options.temperature, options.seed))


if __name__ == "__main__":
    main()
