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

    def parse_args(self: Any, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments, of which the models that the option `named_model` names are the first."""
        self.shows_all = "--help-all" in args
        for flag in (each for each in self.get_params(ctx) if not each.expose_value and each.is_flag):
            flag.default = False  # to read None, typer imports pydantic, which takes 0.1 s
        options, *_ = self.make_parser(ctx).parse_args(args=list(args))
        parsed: list[str] = super().parse_args(ctx, [*(options.get("named_model") or []), *args])  # type: ignore[misc]
        return parsed

    def format_help_text(self: Any, _: Any, formatter: Any) -> None:
        """Writes the docstring without its marks of Markdown, and its examples as they are typed."""
        text = (self.help or "").replace("`", "").replace("\n\n- ", "\n\n\b\n- ")
        formatter.write_paragraph()
        formatter.write_text(re.sub(r"(?m)^- ", "  ", text))

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Writes arguments, options and commands below their headings, and how to see the other options."""
        options = [each for each in self.params if each.param_type_name == "option"]
        common = [each for each in options if isinstance(each.rich_help_panel, Common)]
        hidden = set(options).difference(common) if common and len(options) > _FEW and not self.shows_all else set()
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.params:
            if each not in hidden:
                heading = each.rich_help_panel or f"{each.param_type_name.title()}s"
                groups.setdefault(heading, []).append(record(each, ctx))
        groups["Options"].append(("-h, --help", "show this help"))
        for name, command in getattr(self, "commands", {}).items():
            purpose = (command.help or "").partition("\n\n")[0]
            groups.setdefault("Commands", []).append((name, " ".join(purpose.split())))
        for heading, records in groups.items():
            width = 9 if heading == "Commands" else _WIDTH
            if records:
                with formatter.section(typer.style(heading, bold=True)):
                    rows = [(typer.style(f"{name:{width}}", bold=True), text) for name, text in records]
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
    return name.replace(" range>", ">").replace("<list[str]>", "<str>"), text.replace("\\[", "[")
