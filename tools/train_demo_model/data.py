# SPDX-License-Identifier: MIT
"""Public-domain English from Debian packages, as clean documents.

Every source is a file of an unpacked Debian package or source package (see README.md for the packages,
their versions and licences). A document is one string: "Headword: definition" for the dictionaries, a
chapter for the books. Paragraphs are single lines. Everything is ASCII, in a fixed order, without
duplicates; every 50th entry, and the last 50th of every chapter, is held out from training.
"""
import glob
import gzip
import html
import html.parser
import os
import re
import unicodedata
import zlib

HELD_OUT_EVERY = 50
LONG = 8000  # characters: a chapter, not an entry

QUOTES = {
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--", "\u2026": "...",
    "\u00a0": " ", "\u2212": "-", "\u00d7": "x", "\u2022": "*", "\ufeff": "", "\u00ab": '"', "\u00bb": '"', "`": "'",
    "\u00e6": "ae", "\u0153": "oe", "\u00c6": "Ae",
}


def ascii_text(text):
    """Typographic characters become their plain forms, accents go, what is left beyond ASCII goes too."""
    text = "".join(QUOTES.get(c, c) for c in text)
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def paragraphs(text):
    """Blocks between blank lines, each as one line."""
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line.strip() for line in block.split("\n")]
        line = " ".join(x for x in lines if x)
        if line:
            yield re.sub(r"\s+", " ", line)


def is_prose(line):
    """Keeps sentences; drops tables, drawings, program text and headings."""
    letters = sum(c.isalpha() or c == " " for c in line)
    return len(line) >= 24 and letters / len(line) > 0.86 and re.search(r"[.!?:;'\")-]$", line) is not None


def tidy(line):
    """What removed markup leaves behind: doubled blanks, blanks before punctuation, empty brackets."""
    line = re.sub(r"\(\s*\)|\[\s*\]", "", line)
    line = re.sub(r"\s+([,.;:!?)])", r"\1", line)
    line = re.sub(r"([.!?])(?:\s*[,;.])+(?=\s|$)", r"\1", line)
    line = re.sub(r"_([^_]+)_", r"\1", line)
    return re.sub(r"\s+", " ", line).strip()


# --- the Jargon File ------------------------------------------------------------------------------

def unlink_jargon(line):
    """Cross references and etymologies go, the words of links stay."""
    line = re.sub(r"\{\s*([^{}]*?)\s*\}", r"{\1}", line)
    refs = r"\{[^{}]*\}(?:(?:,? (?:and|or) |, | )?(?:also )?\{[^{}]*\})*"
    line = re.sub(r"\((?:[Ss]ee|[Cc]ompare|[Cc]ontrast|[Cc]f\.)(?: also)?:? " + refs + r"[^()]{0,40}\)", "", line)
    line = re.sub(r"(?:^|(?<=[.!?'\")] ))(?:See|Compare|Contrast|Cf\.|Syn\.|Synonym of|Oppose|Antonym)"
                  r"(?: also| under| the entries?| entries?)*:? " + refs + r"(?:[;,] (?:and )?(?:see|compare|contrast)"
                  r"(?: also)? " + refs + r")*[^.{}]{0,60}(?:\.|$)", "", line)
    line = re.sub(r"[;,] (?:see|compare|contrast)(?: also)? " + refs + r"(?=[.;)])", "", line)
    line = re.sub(r"^\[[^\[\]]*\] ?", "", re.sub(r"^\d+[a-z]?\. ", "", line))
    return tidy(re.sub(r"[{}]", "", line))


def jargon(root):
    """Entries as "Headword: text"; the chapters and appendices about hackers as prose."""
    with gzip.open(os.path.join(root, "usr/share/doc/jargon-text/jargon.txt.gz"), "rt", encoding="utf-8") as f:
        text = f.read()
    text = text.replace("\u00a0", " ")
    body = text.index("\nChapter 1.")
    parts = re.split(r"^((?:Chapter \d+|Appendix [A-Z])\. .*|Glossary|Bibliography)$", text[body:], flags=re.M)
    for title, part in zip(["Chapter 1"] + parts[1::2], parts[0::2]):
        if title == "Glossary":
            yield from jargon_entries(part)
        elif not re.search(r"Revision|Pronunciation|Other Lexicon|Format for|Bibliography|Helping", title):
            doc = [unlink_jargon(p) for p in paragraphs(ascii_text(part))]
            yield "\n".join(p for p in doc if is_prose(p))


