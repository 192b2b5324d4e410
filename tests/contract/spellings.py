"""The methods of the contract suite, and the parts of the network that each of their loss terms trains.

Written by hand from the equations, not from the code. Thresholds are low, because networks are not confident after a
few steps. A method that is not listed is tested with its defaults, alone and, if it can be a base, inside DST. Methods
that are fitted at once have no loss terms and a suite of their own, ``test_fitted.py``.
"""

from __future__ import annotations

from selftrain.config.options import field_types
from selftrain.methods import METHODS, Wrapper
from selftrain.methods.spelling import parse

ONE = {"psi", "h"}
TWO = {"psi", "h", "twin.psi", "twin.h"}


def dst(base_flows: dict[str, set[str]], *, twin: bool = False, worst: bool = True) -> dict[str, set[str]]:
    """Under DST true labels train h, pseudo labels h_pseudo, and the worst case h'; psi learns from all."""
    prefixes = ("", "twin.") if twin else ("",)

    def of(*names: str) -> set[str]:
        return {prefix + name for prefix in prefixes for name in names}

    flows = {"labeled": of("psi", "h"), "unlabeled": of("psi", "h_pseudo")}
    if worst:
        flows["worst"] = of("psi", "h_worst")
    return flows


PLAIN = {"labeled": ONE, "unlabeled": ONE}
DST = dst(PLAIN)
PROJECTED = {"labeled": ONE, "unlabeled": {"psi", "h", "projector"}}
PAPER = {
    "worst (worst)": {"h_worst"},
    "labeled (others)": ONE,
    "unlabeled (others)": {"psi", "h_pseudo"},
    "worst (others)": {"psi"},
}

