"""``case`` of a launch script as ``if``, and its loops over what it is started with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

# Repetitions are bounded: unclosed quotes and brackets would take minutes to read.
_ONE = r"(?:\"[^\"\n]{0,100}\"|'[^'\n]{0,100}'|[^\s()|;\"']){1,100}+"
_PART = re.compile(
    r"(?P<case>(?<!\S)case[ \t]+(?P<word>\S+)[ \t]+in\b)|(?P<esac>(?<![\w-])esac\b)"
    rf"|(?P<pattern>\(?(?P<either>{_ONE}(?:[ \t]*\|[ \t]*{_ONE}){{0,20}}+)[ \t]*\))"
    r"|(?P<end>;;&?|;&)|\"(?:\\.|[^\"\\]){0,9999}+\"|'[^']{0,9999}+'|(?<!\S)\#[^\n]*|[^\s;]+|.",
    re.DOTALL,
)
# A loop over what the script itself is started with: while [[ $# -gt 0 ]]; do ... done.
_OWN_OPTIONS = re.compile(
    r"^([ \t]*)while\b[^\n]{0,200}(?:\$[#1]|\$\{[#1][:}-]|\bgetopts\b).*?^\1done\b",
    re.MULTILINE | re.DOTALL,
)
_TOLD = "'options of the script itself: it is read as started without any'"
# A variable that a script gives no value to, and Slurm neither.
_UNSET = re.compile(r"^\$\{?(?!SLURM_)[A-Za-z_]\w*\}?$")
# Characters of a pattern that is compared as text: what is quoted in it stands for itself.
_LITERAL = re.compile(r"[\"'\\$`]")


def cases_as_ifs(script: str) -> str:
    """The script with ``if [ WORD case PATTERN ]; then``, ``elif``, ``else``, ``fi`` for ``case``.

    Its lines stay where they are. A loop over its own options is none, as it is started without
    any: its variables keep their defaults. A branch that falls through (``;&``) is one that ends.
    """
    words: list[str] = []  # of the cases that are open
    first = due = False  # whether the next word begins the first branch, or any
    read = []
    script = _OWN_OPTIONS.sub(lambda loop: _TOLD + "\n" * loop[0].count("\n"), script)
    for part in _PART.finditer(script):
        text = part[0]
        if part["case"]:
            words.append(part["word"])
            first, due, text = True, True, ""
        elif words and part["esac"]:
            words.pop()
            first, due, text = False, False, "; fi"
        elif words and part["end"]:
            due, text = True, ";"
        elif due and part["pattern"]:
            tests = [
                f"[ {words[-1]} {'=' if _LITERAL.search(p) else 'case'} {p.strip()} ]"
                for p in part["either"].split("|")
            ]
            last = part["either"] == "*" and not first
            text = "; else " if last else f"; {'' if first else 'el'}if {' || '.join(tests)}; then "
            first = due = False
        read.append(text)
    return "".join(read)


def holds(tests: Sequence[Sequence[str]]) -> bool | None:
    """Whether one of ``[ A = B ]``, ``[ -z C ]`` and ``[ A case PATTERN ]`` holds.

    None where only a shell knows. ``case`` is what ``cases_as_ifs`` writes.
    """
    held = []
    for words in filter(None, tests):
        told = [*words[1:-1]]
        if words[1:2] == ["-z"]:
            told = [_UNSET.sub("", word) for word in words[2:-1]] + ["=", ""]
        case = told[1:2] == ["case"]
        # Python has neither [^a] nor [[:digit:]].
        unknown = r"[$`]|\[[\^\[]" if case else r"[$`*?]"
        known = len(told) == 3 and not re.search(unknown, " ".join(told))
        if not known or words[0] not in ("[", "[[") or told[1] not in ("=", "==", "!=", "case"):
            return None
        same = fnmatchcase(told[0], told[2]) if case else told[0] == told[2]
        held.append(same == (told[1] != "!="))
    return any(held) if held else None
