"""A report's tables and charts in Weights & Biases: optional, offline without a key (`wandb sync` sends it later)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.errors import clean, need_modules
from core.files import digest
from core.tables import spread
from core.third_party import offline_without_key
from evalsuite.report.figures import coloured
from evalsuite.report.report import ReportContent


def log_report(run: Path, content: ReportContent, say: Callable[[str], None]) -> None:
    """Log a report's tables, charts, summary figures and configuration as one wandb run; files go to RUN/wandb.

    Logging a run folder again goes on in the same wandb run. Raises `UserError` when wandb is not installed.
    """
    need_modules("wandb", purpose="logging to wandb")
    offline_without_key(say)
    import wandb
    from plotly.graph_objects import Figure

    session = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "esc-eval"),
        name=content.title,
        id=digest([str(run.absolute()), dict(content.config)], 12),
        resume="allow",
        dir=str(run),
        config={**content.config, "mode": content.mode, "framework": content.framework},
        notes="\n".join([*content.findings, *content.cautions]),
        # wandb's own metadata holds the command line, in which a URL may carry credentials.
        settings=wandb.Settings(silent=True, x_disable_meta=True),
    )
    try:
        logged: dict[str, Any] = {}
        for table in content.tables:
            columns, *rows = ([clean(cell) if isinstance(cell, str) else cell for cell in row] for row in spread(table))
            logged[f"tables/{table.key}"] = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        for chart in content.charts:
            title = {"text": f"{chart.title}<br><sub>{chart.caption}</sub>"}
            logged[f"charts/{chart.key}"] = wandb.Plotly(Figure(coloured(chart.figure)).update_layout(title=title))
        session.log(logged)
        for cell in content.tally.scores:
            session.summary[f"score/{cell.language}/{cell.scorer.name}/{cell.supporter}/{cell.dimension}"] = cell.estimate.mean
    finally:
        session.finish()
    say(f"wandb: {session.dir}")
