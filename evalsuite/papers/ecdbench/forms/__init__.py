"""One function for every kind of publisher's file: files → documents (see `evalsuite.papers.ecdbench.plan`)."""

from evalsuite.papers.ecdbench.forms import foundational
from evalsuite.papers.ecdbench.forms.foundational import FOUNDATIONAL
from evalsuite.papers.ecdbench.forms.people import ABOUT_PEOPLE
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm

FORMS: dict[str, ReadForm] = {**FOUNDATIONAL, **ABOUT_PEOPLE}
SUMMARISED = {"documents", *foundational.SUMMARISED}  # forms of texts to summarise

__all__ = ["FORMS", "SUMMARISED", "Doc", "ReadForm"]
