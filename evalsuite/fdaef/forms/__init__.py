"""One function for every kind of publisher's file: files → documents (see `evalsuite.fdaef.local_data`)."""

from evalsuite.fdaef.forms.companionship import COMPANIONSHIP
from evalsuite.fdaef.forms.documents import DOCUMENTS
from evalsuite.fdaef.forms.emotions import EMOTIONS
from evalsuite.fdaef.forms.knowledge import KNOWLEDGE
from evalsuite.fdaef.forms.language import LANGUAGE
from evalsuite.fdaef.forms.own import OWN
from evalsuite.fdaef.forms.reading import Doc, ReadForm
from evalsuite.fdaef.forms.values import VALUES

FORMS: dict[str, ReadForm] = {**OWN, **VALUES, **LANGUAGE, **KNOWLEDGE, **EMOTIONS, **COMPANIONSHIP, **DOCUMENTS}
SUMMARISED = {"documents", *DOCUMENTS}  # forms of what is to be summarised

__all__ = ["FORMS", "SUMMARISED", "Doc", "ReadForm"]