def jargon_entries(part):
    pieces = re.split(r"^   :([^:\n]+):(?= |$)", part, flags=re.M)
    for word, entry in zip(pieces[1::2], pieces[2::2]):
        header, _, entry = entry.partition("\n\n")
        if "/" not in header and len(header) > 60:
            entry = header + "\n\n" + entry
        doc = [unlink_jargon(p) for p in paragraphs(ascii_text(entry))]
        doc = [p for p in doc if is_prose(p)]
        word = ascii_text(word).strip()
        if doc and re.fullmatch(r"[A-Za-z][A-Za-z0-9 '.&/-]*", word):
            yield word[0].upper() + word[1:] + ": " + "\n".join(p[0].upper() + p[1:] for p in doc)


# --- The Devil's Dictionary -----------------------------------------------------------------------

def devil(root):
    """Definitions without the verses, which this cleaner could not keep as verses."""
    with gzip.open(os.path.join(root, "usr/share/dictd/devil.dict.dz"), "rb") as f:
        text = f.read().decode("latin-1")
    word = r"^([A-Z][A-Z' -]+)(?:,|\.)(?: (?:n|adj|v|adv|pp|p|prep|interj|x|pro)\.[a-z. ]*)? "
    pieces = re.split(word, text, flags=re.M)
    for word, entry in zip(pieces[1::2], pieces[2::2]):
        entry = re.sub(r"^(?:[a-z]+\.)+ ", "", entry.lstrip())
        doc = []
        for block in re.split(r"\n[ \t]*\n", entry):
            if re.match(r" {3,}", block) or re.search(r"\n {4,}", block):
                continue
            line = re.sub(r"(\w)- (?=[a-z])", r"\1-", " ".join(block.split()))
            line = tidy(re.sub(r"\[sic\]", "", ascii_text(line)))
            if is_prose(line):
                doc.append(line)
        if doc and len(word) > 1:
            yield word.capitalize() + ": " + "\n".join(doc)


# --- books ----------------------------------------------------------------------------------------

def chapters(text, pattern):
    """Splits at chapter headings; lines in the body that are no sentences are dropped."""
    for part in re.split(pattern, text, flags=re.M):
        doc = [tidy(p) for p in paragraphs(ascii_text(part))]
        doc = [p for p in doc if is_prose(p)]
        if sum(map(len, doc)) > 1500:
            yield "\n".join(doc)


def r_strings(blob):
    """The strings of one character vector in R's serialization format (XDR, version 3)."""
    at = 18 + int.from_bytes(blob[14:18], "big")
    if blob[:2] != b"X\n" or blob[at + 3] != 0x10:
        raise ValueError("not a serialized character vector")
    count = int.from_bytes(blob[at + 4:at + 8], "big")
    at += 8
    for _ in range(count):
        size = int.from_bytes(blob[at + 4:at + 8], "big", signed=True)
        at += 8
        yield blob[at:at + max(size, 0)].decode("utf-8", "replace")
        at += max(size, 0)


def austen(root):
    """The novels of R package janeaustenr: a file of zlib streams, each behind its size."""
    with open(os.path.join(root, "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"), "rb") as f:
        data = f.read()
    at = 0
    while at < len(data):
        stream = zlib.decompressobj()
        blob = stream.decompress(data[at + 4:])
        at = len(data) - len(stream.unused_data)
        yield from chapters("\n".join(r_strings(blob)), r"^ *(?:CHAPTER|Chapter) .*$")


