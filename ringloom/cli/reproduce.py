"""Compare published tables and claims with our predictions.

Example:
  ringloom reproduce striped
"""

from typing import Any

import click

from ringloom.cli.output import csv_option, progress, show, working
from ringloom.reproduce import pages, validation
from ringloom.reproduce.measured import measured
from ringloom.reproduce.papers import PAPERS, distflash, striped
from ringloom.reproduce.papers.striped import CONSTANTS
from ringloom.reproduce.tables import Table
from ringloom.views.tables import faint


@click.command()
@click.argument("paper", type=click.Choice([*PAPERS, "all"]), default="all")
@click.option(
    "--rows",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="striped: predict the rows of a CSV file with the columns of the paper's table.",
)
@click.option(
    *("--validate", "own_rows"),
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="Compare predictions with your own measurements in a CSV file.",
)
@click.option(
    "--fit", "fitting", is_flag=True, help="striped, distflash: refit the constants and print them."
)
@csv_option
def command(paper: str, rows: str | None, own_rows: str | None, fitting: bool) -> None:
    if rows and paper != "striped":
        raise click.UsageError(f"--rows is only available for striped, not {paper}")
    if own_rows:
        if rows or fitting or paper != "all":
            raise click.UsageError("--validate cannot be combined with other arguments")
        _judge(own_rows)
    elif fitting:
        _refit(paper, rows)
    elif paper == "striped":
        with working("reproducing"):
            judged = striped.predict_rows(rows) if rows else striped.predict_rows()
            shown = [
                *striped.tables(judged),
                *([] if rows else [striped.skipped_tiles(), striped.missing_results()]),
            ]
        document = striped.as_json(judged) | {"tables": [table.as_dict() for table in shown]}
        show(document, *pages.pages(shown), rows=_rows(shown))
    else:
        chosen = PAPERS if paper == "all" else {paper: PAPERS[paper]}
        shown = [table for name in progress(chosen, "reproducing") for table in chosen[name]()]
        pictures = pages.pages(shown) if paper != "all" else pages.overview(shown)
        show({"tables": [table.as_dict() for table in shown]}, *pictures, rows=_rows(shown))


def _rows(tables: list[Table]) -> list[dict[str, Any]]:
    return [{"table": table.title} | row for table in tables for row in table.as_dict()["rows"]]


def _judge(path: str) -> None:
    with working("judging"):
        given = measured(path, use="blind")
        document, shown = validation.as_json(given), validation.tables(given)
    show(document, *pages.pages(shown), rows=document["rows"])


def _refit(paper: str, rows: str | None) -> None:
    if paper == "striped":
        with working("fitting"):
            fits = striped.fit_chips(striped.predict_rows(rows) if rows else striped.predict_rows())
        note = faint(
            "mean, worst: errors on the fitted rows; left out: mean error of rows, each predicted"
            " by a fit to all others; halves: mean error of each half by a fit to the other half"
        )
        document = {"constants": {name: fit.as_dict(CONSTANTS) for name, fit in fits.items()}}
        show(document, pages.fit_table(fits), note)
    elif paper == "distflash":
        attention, matrix = distflash.refit().tolist()
        constants = {"attention": attention, "matrix": matrix}
        text = "\n".join(f"{name} {value:.4g}" for name, value in constants.items())
        show({"constants": constants}, text, "fitted to the one-node rows only")
    else:
        raise click.UsageError(f"--fit is only available for striped and distflash, not {paper}")
