"""Two commands for the end of each command's help, as somebody would type them.

Knows nothing of the commands themselves.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, str]] = {
    "demo": ("selftrain demo", "selftrain demo --seeds 1 --out demo-quick"),
    "doctor": ("selftrain doctor", "selftrain --offline doctor"),
    "list": ("selftrain list methods dst", "selftrain list settings 'data.*'"),
    "label": ("selftrain label photos/", "selftrain label photos/ --classes cat,dog --labels labels.csv"),
    "suggest": ("selftrain suggest photos/ -n 20 -o suggest.csv", "selftrain suggest runs/photos -n 40"),
    "check": ("selftrain check photos/ --labels labels.csv", "selftrain check photos/ --labels labels.csv --strict"),
    "train": (
        "selftrain train photos/ --labels labels.csv --out runs/photos",
        "selftrain train photos/ --labels labels.csv --quality balanced --method fixmatch",
    ),
    "report": ("selftrain report runs/photos --images photos/", "selftrain report runs/a runs/b -o compare.html"),
    "predict": (
        "selftrain predict runs/photos new/ -o predictions.csv",
        "selftrain predict runs/photos new/ --coverage 0.8",
    ),
    "evaluate": (
        "selftrain evaluate runs/photos checked/",
        "selftrain evaluate runs/photos photos/ --labels checked.csv --json",
    ),
    "serve": ("selftrain serve runs/photos", "selftrain serve runs/photos --port 8001"),
    "export": ("selftrain export runs/photos -o exported/model.onnx", "selftrain export runs/photos -o model.pt2"),
    "push": ("selftrain push runs/photos user/name", "selftrain push runs/photos user/name --private"),
    "embed": ("selftrain embed photos/ -o features.npz", "selftrain embed photos/ -o features --quality balanced"),
    "cache": ("selftrain cache", "selftrain cache lite0 --shrink"),
    "bench": (
        "selftrain bench cpu/digits --seeds 1",
        "selftrain bench pile/natural --root data --methods fixmatch --methods default",
    ),
    "sweep": (
        "selftrain sweep photos/ --labels labels.csv --trials 20",
        "selftrain sweep digits --labels-per-class 4 --search method.base.tau=0.7,0.8,0.9",
    ),
    "test-method": ("selftrain test-method my_method.py:MyMethod", "selftrain test-method 'dst(fixmatch)'"),
}


def epilog(name: str) -> str:
    """Return the examples of a command as the last paragraphs of its help."""
    first, second = EXAMPLES[name]
    return f"Examples:\n\n{first}\n\n{second}"
