"""One function for every kind of publisher's file: files → documents (see `evalsuite.papers.ecdbench.local_data`)."""

from evalsuite.papers.ecdbench.forms.companionship import COMPANIONSHIP
from evalsuite.papers.ecdbench.forms.documents import DOCUMENTS
from evalsuite.papers.ecdbench.forms.emotions import EMOTIONS
from evalsuite.papers.ecdbench.forms.knowledge import KNOWLEDGE
from evalsuite.papers.ecdbench.forms.language import LANGUAGE
from evalsuite.papers.ecdbench.forms.own import OWN
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm
from evalsuite.papers.ecdbench.forms.values import VALUES

FORMS: dict[str, ReadForm] = {**OWN, **VALUES, **LANGUAGE, **KNOWLEDGE, **EMOTIONS, **COMPANIONSHIP, **DOCUMENTS}
SUMMARISED = {"documents", *DOCUMENTS}  # forms of what is to be summarised

__all__ = ["FORMS", "SUMMARISED", "Doc", "ReadForm"]
