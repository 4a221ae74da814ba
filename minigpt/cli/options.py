"""Command-line options, derived from the dataclass fields of the settings."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from minigpt.cli.plain_help import Common
from minigpt.cli.render.terminal import note
from minigpt.settings import Settings, annotations_of, value_types
from minigpt.shell import join


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """What the shell completes after Tab: the runs and models in the folder of --checkpoints; it reads names only."""
    from minigpt.storage.model_list import model_names

    names = model_names(Path(ctx.params.get("checkpoints") or "checkpoints"))
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def complete_from(*choices: str) -> Callable[[str], list[str]]:
    """Completes one of these words."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


common_option = functools.partial(typer.Option, rich_help_panel=Common("Options"))
run_option = functools.partial(common_option, autocompletion=complete_runs)
model_option = functools.partial(run_option, "--model", "-m")
run_argument = functools.partial(typer.Argument, autocompletion=complete_runs)
MODEL_HELP = (
    "a run's name, or a model's file or folder [default: the newest model, else the one that comes with minigpt]"
)
ModelArgument = Annotated[str | None, run_argument(help=MODEL_HELP, metavar="MODEL")]
NamedModels = Annotated[list[str] | None, model_option(help="the model, given as an option", expose_value=False)]
CheckpointsOption = Annotated[
    Path, common_option("--checkpoints", envvar="MINIGPT_CHECKPOINTS", help="folder of the runs and models")
]
DeviceOption = Annotated[str, common_option("--device", help="auto, cpu, cuda, cuda:N or mps")]
JsonOption = Annotated[bool, common_option("--json", help="print JSON instead of text")]


def settings_options(
    *groups: tuple[type[Settings], Iterable[str]], **groups_in_place: type[Settings]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a command one option per named setting, and the settings that were typed as `given`.

    A further group has its options where the command has a parameter of that name, which gets the settings that were
    typed.
    """
    names = [name for _, group in groups for name in group]
    escaped = {name for kind, group in groups for name in group if kind.__dataclass_fields__[name].metadata["escapes"]}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            if name in groups_in_place:
                kind = groups_in_place[name]
                parameters.extend(_option(kind, each) for each in names_of(kind))
            elif name != "given":
                parameters.append(parameter)
        for kind, group in groups:
            parameters.extend(_option(kind, name) for name in group)

        @functools.wraps(command)
        def collect(**values: Any) -> None:
            given = _typed(values, names)
            for parameter, kind in groups_in_place.items():
                values[parameter] = _typed(values, names_of(kind))
            given |= {name: tuple(map(unescaped, given[name])) for name in escaped & given.keys()}
            command(**values, given=given)

        parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        collect.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
        collect.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
        del collect.__wrapped__
        return collect

    return decorate


def _typed(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Takes the options with these names out of the values; those that were typed."""
    typed = ((name, value) for name in names if (value := values.pop(name)) not in (None, []))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in typed}


def _option(settings: type[Settings], name: str) -> inspect.Parameter:
    """The option of one field: `n_layer: int` becomes `--n-layer INTEGER`; None if it is not typed."""
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    (kind,) = value_types(annotations_of(settings)[name])
    annotation: Any = (list[str] if get_origin(kind) is tuple else kind) | None
    default = "chosen" if field.metadata["chosen"] else field.default
    named = "on" if default is True else default
    shown = "" if default is False or default in (None, (), "") else f" [default: {named}]"
    flag = name.replace("_", "-")
    has_off = kind is bool and field.default in (True, None)
    choices = field.metadata["choices"]
    option = typer.Option(
        f"--{flag}/--no-{flag}" if has_off else f"--{flag}",
        help=field.metadata["help"] + shown,
        show_default=False,
        autocompletion=choices if callable(choices) else complete_from(*choices) if choices else None,
        rich_help_panel=Common(field.metadata["group"]) if field.metadata["common"] else field.metadata["group"],
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def unescaped(text: str) -> str:
    r"""The text of an option; one of \n, \r and \t only, which shells pass on as they are typed, is these characters.

    A bias after it, as in \n=-5, is kept.
    """
    escapes = re.match(r"(?:\\[nrt])+(?==|$)", text)
    if escapes is None:
        if re.search(r"\\[nrt]", text):
            note(rf"{text!r} contains a backslash; only \n, \r and \t alone mean a line break or a tab")
        return text
    return escapes[0].encode().decode("unicode_escape") + text[escapes.end() :]


def names_of(settings: type[Settings]) -> list[str]:
    return [field.name for field in dataclasses.fields(settings)]


def model_name(path: Path, checkpoints: Path) -> str:
    """How a command names the model at a path: by its folder's name if it is found by that, else by the path."""
    from minigpt.storage.shipped_models import reference_to

    absolute = path.absolute()
    return absolute.name if absolute.parent.resolve() == checkpoints.resolve() else reference_to(path)


def command_line(*arguments: str, checkpoints: Path) -> str:
    """A minigpt command to copy: quoted for a shell, and with --checkpoints if that is not the default."""
    elsewhere = [] if checkpoints == Path("checkpoints") else ["--checkpoints", str(checkpoints)]
    return join("minigpt", *arguments, *elsewhere)