def holmes(root):
    name = glob.glob(os.path.join(root, "usr/share/gocode/src/github.com/pierrec/lz4/testdata/pg1661.txt"))[0]
    with open(name, encoding="utf-8", errors="replace") as f:
        text = f.read().replace("\r", "")
    start = text.index("To Sherlock Holmes she is always")
    yield from chapters(text[start:text.index("End of the Project Gutenberg")], r"^(?:ADVENTURE )?[IVX]+\.(?: .*)?$")


def sawyer(root):
    name = os.path.join(root, "usr/share/gocode/src/github.com/pierrec/lz4/testdata/Mark.Twain-Tom.Sawyer.txt")
    with open(name, encoding="utf-8", errors="replace") as f:
        text = f.read().replace("\r", "")
    yield from chapters(text[text.index("P R E F A C E"):], r"^ *CHAPTER .*$")


def alice(root):
    name = glob.glob(os.path.join(root, "usr/share/cargo/registry/brotli-*/testdata/alice29.txt"))[0]
    with open(name, encoding="latin-1") as f:
        text = f.read().replace("\r", "")
    yield from chapters(text[text.index("CHAPTER I"):], r"^ *CHAPTER .*$")


class Paragraphs(html.parser.HTMLParser):
    """Collects running text; what stands in tables, drawings and program text is no prose."""

    BREAKS = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "br", "blockquote", "div", "ul", "ol", "dl", "td", "tr"}
    SKIPPED = {"pre", "script", "style", "svg", "table", "h1", "h2", "h3", "h4", "title"}

    def __init__(self):
        super().__init__()
        self.found, self.text, self.depth = [], [], 0

    def flush(self):
        line = re.sub(r"\s+", " ", "".join(self.text)).strip()
        self.text = []
        if line:
            self.found.append(line)

    def handle_starttag(self, tag, attrs):
        if tag in self.BREAKS or tag in self.SKIPPED:
            self.flush()
        self.depth += tag in self.SKIPPED

    def handle_endtag(self, tag):
        if tag in self.BREAKS or tag in self.SKIPPED:
            self.flush()
        self.depth = max(0, self.depth - (tag in self.SKIPPED))

    def handle_data(self, text):
        if not self.depth:
            self.text.append(text)


def sqlite(root):
    """The documentation of SQLite: paragraphs of plain English, without names of functions and without SQL."""
    seen = set()
    for path in sorted(glob.glob(os.path.join(root, "usr/share/doc/sqlite3/*.html"))):
        name = os.path.basename(path)
        if re.search(r"crossref|index|changes|chronology|news|sitemap|docs\.html|syntax|releaselog", name):
            continue
        parser = Paragraphs()
        with open(path, encoding="utf-8", errors="replace") as f:
            parser.feed(f.read())
        parser.flush()
        doc = []
        for line in parser.found:
            line = tidy(ascii_text(line))
            upper = sum(c.isupper() for c in line) / max(1, len(line))
            if len(line) < 80 or not is_prose(line) or upper > 0.08 or "_" in line or line in seen:
                continue
            if re.search(r"Small\. Fast|public domain.*page last|^This page|^[a-z]", line):
                continue
            seen.add(line)
            doc.append(line)
        if sum(map(len, doc)) > 400:
            yield "\n".join(doc)


# --- more books -----------------------------------------------------------------------------------

def rejoin(text):
    """Undoes hyphens at line ends: the way the text writes the word elsewhere, else as one word."""
    words = set(re.findall(r"[a-z]+(?:-[a-z]+)*", text.lower()))

    def join(match):
        left, right = match.groups()
        return left + ("-" if (left + "-" + right).lower() in words else "") + right + "\n"
    return re.sub(r"\b([A-Za-z]+)-\n *([a-z]+[^\s]*)[ \n]", join, text)


def without_verse(text, width=55):
    """Drops blocks of two lines and more that are all short: verse, tables, title pages."""
    blocks = re.split(r"\n[ \t]*\n", text)
    return "\n\n".join(b for b in blocks if "\n" not in b.strip("\n")
                       or max(len(line.strip()) for line in b.split("\n")) >= width)


