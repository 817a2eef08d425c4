#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the demo model on the CPU. See README.md; ./train.py --help lists the options.

The same seed, data and thread count give the same batches; --resume goes on from the last
checkpoint in --out. At every evaluation the best model so far, by held-out loss, is also written
as a GGUF file, so that a run may be ended at any time.
"""
import argparse
import concurrent.futures
import csv
import math
import os
import shutil
import time

import numpy as np
import torch

import bpe
import check
import curve
import data
import model as net

DESCRIPTION = ("A very small English model for trying out Kvasir, trained on the Jargon File, "
               "The Devil's Dictionary, old novels and the World English Bible")
PROMPTS = ("Hacker:", "Friendship:", "Ring network: A ring of computers", "Bug: A",
           "The programmer looked at the screen and", "\"My dear fellow,\" said Sherlock Holmes,")


# --- data -----------------------------------------------------------------------------------------

def prepare(options):
    """Returns the tokenizer and {source: (training ids, start positions, held-out ids, held-out bytes)}."""
    documents = data.load(options.data, options.shares)
    path = os.path.join(options.out, "tokenizer.json")
    if os.path.exists(path):
        tokenizer = bpe.Tokenizer.load(path)
    else:
        texts = [(doc, 1) for docs, _ in documents.values() for doc in docs]
        tokenizer = bpe.Tokenizer(bpe.train(texts, options.vocab))
        tokenizer.save(path)
    newline = tokenizer.encode("\n")[0]
    streams = {}
    for name, (train, held) in documents.items():
        ids, held_ids = (stream(tokenizer, docs) for docs in (train, held))
        starts = np.flatnonzero((ids == tokenizer.eos) | (ids == newline)) + 1
        size = sum(len(doc.encode()) + 1 for doc in held)
        streams[name] = (ids, starts[starts < len(ids) - 1], held_ids, size)
    return tokenizer, streams


def stream(tokenizer, documents):
    """All documents in one array, each between two separators."""
    ids = [tokenizer.eos]
    for doc in documents:
        ids += tokenizer.encode(doc) + [tokenizer.eos]
    return np.array(ids, dtype=np.int64)


def shares(text):
    """"NAME=NUMBER ...", or "" for the default, as {source: its part of the batches}, in the order of data.py."""
    given = {name: share for name, _, _, share in data.SOURCES}
    if text:
        given = dict.fromkeys(given, 0.0)
        for item in text.split():
            name, _, number = item.partition("=")
            if name not in given:
                raise argparse.ArgumentTypeError(f"no source {name}: one of {' '.join(given)}")
            given[name] = float(number)
    total = sum(given.values())
    return {name: share / total for name, share in given.items() if share > 0}


def batch(streams, options, step):
    """A batch depends on the seed and the step alone. Half of the rows begin where a text or paragraph begins."""
    random = np.random.default_rng((options.seed, step))
    names = list(streams)
    rows = []
    for source in random.choice(len(names), options.batch, p=list(options.shares.values())):
        ids, starts, _, _ = streams[names[source]]
        at = random.choice(starts) if random.random() < 0.5 else random.integers(len(ids))
        rows.append(np.take(ids, np.arange(at, at + options.length + 1), mode="wrap"))
    rows = torch.from_numpy(np.stack(rows))
    return rows[:, :-1], rows[:, 1:]


# --- optimizers -----------------------------------------------------------------------------------

def orthogonal(g):
    """The nearest matrix with all singular values near one, by five Newton-Schulz steps. g {n, rows, columns}."""
    tall = g.shape[1] > g.shape[2]
    x = (g.mT if tall else g).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Momentum whose update is made orthogonal, for the matrices of the blocks; same shapes go together."""

    def __init__(self, pairs, threads, weight_decay=0.1, momentum=0.95):
        """pairs: [(weights, gradient)], both overwritten in place."""
        self.threads, self.weight_decay, self.momentum = threads, weight_decay, momentum
        self.state = [torch.zeros_like(p) for p, _ in pairs]
        self.batches = {}
        for (p, g), m in zip(pairs, self.state):
            same = self.batches.setdefault(p.shape, [[]])
            if len(same[-1]) == 8:
                same.append([])
            same[-1].append((p, g, m))

    def step(self, lr):
        list(self.threads.map(lambda b: self.update(b, lr), [b for same in self.batches.values() for b in same]))

    @torch.no_grad()
    def update(self, same, lr):
        for _, g, m in same:
            m.lerp_(g, 1 - self.momentum)
        ahead = [g.lerp(m, self.momentum) for _, g, m in same]
        rows, columns = ahead[0].shape
        for (p, _, _), direction in zip(same, orthogonal(torch.stack(ahead))):
            p.mul_(1 - lr * self.weight_decay)
            p.add_(direction, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def rate(options, step):
    """Warm-up, a level stretch, then a straight way down to zero; polishing has a low rate of its own."""
    if step >= options.steps:
        return 0.05 * (options.steps + options.polish - step) / options.polish
    warm = min(1.0, (step + 1) / options.warmup)
    left = (options.steps - step) / max(1, options.steps * options.decay)
    return min(warm, left, 1.0)


def repeats(ids, begin, size=4):
    """{batch, tokens} of bool: does a run of `size` tokens that was there before end here? False before `begin`."""
    found = torch.zeros(ids.shape, dtype=torch.bool)
    for row, tokens in enumerate(ids.tolist()):
        seen = set()
        for at in range(size, len(tokens) + 1):
            run = tuple(tokens[at - size:at])
            found[row, at - 1] = at > begin and run in seen
            seen.add(run)
    return found


def unlikelihood(model, weights, ids, repeated):
    """Sequence-level unlikelihood (Welleck et al. 2019): -log(1 - p) of each repeated token, per row."""
    p = model.forward(weights, ids[:, :-1]).softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    return -(torch.log1p(-p.clamp(max=0.999)) * repeated[:, 1:]).sum() / len(ids)


# --- evaluation -----------------------------------------------------------------------------------

@torch.no_grad()
def held_out(model, streams, options):
    """{source: (nats per token, bits per byte)}; overlapping windows, so that most tokens have some context."""
    result = {}
    weights = model.working_copy(torch.bfloat16 if options.bf16 else torch.float32)
    for name, (_, _, ids, size) in streams.items():
        length = options.length
        windows = []
        for at in range(0, min(len(ids) - 1, options.eval_tokens), length):
            end = min(at + length, len(ids) - 1)
            windows.append((max(0, end - length), at, end))
        total, count = 0.0, 0
        for begin, at, end in windows:
            x = torch.from_numpy(ids[begin:end])[None]
            y = torch.from_numpy(ids[begin + 1:end + 1])[None]
            loss = model.forward(weights, x, y)
            total += float(loss[at - begin:].sum())
            count += end - at
        nats = total / count
        result[name] = (nats, nats * (len(ids) - 1) / size / math.log(2))
    return result


# --- the run --------------------------------------------------------------------------------------

def save(path, state):
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


class Log:
    """loss.csv in the output folder: one line per evaluation."""

    def __init__(self, options):
        self.path = os.path.join(options.out, "loss.csv")
        self.header = ["step", "tokens", "train", "held_out"] + [name for name, _, _, _ in data.SOURCES]
        self.rows = []
        if options.resume and os.path.exists(self.path):
            with open(self.path, newline="", encoding="utf-8") as f:
                self.rows = [[float(v) for v in row] for row in list(csv.reader(f))[1:]]
            for row in self.rows:
                row += [math.nan] * (len(self.header) - len(row))

    def add(self, row):
        self.rows = [r for r in self.rows if r[0] < row[0]] + [row]
        with open(self.path, "w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            writer.writerow(self.header)
            writer.writerows([int(r[0]), int(r[1])] + [f"{v:.4f}" for v in r[2:]] for r in self.rows)


class Run:
    def __init__(self, options):
        self.options = options
        self.tokenizer, self.streams = prepare(options)
        self.model = net.Model(net.Shape(vocab=len(self.tokenizer.tokens)), options.seed)
        self.gradients = {name: torch.zeros_like(w) for name, w in self.model.weights.items()}
        self.threads = concurrent.futures.ThreadPoolExecutor(options.threads, initializer=torch.set_num_threads,
                                                             initargs=(1,))
        self.log = Log(options)
        self.step, self.best = 0, math.inf
        self.repeated = 0.5  # part of greedy continuations that repeats itself, a running mean while polishing
        self.checkpoint = os.path.join(options.out, "last.pt")
        self.best_path = os.path.join(options.out, "best.pt")
        self.file = os.path.join(options.out, options.name + ".gguf")
        weights, gradients = self.model.parts(self.model.weights), self.model.parts(self.gradients)
        self.muon = Muon([(w, gradients[name]) for name, w in weights.items()
                          if w.dim() == 2 and name != "token_embd"], self.threads)
        vectors = [w for w in self.model.weights.values() if w.dim() == 1]
        self.adam = torch.optim.AdamW([{"params": [self.model.weights["token_embd"]], "weight_decay": 0.1},
                                       {"params": vectors, "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-10)
        if options.resume and os.path.exists(self.checkpoint):
            self.restore(torch.load(self.checkpoint, weights_only=True))

    @torch.no_grad()
    def restore(self, state):
        for name, w in state["model"].items():
            self.model.weights[name].copy_(w)
        for mine, m in zip(self.muon.state, state["muon"]):
            mine.copy_(m)
        self.adam.load_state_dict(state["adam"])
        self.step = state["step"]
        if state["sources"] == list(self.streams):  # losses over other texts do not compare
            self.best = state["best"]
        print(f"resumed at step {self.step}, best held-out loss {self.best:.4f}", flush=True)

    def row_gradients(self, weights, row):
        """Loss and gradients of one row, in one thread."""
        loss = self.model.forward(weights, *row).mean()
        return loss.item(), torch.autograd.grad(loss, list(weights.values()))

    def train_step(self):
        """Threads take whole rows, so none waits for another within a row; the sum has a fixed order."""
        options = self.options
        x, y = batch(self.streams, options, self.step)
        weights = self.model.working_copy(torch.bfloat16 if options.bf16 else torch.float32)
        for g in self.gradients.values():
            g.zero_()
        loss = 0.0
        rows = zip(x.split(1), y.split(1))
        for row_loss, gradients in self.threads.map(lambda row: self.row_gradients(weights, row), rows):
            loss += row_loss / len(x)
            for total, g in zip(self.gradients.values(), gradients):
                total.add_(g, alpha=1 / len(x))
        if self.step >= options.steps:
            self.unlearn_loops(weights, x)
        norm = torch.nn.utils.get_total_norm(self.gradients.values())
        if norm > 1:
            for g in self.gradients.values():
                g.div_(norm)
        lr = options.lr * rate(options, self.step)
        self.muon.step(lr)
        for group in self.adam.param_groups:
            group["lr"] = lr / 5
        for name, w in self.model.weights.items():
            w.grad = self.gradients[name] if w.dim() == 1 or name == "token_embd" else None
        self.adam.step()
        self.step += 1
        return loss

    def unlearn_loops(self, weights, x):
        """Continues the beginnings of the batch's rows greedily and makes what repeats itself there less likely."""
        begins = torch.cat([x[:, at:at + 24] for at in (0, x.shape[1] // 2)])

        def part(ids):
            with torch.no_grad():
                ids = net.continue_greedily(self.model, weights, ids, 80)
            repeated = repeats(ids, 24)
            loss = unlikelihood(self.model, weights, ids, repeated)
            return repeated.float().mean().item(), torch.autograd.grad(loss, list(weights.values()))

        parts = list(self.threads.map(part, begins.split(8)))
        for share, gradients in parts:
            self.repeated = 0.98 * self.repeated + 0.02 * share
            for total, g in zip(self.gradients.values(), gradients):
                total.add_(g, alpha=self.options.unlikelihood / len(parts))

    def evaluate(self, train_loss):
        options = self.options
        each = held_out(self.model, self.streams, options)
        mixed = sum(share * each[name][0] for name, share in options.shares.items())
        self.log.add([self.step, self.step * options.batch * options.length, train_loss, mixed]
                     + [each[name][0] if name in each else math.nan for name, _, _, _ in data.SOURCES])
        detail = " ".join(f"{name} {nats:.3f}/{bits:.3f}" for name, (nats, bits) in each.items())
        print(f"step {self.step}: train {train_loss:.4f} held-out {mixed:.4f} "
              f"(nats per token/bits per byte: {detail})", flush=True)
        last = os.path.join(options.out, options.name + "-last.gguf")
        net.write_gguf(self.model, self.tokenizer, last, options.name, DESCRIPTION)
        if mixed < self.best or self.step > options.steps:  # polishing costs a little likelihood
            self.best = mixed
            shutil.copyfile(last, self.file)
            save(self.best_path, {"model": self.model.weights, "step": self.step, "loss": mixed})
        save(self.checkpoint, {"model": self.model.weights, "muon": self.muon.state, "adam": self.adam.state_dict(),
                               "step": self.step, "best": self.best, "sources": list(self.streams)})

    def run(self):
        options = self.options
        total = sum(w.numel() for w in self.model.weights.values())
        sizes = ", ".join(f"{name} {len(s[0])}" for name, s in self.streams.items())
        print(f"{total} parameters; training tokens: {sizes}", flush=True)
        start, mean, first = time.time(), None, self.step
        end = min(options.steps + options.polish, options.stop or math.inf)
        while self.step < end:
            loss = self.train_step()
            mean = loss if mean is None else 0.97 * mean + 0.03 * loss
            if self.step % options.print_every == 0:
                seconds = (time.time() - start) / (self.step - first)
                note = f" repeated {self.repeated:.3f}" if self.step > options.steps else ""
                print(f"step {self.step}/{end} loss {mean:.4f}{note} {seconds:.2f} s/step", flush=True)
            if self.step % options.eval_every == 0 or self.step == end:
                self.evaluate(mean)
        self.finish()

    def finish(self):
        """Draws the curve; measures and samples what the file holds: the best model with its weights rounded."""
        options = self.options
        best = torch.load(self.best_path, weights_only=True)
        self.model.weights = best["model"]
        net.round_weights(self.model)
        curve.write(os.path.join(options.out, "loss.svg"), self.log.rows)
        each = held_out(self.model, self.streams, options)
        reader = check.Reader(self.file)
        with open(os.path.join(options.out, "results.txt"), "w", encoding="utf-8") as f:
            f.write(f"best model: step {best['step']}, held-out loss {best['loss']:.4f}\n")
            for name, (nats, bits) in each.items():
                f.write(f"{name}: perplexity per token {math.exp(nats):.2f}, bits per byte {bits:.3f}\n")
            for temperature in (0.0, 0.8):
                for seed, prompt in enumerate(PROMPTS):
                    text = check.generate(reader, prompt, options.sample_tokens, temperature, seed)
                    f.write(f"--- temperature {temperature}, seed {seed}\n{text}\n")
        print(f"best held-out loss {best['loss']:.4f} at step {best['step']}: {options.name}.gguf", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--data", required=True, help="folder with unpacked Debian packages (fetch.sh makes it)")
    parser.add_argument("--out", required=True, help="folder for checkpoints, the GGUF file, losses and samples")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--name", default="huginn", help="name of the model and its file")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--shares", type=shares, default="", help="which texts, as in \"jargon=5 devil=1\"")
    parser.add_argument("--stop", type=int, help="end at this step, before the schedule is over")
    parser.add_argument("--polish", type=int, default=120, help="steps at the end that unlearn loops of greedy text")
    parser.add_argument("--unlikelihood", type=float, default=0.5, help="weight of these loops in the loss")
    parser.add_argument("--batch", type=int, default=8, help="rows in a batch")
    parser.add_argument("--length", type=int, default=512, help="tokens in a row")
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=0.02, help="peak rate of the matrices; others get a fifth")
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--decay", type=float, default=0.5, help="part of the steps over which the rate falls to zero")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument("--eval-tokens", type=int, default=10000, help="held-out tokens per source")
    parser.add_argument("--print-every", type=int, default=10)
    parser.add_argument("--sample-tokens", type=int, default=160)
    parser.add_argument("--no-bf16", dest="bf16", action="store_false", help="for processors without bf16 arithmetic")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    torch.set_num_threads(1)  # each of our own threads works on its own
    torch.manual_seed(options.seed)
    Run(options).run()


if __name__ == "__main__":
    main()
