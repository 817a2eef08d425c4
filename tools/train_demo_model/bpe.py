# SPDX-License-Identifier: MIT
"""Byte-level BPE as GGUF's tokenizer model "gpt2" with the pre-tokenizer "qwen2" means it.

Token ids: 0-255 are the bytes in the order of their printable stand-ins, then one token per merge
(two merges may make the same token; it is listed once), then the control token <|endoftext|>,
which separates documents.
"""
import collections
import heapq
import json
import re

EOS = "<|endoftext|>"

# The qwen2 pattern with Unicode classes spelled for Python's re: [^\W\d_] are letters and \d digits.
# The same as the original on ASCII, which is all that data.py lets through.
PIECES = re.compile(
    r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    r"|(?:[^\r\n\w]|_)?[^\W\d_]+"
    r"|\d"
    r"| ?(?:[^\s\w]|_)+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+")


def byte_characters():
    """The printable character that stands for each byte in vocabularies of this kind."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in plain}
    for n, b in enumerate(b for b in range(256) if b not in table):
        table[b] = chr(256 + n)
    return table


BYTES = byte_characters()
UNBYTES = {c: b for b, c in BYTES.items()}


def to_characters(piece):
    return "".join(BYTES[b] for b in piece.encode("utf-8"))


def train(weighted_texts, size):
    """weighted_texts: (text, weight) pairs. Returns the merges, best first; ties go to the smaller pair."""
    counts = collections.Counter()
    for text, weight in weighted_texts:
        for piece in PIECES.findall(text):
            counts[piece] += weight
    words = [(list(to_characters(p)), n) for p, n in sorted(counts.items())]
    pairs = collections.Counter()
    where = collections.defaultdict(set)
    for w, (symbols, n) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += n
            where[pair].add(w)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    merges = []
    while heap and len(merges) < size - 257:
        n, best = heapq.heappop(heap)
        if pairs[best] != -n:  # an outdated entry: the present count is in the heap as well
            continue
        merges.append(best)
        changed = set()
        for w in where.pop(best):
            symbols, times = words[w]
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] -= times
                changed.add(pair)
            symbols[:] = merge(symbols, best)
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += times
                where[pair].add(w)
                changed.add(pair)
        pairs[best] = 0
        for pair in changed:
            if pairs[pair] > 0:
                heapq.heappush(heap, (-pairs[pair], pair))
    return merges


def merge(symbols, pair):
    """Every occurrence of the pair joined, leftmost first."""
    out = []
    i = 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


class Tokenizer:
    def __init__(self, merges):
        self.merges = [tuple(m) for m in merges]
        self.tokens = list(dict.fromkeys(sorted(BYTES.values()) + [a + b for a, b in self.merges])) + [EOS]
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.ranks = {m: r for r, m in enumerate(self.merges)}
        self.eos = len(self.tokens) - 1
        self.cache = {}

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"merges": self.merges}, f, ensure_ascii=False)

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f)["merges"])

    def piece(self, piece):
        known = self.cache.get(piece)
        if known is None:
            symbols = list(to_characters(piece))
            while len(symbols) > 1:
                best = min(zip(symbols, symbols[1:]), key=lambda p: self.ranks.get(p, len(self.ranks)))
                if best not in self.ranks:
                    break
                symbols = merge(symbols, best)
            known = self.cache[piece] = [self.ids[s] for s in symbols]
        return known

    def encode(self, text):
        return [i for p in PIECES.findall(text) for i in self.piece(p)]

    def decode(self, ids):
        data = bytearray()
        for i in ids:
            if i != self.eos:
                data += bytes(UNBYTES[c] for c in self.tokens[i])
        return data.decode("utf-8", "replace")
