"""`esc-eval people …`: studies in which people score or choose in the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from core.endpoints import url_problem
from core.errors import UserError, need_modules
from core.options import console
from core.paths import MaybeFile, MaybeOutFile, Reads, Writes
from core.tables import to_console
from core.verbs import Verbs
from data_prep.cards.sheets import read_sheet, write_csv
from data_prep.scores.annotation import WEIGHTS
from serve.launch import Servers
from serve.plan import plan_servers

if TYPE_CHECKING:
    from evalsuite.people.store import StudyStore

DATABASE, CALLS, LINKS = "study.sqlite", "calls.sqlite", "links.csv"
URL = "ESC_EVAL_DATABASE"  # the URL of a PostgreSQL database to use instead of the file
LINK_COLUMNS = ("rater", "languages", "path")
RECORDS = (  # of `people results --out`
    *("dialogues.jsonl", "scores.jsonl", "scores.csv", "final.jsonl", "accepted.jsonl", "preferences.jsonl", "choices.csv"),
    *("control.csv", "profiles.jsonl", "moods.csv", "comments.csv", WEIGHTS),
)
IN_STUDY = Reads("folder", (f"{DATABASE}*", f"{CALLS}*"), made="`esc-eval people create {path}` makes a study")
app = Verbs(
    no_args_is_help=True,
    help="Studies in the browser: people score, choose or talk to supporters, by links of their own (extra `people`).\n\n"
    f"A study is one SQLite file in its folder, or in PostgreSQL if {URL} is set (postgresql+psycopg://USER@HOST/NAME).",
)
for name, verb, about in (
    ("suggest", "suggest_dialogues", "Draw the dialogues that people should rate next."),
    ("create", "create", "Make a study: assign items, and make a link per rater."),
):
    app.add(name, f"evalsuite.people.commands.people_create:{verb}", about)

StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder."), IN_STUDY]


@app.command("serve")
def serve(
    folder: StudyArgument,
    host: Annotated[str, typer.Option(help="Address to listen on. Default: loopback only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    url: Annotated[
        str | None, typer.Option(help="URL at which raters reach the server. With https, cookies go over HTTPS only.")
    ] = None,
) -> None:
    """Serve a study until you stop it (Ctrl-C). It may be stopped and started at any time: every saved answer is on the disk.

    To serve other machines, put an HTTPS proxy in front of it (docs/people.md) and give its --url.
    """
    need_people()
    import uvicorn

    from evalsuite.people.guard import WholeRequests
    from evalsuite.people.keeping import in_use
    from evalsuite.people.server import LOOPBACK, create_app

    if url is not None and (problem := url_problem(url)):
        raise UserError(f"--url {url}: {problem}")
    if host not in LOOPBACK and url is None:
        raise UserError(f"--host {host}: also say where raters reach the server: --url https://NAME")
    # Two servers would take turns with one SQLite file, and after a restore one of them would still use the old file.
    lock = nullcontext() if os.environ.get(URL) else in_use(folder)
    with lock, opened(folder) as store, ExitStack() as servers:
        chat, endpoints = store.study().chat, dict[str, str]()
        if chat is not None and (missing := [spec for spec in chat.supporters if spec.endpoint.base_url is None]):
            endpoints = servers.enter_context(Servers(plan_servers(missing, folder / "logs"))).endpoints
        calls = folder / CALLS if chat is not None else None
        address = urlsplit((url or "").lower())
        hosts = LOOPBACK | {address.hostname or host, host}
        app = create_app(store, hosts, address.scheme == "https", calls, endpoints)
        console.print(f"study {store.name}: http://{host}:{port}, links in {folder / 'links.csv'}", soft_wrap=True)
        uvicorn.run(
            app,
            host=host,
            port=port,
            http=WholeRequests,
            # By default, no proxy is trusted to say where a request comes from.
            forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
            log_level="warning",
            access_log=False,  # links are secrets
            server_header=False,
            timeout_graceful_shutdown=5,
        )


@app.command("results")
def results(
    folder: StudyArgument,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the answers as records to this folder."), Writes(RECORDS)
    ] = None,
    without_comments: Annotated[bool, typer.Option("--without-comments", help="Leave comments out.")] = False,
) -> None:
    """Show raters' progress, attention checks, repeated items and agreement so far; with --out, write the answers as records.

    `agree` and `leaderboard` read OUT/scores.jsonl, `paper role-play` preferences.jsonl and choices.csv. accepted.jsonl has the
    scores after reviews or a second round, whose own scores are in final.jsonl; control.csv has repeated items, attention
    checks, reviews and answers "cannot judge", which are not among the scores.
    """
    need_people()
    from evalsuite.people.results import progress, write_export

    with opened(folder) as store:
        if out is None:
            for table in progress(store)[1]:
                to_console(table, console)
            return
        written, notes = write_export(store, out, not without_comments)
        for line in (*(f"{out / file}: {rows}" for file, rows in written.items()), *notes):
            console.print(line, soft_wrap=True)


@app.command("backup")
def backup(
    folder: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="The study's folder; a new one can be given with --restore."),
        Writes((f"{DATABASE}*",)),
    ],
    to: Annotated[MaybeOutFile, typer.Option(help="File to write; the study may be in use.")] = None,
    restore: Annotated[
        MaybeFile, typer.Option(metavar="FILE", help="Restore a file written with --to; stop the server first.")
    ] = None,
) -> None:
    """Back up a study's database to one closed file that only you can read, also while people work; or restore such a file.

    The present database is kept in STUDY/before-restore-N. Those who withdrew since the backup was made are removed from it
    again. If a restore is interrupted, run it again.
    """
    need_people()
    from evalsuite.people import keeping

    if os.environ.get(URL):
        raise UserError(f"{URL}: PostgreSQL has tools for this: pg_dump, pg_restore")
    if (to is None) == (restore is None):
        raise UserError("give --to FILE to write a backup, or --restore FILE to restore one")
    if to is not None:
        with opened(folder) as store:
            if to.exists():
                raise UserError(f"--to {to}: exists already: choose another name")
            to.parent.mkdir(parents=True, exist_ok=True)
            keeping.backup(store, to)
        console.print(f"{to}: {to.stat().st_size:,} bytes", soft_wrap=True)
    if restore is not None:
        contents, aside, withdrawn = keeping.restore(folder, restore)
        counts = f"{contents.raters} raters, {contents.tasks} tasks, {contents.answers} answers"
        console.print(f"restored: study {contents.name}, {counts}", soft_wrap=True)
        if aside:
            console.print(f"the former database: {aside}", soft_wrap=True)
        for code in withdrawn:
            console.print(f"{code} withdrew after this backup was made: their answers are removed from it again")
        if not (folder / LINKS).exists():
            console.print(f"{LINKS} is not here: sent links still work, but without the organiser's link its page is lost")


@app.command("delete")
def delete(
    folder: StudyArgument,
    rater: Annotated[
        str | None,
        typer.Option("--rater", metavar="CODE", help="Delete only the data of this participant, who withdraws from the study."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
) -> None:
    """Delete a study; or, with --rater, one participant's answers, talks, profile, link and sessions: a note that they withdrew
    is kept. Earlier exports and backups are yours to delete."""
    need_people()
    from evalsuite.people.keeping import forget_replies, withdraw

    if not yes:
        raise UserError(f"{folder}: this deletes the data of {rater or 'everybody'} for good: confirm with --yes")
    with opened(folder) as store:
        store.study()
        if rater is None:
            store.delete()
        else:
            answers = withdraw(store, rater)
    if rater is not None:
        forget_replies(folder / CALLS)
        if (links := folder / LINKS).exists():
            rows = [row.cells for row in read_sheet(links, "links", LINK_COLUMNS)]
            write_csv(links, LINK_COLUMNS, [row for row in rows if row["rater"] != rater])
            links.chmod(0o600)
        console.print(f"{rater}: {answers} answers, talks, link and sessions deleted")
        if kept := sorted(path.name for path in folder.glob("before-restore-*")):
            console.print(f"kept by restores, and still with the data of {rater}: {', '.join(kept)}", soft_wrap=True)
        return
    for file in [*folder.glob(f"{DATABASE}*"), *folder.glob(f"{CALLS}*"), folder / LINKS, folder / ".in-use"]:
        file.unlink(missing_ok=True)
    for subfolder in [folder / "logs", *folder.glob("before-restore-*")]:
        shutil.rmtree(subfolder, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    console.print(f"{folder}: deleted", soft_wrap=True)


def need_people() -> None:
    """Raise `UserError` if the packages for studies are not installed."""
    need_modules("fastapi", "uvicorn", "sqlalchemy", purpose="studies in the browser")


@contextmanager
def opened(folder: Path, make: bool = False) -> Iterator[StudyStore]:
    """A study's database: the file in its folder, or `ESC_EVAL_DATABASE`. Raises `UserError` if there is none."""
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    from evalsuite.people.store import StudyStore, redacted

    if make:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # private, for the links; an existing folder keeps its mode
    database = os.environ.get(URL)
    in_file = not database
    if not database:
        if make:
            (folder / DATABASE).touch(0o600)
        elif not (folder / DATABASE).exists():
            place = quote(str(folder))
            raise UserError(
                f"{folder}: no study in it: `esc-eval people create {place}` makes one, `esc-eval people backup {place} "
                f"--restore FILE` restores a backup (also after an interruption); or set {URL} if it is in PostgreSQL"
            )
        database = f"sqlite:///{folder / DATABASE}"
    try:
        with closing(StudyStore(database, folder.resolve().name)) as store:
            if not make and in_file and len(names := store.names()) == 1:
                store.name = names[0]  # the folder may have been renamed
            yield store
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UserError(f"{URL}: not the URL of a usable database: {error}") from None
    except SQLAlchemyError as error:
        raise UserError(f"{redacted(database)}: {getattr(error, 'orig', None) or error}") from None
