# SPDX-License-Identifier: MIT
"""The transformer of GGUF's architecture "qwen3" in torch, and its way into a GGUF file.

Weights live in a plain dictionary, in float32; a step computes with a copy of the matrices in bf16, made once and
shared by all threads. Matrices that see the same input are stored as one: attn_qkv (q, k, v) and ffn_gate_up.
"""
import dataclasses

import torch
import torch.nn.functional as F

import gguf_writer as gguf


@dataclasses.dataclass
class Shape:
    vocab: int = 2048
    width: int = 256
    blocks: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 576
    context: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-6


def rope_table(shape):
    """cos and sin of shape {context, head_dim / 2}."""
    rate = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angle = torch.arange(shape.context).float()[:, None] * rate[None, :]
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x {batch, heads, tokens, head_dim}: value i turns with value i + head_dim / 2 (NEOX order)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(q, k, v, late, chunk=128):
    """Causal attention, all {batch, heads, tokens, head_dim}. Queries go in chunks, which see no later keys.

    late {chunk, chunk}: minus infinity above the diagonal; None for the last token alone. torch's own function is many times slower here: its
    backward pass on the CPU does not use bf16 matrix units.
    """
    out = []
    tokens = q.shape[2]
    for at in range(0, tokens, chunk):
        end = min(at + chunk, tokens)
        keys = end + k.shape[2] - tokens
        scores = q[:, :, at:end] @ k[:, :, :keys].mT
        if late is not None:
            scores[..., at:] += late[:end - at, :end - at]
        out.append(scores.softmax(dim=-1) @ v[:, :, :keys])
    return torch.cat(out, dim=2)


def layout(s):
    """{name: (shape, [(name in the file, rows)])} of all weights, in a fixed order."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    found = {"token_embd": ((s.vocab, s.width), [("token_embd", s.vocab)])}
    for i in range(s.blocks):
        for name, shape, parts in (
                ("attn_norm", (s.width,), None),
                ("attn_qkv", (q + 2 * kv, s.width), [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]),
                ("attn_q_norm", (s.head_dim,), None),
                ("attn_k_norm", (s.head_dim,), None),
                ("attn_output", (s.width, q), None),
                ("ffn_norm", (s.width,), None),
                ("ffn_gate_up", (2 * s.hidden, s.width), [("ffn_gate", s.hidden), ("ffn_up", s.hidden)]),
                ("ffn_down", (s.width, s.hidden), None)):
            parts = parts or [(name, shape[0])]
            found[f"blk.{i}.{name}"] = (shape, [(f"blk.{i}.{part}", rows) for part, rows in parts])
    found["output_norm"] = ((s.width,), [("output_norm", s.width)])
    return found


class Model:
    def __init__(self, shape, seed):
        self.shape = shape
        self.layout = layout(shape)
        self.weights = {}
        cos, sin = rope_table(shape)
        self.rope = {kind: (cos.to(kind), sin.to(kind)) for kind in (torch.float32, torch.bfloat16)}
        self.late = torch.full((128, 128), float("-inf")).triu(1)
        random = torch.Generator().manual_seed(seed)
        for name, (size, _) in self.layout.items():
            if len(size) == 1:
                self.weights[name] = torch.ones(size)
                continue
            std = 0.02 if name == "token_embd" else size[1] ** -0.5
            if name.endswith(("attn_output", "ffn_down")):
                std *= (2 * shape.blocks) ** -0.5
            self.weights[name] = torch.randn(size, generator=random) * std

    def working_copy(self, kind):
        """The weights as autograd's leaves, matrices in the given type."""
        return {name: (w.to(kind) if w.dim() == 2 else w).detach().clone().requires_grad_()
                for name, w in self.weights.items()}

    def parts(self, tensors):
        """{name in the file: rows of a tensor}: views of what is stored as one."""
        found = {}
        for name, (_, parts) in self.layout.items():
            for (part, _), view in zip(parts, tensors[name].split([rows for _, rows in parts])):
                found[part] = view
        return found

    def block(self, w, i, x, cache=None):
        """cache: one (keys, values) or None per block, of the tokens before x; then x has one token, or all are None."""
        s = self.shape
        batch, tokens, _ = x.shape
        kind = w["token_embd"].dtype
        heads = s.heads + s.kv_heads
        past = cache[i][0].shape[2] if cache and cache[i] else 0
        cos, sin = (t[past:past + tokens] for t in self.rope[kind])

        def part(name):
            return w[f"blk.{i}.{name}"]

        n = F.rms_norm(x, (s.width,), part("attn_norm"), s.eps).to(kind)
        qkv = F.linear(n, part("attn_qkv")).view(batch, tokens, heads + s.kv_heads, s.head_dim).transpose(1, 2)
        weight = torch.cat((part("attn_q_norm").expand(s.heads, -1), part("attn_k_norm").expand(s.kv_heads, -1)))
        qk = F.rms_norm(qkv[:, :heads], (s.head_dim,), None, s.eps) * weight[:, None].to(kind)
        qk = rotate(qk, cos, sin)
        group = s.heads // s.kv_heads
        k = qk[:, s.heads:].repeat_interleave(group, dim=1)
        v = qkv[:, heads:].repeat_interleave(group, dim=1)
        if past:
            k, v = torch.cat((cache[i][0], k), dim=2), torch.cat((cache[i][1], v), dim=2)
        if cache is not None:
            cache[i] = (k, v)
        a = attention(qk[:, :s.heads] * s.head_dim ** -0.5, k, v, self.late.to(kind) if tokens > 1 else None)
        x = x + F.linear(a.transpose(1, 2).reshape(batch, tokens, -1), part("attn_output"))
        n = F.rms_norm(x, (s.width,), part("ffn_norm"), s.eps).to(kind)
        gate, up = F.linear(n, part("ffn_gate_up")).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, part("ffn_down"))

    def forward(self, w, ids, targets=None, cache=None):
        """w: a working copy. ids {batch, tokens}. Returns logits, or with targets the loss of every token, in nats."""
        x = F.embedding(ids, w["token_embd"]).float()
        for i in range(self.shape.blocks):
            x = self.block(w, i, x, cache)
        x = F.rms_norm(x, (self.shape.width,), w["output_norm"], self.shape.eps).to(w["token_embd"].dtype)
        logits = F.linear(x, w["token_embd"]).float()
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")


