"""How help is shown: as plain text as wide as the terminal, the common options first."""

import re
from typing import Any

import typer
from typer.core import TyperCommand

_FEW = 15  # options that --help shows whether they are common or not
_WIDTH = 24  # of names; a longer one has its help text on the next line


class Common(str):
    """The heading of an option that --help shows; --help-all shows every option."""

    __slots__ = ()


class PlainHelp:
    """A mixin of commands, and of groups of commands."""

    params: list[Any]
    shows_all = False

    def parse_args(self: Any, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, after the models that are named by the option `named_model`."""
        self.shows_all = "--help-all" in args
        options, *_ = self.make_parser(ctx).parse_args(args=list(args))
        parsed: list[str] = super().parse_args(ctx, [*(options.get("named_model") or []), *args])  # type: ignore[misc]
        return parsed

    def format_help_text(self: Any, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Writes the docstring without its marks of Markdown, and its examples as they are typed."""
        examples = re.sub(r"(?m)^- (.*)$", r"  \1", self.help.replace("\n\n- ", "\n\n\b\n- "))
        formatter.write_paragraph()
        formatter.write_text(examples.replace("`", ""))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, options and commands below their headings, and how to see the other options."""
        options = [each for each in self.params if each.param_type_name == "option"]
        common = [each for each in options if isinstance(each.rich_help_panel, Common)]
        hidden = set(options) - set(common) if common and len(options) > _FEW and not self.shows_all else set()
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.params:
            if each not in hidden:
                heading = each.rich_help_panel or ("Options" if each in options else "Arguments")
                groups.setdefault(heading, []).append(record(each, ctx))
        groups["Options"].append(("-h, --help", "show this help"))
        for name, command in getattr(self, "commands", {}).items():
            groups.setdefault("Commands", []).append((name, " ".join(command.help.partition("\n\n")[0].split())))
        for heading, records in groups.items():
            width = 10 if heading == "Commands" else _WIDTH
            rows = [(typer.style(name, bold=True) + " " * (width - len(name)), text) for name, text in records]
            if rows:
                with formatter.section(typer.style(heading, bold=True)):
                    formatter.write_dl(rows, width)
        if hidden:
            formatter.write_paragraph()
            formatter.write_text(f"All {len(options)} options: {ctx.command_path} --help-all, or docs/cli.md")


class PlainCommand(PlainHelp, TyperCommand): ...


def record(parameter: Any, context: Any) -> tuple[str, str]:
    """An argument as TEXT..., or an option with its type as in `--steps <int>`; and its help text."""
    name, text = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        name = name.partition(" ")[0].strip("[]") + "..." * (parameter.nargs == -1)
    return name.replace(" range>", ">"), text.replace("\\[", "[")
