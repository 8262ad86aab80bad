"""What the shipped voice can say: its words, and the sentences that it learns and is measured on.

Everything is drawn from a `random.Random`, so a seed names a text for ever.
"""

from __future__ import annotations

from random import Random

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
NAMES = ["anna", "tom", "mary", "john", "sam", "lucy", "peter", "kate"]
NOUNS = [
    "door",
    "window",
    "light",
    "book",
    "house",
    "car",
    "train",
    "bus",
    "water",
    "coffee",
    "tea",
    "table",
    "room",
    "kitchen",
    "garden",
    "phone",
    "music",
    "dog",
    "cat",
    "bird",
    "river",
    "street",
    "city",
    "school",
    "key",
    "letter",
    "picture",
    "bag",
    "clock",
    "computer",
]
ADJECTIVES = [
    "red",
    "blue",
    "green",
    "black",
    "white",
    "big",
    "small",
    "new",
    "old",
    "open",
    "ready",
    "good",
    "warm",
    "cold",
    "long",
    "short",
]
VERBS = ["see", "need", "want", "like", "have", "know", "find", "use", "take", "bring", "read", "buy"]
PLACES = ["kitchen", "garden", "room", "house", "city", "school", "street"]
SUBJECTS = ["i", "you", "we", "they"]
NUMBERED = ["your order number is", "my phone number is", "the code is", "the room number is", "your number is"]
FIXED = [
    "how are you today",
    "what is your name",
    "can you help me",
    "thank you very much",
    "you are welcome",
    "see you tomorrow",
    "see you later",
    "good morning",
    "good afternoon",
    "good evening",
    "good night",
    "what time is it",
    "i am sorry",
    "please wait a moment",
    "where are you now",
    "that is right",
    "i do not know",
    "yes please",
    "no thank you",
    "nice to meet you",
    "it is raining outside",
    "the sun is out today",
    "have a nice day",
    "welcome home",
    "let me check",
    "here you are",
    "of course",
    "happy to help you",
]
PROPER = frozenset([*DAYS, *MONTHS, *NAMES, "i"])
QUESTIONS = ("how", "what", "can", "where", "do", "is")


def number_words(value: int) -> str:
    """0 to 9,999 in words, without "and"."""
    if value < 10:
        return DIGITS[value]
    if value < 20:
        return TEENS[value - 10]
    if value < 100:
        rest = value % 10
        return TENS[value // 10 - 2] + (f" {DIGITS[rest]}" if rest else "")
    unit, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    rest = value % unit
    return f"{number_words(value // unit)} {name}" + (f" {number_words(rest)}" if rest else "")


def digit_string(rng: Random, shortest: int = 1, longest: int = 10) -> str:
    """Random digits in words: "three zero seven"."""
    return " ".join(rng.choice(DIGITS) for _ in range(rng.randint(shortest, longest)))


def _time(rng: Random) -> str:
    minute = rng.randint(1, 59)
    return f"{number_words(rng.randint(1, 12))} {number_words(minute) if minute > 9 else 'oh ' + DIGITS[minute]}"


def _place(rng: Random) -> str:
    return f"{rng.choice(['in', 'near'])} the {rng.choice(PLACES)}"


def _templates(rng: Random) -> list[str]:
    noun, other, adjective, verb, name = map(rng.choice, (NOUNS, NOUNS, ADJECTIVES, VERBS, NAMES))
    amount = number_words(rng.randint(2, 99))
    return [
        rng.choice(FIXED),
        f"hello {name}",
        f"{rng.choice(['good morning', 'good evening', 'welcome', 'thank you', 'goodbye'])} {name}",
        f"the {noun} is {adjective}",
        f"{rng.choice(['my', 'your', 'this', 'that'])} {noun} is very {adjective}",
        f"the {noun} is {_place(rng)}",
        f"{rng.choice(SUBJECTS)} {verb} the {adjective} {noun}",
        f"{rng.choice(SUBJECTS)} {verb} a {noun} and a {other}",
        f"do you {verb} the {noun}",
        f"please {verb} the {noun}",
        f"where is the {adjective} {noun}",
        f"is the {noun} {adjective}",
        f"turn {rng.choice(['on', 'off'])} the {noun} {_place(rng)}",
        f"turn {rng.choice(['left', 'right'])} at the {noun}",
        f"the time is {_time(rng)}",
        f"the {rng.choice(['train', 'bus'])} leaves at {_time(rng)}",
        f"the price is {amount} dollars",
        f"the {noun} is {amount} dollars and {number_words(rng.randint(2, 99))} cents",
        f"today is {rng.choice(DAYS)} {rng.choice(MONTHS)} {number_words(rng.randint(1, 31))}",
        f"see you on {rng.choice(DAYS)} at {_time(rng)}",
        f"it is {number_words(rng.randint(2, 40))} degrees {rng.choice(['outside', _place(rng)])}",
        f"{rng.choice(NUMBERED)} {digit_string(rng, 3, 7)}",
        f"call {name} at {digit_string(rng, 3, 7)}",
        f"there are {number_words(rng.randint(2, 9999))} people in the {rng.choice(PLACES)}",
        f"{name} and {rng.choice(NAMES)} {verb} the {noun} now",
    ]


def sentence(rng: Random) -> str:
    """One sentence of the grammar, lower case, unpunctuated."""
    return rng.choice(_templates(rng))


def salad(rng: Random) -> str:
    """Three to eight words that follow from nothing: only the text says which comes next."""
    return " ".join(rng.choice(VOCABULARY) for _ in range(rng.randint(3, 8)))


def punctuate(rng: Random, text: str) -> str:
    """Writes a sentence as people do, or leaves it bare: case and end mark vary, the words do not."""
    end = "?" if text.startswith(QUESTIONS) and text not in ("have a nice day",) else "."
    if rng.random() < 0.3:
        return text + rng.choice(["", end])
    words = [word.capitalize() if word in PROPER else word for word in text.split()]
    words[0] = words[0].capitalize()
    return " ".join(words) + end


def _collect() -> tuple[str, ...]:
    rng = Random(0)
    words = {*DIGITS, *TEENS, *TENS, "hundred", "thousand"}
    for _ in range(4000):
        for line in _templates(rng):
            words.update(line.split())
    return tuple(sorted(words))


VOCABULARY = _collect()
