"""Arguments of a trainer, read from a launch script without running it."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foundation.files import FileError, read_text
from foundation.messages import shown
from foundation.secret_words import disclosed, has_secret, is_secret
from trainer.plan.rules.expression import ExpressionError, parse
from workflows.shell_cases import cases_as_ifs, holds
from workflows.slurm_options import WORDS, batch_options, in_long, number, program, ranks_of

MAX_BYTES = 100_000
MOST_WORDS = 20_000
DEEPEST = 4  # quotes within quotes
_SKIPPED = ("does not", "over")  # branches; over: one before it runs
_HERE_DOCUMENT = re.compile(r"(?:\bread\b[^;|&\n]{0,200}\s(\w+)\s*)?<<-?\s*(['\"]?)(\w+)\2")
_TO_SHELL = re.compile(r"(?:^|[;&|(]|\bsrun\s.{0,400})\s*(?:sbatch|(?:ba)?sh)(?:\s[^;&|]{0,400})?$")
# Nesting is bounded: unclosed brackets would take minutes to read.
_PLAIN = r"(?>[^()]{0,400})"
_CODE = rf"{_PLAIN}(?>\({_PLAIN}(?>\({_PLAIN}\){_PLAIN})*+\){_PLAIN})*+"
_PART = (
    rf"\\.|\"(?>\\.|\$\{{[^}}\n]{{0,400}}\}}|[^\"\\])*+\"|'[^']*+'|\$\({_CODE}\)"
    r"|\$\{[^}\n]{0,400}\}|`[^`\n]{0,400}`|[^\s;&|()<>]"
)
_TOKEN = re.compile(
    rf"(?P<skipped>[ \t\r]+|(?<!\S)\#[^\n]*|(?:&|\d)?>>?(?:&\d|[ \t]*\S+))"
    rf"|(?P<array>\w+\+?=\()|(?P<word>(?:{_PART})+)|(?P<end>.)",
    re.DOTALL,
)
_ASKED: dict[str, list[str]] = WORDS["asked"]
_ARITHMETIC = re.compile(r"\$\(\(([\w\s+*/%()-]{1,200})\)\)|\$\(expr\s([\w\s+*/%\\-]{1,200})\)")
# A variable without a value that stands for whole arguments, not for the value of an option.
_SEVERAL = re.compile(r"(?i)\$\{?(?:[@*]|\w*(?:ARG|OPT|FLAG|OVERRIDE|EXTRA)\w*)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?[-=]([^}]*))?\})")
_QUOTED_COMMAND = re.compile(r"\s--\w|\.py\s")  # bash -c "torchrun train.py --bf16"
_OUTPUT = re.compile(rf"\$\({_CODE}\)")  # output of a command, as a value
_SPLIT = re.compile(rf"(?:\$\({_CODE}\)|\S)+")
_SET_UP = re.compile(rf"(?:{'|'.join(WORDS['set up'])})\s")
_OF_LAUNCHER = re.compile("|".join(WORDS["of the launcher"]))
_LATER = ": a secret; export it, as the trainer's variable, in the shell that searches"


@dataclass(frozen=True)
class Launched:
    entry: str = ""  # the trainer's script, or its module after ``-m``; empty where none is named
    module: bool = False  # ``entry`` is a module
    # of the trainer, without those of srun and torchrun
    arguments: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # options whose value only a shell knows
    nodes: int = 0  # that the script requests from Slurm or its launcher; 0: none are stated
    ranks: int = 0  # that it starts; 0: unknown
    environment: Mapping[str, str] = field(default_factory=dict)  # that it exports
    modules: Sequence[str] = ()  # that it loads
    set_up: Sequence[str] = ()  # further lines before the command, which need a shell
    batch_options: Sequence[str] = ()  # of sbatch, each with its value: --nodes=2
    folder: str = ""  # that it changes to
    launcher: Sequence[str] = ()  # words before the trainer's script: srun, torchrun, a container's
    dropped: Sequence[str] = ()  # other commands


def read(path: Path, key_value: bool = False, together: Sequence[Sequence[str]] = ()) -> Launched:
    """The command with the most arguments that a script starts, variables and arrays replaced.

    A file without a command is read as arguments alone.

    Args:
        key_value: the trainer's options are ``key=value``, not ``--key value``.
        together: groups of options, all useless if one that is given has to be left out.

    Raises FileError if the file cannot be read, or a quote in it is not closed.
    """
    if (start := _unclosed(text := read_text(path, MAX_BYTES))) is not None:
        line = text.count("\n", 0, start) + 1
        raise FileError(f"{shown(path)}:{line}: the quote {text[start]} is not closed; close it")
    asked = _asked(batch := batch_options(text))
    known = {name: str(asked[key]) for key in asked for name in _ASKED[key][1:]}
    known |= dict.fromkeys(("PWD", "SLURM_SUBMIT_DIR"), str(path.parent.absolute()))
    homes = (os.environ.get("HOME", "$HOME"), "$HOME")  # now, and in lines for a later shell
    shell, later = (_Shell(texts={**known, "HOME": home}) for home in homes)
    shell.run(as_ifs := cases_as_ifs(text))
    later.run(as_ifs)
    starts = [program(words) for words in shell.commands]
    at = max(range(len(starts)), key=lambda i: (bool(starts[i][0]), len(starts[i][2])))
    entry, module, arguments, told = starts[at]
    if not entry:
        arguments = [word for words in shell.arrays.values() for word in words] or [
            word for words in shell.commands for word in words
        ]
    # Around a command that is quoted for a shell: ``srun ... bash -c``.
    around = shell.commands[shell.outer[at]] if at in shell.outer else []
    launcher, variables = [*around, *told] if entry else [], _variables(shell, at)
    counts = in_long(launcher)
    if not {*WORDS["commands"]}.isdisjoint(told):  # it launches ranks itself, and counts them
        counts += [*arguments, *(f"--{name.lower()}={v}" for name, v in variables.items())]
    nodes = asked.get("nodes") or number(counts, "nnodes", "num_machines", "num_nodes", "nodes")
    passed, left_out = _passed(arguments, key_value, together)
    secrets = [name for name, text in variables.items() if has_secret(name, text)]
    plain = {name: text for name, text in variables.items() if name not in secrets}
    whole = " ".join([*around, *shell.commands[at]])
    for name in [n for n, t in plain.items() if " " in t and " ".join(t.split()) in whole]:
        del plain[name]  # a part of the command: export CMD="train.py --bf16"
    environment, of_shell = _exported(plain, _variables(later, at))
    left_out += [f"the secret {name}: export it in the shell that searches" for name in secrets]
    loaded = [words[2:] for words in shell.commands if words[:2] == ["module", "load"]]
    files = re.findall(r"--config_file[= ]\S+", " ".join(told))  # of accelerate launch
    folder = next((words[1] for words in reversed(shell.commands) if _is_cd(words)), "")
    return Launched(
        entry="" if "$" in entry else entry,
        module=module,
        arguments=passed,
        left_out=left_out,
        nodes=nodes,
        ranks=ranks_of(counts, nodes, asked.get("tasks", 0)),
        environment=environment,
        modules=[name for names in loaded for name in names],
        set_up=[*_set_up(later), *of_shell],
        batch_options=batch,
        folder=folder,
        launcher=launcher,
        dropped=[*files, *_not_carried(shell, (shell.commands[at], around))] if entry else [],
    )


def _asked(batch: Sequence[str]) -> dict[str, int]:
    """Nodes, GPUs and tasks that these options of sbatch ask for."""
    return {
        name: int(found[1])
        for name, words in _ASKED.items()
        for option in batch
        if (found := re.fullmatch(words[0], option))
    }


def _is_cd(words: Sequence[str]) -> bool:
    """Whether a command changes to a folder that is known."""
    return len(words) == 2 and words[0] == "cd" and words[1][:1] == "/" and "$" not in words[1]


def _set_up(shell: _Shell) -> list[str]:
    """Lines that a shell has to run before the command, with known variables replaced."""
    own = [words for i, words in enumerate(shell.commands) if i not in shell.outer]
    lines = [" ".join(map(_quoted, words)) for words in own if disclosed(words) == words]
    return [line for line in lines if _SET_UP.match(line)]


def _quoted(word: str) -> str:
    """A word quoted for a shell, which still replaces its remaining variables."""
    return f'"{word}"' if re.search(r"[$`]", word) else shlex.quote(word)


def _not_carried(shell: _Shell, own: Sequence[Sequence[str]]) -> list[str]:
    """Commands with an effect that are neither set-up lines nor the trainer's ``own``."""
    hidden = {t: f"${{{n}}}" for n, t in shell.texts.items() if has_secret(n, t)}
    texts = [
        " ".join(disclosed([hidden.get(word, word) for word in words]))
        for index, words in enumerate(shell.commands)
        if words and words not in own and words[0] not in WORDS["not told"]
        if not _is_cd(words)
        if index in shell.outer
        or not _SET_UP.match(" ".join(map(_quoted, words)))
        or disclosed(words) != words
    ]
    return list(dict.fromkeys(texts))


