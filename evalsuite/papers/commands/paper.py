"""`esc-eval paper …`: the procedures of the papers beyond a run, and their tables."""

from core.verbs import Verbs

app = Verbs(
    no_args_is_help=True,
    help="The papers' own procedures beyond a run, and their tables.",
    epilog="Example: esc-eval paper reported 4",
)
_HERE = __name__.rpartition(".")[0]
for name, place, about in (
    ("ecdbench", "ecdbench:app", "ECDBench: from the results of its tasks to capabilities and a total."),
    ("feel", "feel:app", "FEEL: judges give score probabilities, an ensemble weights them."),
    (
        "role-play",
        "role_play:role_play",
        "Score seekers on their role cards, or compare them in pairs (ESC-Eval, table 1, figure 3).",
    ),
    ("respond", "respond:respond", "Have supporters reply to real histories, and measure the replies (ESC-Eval, figure 1)."),
    ("reported", "reported:reported", "Print the papers' tables, or recompute what follows from them."),
):
    app.add(name, f"{_HERE}.{place}", about)
