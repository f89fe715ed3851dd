"""The verbs of a program. Each is loaded only when it is called, so that `--help` and a mistyped verb import nothing else.

    app = program("The purpose of the program.")
    app.add("run", "evalsuite.commands.run:run", "Play, judge and report.", "Runs")

A program's help shows the lines of `add`; a verb's own help comes from its function's signature and docstring.
"""

import inspect
import os
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from core.errors import DEBUG, UserError, say

F = TypeVar("F", bound=Callable[..., Any])
HELP = {"help_option_names": ["-h", "--help"]}


class _Verb(TyperCommand):
    """A verb that refuses a repeated option of one value, and checks its path options (`core.paths`)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, options = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(options).items():
            single = option.param_type_name == "option" and not getattr(option, "multiple", False)
            if times > 1 and single and not ctx.resilient_parsing:  # resilient: the shell completes a line
                raise UserError(f"{option.opts[0]} is given {times} times and takes one value: keep one")
        extra = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            from core.paths import RUNNING, begin  # help does not need its imports

            assert self.callback is not None, "a verb has a function"
            token = begin(inspect.unwrap(self.callback), ctx.params)
            ctx.call_on_close(lambda: RUNNING.reset(token))
        return extra


class _Unloaded(TyperCommand):
    """A verb, or a group of verbs, that is not loaded yet: it has only its line in the program's help."""

    place = ""

    def load(self) -> Any:
        """The verb itself."""
        module, _, attribute = self.place.partition(":")
        verb = getattr(import_module(module), attribute)
        if isinstance(verb, typer.Typer):
            command: Any = typer.main.get_group(verb)  # even of a single verb
        else:
            app = Verbs()
            app.command(self.name)(verb)
            command = typer.main.get_command(app)
        command.name = self.name
        return command


class _Group(TyperGroup):
    """Verbs that are loaded when they are called by name."""

    _listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = self.commands.get(cmd_name)
        if isinstance(command, _Unloaded) and not self._listing:
            command = self.commands[cmd_name] = command.load()
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


class Verbs(typer.Typer):
    """A typer app whose verbs check their path options, and complete the names of bundled files."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": _Group, "pretty_exceptions_enable": False, "add_completion": False, **settings})

    def add(self, name: str, place: str, about: str, panel: str | None = None) -> None:
        """Register the verb, or the group of verbs, at `module:attribute`, with its line in the program's help."""
        unloaded: type[TyperCommand] = type("_Unloaded", (_Unloaded,), {"place": place})
        super().command(name, cls=unloaded, help=about, rich_help_panel=panel)(lambda: None)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        register = super().command(name, cls=_Verb, **{"context_settings": HELP, **settings})

        def add(verb: F) -> F:
            from core.paths import prepare  # help does not need its imports

            prepare(verb)
            register(verb)
            return verb

        return add


def program(about: str, epilog: str | None = None) -> Verbs:
    """An app with -h, --version, --debug and completion, to which verbs are added."""
    app = Verbs(no_args_is_help=True, add_completion=True, context_settings=HELP, help=about, epilog=epilog)

    @app.callback()
    def options(
        shown: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
        ] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show the traceback if a library fails.")] = False,
    ) -> None:
        if debug:
            os.environ[DEBUG] = "1"

    return app


def _version(shown: bool) -> None:
    if shown:
        from importlib.metadata import PackageNotFoundError, version

        try:
            say(f"esc-eval {version('esc-eval')}")
        except PackageNotFoundError:
            say("esc-eval, not installed: run from its sources")
        raise typer.Exit