def spoken(doc):
    """A document without shouted lines, such as title pages and signboards."""
    return "\n".join(p for p in doc.split("\n") if sum(c.isupper() for c in p) < 0.25 * len(p))


def between(text, first, last):
    start = text.index(first)
    return text[start:text.index(last, start)]


def moby(root):
    name = os.path.join(root, "usr/share/gocode/src/github.com/colinmarc/hdfs/testdata/mobydick.txt")
    with open(name, encoding="utf-8", errors="replace") as f:
        text = f.read().replace("\r", "")
    text = between(text, "\nCHAPTER 1. Loomings.", "\nEnd of Project Gutenberg")
    for doc in chapters(without_verse(text, 50), r"^ *(?:CHAPTER \d+|Epilogue).*$"):
        yield spoken("\n".join(p for p in doc.split("\n") if p[0] != "*").replace("*", ""))


def huck(root):
    name = os.path.join(root, "usr/share/doc/liblingua-stem-perl/examples/huckfinn.txt")
    with open(name, encoding="latin-1") as f:
        text = f.read().replace("\r", "")
    text = rejoin(between(text, "\nCHAPTER I.", "\nThe End"))
    text = re.sub(r"(?<=[a-z])U(?=[a-z])", "'", re.sub(r"(?<=[a-z])Q(?=[a-zI])", "--", text))
    for doc in chapters(text, r"^ *CHAPTER .*$"):
        yield spoken(re.sub(r" ?-- ?", "--", doc))


def poe(root):
    """The five volumes' prose; the first three pieces are other people's prefaces."""
    name = os.path.join(root, "usr/share/doc/liblingua-stem-perl/examples/collected_works_poe.txt")
    with open(name, encoding="latin-1") as f:
        text = f.read().replace("\r", "")
    text = re.sub(r"^End of The Project Gutenberg(?:.|\n)*?^\*END.*$", "~~~ End of Text ~~~", text, flags=re.M)
    text = re.sub(r"\[Redactor's note:[^\]]*\]", "", text)
    text = re.sub(r"\s*[{(]\*\d+[)}]", "", text)
    for piece in re.split(r"^ *[~=]{3,}(?: *End of Text *~+)? *$", text, flags=re.M)[3:]:
        piece = re.sub(r"^[ \t]*(?:NOTES?|Notes to)\b(?:.|\n)*", "", piece, flags=re.M)
        prose = without_verse(piece)
        if len(prose) < 0.6 * len(piece):
            continue
        for doc in chapters(prose, r"^ *CHAPTER .*$"):
            doc = re.sub(r"[ ,;]+--? *|--+ +", "--", re.sub(r" ?\*+(?= |-|$)|&sect;", "", doc, flags=re.M))
            doc = [p for p in doc.split("\n") if not re.search(r"[{}=~+<>_@]|^[*(\[]|[A-Z]\. *\[", p)]
            yield spoken("\n".join(doc))


DAMAGED = r"""[=&*]|\d[a-z]| ['"] | -[a-z]|[.,]" [a-z]+[.,?!]|[a-z][A-Z]"""


def damaged(line):
    """Whether a paragraph of book1 has quotation marks without partners, or letters taken for others."""
    elided = r"(?:[Tt]|em|a|ee|er|n|s|d|ll|ch)\b|[Tt](?:is|was|would|were|will)"
    opened = len(re.findall(r"(?:^|[\s\"-])'(?!" + elided + ")", line))
    closed = len(re.findall(r"[,.?!]'(?=[\s\"]|$)", line))
    return line.count('"') % 2 == 1 or opened != closed or re.search(DAMAGED, line) is not None