FLOWS: dict[str, dict[str, set[str]]] = {
    "supervised": {"labeled": ONE},
    "supervised(w_strong=0.1)": {"labeled": ONE},
    "pseudo_label(tau=0.2)": PLAIN,
    "pi_model": PLAIN,
    "pi_model(stop_target=true, reduction=class_sum)": PLAIN,
    "mean_teacher": PLAIN,
    "mean_teacher(teacher_mode=eval)": PLAIN,
    "vat": {**PLAIN, "entropy": ONE},
    "ali": {
        "labeled (discriminator)": {"psi", "joint"},
        "real (discriminator)": {"psi", "joint"},
        "fake (discriminator)": {"psi", "joint"},
        "generator (generator)": {"generator", "inference"},
    },
    "ali(features=true)": {
        "labeled (discriminator)": {"linear"},
        "real (discriminator)": {"psi", "joint"},
        "fake (discriminator)": {"psi", "joint"},
        "generator (generator)": {"generator", "inference"},
    },
    "rat": PLAIN,
    "uda(tau=0.2)": PLAIN,
    "uda(tau=0.2, tsa=linear)": PLAIN,
    "mixmatch": PLAIN,
    "remixmatch": {**PLAIN, "first": ONE, "rotation": {"psi", "rotation"}},
    "fixmatch(tau=0.2)": PLAIN,
    "dash(rho_min=2.5)": PLAIN,
    "flexmatch(tau=0.2)": PLAIN,
    "flexmatch(tau=0.2, warmup=false)": PLAIN,
    "debiasmatch(tau=0.2)": PLAIN,
    "freematch": PLAIN,
    "freematch(mean_start=false, w_f=0)": PLAIN,
    "softmatch": PLAIN,
    "adamatch(ramp=0.1)": PLAIN,
    "comatch(tau=0.2, dim=8, queue=64)": PROJECTED,
    "simmatch(tau=0.2, dim=8, D=3)": PROJECTED,
    "self_tuning(dim=16, D=3)": {
        "labeled": ONE,
        "contrast_labeled": {"psi", "projector"},
        "contrast_unlabeled": {"psi", "projector"},
    },
    "noisy_student(students=1)": PLAIN,
    "dividemix": {"labeled": TWO, "unlabeled": TWO},
    "dividemix(mix_labeled=false)": {"labeled": TWO, "unlabeled": TWO},
    "co_training(tau=0.2, gamma=0.1)": {
        "labeled": {"psi", "h", "h_2"},
        "unlabeled_1": {"psi", "h"},
        "unlabeled_2": {"psi", "h_2"},
        "overlap": {"h", "h_2"},
    },
    "tri_training": {
        "labeled": {"psi", "h", "h_2"},
        "unlabeled_1": {"psi", "h"},
        "unlabeled_2": {"psi", "h_2"},
        "unlabeled_3": {"psi", "h_3"},
        "overlap": {"h", "h_2"},
    },
    "mutual_learning(tau=0.2)": {
        "labeled": {"psi", "h", "h_2"},
        "unlabeled_1": {"psi", "h"},
        "unlabeled_2": {"psi", "h_2"},
    },
    "mutual_learning(tau=0.2, soft=true)": {
        "labeled": {"psi", "h", "h_2"},
        "unlabeled_1": {"psi", "h"},
        "unlabeled_2": {"psi", "h_2"},
    },
    "abc(fixmatch(tau=0.2), tau=0.2)": {"labeled": ONE | {"h_b"}, "unlabeled": ONE | {"h_b"}},
    "daso(fixmatch(tau=0.2), D=3, warmup=0)": PLAIN,
    "crest(fixmatch(tau=0.2), generations=2)": PLAIN,
    "openmatch(fixmatch(tau=0.2))": {"labeled": ONE | {"in_or_out"}, "unlabeled": ONE | {"in_or_out"}},
    "dst(abc(fixmatch(tau=0.2)))": {**DST, "labeled": ONE | {"h_b"}},
    "dst(daso(fixmatch(tau=0.2), D=3, warmup=0))": DST,
    "dst(openmatch(fixmatch(tau=0.2)))": {
        **DST,
        "labeled": ONE | {"in_or_out"},
        "unlabeled": {"psi", "h_pseudo", "in_or_out"},
    },
    "dst(fixmatch(tau=0.2))": DST,
    "dst(fixmatch(tau=0.2), preset=paper)": PAPER,
    "dst(fixmatch(tau=0.2), preset=paper, optimiser=grl, ce_cap=5)": DST,
    "dst(fixmatch(tau=0.2), worst=false)": dst(PLAIN, worst=False),
    "dst(fixmatch(tau=0.2), pseudo_head=linear, worst_view=strong)": DST,
    "dst(fixmatch(tau=0.2), worst_layers=3, worst_labels=true)": DST,
    "dst(pseudo_label(tau=0.2))": DST,
    "dst(uda(tau=0.2))": DST,
    "dst(dash(rho_min=2.5))": DST,
    "dst(flexmatch(tau=0.2))": DST,
    "dst(debiasmatch(tau=0.2))": DST,
    "dst(freematch)": DST,
    "dst(softmatch)": DST,
    "dst(adamatch(ramp=0.1))": DST,
    "dst(comatch(tau=0.2, dim=8, queue=64))": {**DST, "unlabeled": {"psi", "h_pseudo", "projector"}},
    "dst(simmatch(tau=0.2, dim=8, D=3))": {**DST, "unlabeled": {"psi", "h_pseudo", "projector"}},
    "dst(mean_teacher)": DST,
    "dst(noisy_student(students=1))": DST,
    "dst(dividemix)": dst(PLAIN, twin=True),
    "dst(dividemix(mix_labeled=false))": dst(PLAIN, twin=True),
    "dst(dividemix, preset=paper, ce_cap=5)": {
        "worst (worst)": {"h_worst", "twin.h_worst"},
        "labeled (others)": TWO,
        "unlabeled (others)": {"psi", "h_pseudo", "twin.psi", "twin.h_pseudo"},
        "worst (others)": {"psi", "twin.psi"},
    },
}


def _unlisted() -> list[str]:
    parsed = [parse(text) for text in FLOWS]
    alone = {spelling.name for spelling in parsed}
    wrapped = {spelling.given["base"].name for spelling in parsed if "base" in spelling.given}
    spelled = {
        name: f"{name}(tau=0.2)" if "tau" in field_types(cls) else name
        for name, cls in METHODS.items()
        if not cls.fitted and not issubclass(cls, Wrapper)
    }
    bases = [name for name in spelled if METHODS[name].can_be_base()]
    return [
        *(text for name, text in spelled.items() if name not in alone),
        *(f"dst({spelled[name]})" for name in bases if name not in wrapped),
    ]


SPELLINGS = [*FLOWS, *_unlisted()]
FITTED = [name for name, cls in METHODS.items() if cls.fitted]
# The other bases with DST's alternating optimiser, for the tests of state, ranks, precision and gradient.
IN_TURNS = {
    f"dst({base}, preset=paper, ce_cap=5)": PAPER
    for base in (
        "pseudo_label(tau=0.2)", "uda(tau=0.2)", "dash(rho_min=2.5)", "flexmatch(tau=0.2)", "debiasmatch(tau=0.2)",
        "freematch", "softmatch", "mean_teacher", "noisy_student(students=1)",
    )
}  # fmt: skip
