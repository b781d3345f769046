"""`synthgen`: serve a model, generate a corpus from it, run the whole line."""

from __future__ import annotations

import typer

from synthgen.commands import dataset, generate, run, serve

app = typer.Typer(
    help="Synthetic data from a live inference server, feeding EAGLE-3 draft training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(serve.serve)
app.command()(generate.prompts)
app.command()(generate.generate)
app.command()(dataset.screen)
app.command("mock-server")(serve.mock_server)
app.command()(run.plan)
app.command()(run.run)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