def hardy(root):
    """book1 of the Calgary corpus, read by a machine that took some marks for others: damaged paragraphs are left
    out. A short line that ends a sentence ends the paragraph."""
    name = glob.glob(os.path.join(root, "lz4-java-*/src/test-resources/calgary/book1"))[0]
    with open(name, encoding="latin-1") as f:
        text = f.read().replace("\r", "")
    text = re.sub(r"^<P.*\n", "", between(text, "<C i>", "\nTHE END"), flags=re.M)
    text = re.sub(r"([a-z])\+\n([a-z]+[^ \n]*)[ \n]?", r"\1\2\n", text)
    text = re.sub(r"[+>@\x1a]|^<[TYA].*$", "", re.sub(r"^<C", "C", text, flags=re.M), flags=re.M)
    text = re.sub(r"(?<=[a-z])I+(?=[a-z])", lambda m: "l" * len(m.group()), text)
    text = re.sub(r"\.!(?= ?[a-z])", ". I", text).replace(".!", "!").replace("<", "")
    for part in re.split(r"^C [ivxlc]+ *$", text, flags=re.M):
        lines = [line for line in rejoin(part + "\n").split("\n")
                 if sum(map(str.islower, line)) > sum(map(str.isupper, line))]
        part = "\n".join(re.sub(r"^(.{,44}[.?!]['\"]*)$", r"\1\n", line) for line in lines)
        part = re.sub(r" +([;:!?])", r"\1", part)
        for doc in chapters(part, r"\Z(?!)"):
            doc = re.sub(r"^(?:' |\" |'(?=[A-Z]))", '"', doc.replace("''", '"'), flags=re.M)
            doc = re.sub(r"([a-z])' ing\b", r"\1ing", re.sub(r"([,.?!]) (['\"])(?= [a-z]|$)", r"\1\2", doc, flags=re.M))
            doc = re.sub(r"\"([^\"\n]*?[,.?!-])'(?=\s|$)", r'"\1"', doc, flags=re.M)
            doc = re.sub(r" ?-- ?", "--", doc)
            doc = re.sub(r"([.?!])' ?['\"](?=[A-Z])", r'\1"\n"', doc)
            yield "\n".join(p for p in doc.split("\n") if not damaged(p))


def opticks(root):
    name = os.path.join(root, "usr/share/gocode/src/github.com/andybalholm/brotli/testdata/Isaac.Newton-Opticks.txt")
    with open(name, encoding="utf-8", errors="replace") as f:
        text = f.read().replace("\r", "")
    text = re.sub(r"\s*\[(?:Illustration|in\s+_?Fig|_?See|Greek)[^\]]*\]|\[[A-Z]\]", "", text, flags=re.I)
    text = text[text.index("Advertisement I"):]
    heading = r"^ *(?:_?PROP|PART|Obs\.|OBS|Quest|THE (?:FIRST|SECOND|THIRD)).*$"
    for doc in chapters(without_verse(text, 50), heading):
        formula = r"\d.*\d.*\d.*\d|FOOTNOTE|[_=+/]|[a-z][A-Z]|Gutenberg"
        yield "\n".join(p for p in doc.split("\n") if not re.search(formula, p))


# --- Bibles ---------------------------------------------------------------------------------------

def sword(folder):
    """Chapters of a SWORD module: zlib blocks of OSIS, one per book, found by (offset, size, full size)."""
    for half in ("ot", "nt"):
        with open(os.path.join(folder, half + ".bzs"), "rb") as f:
            index = f.read()
        with open(os.path.join(folder, half + ".bzz"), "rb") as f:
            data = f.read()
        for at in range(0, len(index) - 11, 12):
            offset, size = (int.from_bytes(index[i:i + 4], "little") for i in (at, at + 4))
            book = zlib.decompress(data[offset:offset + size]).decode("utf-8", "replace") if size else ""
            if 'canonical="true"' in book:
                yield from sword_chapters(book)


