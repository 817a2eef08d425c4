# SPDX-License-Identifier: MIT
"""The transformer of GGUF's architecture "qwen3" in torch, and its way into a GGUF file."""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import gguf_writer as gguf


@dataclasses.dataclass
class Shape:
    vocab: int = 2048
    width: int = 192
    blocks: int = 8
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 512
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


def attention(q, k, v, chunk=128):
    """Causal attention, all {batch, heads, tokens, head_dim}. Queries go in chunks, which see no later keys.

    torch's own function is many times slower here: its backward pass on the CPU does not use bf16 matrix units.
    """
    out = []
    tokens = q.shape[2]
    late = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    q = q * q.shape[-1] ** -0.5
    for at in range(0, tokens, chunk):
        end = min(at + chunk, tokens)
        scores = q[:, :, at:end] @ k[:, :, :end].mT
        scores[..., at:].masked_fill_(late[:end - at, :end - at], float("-inf"))
        out.append(scores.softmax(dim=-1, dtype=torch.float32).type_as(v) @ v[:, :, :end])
    return torch.cat(out, dim=2)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.attn_norm = nn.Parameter(torch.ones(s.width))
        self.attn_q = nn.Parameter(torch.empty(s.heads * s.head_dim, s.width))
        self.attn_k = nn.Parameter(torch.empty(s.kv_heads * s.head_dim, s.width))
        self.attn_v = nn.Parameter(torch.empty(s.kv_heads * s.head_dim, s.width))
        self.attn_q_norm = nn.Parameter(torch.ones(s.head_dim))
        self.attn_k_norm = nn.Parameter(torch.ones(s.head_dim))
        self.attn_output = nn.Parameter(torch.empty(s.width, s.heads * s.head_dim))
        self.ffn_norm = nn.Parameter(torch.ones(s.width))
        self.ffn_gate = nn.Parameter(torch.empty(s.hidden, s.width))
        self.ffn_up = nn.Parameter(torch.empty(s.hidden, s.width))
        self.ffn_down = nn.Parameter(torch.empty(s.width, s.hidden))

    def forward(self, x, cos, sin):
        s = self.shape
        batch, tokens, _ = x.shape

        def norm(y, weight):
            return F.rms_norm(y, (y.shape[-1],), weight, s.eps)

        def heads(y, n):
            return y.view(batch, tokens, n, s.head_dim).transpose(1, 2)

        n = norm(x, self.attn_norm)
        qkv = F.linear(n, torch.cat((self.attn_q, self.attn_k, self.attn_v)))
        q, k, v = qkv.split((s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim), dim=-1)
        q = rotate(norm(heads(q, s.heads).float(), self.attn_q_norm), cos, sin)
        k = rotate(norm(heads(k, s.kv_heads).float(), self.attn_k_norm), cos, sin)
        group = s.heads // s.kv_heads
        k = k.repeat_interleave(group, dim=1).type_as(v)
        v = heads(v, s.kv_heads).repeat_interleave(group, dim=1)
        a = attention(q.type_as(v), k, v)
        x = x + F.linear(a.transpose(1, 2).reshape(batch, tokens, -1), self.attn_output)
        n = norm(x, self.ffn_norm)
        gate, up = F.linear(n, torch.cat((self.ffn_gate, self.ffn_up))).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.ffn_down)


class Model(nn.Module):
    def __init__(self, shape, seed):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Parameter(torch.empty(shape.vocab, shape.width))
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        cos, sin = rope_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        random = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 if name == "token_embd" else p.shape[1] ** -0.5
                if name.endswith(("attn_output", "ffn_down")):
                    std *= (2 * shape.blocks) ** -0.5
                nn.init.normal_(p, std=std, generator=random)

    def forward(self, ids, targets=None):
        """ids {batch, tokens}. Returns logits, or with targets the loss of every token, in nats."""
        x = F.embedding(ids, self.token_embd)
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        x = F.rms_norm(x, (x.shape[-1],), self.output_norm, self.shape.eps)
        logits = F.linear(x, self.token_embd).float()
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")


@torch.no_grad()
def round_weights(model):
    """Gives the matrices the values that the file will hold."""
    for p in model.parameters():
        if p.dim() == 2:
            p.copy_(torch.from_numpy(gguf.dequantize_q8_0(gguf.quantize_q8_0(p.numpy()), p.shape)))


def write_gguf(model, tokenizer, path, name, description):
    s = model.shape
    w = gguf.Writer()
    w.add("general.architecture", gguf.STRING, "qwen3")
    w.add("general.name", gguf.STRING, name)
    w.add("general.license", gguf.STRING, "mit")
    w.add("general.description", gguf.STRING, description)
    w.add("general.file_type", gguf.U32, 7)  # mostly Q8_0
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
    for key, p in model.state_dict().items():
        kind = gguf.F32 if p.dim() == 1 else gguf.Q8_0
        w.add_tensor(key + ".weight", p.detach().float().numpy(), kind)
    w.write(path)
