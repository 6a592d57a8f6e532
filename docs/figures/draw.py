"""Draws the pictures of the documentation, as SVG files beside this program.

    python docs/figures/draw.py

A picture is a table of shapes. A row is `shape options | item | item …`, and an
item begins with its coordinates: the centre of a shape, the points of a line.
A row that begins with `|` continues the row above. Pictures have a light panel
behind them, to be read in light and dark themes. Same tables, same bytes.
"""

import html
import math
import pathlib

INK, MUTED = "#1f2933", "#52606d"
COLOURS = {  # fill and outline
    "panel": ("#fbfcfd", "#cbd2d9"),
    "plain": ("#ffffff", "#7b8794"),
    "group": ("#f0f4f8", "#9aa5b1"),
    "attention": ("#dbe9fb", "#3b76bd"),
    "network": ("#dcf0df", "#3f8f57"),
    "norm": ("#fbf1cc", "#b08d1e"),
    "embedding": ("#ebe2f8", "#7d5bb5"),
    "output": ("#fbe0db", "#bd5548"),
}
ICONS = {  # colour, where the text is, size, and outline
    "file": ("plain", 0, 104, 44, "h90l14 14v30h-104Zm90 0v14h14"),
    "folder": ("norm", 5, 120, 70, "h42l8 10h70v60h-120Z"),
}
STYLE = f"""<style>
text {{ font: 16px sans-serif; fill: {INK}; }}
.code {{ font: 14px monospace; }} .bold {{ font-weight: bold; }}
.note {{ font-size: 14px; fill: {MUTED}; }}
.line {{ fill: none; stroke: {INK}; }} .dashed {{ stroke-dasharray: 5 4; }}
</style>
<marker id="head" viewBox="0 0 10 8" refX="9" refY="4" markerWidth="10" \
markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">\
<path d="M0 0L10 4L0 8Z" fill="{INK}"/></marker>"""


def text(options, x, y, *words):
    """A line of text. Options: `note`, `bold`, `left`, `right`, `turned`."""
    words = " ".join(words)
    anchors = {"left": "start", "right": "end"}
    anchor = [anchors[o] for o in options if o in anchors] or ["middle"]
    turn = f' transform="rotate(-90 {x} {y})"' if "turned" in options else ""
    kinds = [*options, "code"] if words.startswith("`") else options
    return (
        f'<text x="{x}" y="{y}" dy="0.35em" text-anchor="{anchor[0]}" '
        f'class="{" ".join(kinds)}"{turn}>'
        f"{html.escape(words.strip('`'), quote=False)}</text>"
    )


def texts(x, y, words):
    """Lines of text, one below the other, which `;` separates."""
    lines = " ".join(words).split(";")
    top = float(y) - 10 * (len(lines) - 1)
    return [text((), x, f"{top + 20 * i:g}", t) for i, t in enumerate(lines)]


def box(options, x, y, *words):
    """A box of text. Options: colour, WIDTHxHEIGHT, `dashed`, `two`, …"""
    colour, size, *more = options
    fill, edge = COLOURS[colour]
    width, height = map(float, size.split("x"))
    left, top = float(x) - width / 2, float(y) - height / 2
    radius = 10 if height > 100 else min(6, height / 4)
    dashed = ' class="dashed"' if "dashed" in more else ""
    shifts = {"two": (6, 0), "three": (12, 6, 0)}.get(" ".join(more), (0,))
    boxes = [
        f'<rect x="{left + i:g}" y="{top - i:g}" width="{width:g}" '
        f'height="{height:g}" rx="{radius:g}" fill="{fill}" stroke="{edge}"'
        f"{dashed}/>"
        for i in shifts
    ]
    return "\n".join([*boxes, *texts(x, y, words)] if words else boxes)


