"""Writes the encoded pictures of this folder and expected.safetensors, what Pillow makes of them.

    pip install pillow==11.3.0 numpy safetensors && python make.py

`<file>`: RGB after `exif_transpose` and `convert("RGB")` (16-bit grey: the high byte, Pillow would clip it).
`pad.WxH.S` / `crop.WxH.S`: the picture `src.WxH` made square as LLaVA / as transformers' CLIPImageProcessor does it.
"""
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
MEAN = (122, 116, 104)


def picture(w, h, channels=3, smooth=False):
    y, x, c = np.mgrid[0:h, 0:w, 0:channels].astype(np.float64)
    a = 128 + 100 * np.sin(x / (2.1 + c) + c) * np.cos(y / (3.3 - 0.5 * c))
    if not smooth:
        a += np.random.RandomState(1).randint(-25, 26, a.shape)
    return np.clip(a, 0, 255).astype(np.uint8)


def png16(a):
    """16-bit PNG, grey or RGB, which Pillow cannot write."""
    h, w = a.shape[:2]
    kind = 0 if a.ndim == 2 else 2
    raw = b"".join(b"\0" + a[y].astype(">u2").tobytes() for y in range(h))
    chunk = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, kind, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def main():
    expected = {}

    def add(name, img, **save):
        img.save(HERE / name, **save)
        expected[name] = np.array(ImageOps.exif_transpose(Image.open(HERE / name)).convert("RGB"))

    w, h = 23, 17
    rgb = Image.fromarray(picture(w, h))
    add("rgb.png", rgb)
    add("rgba.png", Image.fromarray(picture(w, h, 4)))
    add("grey_alpha.png", Image.fromarray(picture(w, h, 2)))
    add("grey.png", rgb.convert("L"))
    add("bilevel.png", rgb.convert("1"))
    add("palette.png", rgb.quantize(13), transparency=3)
    wide = (picture(w, h, 3).astype(np.uint16) << 8) | picture(w, h, 3)[::-1]
    for name, a in (("rgb16.png", wide), ("grey16.png", wide[..., 0])):
        (HERE / name).write_bytes(png16(a))
        high = (a >> 8).astype(np.uint8)
        expected[name] = high if a.ndim == 3 else np.repeat(high[..., None], 3, 2)

    soft = Image.fromarray(picture(w, h, smooth=True))
    add("rgb.jpg", soft, quality=95, subsampling=0)
    add("progressive.jpg", soft, quality=95, subsampling=0, progressive=True)
    add("grey.jpg", soft.convert("L"), quality=95)
    add("cmyk.jpg", soft.convert("CMYK"), quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    add("rotated.jpg", soft, quality=95, subsampling=0, exif=exif)

    for w, h in ((70, 50), (31, 64), (64, 64), (16, 16), (1, 1), (1, 40), (40, 1), (5, 301)):
        a = picture(w, h)
        img = Image.fromarray(a)
        expected[f"src.{w}x{h}"] = a
        side = max(w, h)
        square = Image.new("RGB", (side, side), MEAN)
        square.paste(img, ((side - w) // 2, (side - h) // 2))
        short = min(w, h)
        for s in (16, 32):
            expected[f"pad.{w}x{h}.{s}"] = np.array(square.resize((s, s), Image.BICUBIC))
            full = img.resize((int(s * w / short), int(s * h / short)), Image.BICUBIC)
            left, top = (full.width - s) // 2, (full.height - s) // 2
            expected[f"crop.{w}x{h}.{s}"] = np.array(full.crop((left, top, left + s, top + s)))
    save_file({k: np.ascontiguousarray(v) for k, v in expected.items()}, str(HERE / "expected.safetensors"))


main()
