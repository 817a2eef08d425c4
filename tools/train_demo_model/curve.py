# SPDX-License-Identifier: MIT
"""Draws the loss curve as an SVG file."""

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 60, 50, 20, 20


def write(path, rows):
    """rows: step, tokens, training loss, held-out loss, ..., as in loss.csv."""
    if not rows:
        return
    right = max(r[1] for r in rows) / 1e6
    low = int(min(min(r[2:4]) for r in rows) * 2) / 2
    high = min(int(max(max(r[2:4]) for r in rows) * 2 + 1) / 2, low + 4)

    def x(tokens):
        return LEFT + tokens / right * (WIDTH - LEFT - RIGHT)

    def y(loss):
        return TOP + (high - min(loss, high)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    step = 0.5 if high - low > 1 else 0.1
    for i in range(int(round((high - low) / step)) + 1):
        v = low + i * step
        out.append(f'<line x1="{LEFT}" y1="{y(v):.1f}" x2="{WIDTH - RIGHT}" y2="{y(v):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.1f}</text>')
    for i in range(6):
        v = right * i / 5
        out.append(f'<text x="{x(v):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{v:.1f}</text>')
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">million training tokens</text>')
    turned = f'transform="translate(16 {HEIGHT / 2}) rotate(-90)"'
    out.append(f'<text {turned} text-anchor="middle">loss, nats per token</text>')
    for column, color, name, row in ((2, "#4477aa", "training", 0), (3, "#cc3311", "held out", 1)):
        points = " ".join(f"{x(r[1] / 1e6):.1f},{y(r[column]):.1f}" for r in rows)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - RIGHT - 80}" y="{TOP + 20 + 18 * row}" fill="{color}">{name}</text>')
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")
