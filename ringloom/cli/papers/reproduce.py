"""Compare published tables and claims with predictions.

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
    help="striped: predict the rows of a CSV file that has the columns of the paper's table.",
)
@click.option(
    *("--validate", "own_rows"),
    type=click.Path(exists=True, dir_okay=False, readable=True),
    help="Compare predictions with your own measurements in a CSV file.",
)
@click.option(
    *("--fit", "refit"),
    is_flag=True,
    help="striped, distflash: fit the constants again and print them.",
)
@csv_option
def command(paper: str, rows: str | None, own_rows: str | None, refit: bool) -> None:
    if rows and paper != "striped":
        raise click.UsageError(f"--rows is only available for striped, not {paper}")
    if own_rows:
        if rows or refit or paper != "all":
            raise click.UsageError("--validate cannot be combined with other arguments")
        _validate(own_rows)
    elif refit:
        _refit(paper, rows)
    elif paper == "striped":
        with working("reproducing"):
            judged = striped.predict_rows(rows) if rows else striped.predict_rows()
            tables = [
                *striped.tables(judged),
                *([] if rows else [striped.skipped_tiles(), striped.missing_results()]),
            ]
        document = striped.as_json(judged) | {"tables": [table.as_dict() for table in tables]}
        show(document, *pages.pages(tables), rows=_rows(tables))
    else:
        papers = PAPERS if paper == "all" else {paper: PAPERS[paper]}
        tables = [table for name in progress(papers, "reproducing") for table in papers[name]()]
        pictures = pages.pages(tables) if paper != "all" else pages.overview(tables)
        show({"tables": [table.as_dict() for table in tables]}, *pictures, rows=_rows(tables))


def _rows(tables: list[Table]) -> list[dict[str, Any]]:
    return [{"table": table.title} | row for table in tables for row in table.as_dict()["rows"]]


def _validate(path: str) -> None:
    with working("validating"):
        measurements = measured(path, use="blind")
        document, tables = validation.as_json(measurements), validation.tables(measurements)
    show(document, *pages.pages(tables), rows=document["rows"])


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
        show({"constants": constants}, text, "fitted to the rows of one node only")
    else:
        raise click.UsageError(f"--fit is only available for striped and distflash, not {paper}")
