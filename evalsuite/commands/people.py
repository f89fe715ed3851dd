"""`esc-eval people …`: studies in which people score or choose in the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from core.errors import UserError, need_modules
from core.files import read_yaml, write_jsonl
from core.options import SeedOption, choice, console
from core.paths import IN_FILE, MaybeFile, MaybeFiles, MaybeModels, MaybeName, OutFile, Reads, Writes
from core.records import Language
from core.rubrics import load_rubric
from core.tables import to_console
from core.verbs import Verbs
from data_prep.cards.sheets import read_sheet, write_csv
from data_prep.scores.weights import WEIGHTS
from evalsuite.commands.options import EndpointOption, endpoints_of
from evalsuite.commands.suggest import suggest_dialogues
from serve.launch import Servers
from serve.plan import plan_servers

if TYPE_CHECKING:
    from evalsuite.people.store import Store

DATABASE, CALLS, LINKS = "study.sqlite", "calls.sqlite", "links.csv"
LINK_COLUMNS = ("rater", "languages", "path")
IN_STUDY = Reads("folder", (f"{DATABASE}*", f"{CALLS}*"), made="`esc-eval people create {path}` makes a study")
app = Verbs(
    no_args_is_help=True,
    help="Studies in the browser: people score, choose or talk to supporters, by links of their own (extra `people`).",
)

app.command("suggest")(suggest_dialogues)

StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder."), IN_STUDY]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="ESC_EVAL_DATABASE",
        metavar="URL",
        help="PostgreSQL instead of SQLite in STUDY: postgresql+psycopg://USER@HOST/NAME, the same for every verb.",
    ),
]


@app.command("create")
def create(
    folder: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="Folder to make; its name is the study's."),
        Writes((f"{DATABASE}*", "links.csv")),
    ],
    config: Annotated[
        MaybeFile,
        typer.Option(
            "--config",
            help="A recipe of talks, as configs/people/emoharbor.yaml: how long they are, when they are rated, what people are "
            "asked about themselves. Without it, 3 to 15 exchanges, rated at the end.",
        ),
    ] = None,
    dialogues: Annotated[
        MaybeFiles,
        typer.Option(
            "--dialogues",
            help="Dialogue records (JSONL). Repeat for more. Beside what `people suggest` drew lie its weights: they are kept.",
        ),
    ] = None,
    rubric: Annotated[
        MaybeName,
        typer.Option("--rubric", help="Rate on this rubric (a name or a YAML file). Without it, people choose between two."),
    ] = None,
    per: Annotated[
        str, typer.Option("--per", help="What is rated: every dialogue, or every turn of who is rated.")
    ] = "dialogue",
    seeker: Annotated[
        list[str] | None,
        typer.Option(
            "--seeker",
            metavar="NAME=PLACE",
            help="Choose between seekers on one card or profile: a run folder or JSONL file each. Twice or more. (With "
            "--dialogues, the choice is between supporters.)",
        ),
        Reads("place", ("dialogues.jsonl", "cards.jsonl", "profiles.jsonl"), labelled=True),
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(
            "--question",
            metavar="NAME=TEXT",
            help="A question about the two; repeat for more. Default: which is better, or "
            "for seekers, which is more like a real person.",
        ),
    ] = None,
    supporter: Annotated[
        MaybeModels,
        typer.Option(
            "--supporter",
            metavar="MODEL",
            help="People talk to this model and rate it: a name in configs/models, a spec's YAML, or NAME@URL. Repeat for "
            "more: everybody talks to all of them, blind and in balanced orders.",
        ),
    ] = None,
    cards: Annotated[
        MaybeFiles, typer.Option("--cards", help="Role cards: shown where the seeker is rated, played by who talks. Repeat.")
    ] = None,
    profiles: Annotated[
        MaybeFiles, typer.Option("--profiles", help="Profiles: shown where the seeker is rated, played by who talks. Repeat.")
    ] = None,
    raters: Annotated[int, typer.Option("--raters", min=0, help="How many raters, who read every language of the study.")] = 0,
    rater: Annotated[
        list[str] | None,
        typer.Option(
            "--rater", metavar="CODE=en,zh", help="A rater by a code of your own, and what they read. Repeat for more."
        ),
    ] = None,
    reviewers: Annotated[
        int,
        typer.Option(
            "--reviewers",
            min=0,
            help="People who decide where raters of a dialogue lie more than a point apart: their page fills as raters submit.",
        ),
    ] = 0,
    second_round: Annotated[
        bool,
        typer.Option(
            "--second-round",
            help="Once all have submitted, whoever's score stands out scores again, and what is contested otherwise is "
            "reviewed jointly (FEEL, section 3.2).",
        ),
    ] = False,
    overlap: Annotated[int, typer.Option("--overlap", min=1, help="How many people see each item.")] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=0, help="Items that each rater sees again, unannounced.")] = 0,
    checks: Annotated[
        MaybeFile,
        typer.Option(
            "--checks",
            help="Attention checks: HumanScore records (CSV or JSONL) of some of the dialogues with the score that whoever "
            "reads them gives. Every rater sees them; they are reported and not exported as scores.",
        ),
    ] = None,
    thoughts: Annotated[
        bool, typer.Option("--thoughts", help="Show what seekers thought, where the dialogues have it.")
    ] = False,
    consent: Annotated[MaybeFile, typer.Option("--consent", help="Text that a rater has to agree to first (UTF-8).")] = None,
    seed: SeedOption = 0,
    database: DatabaseOption = None,
) -> None:
    """Make a study: who sees what is drawn now, and every rater gets a link.

    The links and the organiser's key are written to STUDY/links.csv and are nowhere else: the database holds only their
    hashes. Raters see neither models nor who else rates; each has an order of their own. Example:

    esc-eval people create studies/first --dialogues runs/demo/dialogues.jsonl --rubric esc_eval_human --raters 4 --overlap 2
    """
    _need()
    from evalsuite.commands import people_inputs as inputs
    from evalsuite.people.assignment import assign, assign_talks

    recipe = inputs.Recipe() if config is None else read_yaml(config, inputs.Recipe, "recipe of talks")
    rubric, supporter = rubric or recipe.rubric, supporter or list(recipe.supporters)
    rules = None if rubric is None else load_rubric(rubric)
    agreed = {} if consent is None else dict.fromkeys(get_args(Language), inputs.consent_text(consent))
    shared = {"name": folder.resolve().name, "overlap": overlap, "repeats": repeats, "seed": seed, "consent": agreed}
    talks = None
    if supporter:
        items, talks = inputs.what_is_talked_to(supporter, rules, cards, profiles, dialogues, checks, consent)
        chat = recipe.model_dump(exclude={"rubric"}) | {"supporters": talks}
        if items and recipe.questionnaire:
            raise UserError(f"--config {config}: people are asked who they are: leave out --cards and --profiles")
        definition: dict[str, object] = {"kind": "chat", "rubric": rules, "chat": chat}
    elif rules is not None:
        if seeker or question:
            raise UserError("--rubric: dialogues are rated, or two of them compared: leave out --seeker and --question")
        if checks and per == "turn":
            raise UserError("--checks: the known scores are of whole dialogues: leave them out, or leave out --per turn")
        items, expected = inputs.what_is_rated(dialogues or [], rules, rubric or "", cards, profiles, checks)
        definition = {"kind": "rate", "rubric": rules, "per": choice("--per", per, ("dialogue", "turn")), "expected": expected}
        definition["weights"] = inputs.weights_of(dialogues or [], items)
    else:
        if checks or per != "dialogue":
            raise UserError("--checks, --per: they belong to ratings: give --rubric, or leave them out")
        items, asked = inputs.what_is_compared(dialogues or [], seeker or [], question or [], cards or [], profiles or [])
        definition = {"kind": "choose", "questions": asked}
    if second_round and reviewers:
        raise UserError("--second-round, --reviewers: either the raters score again, or reviewers decide: leave out one")
    study = inputs.valid_study(shared | definition | {"thoughts": thoughts, "second_round": second_round})
    spoken = [item.language for item, _ in items] or (list(rules.languages) if rules else [])
    people = inputs.raters_of(raters, rater or [], spoken)
    shown = [item for item, _ in items]
    if talks:
        tasks = assign_talks(people, [spec.name for spec in talks], shown, seed, bool(study.asks))
    else:
        tasks = assign(shown, people, overlap, repeats, seed)
    if reviewers and (study.kind != "rate" or study.per != "dialogue"):
        raise UserError("--reviewers: they decide about scores of whole dialogues: leave it out here")
    seconds = inputs.raters_of(reviewers, [], spoken, "reviewer") if reviewers else []
    with _store(folder, database, make=True) as store:
        key, tokens = store.create(study, items, people, tasks, seconds)
    rows = [{"rater": "organiser", "languages": "", "path": f"/o/{key}"}]
    rows += [{"rater": p.code, "languages": ",".join(p.languages), "path": f"/r/{tokens[p.code]}"} for p in (*people, *seconds)]
    links = folder / LINKS
    links.touch(0o600)
    write_csv(links, LINK_COLUMNS, rows)
    links.chmod(0o600)
    console.print(f"{study.name}: {len(items)} items, {len(people)} raters, {len(tasks)} tasks")
    if study.weights:
        console.print("drawn by `people suggest`: the export has the weights; have all of them scored")
    console.print(f"links: {links} (put the server's address before each; they are secrets)", soft_wrap=True)
    console.print(f"next: esc-eval people serve {folder}", soft_wrap=True)


@app.command("serve")
def serve(
    folder: StudyArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback only unless you say otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="A host name by which raters reach the server. Repeat for more."),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Cookies over HTTPS only: for a server behind a proxy that speaks HTTPS.")
    ] = False,
    endpoint: EndpointOption = None,
    database: DatabaseOption = None,
) -> None:
    """Serve a study until you stop it (Ctrl-C). It may be stopped and started at any time: every saved answer is on the disk.

    Beyond this machine, put a proxy with HTTPS before it (docs/people.md) and give --name and --secure.
    """
    _need()
    import uvicorn

    from evalsuite.people.guard import WholeRequests
    from evalsuite.people.server import LOOPBACK, create_app

    if host not in LOOPBACK and not name:
        raise UserError(f"--host {host}: say by which name raters reach the server, too: --name HOST")
    from evalsuite.people.keeping import in_use

    # Two servers on one SQLite file would take turns, and a restore would leave one of them with the old file.
    alone = in_use(folder) if database is None else nullcontext()
    with alone, _store(folder, database) as store, ExitStack() as servers:
        chat, endpoints = store.study().chat, endpoints_of(endpoint)
        if chat is not None:
            missing = [one for one in chat.supporters if one.name not in endpoints and one.endpoint.base_url is None]
            if missing:
                endpoints |= servers.enter_context(Servers(plan_servers(missing, folder / "logs"))).endpoints
        calls = folder / CALLS if chat is not None else None
        app = create_app(store, LOOPBACK | {one.lower() for one in name or []} | {host}, secure, calls, endpoints)
        console.print(f"study {store.name}: http://{host}:{port}, links in {folder / 'links.csv'}", soft_wrap=True)
        uvicorn.run(
            app,
            host=host,
            port=port,
            http=WholeRequests,
            # Nobody else's word counts on where a request is from; a proxy is named so.
            forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
            log_level="warning",
            access_log=False,  # links are secrets
            server_header=False,
            timeout_graceful_shutdown=5,
        )


@app.command("status")
def status(folder: StudyArgument, database: DatabaseOption = None) -> None:
    """How far every rater is, attention checks, repeated items, and agreement so far."""
    _need()
    from evalsuite.people.progress import progress

    with _store(folder, database) as store:
        for table in progress(store).tables():
            to_console(table, console)


@app.command("export")
def export(
    folder: StudyArgument,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the records."),
        Writes(
            (
                "dialogues.jsonl",
                "scores.jsonl",
                "scores.csv",
                "final.jsonl",
                "accepted.jsonl",
                "preferences.jsonl",
                "choices.csv",
                "control.csv",
                "profiles.jsonl",
                "moods.csv",
                "comments.csv",
                WEIGHTS,
            )
        ),
    ],
    without_comments: Annotated[bool, typer.Option("--without-comments", help="Leave comments out.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also answers of dialogues that are not submitted yet.")
    ] = False,
    database: DatabaseOption = None,
) -> None:
    """What people gave, as records: `agree` and `leaderboard` read scores.jsonl, `paper pairwise` preferences.jsonl and
    choices.csv.

    After a second round, final.jsonl holds everybody's score then, and accepted.jsonl the means; scores.jsonl stays the
    first round's. Where there are reviewers, accepted.jsonl holds their score where raters lie more than a point apart, else
    the raters' mean.
    profiles.jsonl (for `esc-eval run --set profiles=…`) and moods.csv are there where people told of themselves.
    weights.csv is there where `people suggest` drew the dialogues: `leaderboard --people` weighs the scores beside it by it.
    control.csv holds repeated items, attention checks, reviews and what could not be judged: none of it is among the scores.
    """
    _need()
    from evalsuite.people.export import write_export
    from evalsuite.people.review import final_scores, settled

    with _store(folder, database) as store:
        for file, rows in write_export(store, out, not without_comments, not unfinished).items():
            console.print(f"{out / file}: {rows}", soft_wrap=True)
        if store.study().second_round:
            final = final_scores(store)
            for file, scores in (("final.jsonl", final.scores), ("accepted.jsonl", final.accepted)):
                console.print(f"{out / file}: {write_jsonl(out / file, scores)}", soft_wrap=True)
            if final.waiting:
                console.print(f"{len(final.waiting)} scores wait for the second round and are not accepted yet")
            if final.still_apart:
                console.print(f"{len(final.still_apart)} scores still lie more than a point apart; their mean is accepted")
        if any(row.reviewer for row in store.raters()):
            reviewed = settled(store)
            console.print(f"{out / 'accepted.jsonl'}: {write_jsonl(out / 'accepted.jsonl', reviewed.accepted)}", soft_wrap=True)
            if reviewed.waiting:
                waiting = sum(map(len, reviewed.waiting.values()))
                console.print(f"{waiting} scores wait for a reviewer and are not accepted yet")


@app.command("backup")
def backup(
    folder: StudyArgument,
    to: Annotated[OutFile, typer.Option("--to", help="File to write; the study may be in use.")],
    database: DatabaseOption = None,
) -> None:
    """Write a study's database to one closed file that only you can read, also while people work."""
    _need()
    from evalsuite.people.keeping import backup as write_backup

    if database:
        raise UserError("--database: PostgreSQL has a tool for this: pg_dump")
    with _store(folder, None) as store:
        if to.exists():
            raise UserError(f"--to {to}: exists already: choose another name")
        to.parent.mkdir(parents=True, exist_ok=True)
        write_backup(store, to)
    console.print(f"{to}: {to.stat().st_size:,} bytes", soft_wrap=True)


