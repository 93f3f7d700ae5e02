"""Draw the small pictures of the README's gallery, docs/pictures/*.png. `python docs/thumbnails.py`."""

import io
import runpy
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

DOCS = Path(__file__).parent
WIDTH = 520

plt.switch_backend("Agg")
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
for example in sorted((DOCS.parent / "examples").glob("*.py")):
    runpy.run_path(str(example))
    stream = io.BytesIO()
    plt.gcf().savefig(stream, dpi=200)
    plt.close("all")
    picture = Image.open(stream).convert("RGB")
    picture = picture.resize((WIDTH, round(WIDTH * picture.height / picture.width)), Image.Resampling.LANCZOS)
    path = DOCS / "pictures" / f"{example.stem}.png"
    path.parent.mkdir(exist_ok=True)
    # 256 colours that reach every one there is: the common ones alone would leave thin lines without theirs
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(f"{path.relative_to(DOCS)}: {path.stat().st_size / 1000:.0f} kB")