def _variables(shell: _Shell, at: int) -> dict[str, str]:
    """Variables that a script exports, or sets for one command alone."""
    alone = {name for words in shell.commands if words[:1] == ["export"] for name in words[1:]}
    found = {name: text for name, text in shell.texts.items() if name in alone | shell.exported}
    return found | shell.before[at]


def _exported(now: Mapping[str, str], later: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables except a launcher's; export lines from ``later`` for those only a shell knows."""
    own = {name: text for name, text in now.items() if not _OF_LAUNCHER.fullmatch(name)}
    unknown = [name for name, text in own.items() if re.search(r"[$`<]", text)]
    carried = {name: text for name, text in own.items() if name not in unknown}
    return carried, [f"export {name}={_quoted(later[name])}" for name in unknown]


@dataclass
class _Shell:
    """The commands of a script in order, those of all branches that may run."""

    commands: list[list[str]] = field(default_factory=lambda: [[]])
    arrays: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    depth: int = 0
    count: int = 0  # of words
    exported: set[str] = field(default_factory=set)
    # ifs that are read: whether the branch runs; its test's first command, and place in the script
    ifs: list[tuple[str, int, int]] = field(default_factory=list)
    outer: dict[int, int] = field(default_factory=dict)  # of commands quoted for a shell: its own
    # by command: variables that are set before it on its own line
    before: defaultdict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    def run(self, text: str) -> None:
        array, items, starts, text = "", list[str](), True, _joined_lines(text)
        for token in _TOKEN.finditer(text):
            grammar = starts and not array and self._branch(token[0], text, token.start())
            begins = token["skipped"] or token[0] in ("do", "{", "!", "time")
            starts = grammar or bool(token["end"] or (starts and begins))
            if grammar or (self.ifs and self.ifs[-1][0] in _SKIPPED):
                continue
            if token["array"]:
                array = token["array"].rstrip("+=(")
                items = list(self.arrays.get(array, [])) if "+" in token["array"] else []
            elif token["word"] and array:
                items += self._words(token["word"])[: max(MOST_WORDS - len(items), 0)]
            elif token["word"]:
                self._word(token["word"])
            elif token["end"] == ")":
                self.arrays |= {array: items} if array else {}
                array = ""
            elif token["end"] and not array:
                self.commands.append([])

    def _branch(self, word: str, text: str, at: int) -> bool:
        """Whether a word at this place of a script begins or ends a branch."""
        branch, first, began = self.ifs[-1] if self.ifs else ("", 0, 0)
        if word == "if":
            branch = "over" if branch in _SKIPPED else "may run"
        elif not self.ifs or word not in ("then", "elif", "else", "fi"):
            return False
        else:
            self.ifs.pop()
        if word == "then" and branch != "over":
            known = None if "&" in text[began:at] else holds(self.commands[first:])
            branch = {True: "runs", False: "does not", None: "may run"}[known]
        elif word in ("elif", "else"):
            branch = "over" if branch in ("runs", "over") else "may run"
        if word != "fi":
            self.ifs.append((branch, len(self.commands) - 1, at))
        return True

    def _word(self, raw: str) -> None:
        if (assigned := _ASSIGNED.fullmatch(raw)) and set(self.commands[-1]) <= {"export", "local"}:
            name, more, raw = assigned.groups()
            raw = re.sub(r"(\"[^\"]*\"|'[^']*')|(?<![^:])~(?=/|$)", lambda m: m[1] or "$HOME", raw)
            text = self.texts.get(name, "") * bool(more) + self._text(raw)
            self.texts[name] = text[:MAX_BYTES]
            if self.commands[-1] == ["export"]:
                self.exported.add(name)
            elif not self.commands[-1]:
                self.before[len(self.commands) - 1][name] = self.texts[name]
            return
        shows = bool(self.commands[-1]) and self.commands[-1][0] in WORDS["prints"]
        words = self._words(raw)
        if self.commands[-1] == ["eval"] and raw[0] == "$":
            words = [" ".join(self._text(raw).split())]  # a line of the shell
        for word in words:
            if self.depth < DEEPEST and not shows and _QUOTED_COMMAND.search(_OUTPUT.sub("", word)):
                outer = len(self.commands) - 1
                self.commands.append([])
                self.depth += 1
                self.run(word)
                self.depth -= 1
                for inner in range(outer + 1, len(self.commands)):
                    self.outer.setdefault(inner, outer)
                self.commands.append([])
            elif self.count < MOST_WORDS:
                self.count += 1
                self.commands[-1].append(word)

    def _words(self, raw: str) -> list[str]:
        """A word with its variables replaced; several words if it is an array."""
        if reference := _REFERENCE.fullmatch(raw.strip('"')):
            name = reference[1] or reference[2]
            if name in self.arrays:
                words = self.arrays[name]
                return words if raw[0] == '"' else [each for w in words for each in w.split()]
            if raw[0] != '"':
                return [part.strip("\"'") for part in _SPLIT.findall(self._text(raw))]
        return [self._text(raw)]

    def _text(self, raw: str) -> str:
        raw = re.sub("^~(?=/)", "$HOME", raw)
        parts = (part[0] for part in re.finditer(_PART + r"|\s|[;&|()<>]", raw, re.DOTALL))
        return "".join(self._part(part) for part in _joined(parts))

    def _part(self, part: str) -> str:
        if part[0] == part[-1] == "'" and len(part) > 1:
            return part[1:-1]
        if part[0] == part[-1] == '"' and len(part) > 1:
            part = re.sub(r"\\([\"\\$`])", r"\1", part[1:-1])
        elif part[0] == "\\":
            return part[1:]
        part = re.sub(r"\$\(pwd\)|`pwd`", self.texts.get("PWD", "").replace("\\", ""), part)
        return _ARITHMETIC.sub(self._computed, _REFERENCE.sub(self._value, part))

    def _computed(self, arithmetic: re.Match[str]) -> str:
        """The value of ``$((A * 8))``; the text itself if a variable is no whole number."""

        def number(name: re.Match[str]) -> str:
            value = self.texts.get(name[0], "")
            return value if value.isdecimal() and len(value) < 10 else "?"

        text = arithmetic[1] or arithmetic[2].replace("\\", "")
        text = re.sub(r"[A-Za-z_]\w*", number, text)
        try:
            return str(parse(text.strip().replace("/", "//"), {}, any_type=True).value({}))
        except (ExpressionError, ZeroDivisionError):
            return arithmetic[0]

    def _value(self, reference: re.Match[str]) -> str:
        name = reference[1] or reference[2]
        if name in self.arrays:
            return " ".join(self.arrays[name])
        default = reference[0] if reference[3] is None else self._text(reference[3])
        text = self.texts.get(name) or default
        if name in self.texts and reference[3] is None and _SEVERAL.match(reference[0]):
            text = self.texts[name]  # options that are none, not a value that is still to come
        return f"${{{name}}}" if is_secret(name, text) else text


def _unclosed(text: str) -> int | None:
    """Index of a quote that a script never closes; None if it closes all."""
    for token in _TOKEN.finditer(_joined_lines(text)):
        for part in re.finditer(_PART, token["word"] or "", re.DOTALL):
            if part[0] in ('"', "'"):
                return token.start() + part.start()
    return None


def _joined_lines(text: str) -> str:
    """A script of the same length whose continued lines are one, with blank here-documents.

    A here-document is from ``<<WORD`` to a line that is WORD; ``read NAME`` makes it a variable,
    and to sbatch or a shell it is a script.
    """
    # A comment ends with its line, whatever its last character is.
    text = re.sub(r"(?m)^([ \t]*#.*)\\(?=\r?$)", r"\1 ", text)
    text = text.replace("\\\r\n", "   ").replace("\\\n", "  ")
    kept, until, name, is_script = [], "", "", False
    for line in text.split("\n"):
        if until:
            ended = line.strip() == until
            until = "" if ended else until
            words = "'" if ended else line.replace("'", " ")
            kept.append(line if is_script and until else (words if name else "").ljust(len(line)))
            continue
        found = _HERE_DOCUMENT.search(line)
        is_script = bool(found and _TO_SHELL.search(line[: found.start()]))
        until, name = (found[3], found[1] or "") if found else ("", "")
        start = line[: found.start()] + (f"{name}='" if name else "") if found else line
        kept.append(start.ljust(len(line)))
    return "\n".join(kept)


def _joined(parts: Iterator[str]) -> Iterator[str]:
    """Parts with unquoted characters joined, so that names of variables are whole."""
    plain = ""
    for part in parts:
        if part[0] in "\"'\\" and len(part) > 1:
            yield from filter(None, [plain, part])
            plain = ""
        else:
            plain += part
    yield from filter(None, [plain])


def _passed(
    words: list[str], key_value: bool, together: Sequence[Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Arguments that can be passed on, and options whose value only a shell knows."""
    options: list[list[str]] = []
    for word in words:
        starts = key_value or re.match(r"--?[A-Za-z]", word)
        given = options and "/" not in word and (len(options[-1]) > 1 or "=" in options[-1][0])
        # A path is a further value, such as another data set.
        alone = word[:1] == "$" and options and (given or _SEVERAL.match(word))
        if starts or alone or not options:
            options.append([word])
        else:
            options[-1].append(word)
    unknown = [option for option in options if any(re.search(r"[$`]", word) for word in option)]
    lost = {option[0].lstrip("-").partition("=")[0] for option in unknown}
    useless = {name for group in together if lost & {*group} for name in group}
    secret = [option for option in options if disclosed(option) != option]
    unknown += [
        option
        for option in options
        if option in secret or option[0].lstrip("-").partition("=")[0] in useless
        if option not in unknown
    ]
    passed = [word for option in options if option not in unknown for word in option]
    told = [" ".join(disclosed(option)) + _LATER * (option in secret) for option in unknown]
    return passed, list(dict.fromkeys(told))