@app.command("restore")
def restore(
    folder: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="The study's folder; a new one is made."),
        Writes((f"{DATABASE}*",)),
    ],
    source: Annotated[Path, typer.Option("--from", metavar="FILE", help="A file that `people backup` wrote."), IN_FILE],
    database: DatabaseOption = None,
) -> None:
    """Put a backup in the place of a study's database. Stop its server first.

    The backup is verified before anything changes, and what is there now is kept in STUDY/before-restore-N. Whoever withdrew
    since the backup was made is removed from it again. If this is cut short, run it again.
    """
    _need()
    from evalsuite.people.keeping import restore as put_back

    if database:
        raise UserError("--database: PostgreSQL has tools for this: pg_restore, psql")
    held, aside, withdrawn = put_back(folder, source)
    console.print(f"restored: {held}", soft_wrap=True)
    if aside:
        console.print(f"what was there before: {aside}", soft_wrap=True)
    for code in withdrawn:
        console.print(f"{code} withdrew after this backup was made: their answers are removed from it again")
    if not (folder / LINKS).exists():
        console.print(f"{LINKS} is not here: links that were sent still work; if the organiser's is lost, so is that page")


@app.command("delete")
def delete(
    folder: StudyArgument,
    rater: Annotated[
        str | None,
        typer.Option("--rater", metavar="CODE", help="Delete only what this participant gave, who withdraws from the study."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
    database: DatabaseOption = None,
) -> None:
    """Delete a study: its answers, comments, raters and links; or, with --rater, one participant's.

    Of somebody who withdraws, answers, talks, profile, link and sessions go, and a note that they withdrew stays. Exports and
    backups that you made before are yours to delete.
    """
    _need()
    from evalsuite.people.keeping import forget_replies, withdraw

    if not yes:
        raise UserError(f"{folder}: what {rater or 'everybody'} gave is deleted for good: say --yes")
    with _store(folder, database) as store:
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
            console.print(f"kept by restores, and still with what {rater} gave: {', '.join(kept)}", soft_wrap=True)
        return
    for file in [*folder.glob(f"{DATABASE}*"), *folder.glob(f"{CALLS}*"), folder / LINKS, folder / ".in-use"]:
        file.unlink(missing_ok=True)
    for made in [folder / "logs", *folder.glob("before-restore-*")]:
        shutil.rmtree(made, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    console.print(f"{folder}: deleted", soft_wrap=True)


def _need() -> None:
    need_modules("fastapi", "uvicorn", "sqlalchemy", purpose="studies in the browser")


@contextmanager
def _store(folder: Path, database: str | None, make: bool = False) -> Iterator[Store]:
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    from evalsuite.people.store import Store, redacted

    if make:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # the links are in it; a folder that was there keeps its mode
    own = database is None
    if database is None:
        if make:
            (folder / DATABASE).touch(0o600)
        if not make and not (folder / DATABASE).exists():
            raise UserError(
                f"{folder}: no study in it: `esc-eval people create {folder}` makes one, `esc-eval people restore {folder} "
                "--from FILE` puts a backup there (also where a restore was cut short); or give its --database"
            )
        database = f"sqlite:///{folder / DATABASE}"
    try:
        with closing(Store(database, folder.resolve().name)) as store:
            if not make and own and len(names := store.names()) == 1:
                store.name = names[0]  # the folder may have been renamed
            yield store
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UserError(f"--database: not a URL of a database that can be used: {error}") from None
    except SQLAlchemyError as error:
        raise UserError(f"{redacted(database)}: {getattr(error, 'orig', None) or error}") from None
