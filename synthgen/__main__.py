"""`synthgen`: serve a model, generate a corpus from it, run the whole line."""

from __future__ import annotations

import typer

from synthgen.commands import dataset, doctor, export, generate, render, report, run, serve

app = typer.Typer(
    help="Synthetic data from a live inference server, feeding EAGLE-3 draft training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(doctor.doctor)
app.command()(serve.serve)
app.command()(generate.prompts)
app.command()(generate.generate)
app.command()(dataset.screen)
app.command()(render.render)
app.command()(dataset.mix)
app.command()(render.audit)
app.command("mock-server")(serve.mock_server)
app.command()(export.export)
app.command()(run.plan)
app.command()(run.run)
app.command()(report.show)
app.command()(report.report)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