@torch.no_grad()
def continue_greedily(model, w, ids, count):
    """ids {batch, tokens}: returns {batch, tokens + count}, each token the likeliest one."""
    cache = [None] * model.shape.blocks
    step = ids
    for _ in range(count):
        step = model.forward(w, step, cache=cache)[:, -1:].argmax(dim=-1)
        ids = torch.cat((ids, step), dim=1)
    return ids


@torch.no_grad()
def round_weights(model):
    """Gives the matrices the values that the file will hold."""
    for p in model.weights.values():
        if p.dim() == 2:
            p.copy_(torch.from_numpy(gguf.dequantize_q5_0(gguf.quantize_q5_0(p.numpy()), p.shape)))


def write_gguf(model, tokenizer, path, name, description):
    s = model.shape
    w = gguf.Writer()
    w.add("general.architecture", gguf.STRING, "qwen3")
    w.add("general.name", gguf.STRING, name)
    w.add("general.license", gguf.STRING, "mit")
    w.add("general.description", gguf.STRING, description)
    w.add("general.file_type", gguf.U32, 8)  # mostly Q5_0
    for key, number in (("block_count", s.blocks), ("context_length", s.context), ("embedding_length", s.width),
                        ("feed_forward_length", s.hidden), ("attention.head_count", s.heads),
                        ("attention.head_count_kv", s.kv_heads), ("attention.key_length", s.head_dim),
                        ("attention.value_length", s.head_dim)):
        w.add("qwen3." + key, gguf.U32, number)
    w.add("qwen3.attention.layer_norm_rms_epsilon", gguf.FLOAT, s.eps)
    w.add("qwen3.rope.freq_base", gguf.FLOAT, s.rope_base)
    w.add("tokenizer.ggml.model", gguf.STRING, "gpt2")
    w.add("tokenizer.ggml.pre", gguf.STRING, "qwen2")
    w.add_array("tokenizer.ggml.tokens", gguf.STRING, tokenizer.tokens)
    w.add_array("tokenizer.ggml.token_type", gguf.I32, [1] * tokenizer.eos + [3])  # normal ..., control
    w.add_array("tokenizer.ggml.merges", gguf.STRING, [a + " " + b for a, b in tokenizer.merges])
    w.add("tokenizer.ggml.bos_token_id", gguf.U32, tokenizer.eos)
    w.add("tokenizer.ggml.eos_token_id", gguf.U32, tokenizer.eos)
    w.add("tokenizer.ggml.add_bos_token", gguf.BOOL, False)
    for key, p in model.parts(model.weights).items():
        w.add_tensor(key + ".weight", p.numpy(), gguf.F32 if p.dim() == 1 else gguf.Q5_0)
    w.write(path)