def sword_chapters(book):
    book = re.sub(r"<(note|title)\b[^>]*>.*?</\1>", "<x/>", book, flags=re.S)
    book = re.sub(r"</w><w\b[^>]*>", " ", book)
    book = re.sub(r"</?w\b[^>]*>", "", book)
    breaks = r"<(?:div|lb)\b[^>]*(?:x-p|x-m|x-b|x-q|x-n|paragraph)[^>]*>|<lg\b[^>]*>|\u00b6"
    book = re.sub(breaks, "\n\n", book)
    book = re.sub(r"<l\b[^>]*>", " ", book)
    book = re.sub(r"([\w,;:.!?])(?:</?(?:x|transChange|divineName|q|hi|seg|foreign)\b[^>]*>)+(?=\w)", r"\1 ", book)
    for part in re.split(r"<chapter\b[^>]*sID=[^>]*>", book)[1:]:
        part = re.split(r"<chapter\b[^>]*eID=", part)[0]
        text = re.sub(r"\s*[\[\]]\s*", lambda m: " " if m.group() != m.group().strip() else "",
                      html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"([.,])\[", r"\1 ", part))))
        doc = [tidy(p) for p in paragraphs(ascii_text(text))]
        doc = [re.sub(r"(['\"]) (?=['\"](?:\s|$))", r"\1", p) for p in doc]
        doc = [p for p in doc if is_prose(p) or len(p) < 24 and re.search(r"[.!?]['\"]*$", p)]
        if sum(map(len, doc)) > 400:
            yield "\n".join(doc)


def web(root):
    yield from sword(os.path.join(root, "usr/share/sword/modules/texts/ztext/engWEB2015eb"))


def kjv(root):
    yield from sword(os.path.join(root, "usr/share/sword/modules/texts/ztext/engKJV2006eb"))


# name, Debian package, reader, share of the training batches unless --shares says otherwise
SOURCES = (
    ("jargon", "jargon-text", jargon, 0.05),
    ("devil", "dict-devil", devil, 0.02),
    ("holmes", "golang-github-pierrec-lz4-dev", holmes, 0.13),
    ("sawyer", "golang-github-pierrec-lz4-dev", sawyer, 0.08),
    ("alice", "librust-brotli-dev", alice, 0.04),
    ("austen", "r-cran-janeaustenr", austen, 0.22),
    ("huck", "liblingua-stem-perl", huck, 0.03),
    ("poe", "liblingua-stem-perl", poe, 0.08),
    ("moby", "golang-github-colinmarc-hdfs-dev", moby, 0.07),
    ("hardy", "lz4-java", hardy, 0.06),
    ("opticks", "golang-github-andybalholm-brotli-dev", opticks, 0.0),
    ("web", "sword-text-web", web, 0.22),
    ("kjv", "sword-text-kjv", kjv, 0.0),
    ("sqlite", "sqlite3-doc", sqlite, 0.0),
)


SLURS = re.compile(r"\b(?:nigger|negro|injun|darky|darkies|squaw)", re.I)


def without_slurs(doc):
    """Old books have words that a demo must not say: paragraphs with them are left out."""
    return "\n".join(p for p in doc.split("\n") if not SLURS.search(p))


def load(root, wanted):
    """root holds one folder per unpacked package; wanted names sources.

    Returns {name: (training documents, held-out documents)}.
    """
    seen = set()
    result = {}
    for name, package, reader, _ in SOURCES:
        if name not in wanted:
            continue
        train, held = [], []
        number = 0
        for doc in map(without_slurs, reader(os.path.join(root, package))):
            key = re.sub(r"\W+", "", doc).lower()
            if len(doc) < 60 or key in seen:
                continue
            seen.add(key)
            number += 1
            if len(doc) > LONG:
                cut = doc.rfind("\n", 0, len(doc) - len(doc) // HELD_OUT_EVERY)
                train.append(doc[:cut])
                held.append(doc[cut + 1:])
            else:
                (held if number % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 else train).append(doc)
        if not train:
            raise ValueError(f"{name}: package {package} under {root} gave no document")
        result[name] = (train, held)
    return result


if __name__ == "__main__":
    import sys
    for source, (kept, out) in load(sys.argv[1], [name for name, _, _, _ in SOURCES]).items():
        print(f"{source}: {len(kept)} documents, {sum(map(len, kept))} bytes; "
              f"held out {len(out)}, {sum(map(len, out))} bytes")
