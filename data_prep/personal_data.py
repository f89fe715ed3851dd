"""Personal data in given dialogues, replaced on this machine by its kind (`<URL>`) before anybody is asked (presidio)."""

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

SURE = 0.3  # of presidio's scores: below are digits that may be anything


def without_personal_data(given: Given) -> Given:
    """The dialogues with what was found replaced in their turns; the notes say what that was and what can be missed. Raises
    `UserError` where presidio is not installed."""
    need_modules("presidio_analyzer", "presidio_anonymizer", purpose="anonymise")
    from presidio_anonymizer import AnonymizerEngine

    replacing, found, misses, kept = AnonymizerEngine(), Counter[str](), dict[str, None](), list[Dialogue]()
    for one in given.dialogues:
        analyzer, cannot = _analyzer(spoken := one.language.partition("-")[0])
        misses |= dict.fromkeys(cannot)
        turns = []
        for turn in one.turns:
            marked = analyzer.analyze(turn.text, spoken)  # "yesterday" is no personal data
            spans = [at for at in marked if at.entity_type != "DATE_TIME" or re.search(r"\d", turn.text[at.start : at.end])]
            replaced = replacing.anonymize(turn.text, spans)
            found.update(item.entity_type for item in replaced.items)
            turns.append(turn.model_copy(update={"text": replaced.text}))
        kept.append(one.model_copy(update={"turns": tuple(turns)}))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.most_common()) or "nothing found"
    return Given(kept, [*given.notes, f"personal data replaced: {kinds}; unusual forms are missed", *misses])


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
