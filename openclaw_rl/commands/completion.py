"""``openclaw-rl completion bash|zsh|fish``: a script that completes commands and flags."""

from __future__ import annotations

import argparse

_BASH = """_openclaw_rl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words
  case "$COMP_CWORD:$command" in
    1:*) words="{commands}" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _openclaw_rl openclaw-rl
"""


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    words = words_of(parser)
    if shell == "fish":
        return _fish(words, _help_of(parser))
    cases = "\n".join(f'    *:{name}) words="{" ".join(flags)}" ;;' for name, flags in words.items())
    text = _BASH.format(commands=" ".join(words), cases=cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text


def words_of(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Command -> its flags and the fixed words it takes."""
    found: dict[str, list[str]] = {}
    for name, command in _commands(parser).choices.items():
        flags = [flag for action in command._actions for flag in action.option_strings if flag[:2] == "--"]
        fixed = [str(c) for a in command._actions if not a.option_strings for c in a.choices or ()]
        found[name] = [*fixed, *flags]
    return found


def _help_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {action.dest: action.help or "" for action in _commands(parser)._choices_actions}


def _commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _fish(words: dict[str, list[str]], texts: dict[str, str]) -> str:
    lines = []
    for name, flags in words.items():
        text = texts.get(name, "").replace("'", "\\'")
        lines.append(f"complete -c openclaw-rl -n __fish_use_subcommand -a {name} -d '{text}'")
        for flag in flags:
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-a {flag}"
            lines.append(f"complete -c openclaw-rl -n '__fish_seen_subcommand_from {name}' {option}")
    return "\n".join(lines) + "\n"
