"""Classes of requests: what they ask for, how often, and how much it matters to be quick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.sleeping_fleet import USELESS_ID

WORKLOAD, LANGUAGE = "workload", "language"  # metadata keys that the policy reads

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadClass:
    """One class; ``share`` is of all requests, ``max_tokens`` a range, ``sources`` what may draft
    for it. ``gains`` says whether drafts can gain, where that can be calculated."""

    name: str
    share: float
    prompts: Mapping[str, Sequence[Prompt]]
    """By language."""
    max_tokens: tuple[int, int]
    temperature: float = 0.0
    frequency_penalty: float = 0.0
    priority: int = 0
    sources: tuple[str, ...] = ()
    gains: bool | None = None


CODE = """def totals(rows):
    result = {}
    for row in rows:
        name = row["name"]
        amount = row["amount"]
        result[name] = result.get(name, 0) + amount
    return result

def largest(rows):
    result = totals(rows)
    return max(result, key=result.get)
"""
LETTER = (
    "The library on Mill Street opens at nine in the morning and closes at six in the evening. "
    "Members may borrow six books for four weeks. The reading room on the second floor is open to "
    "everyone. The library on Mill Street is closed on public holidays."
)
BRIEF = (
    "Die Bibliothek in der Mühlstraße öffnet um neun Uhr und schließt um achtzehn Uhr. Mitglieder "
    "dürfen sechs Bücher für vier Wochen ausleihen. Der Lesesaal im zweiten Stock steht allen "
    "offen."
)
LETTRE = (
    "La bibliothèque de la rue du Moulin ouvre à neuf heures et ferme à dix-huit heures. Les "
    "membres peuvent emprunter six livres pour quatre semaines. La salle de lecture est ouverte à "
    "tous."
)

# On real models: what is copied is guessed well, what is invented is not.
REAL = (
    LoadClass(
        name="interactive",
        share=0.4,
        prompts={
            "en": (
                "What is the capital of Portugal?",
                "How many days are there in a leap year?",
                "Name three primary colours.",
                "Which planet is closest to the sun?",
                "What does a thermometer measure?",
            ),
            "de": (
                "Was ist die Hauptstadt von Österreich?",
                "Wie viele Tage hat eine Woche?",
                "Nenne drei Obstsorten.",
            ),
            "fr": ("Quelle est la capitale de la Belgique ?", "Combien de mois y a-t-il par an ?"),
        },
        max_tokens=(16, 40),
        priority=10,
        sources=("suffix+eagle3",),
    ),
    LoadClass(
        name="copying",
        share=0.25,
        prompts={
            "en": (
                f"Repeat this text word for word: {LETTER}",
                f"Repeat this code word for word:\n{CODE}",
                f"Copy this code and rename amount to value:\n{CODE}",
                f"Write this text again without changes: {LETTER}",
            ),
            "de": (f"Wiederhole diesen Text Wort für Wort: {BRIEF}",),
            "fr": (f"Répète ce texte mot pour mot : {LETTRE}",),
        },
        max_tokens=(64, 96),
        sources=("suffix",),
    ),
    LoadClass(
        name="batch",
        share=0.15,
        prompts={
            "en": (
                "Write a detailed guide to growing tomatoes on a balcony.",
                "Explain how a steam engine works, step by step.",
                "Describe the history of the printing press.",
                "Explain why the seasons change, with examples.",
            ),
            "de": ("Beschreibe ausführlich, wie Brot gebacken wird.",),
        },
        max_tokens=(96, 128),
        priority=-10,
        sources=("suffix",),
    ),
    LoadClass(
        name="creative",
        share=0.2,
        prompts={
            "en": (
                "Write a story about a lighthouse keeper and a whale.",
                "Write a poem about rain on a tin roof.",
                "Invent a legend about the first clock.",
            ),
            "fr": ("Écris une courte histoire sur un renard et un corbeau.",),
        },
        max_tokens=(48, 64),
        temperature=0.9,
        frequency_penalty=0.3,
        sources=("eagle3",),
    ),
)


def _ids(first: int, length: int) -> tuple[int, ...]:
    return (first, *range(1, length))


# On workers that sleep: four of five draft tokens are right, or none is.
SLEEPING = (
    LoadClass(
        name="interactive",
        share=0.4,
        prompts={"en": (_ids(0, 12), _ids(0, 24)), "de": (_ids(0, 16),)},
        max_tokens=(16, 32),
        priority=10,
        gains=True,
    ),
    LoadClass(
        name="copying",
        share=0.25,
        prompts={"en": (_ids(0, 96), _ids(0, 64)), "fr": (_ids(0, 80),)},
        max_tokens=(48, 80),
        gains=True,
    ),
    LoadClass(
        name="batch",
        share=0.15,
        prompts={"en": (_ids(0, 32),)},
        max_tokens=(96, 128),
        priority=-10,
        gains=True,
    ),
    LoadClass(
        name="creative",
        share=0.2,
        prompts={"en": (_ids(USELESS_ID, 16),), "fr": (_ids(USELESS_ID, 20),)},
        max_tokens=(48, 64),
        temperature=0.9,
        frequency_penalty=0.3,
        gains=False,
    ),
)
