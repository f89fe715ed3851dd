"""Personal data in given dialogues, replaced on this machine by its kind (`<URL>`) before anybody is asked (presidio)."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from core.errors import need_modules
from core.records import Dialogue, Language
from data_prep.dialogue_files import Given

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

SURE = 0.3  # of presidio's scores: below are digits that may be anything


def without_personal_data(given: Given) -> Given:
    """The dialogues with what was found replaced in their turns; the notes say what that was and what can be missed. Raises
    `UserError` where presidio is not installed."""
    need_modules("presidio_analyzer", "presidio_anonymizer", purpose="anonymise")
    from presidio_anonymizer import AnonymizerEngine

    replacing, found, kept = AnonymizerEngine(), Counter[str](), list[Dialogue]()
    for one in given.dialogues:
        turns = []
        for turn in one.turns:
            marked = _analyzer(one.language)[0].analyze(turn.text, one.language)
            dated = [
                span
                for span in marked
                if span.entity_type != "DATE_TIME" or any(map(str.isdigit, turn.text[span.start : span.end]))
            ]
            replaced = replacing.anonymize(turn.text, dated)
            found.update(item.entity_type for item in replaced.items)
            turns.append(turn.model_copy(update={"text": replaced.text}))
        kept.append(one.model_copy(update={"turns": tuple(turns)}))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.most_common()) or "nothing found"
    misses = [note for language in dict.fromkeys(one.language for one in kept) for note in _analyzer(language)[1]]
    return Given(kept, [*given.notes, f"personal data replaced: {kinds}; what is worded unusually stays", *misses])


@cache
def _analyzer(language: Language) -> tuple[AnalyzerEngine, list[str]]:
    """What finds personal data in a language, and what it cannot find there."""
    os.environ.setdefault("TLDEXTRACT_PUBLIC_SUFFIX_LIST_URLS", "")  # else a list is downloaded
    import spacy
    from presidio_analyzer import AnalyzerEngine, Pattern, PatternRecognizer, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpEngineProvider, NoOpNlpEngine

    registry = RecognizerRegistry(supported_languages=[language])
    registry.load_predefined_recognizers(languages=[language])
    number = Pattern(
        "seven digits or more", r"(?<!\d)\d(?:[ ./()-]{0,2}\d){6,}(?!\d)", SURE
    )  # of countries that it does not know
    registry.add_recognizer(PatternRecognizer("NUMBER", patterns=[number], supported_language=language))
    model = next((name for name in sorted(spacy.util.get_installed_models()) if name.startswith(f"{language}_")), "")
    models = [{"lang_code": language, "model_name": model}]
    if model:
        engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models}).create_engine()
    else:
        registry.remove_recognizer("SpacyRecognizer")
        engine = NoOpNlpEngine(models)
    missed = f"{language}: names of people, places and organisations stay: no spaCy model of the language is installed"
    made = AnalyzerEngine(registry, engine, supported_languages=[language], default_score_threshold=SURE)
    return made, [missed] * (not model)
