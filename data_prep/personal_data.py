"""Personal data in given dialogues, replaced on this machine by its kind (`<URL>`) before any model sees it (presidio)."""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from core.errors import need_modules
from core.records import Dialogue, Language
from data_prep.dialogue_files import Given

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

SURE = 0.3  # presidio's scores below this are digits that may be anything


def without_personal_data(given: Given) -> Given:
    """The dialogues with personal data replaced in their turns; the notes count it and say what can be missed. Raises
    `UserError` where presidio is not installed."""
    need_modules("presidio_analyzer", "presidio_anonymizer", purpose="anonymise")
    from presidio_anonymizer import AnonymizerEngine

    anonymizer, counts, limits, dialogues = AnonymizerEngine(), Counter[str](), dict[str, None](), list[Dialogue]()
    for dialogue in given.dialogues:
        analyzer, blind_spots = _analyzer(language := dialogue.language.partition("-")[0])
        limits |= dict.fromkeys(blind_spots)
        turns = []
        for turn in dialogue.turns:
            spans = [  # "yesterday" is no personal data
                span
                for span in analyzer.analyze(turn.text, language)
                if span.entity_type != "DATE_TIME" or re.search(r"\d", turn.text[span.start : span.end])
            ]
            replaced = anonymizer.anonymize(turn.text, spans)
            counts.update(item.entity_type for item in replaced.items)
            turns.append(turn.model_copy(update={"text": replaced.text}))
        dialogues.append(dialogue.model_copy(update={"turns": tuple(turns)}))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common()) or "nothing found"
    return Given(dialogues, [*given.notes, f"personal data replaced: {kinds}; unusual forms are missed", *limits])


@cache
def _analyzer(language: Language) -> tuple[AnalyzerEngine, list[str]]:
    """The analyzer of a language, and notes on what it cannot find there."""
    os.environ.setdefault("TLDEXTRACT_PUBLIC_SUFFIX_LIST_URLS", "")  # else a list is downloaded
    import spacy
    from presidio_analyzer import AnalyzerEngine, Pattern, PatternRecognizer, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpEngineProvider, NoOpNlpEngine

    registry = RecognizerRegistry(supported_languages=[language])
    registry.load_predefined_recognizers(languages=[language])
    # Phone and identity numbers of countries that presidio does not know.
    number = Pattern("seven digits or more", r"(?<!\d)\d(?:[ ./()-]{0,2}\d){6,}(?!\d)", SURE)
    registry.add_recognizer(PatternRecognizer("NUMBER", patterns=[number], supported_language=language))
    model = next((name for name in sorted(spacy.util.get_installed_models()) if name.startswith(f"{language}_")), "")
    models = [{"lang_code": language, "model_name": model}]
    if model:
        engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models}).create_engine()
    else:
        registry.remove_recognizer("SpacyRecognizer")
        engine = NoOpNlpEngine(models)
    missed = f"{language}: names of people, places and organisations stay: no spaCy model of the language is installed"
    analyzer = AnalyzerEngine(registry, engine, supported_languages=[language], default_score_threshold=SURE)
    return analyzer, [] if model else [missed]