def line(options, *coordinates):
    """A line with round corners. Options: `arrow`, `dashed`."""
    values = [float(value) for value in coordinates]
    points = list(zip(values[::2], values[1::2], strict=True))
    path = "M{:g} {:g}".format(*points[0])
    corners = zip(points, points[1:], points[2:], strict=False)
    for before, corner, after in corners:
        path += "L{:g} {:g}Q{:g} {:g} {:g} {:g}".format(
            *near(corner, before), *corner, *near(corner, after)
        )
    path += "L{:g} {:g}".format(*points[-1])
    dashed = " dashed" if "dashed" in options else ""
    head = ' marker-end="url(#head)"' if "arrow" in options else ""
    return f'<path d="{path}" class="line{dashed}"{head}/>'


def near(corner, point):
    """Returns the point 8 units from a corner, in the direction of another."""
    share = min(8 / math.dist(corner, point), 0.5)
    return [c + share * (p - c) for c, p in zip(corner, point, strict=True)]


def sign(options, x, y, symbol):
    """A circle with a sign; `~` is the wave of sinusoidal positions."""
    circle = f'<circle cx="{x}" cy="{y}" r="12" fill="#ffffff" stroke="{INK}"/>'
    wave = f'<path d="M{float(x) - 8:g} {y}q4 -12 8 0t8 0" class="line"/>'
    return circle + (wave if symbol == "~" else text((), x, y, symbol))


def icon(options, x, y, *words):
    """A file or a folder with lines of text. Options: `file` or `folder`."""
    colour, shift, width, height, path = ICONS[options[0]]
    fill, edge = COLOURS[colour]
    start = f"M{float(x) - width / 2:g} {float(y) - height / 2:g}"
    shape = f'<path d="{start}{path}" fill="{fill}" stroke="{edge}"/>'
    return "\n".join([shape, *texts(x, float(y) + shift, words)])


