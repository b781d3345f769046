"""What a person sees of a running generation: a live panel, plain lines elsewhere, Prometheus on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from synthgen.corpus.console import PLAIN_SECONDS, console
from synthgen.errors import ConfigError
from synthgen.generate.pool import Pool
from synthgen.generate.tally import Tally

METRICS_HOST = "127.0.0.1"


class Panel:
    """Shows a tally and a pool, used as `with Panel(…) as panel`."""

    def __init__(self, tally: Tally, pool: Pool, metrics_port: int | None) -> None:
        self._tally = tally
        self._pool = pool
        self._metrics_port = metrics_port
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._last_line = time.monotonic()
        self._said_stopping = False

    def __enter__(self) -> Self:
        if self._metrics_port is not None:
            self._server, self._thread = _serve_metrics(self._tally, self._pool, self._metrics_port)
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(self._table())
            self._live.stop()
        else:
            self._print()
        if self._metrics_port is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def show(self) -> None:
        """Show the counts as they are now."""
        if self._live:
            self._live.update(self._table())
        elif (
            time.monotonic() - self._last_line >= PLAIN_SECONDS or self._tally.stopping > self._said_stopping
        ):
            self._last_line = time.monotonic()
            self._said_stopping = self._tally.stopping
            self._print()

    def _print(self) -> None:
        cells = " | ".join(f"{name} {value}" for name, value in self._cells())
        console.print(f"generate: {self._tally.done}/{self._tally.wanted} | {cells}", soft_wrap=True)

    def _table(self) -> Table:
        tally = self._tally
        table = Table.grid(padding=(0, 2))
        table.add_row("generate", ProgressBar(total=max(tally.wanted, 1), completed=tally.done, width=48))
        table.add_row("rows", f"{tally.done:,} of {tally.wanted:,}")
        for name, value in self._cells():
            table.add_row(name, value)
        return table

    def _cells(self) -> list[tuple[str, str]]:
        tally, loads = self._tally, [e.load for e in self._pool.endpoints if e.load]
        cells = [
            ("tok/s", f"{tally.tokens_per_s:,.0f}"),
            ("in flight", f"{self._pool.in_flight} of {self._pool.limit}"),
        ]
        if loads:
            usage = max(load.kv_usage for load in loads)
            cells += [("waiting", f"{sum(load.waiting for load in loads):.0f}"), ("KV cache", f"{usage:.0%}")]
        cells.append(("cut", f"{tally.truncated / max(tally.traces, 1):.1%}"))
        if tally.failures:
            cells.append(("failed", ", ".join(f"{n} {kind}" for kind, n in sorted(tally.failures.items()))))
        if tally.retried:
            cells.append(("wasted by retries", f"{tally.tokens_wasted:,} tokens"))
        if tally.stopping:
            cells.append(("stopping", f"{self._pool.in_flight} replies to come, Ctrl-C again drops them"))
        if self._pool.down_since is not None:
            gone = time.monotonic() - self._pool.down_since
            cells.append(("server", f"gone for {gone:.0f} s, waiting for it"))
        if tally.seconds_left is not None:
            cells.append(("left", duration(tally.seconds_left)))
        return cells


def duration(seconds: float) -> str:
    """A time as people read it: 3725 is '1 h 2 min'."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _serve_metrics(tally: Tally, pool: Pool, port: int):  # type: ignore[no-untyped-def]  # its types are private
    registry = CollectorRegistry()
    figures: dict[str, tuple[str, Callable[[], float]]] = {
        "rows_wanted": ("Rows of this call.", lambda: tally.wanted),
        "rows_done": ("Rows that ended.", lambda: tally.done),
        "traces": ("Replies on disk.", lambda: tally.traces),
        "failures": ("Rows that failed.", lambda: sum(tally.failures.values())),
        "output_tokens": ("Output tokens on disk.", lambda: tally.tokens),
        "truncated": ("Replies cut by their budget.", lambda: tally.truncated),
        "in_flight": ("Requests in flight.", lambda: pool.in_flight),
        "limit": ("Requests allowed in flight.", lambda: pool.limit),
        "retried": ("Tries beyond the first.", lambda: tally.retried),
    }
    for name, (text, read) in figures.items():
        Gauge(f"synthgen_{name}", text, registry=registry).set_function(read)
    try:
        return start_http_server(port, addr=METRICS_HOST, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"generate.metrics_port {port} of {METRICS_HOST} can't be used: {error.strerror}: set it to a "
            f"free port, or to null"
        ) from error