PICTURES = {
    "transformer": """740x856 The Transformer: encoder, decoder, projection
text bold left | 24 28 `Transformer`
box group 284x302 | 166 487
box group 284x430 | 534 423
text left | 38 356 `EncoderLayer` | 406 228 `DecoderLayer`
text bold right | 294 356 × N | 662 228 × N
box group 284x124 dashed | 166 742 | 534 742
box embedding 210x48 | 166 766 Embedding;`PositionalEmbedding`
| 534 766 Embedding;`PositionalEmbedding`
text note left | 24 56 B: sentences in a batch | 174 611 Q, K, V
| 24 78 S, T: lengths of source and target | 24 100 V: pieces in the vocabulary
| 24 122 N: layers, 6 in the paper | 176 660 (B, S, d_model)
sign | 166 706 + | 534 706 + | 54 706 ~ | 646 706 ~
text note | 106 706 positions | 594 706 positions | 350 754 one matrix
| 258 286 memory (B, S, d_model) | 371 436 K, V
| 166 836 source ids (B, S) | 534 836 target ids, shifted right (B, T)
| 534 24 probabilities of the next piece
line arrow | 140 706 153 706 | 560 706 547 706 | 166 824 166 791
| 166 742 166 719 | 166 693 166 601 | 534 824 534 791 | 534 742 534 719
| 534 693 534 601 | 166 552 166 537 | 166 508 166 473 | 166 424 166 409
| 534 552 534 537 | 534 508 534 473 | 534 424 534 409 | 534 380 534 345
| 534 296 534 281 | 534 252 534 167 | 534 126 534 87 | 534 50 534 36
| 166 621 42 621 42 522 59 522 | 166 493 42 493 42 394 59 394
| 534 621 658 621 658 522 641 522 | 534 493 658 493 658 394 641 394
| 534 365 658 365 658 266 641 266 | 166 380 166 302 350 302 350 448 427 448
line dashed | 641 766 706 766 706 146 641 146 | 273 766 427 766
box attention 210x48 | 166 576 Self-attention;`MultiHeadAttention`
| 534 576 Masked self-attention;`MultiHeadAttention`
| 534 448 Cross-attention;`MultiHeadAttention`
box network 210x48 | 166 448 Feed-forward;`FeedForward`
| 534 320 Feed-forward;`FeedForward`
box norm 210x28 | 166 522 Add & norm | 166 394 Add & norm
| 534 522 Add & norm | 534 394 Add & norm | 534 266 Add & norm
box embedding 210x40 | 534 146 Projection
box output 210x36 dashed | 534 68 Softmax
text note right | 524 188 (B, T, d_model) | 524 106 logits (B, T, V)
| 416 68 in loss and search | 526 611 Q, K, V | 526 483 Q
| 524 660 (B, T, d_model)
text note turned | 720 440 one matrix
""",
    "attention": """760x506 Attention, and attention with several heads
box group 328x490 | 172 253
box group 408x490 | 548 253
text bold | 172 28 Scaled dot-product attention | 538 28 Multi-head attention
| 66 462 Q | 170 462 K | 278 462 V | 418 462 Q | 532 462 K | 646 462 V
text | 172 52 `scaled_dot_product_attention` | 538 52 `MultiHeadAttention`
text note | 66 484 (B, h, T, d_k) | 170 484 (B, h, S, d_k)
| 278 484 (B, h, S, d_v) | 418 484 (B, T, d_model)
| 532 484 (B, S, d_model) | 646 484 (B, S, d_model)
line arrow | 66 450 66 428 | 170 450 170 428 | 278 450 278 164
| 118 393 118 362 | 118 327 118 296 | 118 261 118 230 | 118 195 118 164
| 172 129 172 80 | 418 450 418 428 | 532 450 532 428 | 646 450 646 428
| 538 265 538 230 | 538 195 538 164 | 538 129 538 80 | 418 381 418 324
| 532 381 532 324 | 646 381 646 324
box attention 170x34 | 118 410 MatMul: Q Kᵀ
box plain 170x34 | 118 344 Scale: 1 / √d_k | 118 278 Mask (optional)
| 538 212 Concatenate
box output 170x34 | 118 212 Softmax over S
box attention 278x34 | 172 146 MatMul: weights × V
text note left | 128 378 scores (B, h, T, S) | 128 180 weights (B, h, T, S)
| 182 104 (B, h, T, d_v) | 425 352 (B, h, T, d_k) | 539 352 (B, h, S, d_k)
| 653 352 (B, h, S, d_v) | 652 247 h heads | 548 247 (B, h, T, d_v)
| 548 180 (B, T, h · d_v) | 548 104 (B, T, d_model)
box network 80x34 three | 418 410 Linear | 532 410 Linear | 646 410 Linear
box attention 308x46 three | 532 300 Scaled dot-product attention
box network 170x34 | 538 146 Linear
""",
    "train_on_your_text": """720x180 Two files of text become a translator
icon file | 76 62 `text.en` | 76 118 `text.de`
box network 96x100 | 206 90 `train`
icon folder | 344 90 `runs/NAME`
text note | 344 146 checkpoints, weights
box network 92x44 | 482 90 `export`
box embedding 136x52 | 624 90 SavedModel
line arrow | 131 62 156 62 | 131 118 156 118 | 257 90 281 90
| 407 90 434 90 | 531 90 554 90 | 624 36 624 63 | 624 116 624 143
text | 624 24 Good morning. | 624 156 Guten Morgen.
""",
    "export_and_serve": """720x190 One SavedModel takes text and returns text
box group 120x158 | 84 95
box plain 96x32 | 84 51 REST | 84 95 gRPC | 84 139 Python
box group 478x158 | 457 95
text bold left | 234 34 one SavedModel
box norm 120x38 | 298 80 Tokenizer | 298 142 Detokenizer
box attention 112x38 | 620 80 Encoder | 620 142 Decoder
box output 124x38 | 462 142 Beam search
line arrow | 147 80 236 80 | 360 80 562 80 | 620 99 620 121
| 564 136 526 136 | 524 148 562 148 | 399 142 360 142 | 238 142 147 142
text note | 181 68 text | 181 130 text | 462 68 ids
""",
    "decode_your_model": """720x170 A step function and a search take turns
box network 240x80 | 144 85 your step function;`step(tokens, cache, index)`
box output 148x80 | 464 85 `beam_search`;keeps K best
line arrow | 267 67 388 67 | 388 103 267 103 | 541 85 574 85
text note | 328 53 logits, cache | 328 119 tokens, cache
| 636 22 ids and scores | 636 150 K = 3
box plain 118x26 | 636 53 | 636 85 | 636 117
text left | 588 53 `b c` | 588 85 `a` | 588 117 `a b c`
text right | 684 53 `-0.90` | 684 85 `-1.30` | 684 117 `-1.79`
""",
    "several_devices": """720x190 Two devices compute the update of one
text bold left | 30 26 one batch
box attention 100x14 | 80 52 | 80 74
box attention 64x14 | 62 96
box network 80x14 | 70 118 | 70 162
box network 48x14 | 54 140
box attention 136x50 | 246 74 device 1;same weights
box network 136x50 | 246 140 device 2;same weights
sign | 412 107 +
box norm 120x50 | 514 107 ÷ number;of tokens
box output 96x50 | 648 107 the same;update
line arrow | 140 74 176 74 | 140 140 176 140 | 317 74 412 74 412 94
| 317 140 412 140 412 120 | 425 107 452 107 | 577 107 598 107
text note | 362 62 sums | 362 154 sums
""",
    "stop_and_resume": """720x180 A resumed run is equal, bit for bit
text right | 168 34 never stopped | 168 80 stopped | 168 126 resumed
line | 190 34 590 34 | 190 80 490 80 | 490 126 590 126
| 190 29 190 39 | 240 29 240 39 | 290 29 290 39 | 340 29 340 39
| 440 29 440 39 | 490 29 490 39 | 540 29 540 39
| 190 75 190 85 | 240 75 240 85 | 290 75 290 85 | 340 75 340 85
| 440 75 440 85 | 540 121 540 131
line arrow | 490 80 490 115
box norm 16x16 | 390 34 | 590 34 | 390 80 | 490 80 | 490 126 | 590 126
text note | 151 160 step | 190 160 0 | 390 160 4 | 490 160 6 | 590 160 8
| 390 57 checkpoint
line | 606 34 620 34 620 126 606 126
text note left | 630 70 equal, | 630 90 bit for bit | 504 80 SIGTERM
""",
    "keras_on_jax": """720x170 Train on JAX, export with TensorFlow
box group 256x142 | 148 85
text bold left | 36 34 Train on JAX
box network 46x46 | 64 83 0 | 120 83 1 | 176 83 2 | 232 83 3
text note | 148 132 1 device or 4: same update
icon folder | 364 85 `runs/NAME`
box group 242x142 | 579 85
text bold left | 470 34 Export with TensorFlow
box network 76x42 | 514 83 `export`
box embedding 112x52 | 630 83 SavedModel
text note | 630 132 text in, text out
line arrow | 279 85 302 85 | 427 85 474 85 | 555 83 572 83
""",
    "compose_layers": """720x148 A classifier, composed of layers
text | 40 60 `ids`
box embedding 178x56 | 174 60 `PositionalEmbedding`
box attention 118x56 two | 346 60 `EncoderLayer`;× 2
box norm 98x56 | 490 60 Average;pooling
box network 70x56 | 598 60 `Dense`
text note right | 704 60 logits
line arrow | 56 60 83 60 | 264 60 285 60 | 412 60 439 60 | 540 60 561 60
| 634 60 660 60
line arrow dashed | 174 88 174 124 490 124 490 90 | 346 124 346 90
text note | 260 112 padding mask
""",
}


def svg(table):
    """Returns the SVG of a table; its first row is the size and the title."""
    first, *rows = table.replace("\n|", " |").splitlines()
    size, title = first.split(" ", 1)
    width, height = map(int, size.split("x"))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{html.escape(title)}</title>",
        STYLE,
        '<g stroke-width="1.5" stroke-linejoin="round">',
        box(("panel", f"{width - 2}x{height - 2}"), width / 2, height / 2),
    ]
    for row in rows:
        (shape, *options), *items = (part.split() for part in row.split(" | "))
        parts += [SHAPES[shape](options, *item) for item in items]
    return "\n".join([*parts, "</g>", "</svg>", ""])


SHAPES = {f.__name__: f for f in (text, box, line, sign, icon)}

if __name__ == "__main__":
    for name, table in PICTURES.items():
        path = pathlib.Path(__file__).with_name(f"{name}.svg")
        path.write_text(svg(table), "utf-8")
